"""A whole number that differs between runs of one program: how long a vector is in each of them.

A program that runs once for several sizes sees `Lengths` where it would see the number of a tensor's elements. It may compute
with them. Where it goes one way or another by them, all of them have to agree: else `Differ` ends the run.
"""

from __future__ import annotations

import operator

import numpy as np


class Differ(BaseException):
    """The program goes another way with some of the lengths. same: for each of them, whether it goes one of the ways.

    Not an Exception, so that no program catches it.
    """

    def __init__(self, same):
        super().__init__()
        self.same = same


class Lengths:
    """each: an array, the length in each run."""

    __slots__ = ("each", "cuts")

    def __init__(self, each):
        self.each = each
        self.cuts = {}  # what it was cut into: every rank cuts alike

    def __bool__(self):
        truth = self.each != 0
        if truth.all():
            return True
        if truth.any():
            raise Differ(truth)
        return False

    def __index__(self):
        same = self.each == self.each[0]
        if not same.all():
            raise Differ(same)
        return self.each[0].item()

    __int__ = __index__

    def __float__(self):
        return float(self.__index__())

    def __hash__(self):
        return hash(self.__index__())

    def __neg__(self):
        return Lengths(-self.each)

    def __divmod__(self, other):
        return self // other, self % other

    def __rdivmod__(self, other):
        return other // self, other % self

    def __repr__(self):
        return repr(self.__index__())  # what is read from it may be where a program parts ways too


def _computes(name, function, swapped, divides):
    def compute(self, other):
        if type(other) is Lengths:
            other = other.each
        elif not isinstance(other, int | float):
            return NotImplemented
        one, two = (other, self.each) if swapped else (self.each, other)
        if divides and not np.all(two):
            if np.any(two):
                raise Differ(np.broadcast_to(np.asarray(two) != 0, self.each.shape))
            raise ZeroDivisionError("division by zero")
        result = function(one, two)
        if function is operator.mul and np.abs(np.multiply(one, two, dtype=float)).max() > _MOST:
            raise OverflowError("a product of lengths that an array of 64 bits does not hold")
        return Lengths(result)

    compute.__name__ = name
    return compute


_MOST = 2.0**52  # beyond it not every whole number is a float

for _name in ("add", "sub", "mul", "floordiv", "mod", "truediv"):
    for _way in ("", "r"):
        _dunder = f"__{_way}{_name}__"
        setattr(Lengths, _dunder, _computes(_dunder, getattr(operator, _name), bool(_way), "div" in _name or _name == "mod"))
for _name in ("lt", "le", "eq", "ne", "gt", "ge"):
    setattr(Lengths, f"__{_name}__", _computes(f"__{_name}__", getattr(operator, _name), False, False))


def first(length):
    """The length in the first of the runs."""
    return length.each[0].item() if type(length) is Lengths else length
