"""What a learner's function puts in the place of a function of Python's, torch's or this package's is put back."""

import builtins
import contextlib
import math
import operator
import sys
import time

import torch

OTHERS = builtins, math, time, torch, torch.Tensor, torch.distributed
OURS = "ringtree.simulated", "ringtree.labs", "ringtree.algorithms", "ringtree.calls", "ringtree.trace"


_before = []  # (owner, its names) of the outermost `put_back` that is open


@contextlib.contextmanager
def put_back():
    """Functions and classes that are replaced or deleted in here are there again afterwards: the next check needs them.

    Inside another `put_back` it costs little: what there was is noted by the outermost, and each compares with that.
    """
    outermost = not _before
    if outermost:
        _before.extend((owner, dict(vars(owner))) for owner in _owners())
    try:
        yield
    finally:
        for owner, names in _before:
            _restore(owner, names)
        if outermost:
            _before.clear()


def _restore(owner, names):
    now = vars(owner)
    if len(now) == len(names) and all(map(operator.is_, now.values(), names.values())) and all(map(operator.eq, now, names)):
        return
    now = dict(now)
    for name, value in names.items():
        if now.get(name) is not value and (callable(value) or isinstance(value, property | staticmethod | classmethod)):
            setattr(owner, name, value)
    for name in now.keys() - names.keys() if isinstance(owner, type) else ():  # it hides one of a class above
        delattr(owner, name)


def _owners():
    """Modules, and of this package their classes."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(OURS)]
    classes = {each for module in modules for each in vars(module).values() if isinstance(each, type)}
    return [*OTHERS, *modules, *(each for each in classes if each.__module__.startswith(OURS))]
