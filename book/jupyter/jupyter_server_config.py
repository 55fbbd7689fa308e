"""A notebook that somebody else wrote cannot act for the reader who opens it.

jupyterlab-myst puts the address of an {iframe} into JupyterLab's page unchecked, even `javascript:` and even in a notebook that
is not trusted. Two layers stop this, and each works without the other:

- The page's Content-Security-Policy runs a script only if it carries the number that the server drew for this answer. Text,
  attributes, links and frames cannot carry it. It also refuses frames, except for the pages of the Help menu.
- `guard.js` runs before JupyterLab. It gives the number to scripts that other scripts create: JupyterLab's extensions, and the
  scripts in outputs that it trusts. It puts each new frame into an empty sandbox, and it stops links that do not lead to a page.
"""

import secrets
from pathlib import Path

from jupyter_server.base.handlers import AuthenticatedHandler
from jupyterlab_server.handlers import LabHandler

GUARD = Path(__file__).with_name("guard.js").read_text(encoding="utf-8")
HELP = (
    "jupyterlab.readthedocs.io jupyter.org commonmark.org docs.python.org ipython.readthedocs.io docs.scipy.org numpy.org "
    "matplotlib.org docs.sympy.org pandas.pydata.org"
)
# JupyterLab itself evaluates text in places. Blobs are what it frames and starts itself: PDF files, HTML files, workers.
POLICY = "; ".join([
    "script-src 'nonce-{}' 'unsafe-eval'",
    "worker-src 'self' blob:",
    f"frame-src blob: {' '.join(f'https://{host}' for host in HELP.split())}",
    "object-src blob:",
    "base-uri 'none'",
])
set_headers, write = AuthenticatedHandler.set_default_headers, AuthenticatedHandler.write


def set_default_headers(self):
    """Add the policy to every answer but files: the server gives these a sandbox without an origin."""
    set_headers(self)
    if "sandbox" not in self._headers.get("Content-Security-Policy", ""):
        self.nonce = secrets.token_urlsafe(16)
        self.add_header("Content-Security-Policy", POLICY.format(self.nonce))


def write_page(self, chunk):
    """Give the number to the scripts in a page's template, and put the guard before them."""
    if getattr(self, "runs_scripts", False) and isinstance(chunk, str):
        chunk = chunk.replace("<script", f"<script>{GUARD}</script><script", 1)
        chunk = chunk.replace("<script", f'<script nonce="{self.nonce}"')
    write(self, chunk)


AuthenticatedHandler.set_default_headers, AuthenticatedHandler.write = set_default_headers, write_page
LabHandler.runs_scripts = True

get_config().LabApp.extra_labextensions_path = [str(Path(__file__).with_name("labextensions"))]  # noqa: F821
