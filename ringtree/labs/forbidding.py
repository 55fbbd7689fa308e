"""While a learner's rank program is tried: no collective of torch's, and none of the book's algorithms, does its work."""

import contextlib
import functools
import inspect
import types

import torch.distributed as real

from ringtree import algorithms
from ringtree.collectives import call_names
from ringtree.parallel import pipeline


class Forbidden(Exception):
    """A learner's function called what it is to write itself."""


def _refuse(*_, **__):
    from ringtree.labs.forbidding import Forbidden  # this code runs among another module's names

    raise Forbidden


def _refusing(function):
    """Stands for one of torch's functions: its signature can still be read."""

    @functools.wraps(function)
    def refuse(*_, **__):
        raise Forbidden

    return refuse


@contextlib.contextmanager
def without_ready_made():
    """Every algorithm of `ringtree.algorithms`, however it was got at, raises Forbidden in here; so do torch's collectives, and
    the pipeline of `ringtree.parallel`, which sends messages only.

    An algorithm is stopped at its code, not at its name: an import from before, or another name, makes no difference. The
    simulator's collectives run those algorithms, and so stop too.
    """
    ours = [*(getattr(algorithms, name) for name in algorithms.__all__), *vars(pipeline).values()]
    replaced = {name: getattr(real, name) for name in call_names() if hasattr(real, name)}
    with without(each for each in ours if isinstance(each, types.FunctionType)):
        try:
            for name in replaced:
                setattr(real, name, _refusing(replaced[name]))
            yield
        finally:
            for name, function in replaced.items():
                setattr(real, name, function)


@contextlib.contextmanager
def without(functions):
    """Each of these functions raises Forbidden in here: it is stopped at its code."""
    plain = map(inspect.unwrap, functions)  # what a decorator holds back
    stopped = {function: function.__code__ for function in plain}
    try:
        for function in stopped:
            function.__code__ = _refuse.__code__
        yield
    finally:
        for function, code in stopped.items():
            function.__code__ = code
