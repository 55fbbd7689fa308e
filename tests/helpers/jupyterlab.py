"""JupyterLab on a folder, as `make lab` starts it.

with lab(folder) as address:
    page.goto(f"{address}/lab?token={TOKEN}")
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CONFIG = ROOT / "book" / "jupyter"
TOKEN = "tests"
NO_WINDOW = '{"windowingMode": "none"}'  # JupyterLab draws all cells at once


@contextlib.contextmanager
def lab(folder, config=CONFIG, options=()):
    """JupyterLab on a folder, as `make lab` starts it but for its settings, which are this test's; the server's address."""
    own = folder.with_name(f"{folder.name}-own")
    settings = own / "settings" / "@jupyterlab" / "notebook-extension" / "tracker.jupyterlab-settings"
    settings.parent.mkdir(parents=True)
    settings.write_text(NO_WINDOW)
    places = dict(HOME=own, JUPYTER_CONFIG_DIR=own / "config", JUPYTER_DATA_DIR=own / "data", JUPYTER_RUNTIME_DIR=own / "run")
    places |= dict(JUPYTER_CONFIG_PATH=config, JUPYTERLAB_SETTINGS_DIR=own / "settings", JUPYTERLAB_WORKSPACES_DIR=own / "work")
    words = ["--no-browser", "--allow-root", "--ServerApp.port=0", f"--IdentityProvider.token={TOKEN}"]
    with open(own / "log", "w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyter", "lab", "--notebook-dir", folder, *words, *options],
            env=os.environ | {name: str(place) for name, place in places.items()},
            stdout=log,
            stderr=log,
        )
    try:
        yield _address(server, own)
    finally:
        server.terminate()
        server.wait()


def _address(server, own):
    until = time.monotonic() + 120
    while True:
        for path in (own / "run").glob("jpserver-*.json"):
            with contextlib.suppress(ValueError):  # half of it is written
                return f"http://127.0.0.1:{json.loads(path.read_text())['port']}"
        assert server.poll() is None and time.monotonic() < until, (own / "log").read_text()
        time.sleep(0.1)
