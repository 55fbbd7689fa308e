"""What the simulator sees of a program besides its messages: where it is, its tensor operations, real time.

A tensor operation may reduce, which takes γ a byte, and may use a buffer that is in flight,
which `simulate(…, checked=True)` complains of. Torch tells of each operation through modes;
only what was asked for is watched, since every mode makes every operation slower.
"""

from __future__ import annotations

import contextlib
import ctypes
import linecache
import os
import sys
import threading

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ringtree.simulated.sketch import Sketch

__all__ = ["Deadline", "TimeIsUp", "overlap", "program_steps", "watching"]

HERE = os.path.dirname(__file__)

REDUCTIONS = {"add", "add_", "maximum", "minimum", "mul", "mul_", "bitwise_and", "bitwise_or", "bitwise_xor"}


@contextlib.contextmanager
def watching(reduced=None, guard=None):
    """While this is open, tensor operations are told of.

    reduced: called as reduced(nbytes) after an operation has reduced so many bytes.
    guard: called as guard(tensor, written) before an operation reads a tensor or writes it.
    """
    with contextlib.ExitStack() as modes:
        if guard:
            modes.enter_context(_Reads(guard))
        if reduced:
            modes.enter_context(_Sketches(reduced))
        if guard or reduced:
            modes.enter_context(_Operations(reduced, guard))
        yield


class _Operations(TorchDispatchMode):
    """Sees each operation on tensors."""

    def __init__(self, reduced, guard):
        super().__init__()
        self.reduced, self.guard = reduced, guard

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.guard and not function.is_view:
            for tensor, written in _used(function, args, kwargs):
                self.guard(tensor, written)
        result = function(*args, **kwargs)
        if self.reduced and function._schema.name.removeprefix("aten::") in REDUCTIONS:
            self.reduced(result.nbytes)
        return result


def _used(function, args, kwargs):
    """The tensors that an operation uses, each with whether it is written."""
    arguments = function._schema.arguments
    writes = [argument.alias_info is not None and argument.alias_info.is_write for argument in arguments]
    names = {argument.name: write for argument, write in zip(arguments, writes)}
    for value, written in [*zip(args, writes), *((value, names.get(name, False)) for name, value in kwargs.items())]:
        for tensor in value if isinstance(value, list | tuple) else (value,):
            if isinstance(tensor, torch.Tensor):
                yield tensor, written


class _Reads(TorchFunctionMode):
    """Sees what reads a tensor without an operation of its own."""

    def __init__(self, guard):
        super().__init__()
        self.guard = guard

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.Tensor.tolist, torch.Tensor.numpy):
            self.guard(args[0], False)
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


def overlap(one, other):
    """Whether two tensors share memory."""
    if one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
        return False
    first, second = one.storage_offset() * one.element_size(), other.storage_offset() * other.element_size()
    return first < second + other.nbytes and second < first + one.nbytes


def program_steps(frame):
    """The program's own frames, outermost first, as (function, line number, source)."""
    places = []
    # Nothing here may wait, not even for a file: the program would run on, and a frame that it leaves has no caller.
    while frame:
        places.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return [
        (code.co_name, line, linecache.getline(code.co_filename, line).strip())
        for code, line in reversed(places)
        if os.path.dirname(code.co_filename) != HERE and os.sep + "torch" + os.sep not in code.co_filename
    ]


class TimeIsUp(BaseException):
    """Raised in a program that has not ended in time."""


class Deadline:
    """Interrupts what runs in its `with` block for too long: raises TimeIsUp there.

    seconds: of real time. steps: where the program was when time was up; empty before.
    """

    def __init__(self, seconds):
        self.seconds = seconds
        self.steps = []
        self._thread = threading.get_ident()

    def __enter__(self):
        self._timer = threading.Timer(self.seconds, self._interrupt)
        self._timer.daemon = True
        self._timer.start()
        return self

    def _interrupt(self):
        self.steps = program_steps(sys._current_frames()[self._thread])
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(TimeIsUp))

    def __exit__(self, *_):
        self._timer.cancel()
