"""A learner's Jupyter server: what a link may bring, and what counts as work.

nbgitpuller clones whatever repository a link names to wherever it says. A neighbour's link, followed once, could so lay a
program where the learner's next server starts it: here a link brings the course into its folder, and nothing else. Then it
leads to a file of the course: all servers share one address, and `..` would lead to the neighbor's.

A page of JupyterLab asks for its kernels every few seconds as long as it is in view, and stores how it looks; jupyter_server
takes that for work, and the end of an idle kernel too. So GPUs would stay with whoever has left. Here work is what cells and
terminals do, and what changes a file, a kernel or a terminal.
"""

import os
import re

from jupyter_server.base.handlers import APIHandler
from jupyter_server.services.kernels.kernelmanager import MappingKernelManager
from nbgitpuller.handlers import SyncHandler, UIHandler
from tornado.web import HTTPError

ALLOWED = {"repo": os.environ["RINGTREE_COURSE"], "targetpath": "course"}
# Neither %2e nor a backslash nor a tab: a browser reads these as a dot, as a slash and as nothing.
WITHIN = re.compile(r"lab/tree/course(/(?!\.)[\w.-]+)*", re.ASCII)
pull, show = SyncHandler.get, UIHandler.get


def check(told):
    for name, value in ALLOWED.items():
        if told[name] != value:
            raise HTTPError(403, f"This link asks for {name}={told[name]:.200}, and on this hub a link brings {value} only.")


async def get(self):
    check({name: self.get_argument(name, "") for name in ALLOWED})
    await pull(self)


async def get_page(self):
    """The page that asks for the course and then goes where the link leads. Its names have two spellings."""
    told = {name: self.get_argument(name, "") for name in ("repo", "targetpath", "targetPath", "urlpath", "urlPath")}
    check({"repo": told["repo"], "targetpath": told["targetpath"] or told["targetPath"]})
    if not WITHIN.fullmatch(leads := told["urlpath"] or told["urlPath"]):
        raise HTTPError(
            403, f"This link leads to {leads[:200] or 'no page'}, and on this hub a link leads to lab/tree/course/… only."
        )
    await show(self)


SyncHandler.get, UIHandler.get = get, get_page
UIHandler.runs_scripts = True  # book/jupyter/jupyter_server_config.py lets no other page but JupyterLab's


note_activity, end_if_idle = APIHandler.update_api_activity, MappingKernelManager.cull_kernel_if_idle


def update_api_activity(self):
    of_the_server = self.request.path.startswith(f"{self.base_url}api/")  # JupyterLab's own are below lab/api/
    if of_the_server and self.request.method not in ("GET", "HEAD", "OPTIONS"):
        note_activity(self)


async def cull_kernel_if_idle(self, kernel_id):
    before = self.last_kernel_activity
    await end_if_idle(self, kernel_id)
    self.last_kernel_activity = before


APIHandler.update_api_activity, MappingKernelManager.cull_kernel_if_idle = update_api_activity, cull_kernel_if_idle
