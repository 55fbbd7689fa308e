"""An error of a learner's function in a sentence, with the line that it comes from."""

import linecache
import os
import re
import traceback

import torch

from ringtree.labs.exercise import CheckFailed
from ringtree.labs.forbidding import Forbidden
from ringtree.simulated import ProgramError

NOT_THEIRS = os.path.dirname(os.path.dirname(__file__)), torch.__path__[0]  # files whose lines are not the learner's
# torch's own sentences, where there are no ranks
NOT_OURS = "Default process group has not been initialized", "Invalid ``op``"
# What Python calls the methods of the `dist` that a function is given
OF_DIST = re.compile(r"\b(?:Speaks|Among|SimulatedDist|Traced|EmulatedLink)\.(?=\w+\(\) )")


def error_text(name, error):
    """Return what went wrong in the learner's function `name`, in a sentence."""
    if isinstance(error, NotImplementedError):
        line = f", line {own.lineno}" if (own := _own_frame(error)) else ""
        return f"it is not yet written: replace `raise NotImplementedError` in {name}{line}."
    if isinstance(error, Forbidden):
        return "it calls a collective of torch's, or an algorithm of this book: here you write it yourself, with messages."
    if isinstance(error, ProgramError | CheckFailed):
        return str(error)
    place = f"  [{place}]" if (place := _own_line(error)) else ""
    try:
        text = str(error)
    except Exception:  # it is the learner's class
        text = ""
    if any(words in text for words in NOT_OURS):
        return f"it calls torch.distributed itself: take all from the `dist` that it is given, P2POp and isend too{place}"
    text = OF_DIST.sub("dist.", text)
    text = text if len(text) < 500 else f"{text[:500]} …"
    return f"{type(error).__name__}{text and f': {text}'}{place}"


def _own_line(error):
    if (own := _own_frame(error)) is None:
        return ""
    line = linecache.getline(own.filename, own.lineno).strip()
    return f"{own.name}, line {own.lineno}: {line}"


def _own_frame(error):
    """The last line of a notebook's cell that the error passed through, as traceback tells it; or None."""
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(NOT_THEIRS) and "importlib" not in frame.filename
    ]
    return own[-1] if own else None
