"""Where the library changed its way, and where it took a slow one: read off the measured times alone.

On one line α + nβ a message m times as long takes at most m times as long, and never less. So a longer message that is
faster contradicts itself, and so does a time that rises faster than the size: each time something other than the size
decided. A bend, where the slope of the times falls, is a change to a way with more bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ringtree.theory.lines import fit_lines

__all__ = ["Slow", "bends", "changes", "leaps", "slow"]

_NOISE = 0.9  # a longer message has to be a tenth faster to count: less may be noise


@dataclass(frozen=True)
class Slow:
    """Sizes at which one longer message was faster. sizes, longer: bytes; worst: that of the sizes which took longest, in
    `time` seconds; faster: the seconds of the longer message."""

    sizes: tuple[float, ...]
    worst: float
    time: float
    longer: float
    faster: float

    @property
    def times_as_long(self) -> float:
        return self.time / self.faster


def slow(sizes, times) -> list[Slow]:
    """Sizes at which some longer message took less than nine tenths of the time, together where that message is the same."""
    by_longer = {}
    for i in range(len(sizes) - 1):
        j = i + 1 + int(np.argmin(times[i + 1 :]))
        if times[j] < _NOISE * times[i]:
            by_longer.setdefault(j, []).append(i)
    found = []
    for j, places in by_longer.items():
        worst = max(places, key=lambda i: times[i])
        group = tuple(float(sizes[i]) for i in places)
        found.append(Slow(group, float(sizes[worst]), float(times[worst]), float(sizes[j]), float(times[j])))
    return found


def leaps(sizes, times) -> list[tuple[float, float, float]]:
    """(size before, size, times as long) where the time rose by a quarter more than the size did."""
    sizes, times = np.asarray(sizes), np.asarray(times)
    steep = (times[1:] / times[:-1]) / (sizes[1:] / sizes[:-1])
    return [(float(sizes[i]), float(sizes[i + 1]), float(times[i + 1] / times[i])) for i in np.flatnonzero(steep > 1.25)]


def bends(sizes, times) -> list[tuple[float, float]]:
    """(size before, size) between which another of the lines that predict the sweep best becomes the fastest."""
    if len(np.unique(sizes)) < 4:
        return []
    lines = fit_lines(sizes, times, count=None)
    fastest = np.argmin([line.time(np.asarray(sizes)) for line in lines], axis=0)
    return [(float(sizes[i]), float(sizes[i + 1])) for i in np.flatnonzero(np.diff(fastest))]


def changes(sizes, ways) -> list[tuple[float, Any]]:
    """(size, way) at the first size and wherever the way is another than at the size before."""
    return [(float(size), way) for i, (size, way) in enumerate(zip(sizes, ways)) if i == 0 or way != ways[i - 1]]
