"""A vector's size without its contents, to simulate what would not fit into memory.

`simulate(program, [Sketch(1 << 30)] * 1024, link)` runs a program for its trace and its
times alone: a `Sketch` can be cut, joined, copied and reduced as a one-dimensional tensor
can, and nothing moves.
"""

from __future__ import annotations

import builtins
import contextlib
import threading
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import torch

from ringtree.errors import UsageError
from ringtree.given import require, whole
from ringtree.operations import OPERATIONS
from ringtree.simulated.lengths import Lengths

_new = object.__new__


class Sketch:
    """The size of a one-dimensional tensor: `count` elements of `dtype`.

    home: the sketch of which this one is a part, from element `offset` on; None for a whole
    (itself would be a circle of references, and every sketch would wait for the garbage collector).
    """

    __slots__ = ("count", "dtype", "nbytes", "offset", "home")

    def __init__(self, count, dtype=torch.float32, offset=0, home=None):
        if type(count) is not Lengths:
            require("Sketch", "count", count, whole())
        self.count = count
        self.dtype = dtype
        self.nbytes = count * dtype.itemsize
        self.offset = offset
        self.home = home

    def _part(self, start, stop):
        if type(self.count) is Lengths:
            return self._piece(start, (stop - start) * (stop > start))
        return self._piece(start, stop - start if stop > start else 0)

    def _piece(self, start, count):
        # without __init__, whose call takes longer than what it does: most sketches are parts
        part = _new(Sketch)
        part.count = count
        part.dtype = dtype = self.dtype
        part.nbytes = count * dtype.itemsize
        part.offset = self.offset + start
        part.home = self.untyped_storage()
        return part

    # what it says of itself, as a tensor does

    @property
    def shape(self):
        return torch.Size([self.count])

    @property
    def device(self):
        return torch.device("meta")

    def numel(self):
        return self.count

    def __len__(self):
        return self.count

    def element_size(self):
        return self.dtype.itemsize

    def storage_offset(self):
        return self.offset

    def untyped_storage(self):
        return self if self.home is None else self.home

    def data_ptr(self):
        """An address of its own for the whole of which it is a part, plus where the part begins."""
        home = self.home
        return id(self if home is None else home) + self.offset * self.dtype.itemsize

    is_contiguous = True.__bool__  # always true, and a function of C: it is asked twice a message

    def __repr__(self):
        return f"Sketch({self.count}, {self.dtype})"

    # cutting

    def __getitem__(self, key):
        if isinstance(key, slice):
            start, stop, step = _ends(key, self.count) if type(self.count) is Lengths else key.indices(self.count)
            if step != 1:
                raise UsageError(
                    f"a Sketch is cut into pieces without gaps, and {key} leaves some: cut it by slices with step 1"
                )
            return self._part(start, stop)
        key = key + self.count if key < 0 else key
        return self._part(key, key + 1)

    def narrow(self, dimension, start, length):
        return self._part(start, start + length)

    def tensor_split(self, sections):
        return _Parts(self, sections)

    def split(self, sizes):
        if isinstance(sizes, int):
            sizes = [min(sizes, self.count - start) for start in range(0, self.count, sizes)]
        parts, start = [], 0
        for size in sizes:
            parts.append(self._piece(start, size))
            start += size
        return tuple(parts)

    def view(self, *_):
        return self

    reshape = flatten = contiguous = detach = view

    # what would touch the contents

    def clone(self):
        copy = _new(Sketch)
        copy.count, copy.dtype, copy.nbytes, copy.offset, copy.home = self.count, self.dtype, self.nbytes, 0, None
        return copy

    def _same(self, *_, **__):
        return self

    div_ = zero_ = fill_ = clamp_ = _same

    def copy_(self, other, non_blocking=False):
        return self

    def add_(self, other):
        return torch.add(self, other, out=self)

    def mul_(self, other):
        return torch.mul(self, other, out=self)

    def new_empty(self, count, **_):
        return Sketch(count[0] if isinstance(count, tuple | list) else count, self.dtype)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function not in FUNCTIONS:
            raise NotImplementedError(f"a Sketch has no contents for {function.__name__}: simulate with tensors instead")
        return FUNCTIONS[function](*args, **kwargs) if kwargs else FUNCTIONS[function](*args)


class _Parts(Sequence):
    """What tensor_split gives, each part made when it is asked for: a thousand ranks have a million of them."""

    __slots__ = ("home", "cuts")

    def __init__(self, sketch, sections):
        self.home = sketch.untyped_storage()
        cuts = _cuts if type(sketch.count) is not Lengths else _cuts_of_each
        self.cuts = cuts(sketch.count, sketch.dtype, sketch.offset, sections)

    def __len__(self):
        return len(self.cuts)

    def __getitem__(self, key):
        if type(key) is slice:
            return tuple(self[i] for i in range(*key.indices(len(self.cuts))))
        part = _new(Sketch)
        part.count, part.dtype, part.nbytes, part.offset = self.cuts[key]
        part.home = self.home
        return part


@lru_cache(maxsize=8)
def _cuts(count, dtype, offset, sections):
    """(count, dtype, bytes, offset) of each part: every rank cuts alike, so they are worked out once for all."""
    whole, more = divmod(count, sections)
    cuts = []
    for part in range(sections):
        count = whole + 1 if part < more else whole
        cuts.append((count, dtype, count * dtype.itemsize, offset))
        offset += count
    return cuts


def _cuts_of_each(count, dtype, offset, sections):
    """The same for the lengths of several runs."""
    key = dtype, id(offset), sections
    if key not in count.cuts:
        whole, more = divmod(count, sections)
        lengths = [whole + (more > part) for part in range(sections)]
        begins = accumulate(lengths, initial=offset)  # the first is offset itself, which so keeps its id
        count.cuts[key] = [(each, dtype, each * dtype.itemsize, begin) for each, begin in zip(lengths, begins)]
    return count.cuts[key]


def _ends(key, count):
    """`slice.indices` where the lengths of several runs are among its numbers."""
    ends = []
    for end, default in (key.start, 0), (key.stop, count):
        end = default if end is None else end + count if end < 0 else end
        end = end * (end > 0)
        ends.append(end - (end - count) * (end > count))
    return *ends, 1 if key.step is None else key.step


def _reduced(one, other, out=None):
    return Sketch(one.count, one.dtype) if out is None else out


def _joined(parts):
    return Sketch(sum(part.count for part in parts), parts[0].dtype)


def _like(sketch, dtype=None, **_):
    return sketch.clone() if dtype is None else Sketch(sketch.count, dtype)


REDUCING = {row.function for row in OPERATIONS.values()}
FUNCTIONS = {
    **{getattr(torch, name): _reduced for name in REDUCING},
    **dict.fromkeys((torch.empty_like, torch.zeros_like, torch.ones_like, torch.clone), _like),
    **dict.fromkeys((torch.cat, torch.concat), _joined),
    torch.tensor_split: Sketch.tensor_split,
    torch.split: Sketch.split,
}


# -- len() of several lengths ----------------------------------------------------

_len, _users, _change = len, 0, threading.Lock()


def _len_of_each(value, /):
    return value.count if type(value) is Sketch and type(value.count) is Lengths else _len(value)


@contextlib.contextmanager
def len_gives_lengths():
    """While this is open, `len` gives the lengths of a sketch that has several: Python's own gives an int, whatever `__len__` is.

    For every other object `len` stays what it was, in every thread.
    """
    global _users
    with _change:
        _users += 1
        builtins.len = _len_of_each
    try:
        yield
    finally:
        with _change:
            _users -= 1
            if not _users:
                builtins.len = _len
