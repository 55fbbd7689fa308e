"""The hub of one server with several GPUs.

What differs between servers comes from the environment (`make hub` writes it to /etc/ringtree-hub/environment).
"""

import os
import sys
from pathlib import Path
from pwd import getpwnam
from urllib.parse import quote

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import bounds
import callers
from allotments import Enclosed
from machine import cpus_offered, node_in
from members import MAY, Members

STATE = Path(os.environ["RINGTREE_HUB_STATE"])
PYTHON = Path(sys.executable).parent
HUB = f"http+unix://{quote(str(STATE / 'sockets' / 'hub.sock'), safe='')}"

c = get_config()  # noqa: F821

# ------------------------------------------------------------ who may log in
# The users of this system who are in one group. For another authenticator say another class in the file that is read
# last (below); each learner needs an account of the same name on the system.
c.JupyterHub.authenticator_class = Members
c.PAMAuthenticator.allowed_groups = {os.environ["RINGTREE_HUB_GROUP"]}
c.PAMAuthenticator.open_sessions = False
c.PAMAuthenticator.executor_threads = 128  # PAM holds one for some seconds where a password is wrong
# Whoever is in the first of these groups has the account of every learner. Whoever is in the second sees and stops servers.
c.PAMAuthenticator.admin_groups = {os.environ.get("RINGTREE_HUB_ADMINS") or "ringtree-admins"}
c.Members.assistant_groups = {os.environ.get("RINGTREE_HUB_ASSISTANTS") or "ringtree-assistants"}
c.Members.manage_groups = True
# The groups are looked up again before a request, at most this often in seconds, and their word holds for tokens too.
c.Authenticator.auth_refresh_age = 30
c.Authenticator.auth_refresh_strict = True
c.JupyterHub.load_roles = [MAY]
bounds.set_for_the_hub()
callers.trust(getpwnam(os.environ["RINGTREE_HUB_PROXY_GROUP"]).pw_uid)

# ------------------------------------------------------------ where it listens
c.JupyterHub.bind_url = os.environ["RINGTREE_HUB_ADDRESS"]
c.JupyterHub.hub_bind_url = c.JupyterHub.hub_connect_url = HUB
c.JupyterHub.hub_socket_mode = 0o666
c.JupyterHub.db_url = f"sqlite:///{STATE / 'private' / 'hub.sqlite'}"
c.JupyterHub.cookie_secret_file = str(STATE / "private" / "cookie-secret")
# Servers and proxy go on while the hub is restarted.
c.JupyterHub.cleanup_servers = False
c.JupyterHub.cleanup_proxy = False
c.ConfigurableHTTPProxy.should_start = False
# A proxy that was started again has no routes: the hub gives them back when it next looks, here every 10 seconds.
c.JupyterHub.last_activity_interval = 10
c.ConfigurableHTTPProxy.api_url = f"http+unix://{quote(str(STATE / 'proxy' / 'api.sock'), safe='')}"

# ------------------------------------------------------------ what a learner gets
c.JupyterHub.spawner_class = Enclosed
c.JupyterHub.concurrent_spawn_limit = 0
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 0}  # the place in the queue is shown at once
c.Allotment.groups = {os.environ["RINGTREE_HUB_GROUP"]}
c.Allotment.folders = str(STATE / "run")
c.Allotment.ends = str(STATE / "ends")
c.Enclosed.proxy_group = os.environ["RINGTREE_HUB_PROXY_GROUP"]
c.Allotment.most_hours = int(os.environ.get("RINGTREE_HUB_HOURS", 12))
node = node_in(os.environ["SLURM_CONF"])
shared = node.get("shared", 0)
c.Allotment.total_gpus = int(os.environ["RINGTREE_HUB_GPUS"]) - shared
c.Allotment.sharing = node.get("sharing", 0)
c.Allotment.total_parts = shared * c.Allotment.sharing
c.Allotment.req_gpu = "gpu:whole" if shared else "gpu"
c.Allotment.most_gib = int(os.environ.get("RINGTREE_HUB_GIB", max(64, node.get("RealMemory", 0) // 4096)))  # a quarter of it
alone, a_gpu = cpus_offered(node)
c.Allotment.req_cpus = int(os.environ.get("RINGTREE_HUB_CPUS", alone))
c.Allotment.req_cpus_a_gpu = float(os.environ.get("RINGTREE_HUB_CPUS_A_GPU", a_gpu))
c.Enclosed.wrapper = [str(HERE / "enclosed")]
# Whoever waits in the queue is starting, for the hub: a day is the longest queue.
c.Spawner.start_timeout = 24 * 3600
c.Spawner.http_timeout = 180
c.Spawner.poll_interval = 5
c.Spawner.default_url = "/lab"
c.Spawner.cmd = [str(PYTHON / "jupyterhub-singleuser")]
# An hour without work gives the GPUs back; a page that is merely open is no work.
IDLE = int(os.environ.get("RINGTREE_HUB_IDLE_SECONDS", 3600))
c.Spawner.args = [
    f"--MappingKernelManager.cull_idle_timeout={IDLE}",
    f"--MappingKernelManager.cull_interval={max(1, min(60, IDLE // 4))}",
    "--MappingKernelManager.cull_connected=True",
    f"--TerminalManager.cull_inactive_timeout={IDLE}",
    f"--ServerApp.shutdown_no_activity_timeout={IDLE}",
]
c.Spawner.environment = {
    "PATH": f"{PYTHON}:{HERE / 'for_nbgrader'}:/usr/local/bin:/usr/bin:/bin",
    "RINGTREE_HUB_STATE": str(STATE),
    "LANG": "C.UTF-8",
    "SLURM_CONF": os.environ["SLURM_CONF"],
    "JUPYTER_DEFAULT_PROVISIONER_NAME": "ringtree-unix-sockets",
    # nbgrader's menus are switched off; and jupyter_server_config.py lies beside this file.
    "JUPYTER_CONFIG_PATH": f"{PYTHON.parent.parent / 'jupyter'}:{HERE}:{HERE / 'for_nbgrader'}",
    # Who takes fewer GPUs than a lab has ranks uses them nevertheless.
    "RINGTREE_SHARE_GPUS": "1",
    "RINGTREE_COURSE": f"file://{STATE / 'course.git'}",
    "GIT_CONFIG_SYSTEM": str(STATE / "gitconfig"),
}

# ------------------------------------------------------------ what a learner sees
c.JupyterHub.template_paths = [str(HERE / "pages")]

# ------------------------------------------------------------ what an administrator says otherwise
# In a file of their own, which no upgrade writes to.
if Path(more := os.environ.get("RINGTREE_HUB_MORE", "")).is_file():
    load_subconfig(more)  # noqa: F821
