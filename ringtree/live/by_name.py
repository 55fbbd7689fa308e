"""Send this package's functions to ranks by their names. ipyparallel sends code, and the code of a decorated function is not all of it."""

import importlib
import operator
import sys
from types import FunctionType

from ipyparallel.serialize import canning


class Named(canning.CannedObject):
    """A function of this package on its way to a rank, which imports it."""

    def __init__(self, function):
        self.module, self.name = function.__module__, function.__qualname__
        self.buffers = []

    def get_object(self, g=None):
        return operator.attrgetter(self.name)(importlib.import_module(self.module))


def prepared(function):
    """Return what ipyparallel sends in the place of a function."""
    if (function.__module__ or "").startswith("ringtree."):
        module = sys.modules.get(function.__module__)
        try:
            if operator.attrgetter(function.__qualname__)(module) is function:
                return Named(function)
        except AttributeError:  # made inside another function
            pass
    return canning.CannedFunction(function)


def install():
    canning.can_map[FunctionType] = prepared
