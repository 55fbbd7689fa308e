"""A vector's size without its contents, to simulate what would not fit into memory.

`simulate(program, [Sketch(1 << 30)] * 1024, link)` runs a program for its trace and its
times alone: a `Sketch` can be cut, joined, copied and reduced as a one-dimensional tensor
can, and nothing moves.
"""

from __future__ import annotations

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
        cuts = [i * whole + min(i, more) for i in range(sections + 1)]
        return tuple(self._part(start, stop) for start, stop in zip(cuts, cuts[1:]))

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

    copy_ = add_ = mul_ = div_ = zero_ = fill_ = clamp_ = _same

    def new_empty(self, count, **_):
        return Sketch(count if isinstance(count, int) else count[0], self.dtype)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        name = function.__name__
        if name in ("empty_like", "zeros_like", "clone"):
            return args[0].clone()
        if name in ("cat", "concat"):
            return cls(sum(part.count for part in args[0]), args[0][0].dtype)
        if name in ("add", "maximum", "minimum", "mul"):
            return (kwargs or {}).get("out", args[0])
        if name in ("tensor_split", "split"):
            return getattr(args[0], name)(*args[1:])
        raise NotImplementedError(f"a Sketch has no contents for torch.{name}: simulate with tensors instead")
