"""A vector's size without its contents, to simulate what would not fit into memory.

`simulate(program, [Sketch(1 << 30)] * 1024, link)` runs a program for its trace and its
times alone: a `Sketch` can be cut, joined, copied and reduced as a one-dimensional tensor
can, and nothing moves.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Sketch:
    """The size of a one-dimensional tensor: `count` elements of `dtype`."""

    __slots__ = ("count", "dtype", "nbytes", "offset", "home")

    def __init__(self, count, dtype=torch.float32, offset=0, home=None):
        self.count = count
        self.dtype = dtype
        self.nbytes = count * dtype.itemsize
        self.offset = offset
        self.home = self if home is None else home

    def _part(self, start, stop):
        return Sketch(max(0, stop - start), self.dtype, self.offset + start, self.home)

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
        return self

    def data_ptr(self):
        return id(self.home)

    def is_contiguous(self):
        return True

    def __repr__(self):
        return f"Sketch({self.count}, {self.dtype})"

    # cutting

    def __getitem__(self, key):
        if isinstance(key, slice):
            start, stop, step = key.indices(self.count)
            if step != 1:
                raise ValueError(f"a Sketch is cut in pieces without gaps; {key} leaves some")
            return self._part(start, stop)
        key = key + self.count if key < 0 else key
        return self._part(key, key + 1)

    def narrow(self, dimension, start, length):
        return self._part(start, start + length)

    def tensor_split(self, sections):
        whole, more = divmod(self.count, sections)
        return _Parts(self, sections, whole, more)

    def split(self, sizes):
        if isinstance(sizes, int):
            sizes = [min(sizes, self.count - start) for start in range(0, self.count, sizes)]
        parts, start = [], 0
        for size in sizes:
            parts.append(self._part(start, start + size))
            start += size
        return tuple(parts)

    def view(self, *_):
        return self

    reshape = flatten = contiguous = detach = view

    # what would touch the contents

    def clone(self):
        return Sketch(self.count, self.dtype)

    def _same(self, *_, **__):
        return self

    copy_ = div_ = zero_ = fill_ = clamp_ = _same

    def add_(self, other):
        return torch.add(self, other, out=self)

    def mul_(self, other):
        return torch.mul(self, other, out=self)

    def new_empty(self, count, **_):
        return Sketch(count if isinstance(count, int) else count[0], self.dtype)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function not in FUNCTIONS:
            raise NotImplementedError(f"a Sketch has no contents for {function.__name__}: simulate with tensors instead")
        return FUNCTIONS[function](*args, **kwargs) if kwargs else FUNCTIONS[function](*args)


class _Parts(Sequence):
    """What tensor_split gives, each part made when it is asked for: a thousand ranks have a million of them."""

    __slots__ = ("sketch", "sections", "whole", "more")

    def __init__(self, sketch, sections, whole, more):
        self.sketch, self.sections, self.whole, self.more = sketch, sections, whole, more

    def __len__(self):
        return self.sections

    def __getitem__(self, key):
        sections, whole, more, sketch = self.sections, self.whole, self.more, self.sketch
        if key.__class__ is slice:
            return tuple(self[i] for i in range(*key.indices(sections)))
        if key < 0:
            key += sections
        if not 0 <= key < sections:
            raise IndexError(f"there are {sections} parts, and no such part")
        if key < more:
            return Sketch(whole + 1, sketch.dtype, sketch.offset + key * (whole + 1), sketch.home)
        return Sketch(whole, sketch.dtype, sketch.offset + key * whole + more, sketch.home)


def _reduced(one, other, out=None):
    return Sketch(one.count, one.dtype) if out is None else out


def _joined(parts):
    return Sketch(sum(part.count for part in parts), parts[0].dtype)


def _like(sketch, dtype=None, **_):
    return Sketch(sketch.count, dtype or sketch.dtype)


REDUCING = ("add", "mul", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor")
FUNCTIONS = {
    **{getattr(torch, name): _reduced for name in REDUCING},
    **dict.fromkeys((torch.empty_like, torch.zeros_like, torch.ones_like, torch.clone), _like),
    **dict.fromkeys((torch.cat, torch.concat), _joined),
    torch.tensor_split: Sketch.tensor_split,
    torch.split: Sketch.split,
}
