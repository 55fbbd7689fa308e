"""The hub's own configuration, and a service that may start and stop any learner's server: the tests."""

import os
from pathlib import Path

SERVER = Path(os.environ["RINGTREE_HUB"], "server", "jupyterhub_config.py")
load_subconfig(os.environ.get("RINGTREE_HUB_CONFIG", str(SERVER)))  # noqa: F821

c = get_config()  # noqa: F821
c.JupyterHub.services = [{"name": "tests", "api_token": os.environ["RINGTREE_HUB_TESTS"]}]
c.JupyterHub.load_roles += [
    {
        "name": "tests",
        "services": ["tests"],
        "scopes": ["admin:users", "admin:servers", "access:servers", "tokens", "list:users"],
    }
]
c.Authenticator.auth_refresh_age = 2
