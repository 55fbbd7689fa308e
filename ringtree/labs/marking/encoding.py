"""Plain values as JSON and blocks of bytes: nothing that is read here is ever unpickled, imported by its text, or run.

    tree, blocks = Encoder().pack((3, torch.ones(2)))
    value = Decoder().unpack(tree, blocks)

None, bool, int, float, str, list, tuple, dict, set, range, tensors, numpy's numbers and arrays of them, and this package's own
records go over as they are. Anything else arrives as an `Unknown`: it has its class's name and its text, and is equal to nothing.
"""

import ctypes
import dataclasses
import importlib
import math

import numpy as np
import torch

DEPTH, TEXT, DIGITS, RANGE = 40, 100_000, 1000, 100_000  # of nested lists; characters of a text; of a whole number; numbers
DTYPES = {
    str(each).removeprefix("torch."): each
    for each in (
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
    )
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class NotUnderstood(Exception):
    """What came from the other process has no meaning."""


class Unknown:
    """Stands for what cannot be handed over; made by `unknown`."""

    def __init__(self, text, name):
        self._text = text
        if name:
            self.__name__ = name

    def __repr__(self):
        return self._text


def unknown(kind, text="", name=""):
    """An object whose class is called `kind`, whose text is `text`, and which is equal to itself alone."""
    return type(kind, (Unknown,), {})(text or f"<{kind}>", name)


class Encoder:
    """Values to a tree of JSON's own values, with the bytes of tensors in `blocks`."""

    def __init__(self):
        self.blocks = []

    def pack(self, value):
        return self.encode(value), self.blocks

    def encode(self, value, depth=0):
        kind = type(value)
        if value is None or kind is bool or kind is float:
            return value
        if depth > DEPTH:
            return self.unknown(value)
        if isinstance(value, np.generic):
            return ["number", value.dtype.str, value.tobytes().hex()] if value.dtype.kind in "biuf" else self.unknown(value)
        if isinstance(value, str):
            return str(value) if len(value) <= TEXT else self.unknown(value)
        if isinstance(value, int | float):
            return float(value) if isinstance(value, float) else int(value) if abs(value) < 10**DIGITS else self.unknown(value)
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            self.blocks.append(value.tobytes())
            return ["array", value.dtype.str, list(value.shape), len(self.blocks) - 1]
        if kind is range and max(map(abs, (value.start, value.stop, value.step))) <= RANGE:
            return ["range", value.start, value.stop, value.step]
        if isinstance(value, dict):
            return ["dict", [[self.encode(key, depth + 1), self.encode(each, depth + 1)] for key, each in value.items()]]
        for name, of in (("list", list), ("tuple", tuple), ("set", set | frozenset)):
            if isinstance(value, of):
                return [name, [self.encode(each, depth + 1) for each in value]]
        if dataclasses.is_dataclass(kind) and kind.__module__.startswith("ringtree."):
            fields = [self.encode(getattr(value, field.name), depth + 1) for field in dataclasses.fields(value)]
            return ["record", kind.__module__, kind.__qualname__, fields]
        return self.other(value)

    def tensor(self, value):
        """By its contents."""
        try:
            data = value.detach().cpu().contiguous()
            self.blocks.append(ctypes.string_at(data.data_ptr(), data.nbytes))
            return ["tensor", NAMES[data.dtype], list(data.shape), len(self.blocks) - 1]
        except (KeyError, RuntimeError, NotImplementedError):  # a dtype or a layout that no exercise has
            return self.unknown(value)

    def other(self, value):
        return self.unknown(value)

    @staticmethod
    def unknown(value):
        try:
            text = repr(value)[:200]
        except Exception:
            text = ""
        return ["unknown", type(value).__name__[:80], str(text), str(getattr(value, "__name__", ""))[:80]]


class Decoder:
    """The way back. Raises NotUnderstood for anything but what an `Encoder` makes.

    records: by (module, name), the classes of records that may be made.
    """

    def __init__(self, records=None):
        self.records = records or {}

    def unpack(self, tree, blocks):
        self.blocks = blocks
        try:
            return self.decode(tree)
        except NotUnderstood:
            raise
        except Exception as error:  # whatever a malformed tree leads to
            raise NotUnderstood(f"{type(error).__name__}: {error}") from None

    def decode(self, tree):
        if not isinstance(tree, list):
            if isinstance(tree, dict):
                raise NotUnderstood("a bare dict")
            return tree
        tag, *rest = tree
        if not isinstance(tag, str) or not hasattr(self, f"read_{tag}"):
            raise NotUnderstood(f"a value of kind {tag!r}")
        return getattr(self, f"read_{tag}")(*rest)

    def read_list(self, items):
        return [self.decode(each) for each in items]

    def read_tuple(self, items):
        return tuple(self.decode(each) for each in items)

    def read_set(self, items):
        return {self.decode(each) for each in items}

    def read_dict(self, items):
        return {self.decode(key): self.decode(value) for key, value in items}

    def read_number(self, kind, digits):
        return np.frombuffer(bytes.fromhex(digits), plain(kind))[0]

    def read_array(self, kind, shape, block):
        return np.frombuffer(self.blocks[block], plain(kind)).reshape(shape).copy()

    def read_range(self, *ends):
        if len(ends) != 3 or not all(type(each) is int and abs(each) <= RANGE for each in ends):
            raise NotUnderstood(f"a range {ends!r}")
        return range(*ends)

    def read_tensor(self, dtype, shape, block):
        return tensor_of(self.blocks[block], DTYPES[dtype], shape)

    def read_record(self, module, name, fields):
        values = [self.decode(each) for each in fields]
        if made := self.record(module, name):
            try:
                return made(*values)
            except Exception:
                pass
        return unknown(str(name)[:80])

    def record(self, module, name):
        return self.records.get((module, name))

    def read_unknown(self, kind, text, name):
        return unknown(str(kind)[:80], str(text)[:200], str(name)[:80])


class TrustingDecoder(Decoder):
    """Of what the judge sends: records, and functions of this package, by their names."""

    def record(self, module, name):
        return getattr(importlib.import_module(module), name)

    def read_function(self, module, name):
        return getattr(importlib.import_module(module), name)


def plain(kind):
    """numpy's dtype of this name. Raises NotUnderstood where it is no number's."""
    dtype = np.dtype(kind)
    if dtype.kind not in "biuf":
        raise NotUnderstood(kind)
    return dtype


def tensor_of(block, dtype, shape):
    """A tensor of its own with these bytes. Raises NotUnderstood where they do not fill the shape."""
    if not isinstance(shape, list) or not all(type(each) is int and each >= 0 for each in shape):
        raise NotUnderstood(f"a shape {shape!r}")
    if math.prod(shape) * dtype.itemsize != len(block):
        raise NotUnderstood(f"{len(block)} bytes for a tensor of {shape}")
    if not len(block):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(block), dtype=dtype).reshape(shape)
