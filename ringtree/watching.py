"""Whether a person watches, in a notebook or at a terminal; and what is shown to them: a line that changes, text without colors."""

from __future__ import annotations

import re
import sys

__all__ = ["COLORS", "Line", "notebook_is_watched", "readers_shell", "shell", "without_colors"]

# What a terminal does not print: colors and other styles, and links.
COLORS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?)")


def without_colors(text: str) -> str:
    return COLORS.sub("", text)


def shell():
    """Return IPython's shell in this process, or None. It does not import IPython."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


def readers_shell():
    """Return the IPython shell of the kernel that a reader types into; None in a script and on a rank."""
    found = shell()
    kernel = getattr(found, "kernel", None)
    return None if type(kernel).__module__.startswith("ipyparallel") else found


def notebook_is_watched(shell) -> bool:
    """Return whether a person sees what this kernel shows now.

    A front end with a person at it allows input; nbclient and nbval do not, so nothing that passes by is stored.
    """
    request = shell.kernel.get_parent() if hasattr(shell, "kernel") else {}
    return request.get("content", {}).get("allow_stdin", False)


class Line:
    """Plain text in a notebook that changes in place."""

    def __init__(self):
        self.text, self._shown = None, None

    def show(self, text: str) -> None:
        from IPython.display import display

        if self._shown is None:
            self._shown = display({"text/plain": text}, raw=True, display_id=True)
        elif text != self.text:
            self._shown.update({"text/plain": text}, raw=True)
        self.text = text
