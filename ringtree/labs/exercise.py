"""What an exercise is: a check and its hints; and how a check says what is wrong."""

from typing import NamedTuple


class CheckFailed(AssertionError):
    """Says what is still wrong; a notebook shows that alone."""

    def _render_traceback_(self):
        return [f"{type(self).__name__}: {self}"]


class Exercise(NamedTuple):
    """check(examine): raises CheckFailed, or returns. hints: from the gentlest to the plainest."""

    check: object
    hints: tuple


def complain(sentence):
    raise CheckFailed(sentence)
