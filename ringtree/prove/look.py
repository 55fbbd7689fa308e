"""A tensor on one mesh beside that of one process, and what differs between its copies."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ringtree.prove.joining import Held

SURE = 1e-7  # a ratio is this near to a number


def near(a, b, allowed, floor=0.0) -> bool:
    """Whether no entry differs by more than `allowed` of the largest entry of b, and `floor`."""
    if a.shape != b.shape:
        return False
    return not a.numel() or bool(float((a - b).abs().max()) <= allowed * float(b.abs().max()) + floor)


@dataclass
class Look:
    """One tensor on one mesh, beside that of one process (`one`)."""

    number: int
    sizes: dict[str, int]
    axes: tuple[str, ...]
    held: Held
    one: torch.Tensor
    allowed: float
    floor: float
    step: int

    def is_near(self, to, of=None):
        """Whether a tensor (left out: the first copy) is that tensor, but for rounding."""
        return near(self.first if of is None else of, to, self.allowed, self.floor)

    @property
    def first(self):
        return self.held.copies[min(self.held.copies)]

    def is_right(self):
        return all(self.is_near(self.one, copy) for copy in self.held.copies.values())

    def copies_differ(self):
        return not all(self.is_near(self.first, copy) for copy in self.held.copies.values())

    def varies(self):
        """The axes along which copies differ."""
        found = []
        for i, axis in enumerate(self.axes):
            for at, copy in self.held.copies.items():
                line = [c for place, c in self.held.copies.items() if place[:i] + place[i + 1 :] == at[:i] + at[i + 1 :]]
                if not all(self.is_near(copy, each) for each in line):
                    found.append(axis)
                    break
        return tuple(found)

    def reduced(self, how):
        """Copies put together along axes: {axis: "sum" or "mean"}; what stays apart as a list."""
        groups: dict = {}
        for at, copy in sorted(self.held.copies.items()):
            key = tuple(0 if axis in how else place for axis, place in zip(self.axes, at))
            groups.setdefault(key, []).append(copy)
        share = math.prod(self.sizes[axis] for axis, each in how.items() if each == "mean")
        return [sum(copies) / share for copies in groups.values()]

    def noise(self):
        """How sure a ratio of this tensor can be: its rounding beside its size."""
        return max(SURE, 10 * self.allowed, 10 * self.floor / max(float(self.one.abs().max()), 1e-300))


def right_places(looks):
    """The coordinates along the axes that differ, at which a copy is right, if they are the same on each mesh."""
    found = []
    for look in looks:
        axes = look.varies()
        right = [at for at, copy in look.held.copies.items() if look.is_near(look.one, copy)]
        found.append({
            " ".join(f"{axis}={place}" for axis, place in zip(look.axes, at) if axis in axes) for at in sorted(right)
        })
    same = set.intersection(*found) if found else set()
    return sorted(same) if all(each == same for each in found) else []


def holders(looks):
    """For a tensor that some ranks do not have: who has it."""
    told = []
    for look in looks:
        axes = look.varies()
        if len(look.held.copies) < math.prod(size for axis, size in look.sizes.items() if axis not in look.held.sharded):
            places = [
                " ".join(f"{axis}={place}" for axis, place in zip(look.axes, at) if axis in axes) for at in look.held.copies
            ]
            told.append(f"{' and '.join(places)} of {' '.join(f'{axis}={look.sizes[axis]}' for axis in axes)}")
    return f" (held by {'; '.join(dict.fromkeys(told))})" if told else ""


def parts(looks):
    """Which parts of a sharded tensor are right and which wrong, if this is the same on each mesh."""
    told = set()
    for look in looks:
        right = []
        for place, (dim, first, behind) in look.held.parts.items():
            part, one = (each.narrow(dim, first, behind - first) for each in (look.first, look.one))
            if near(part, one, look.allowed, look.floor):
                right.append(place)
        axis = look.held.sharded[0] if look.held.parts else ""
        told.add(f"the part on {axis} {', '.join(map(str, right))} is right" if right else "")
    return told.pop() if len(told) == 1 else ""


def rows(looks):
    """How many rows are right, if some are."""
    look = looks[0]
    if look.one.dim() < 2 or not len(look.one):
        return ""
    off = (look.first - look.one).abs().flatten(1).amax(1)
    right = int((off <= look.allowed * float(look.one.abs().max()) + look.floor).sum())
    return f"{right} of {len(look.one)} rows are right" if right else ""


def cosine(a, b):
    a, b = a.double().flatten(), b.double().flatten()
    return float((a @ b) / (a.norm() * b.norm()).clamp(min=1e-300))


def difference(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-300))


def lowest(looks, measure):
    return min(measure(copy, look.one) for look in looks for copy in look.held.copies.values())


def highest(looks, measure):
    return max(measure(copy, look.one) for look in looks for copy in look.held.copies.values())
