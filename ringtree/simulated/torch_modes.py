"""What a program does to its tensors, as torch's modes tell of it: what it reduces, reads and writes.

Only what was asked for is reported, since every mode makes every operation slower.
"""

import contextlib
import functools
import threading

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ringtree.simulated.sketch import REDUCING, Sketch

REDUCTIONS = {*REDUCING, "add_", "mul_"}
VALUES = {"_local_scalar_dense", "equal", "is_nonzero"}  # operations that give a number, not a tensor


_here = threading.local()


@contextlib.contextmanager
def within_torch():
    """Run code as torch's own: no gradients, and its tensors do not count as the program's."""
    _here.within = True
    try:
        with torch.no_grad():
            yield
    finally:
        _here.within = False


def is_within_torch() -> bool:
    return getattr(_here, "within", False)


@contextlib.contextmanager
def unwritten_memory_shows():
    """Memory that nobody has written to holds nan (or the largest whole number), rather than what an earlier run left there."""
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)


@contextlib.contextmanager
def told_of_operations(reduced=None, used=None, read=None):
    """While this is open, tensor operations are reported.

    reduced: called as reduced(nbytes) after an operation has reduced so many bytes.
    used: called as used(tensor, written) before an operation reads a tensor or writes it.
    read: called as read() where the program needs the value of a tensor, which holds it where tensors are on a GPU.
    """
    with contextlib.ExitStack() as modes:
        if used or read:
            modes.enter_context(_Reads(used, read))
        if reduced:
            modes.enter_context(_Sketches(reduced))
        if used or reduced or read:
            modes.enter_context(_Operations(reduced, used, read))
        yield


class _Operations(TorchDispatchMode):
    """Sees each operation on tensors."""

    @classmethod
    def _should_skip_dynamo(cls):
        """Nothing in here is ever compiled. Else torch imports its compiler for that: a second at the first operation."""
        return False

    def __init__(self, reduced, used, read):
        super().__init__()
        self.reduced, self.used, self.read = reduced, used, read

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.used and not function.is_view:
            for tensor, written in _used(function, args, kwargs):
                self.used(tensor, written)
        if self.read and function._schema.name.removeprefix("aten::") in VALUES:
            self.read()
        result = function(*args, **kwargs)
        if self.reduced and function._schema.name.removeprefix("aten::") in REDUCTIONS:
            self.reduced(result.nbytes)
        return result


def _used(function, args, kwargs):
    """The tensors that an operation uses, each with whether it is written."""
    in_order, by_name = _writes(function)
    for value, written in [*zip(args, in_order), *((value, by_name.get(name, False)) for name, value in kwargs.items())]:
        for tensor in value if isinstance(value, list | tuple) else (value,):
            if isinstance(tensor, torch.Tensor):
                yield tensor, written


@functools.cache
def _writes(function):
    """Return whether an operation writes each of its arguments: in their order, and by name."""
    writes = {each.name: each.alias_info is not None and each.alias_info.is_write for each in function._schema.arguments}
    return (*writes.values(),), writes


class _Reads(TorchFunctionMode):
    """Sees what reads a tensor without an operation of its own."""

    def __init__(self, used, read):
        super().__init__()
        self.used, self.read = used, read

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.Tensor.tolist, torch.Tensor.numpy):
            if self.used:
                self.used(args[0], False)
            if self.read:
                self.read()
        return function(*args, **(kwargs or {}))


class _Sketches(TorchFunctionMode):
    """Sees reductions of sketches, of which torch's dispatcher never hears."""

    def __init__(self, reduced):
        super().__init__()
        self.reduced = reduced

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, Sketch) and function.__name__ in REDUCTIONS:
            self.reduced(result.nbytes)
        return result
