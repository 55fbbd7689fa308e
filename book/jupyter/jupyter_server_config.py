"""A notebook that somebody else wrote cannot act for the reader who opens it.

jupyterlab-myst puts the address of an {iframe} into JupyterLab's page unchecked, even `javascript:` and even in a notebook that
is not trusted. Two layers stop this, and each works without the other:

- The page's Content-Security-Policy runs a script only if it carries the number that the server drew for this answer. Text,
  attributes, links and frames cannot carry it. It also refuses frames, except for the pages of the Help menu.
- `guard.js` runs before JupyterLab. It gives the number to scripts that other scripts create: JupyterLab's extensions, and the
  scripts in outputs that it trusts. It puts each new frame into an empty sandbox, and it stops links that do not lead to a page.

The guard lets a script run that JupyterLab trusts, so JupyterLab must not trust what nobody here has made:

- jupyterlab-myst shows the stored result of an inline expression in any form, even in a notebook that is not trusted. A stored
  widget then shows its own outputs as trusted. So of these results only text and pictures reach the page.
- A notebook is signed as trusted when it is saved, if nbformat finds all its outputs harmless. It takes types of output that it
  does not know for harmless, and JupyterLab shows some of them. Here only printed text and errors are harmless.
"""

import secrets
from pathlib import Path

from jupyter_server.base.handlers import AuthenticatedHandler
from jupyter_server.services.contents.manager import ContentsManager
from jupyterlab_server.handlers import LabHandler
from nbformat.sign import NotebookNotary

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

EXPRESSIONS, HARMLESS_DATA, HARMLESS_OUTPUTS = (
    "user_expressions",
    ("text/plain", "image/png", "image/jpeg"),
    ("stream", "error"),
)
mark_trusted = ContentsManager.mark_trusted_cells


def mark_trusted_cells(self, nb, path=""):
    """Mark a notebook's cells when it is opened. If it is not trusted, keep of its inline expressions text and pictures."""
    if not self.notary.check_signature(nb):
        for cell in nb.cells:
            if EXPRESSIONS in cell.metadata:
                cell.metadata[EXPRESSIONS] = [*filter(None, map(harmless, as_list(cell.metadata[EXPRESSIONS])))]
    mark_trusted(self, nb, path)


def as_list(value):
    return value if isinstance(value, list) else []


def harmless(expression):
    """Return an inline expression and its stored result without rich data, or None if it has another form."""
    try:
        result = expression["result"]
        if result["status"] == "ok":
            data = {kind: result["data"][kind] for kind in HARMLESS_DATA if isinstance(result["data"].get(kind), str)}
            return {"expression": str(expression["expression"]), "result": {"status": "ok", "data": data, "metadata": {}}}
        told = {name: str(result[name]) for name in ("ename", "evalue")}
        told["traceback"] = [*map(str, as_list(result.get("traceback")))]
        return {"expression": str(expression["expression"]), "result": {"status": "error", **told}}
    except (AttributeError, KeyError, TypeError):
        return None


def check_cell(self, cell, version):
    """Return whether a code cell may be signed: the reader has run it, or it has no rich output."""
    return bool(cell["metadata"].pop("trusted", False)) or all(
        output["output_type"] in HARMLESS_OUTPUTS for output in cell["outputs"]
    )


ContentsManager.mark_trusted_cells, NotebookNotary._check_cell = mark_trusted_cells, check_cell

get_config().LabApp.extra_labextensions_path = [str(Path(__file__).with_name("labextensions"))]  # noqa: F821
