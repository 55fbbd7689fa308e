"""Fit α and β to measured times, so that small and large messages weigh alike.

fit_line(sizes, times)                      # one link: α + n·β
fit_lines(sizes, times)                     # the smaller of several lines, as many as predict best
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from ringtree.cost import Link
from ringtree.errors import UsageError
from ringtree.given import a, either, number, optional, several, some_numbers, takes

__all__ = ["fastest", "fewest", "fit_line", "fit_lines", "misses"]

LINKS = either(several("a Link or a sequence of them", lambda each: hasattr(each, "time")), a(Link, words=""))
ROUNDING = 1e-9  # of a relative miss: so small a gain is none, on every machine


@takes(sizes=some_numbers, times=some_numbers, gap=optional(number()))
def fit_line(sizes, times, gap: float | None = None) -> Link:
    """The link whose α + n·β comes closest to the measured times, each miss counted in per cent.

    sizes: bytes; times: seconds, one for each size. What is made small is the sum of the squared
    *relative* misses, (predicted − measured)/measured: being 10 % off counts the same at 8 bytes
    and at 64 MB. Ordinary least squares on the seconds would look at the few largest messages only,
    and α could come out as anything.

    Method: divided by the measured time, each message says α·(1/t) + β·(n/t) = 1, which is linear
    in α and β: two equations in two unknowns. Neither may be negative; where the best line had one
    below zero, the best line without it is taken.

    gap: the link's g in seconds, no longer than the α that is found; left out, the textbook's, g = α. Messages that wait for
    an arrival each, as in a ping-pong, do not hold it. The link's `error` is the median miss: a race on it does not tell apart
    what is nearer.

    Raises UsageError if there are fewer than two different sizes, if the lengths differ, or if a
    value is not finite, a time not positive or a size negative.
    """
    sizes, times = _points(sizes, times, lines=1)
    return _fitted([_line(sizes, times)], sizes, times, gap)[0]


@takes(sizes=some_numbers, times=some_numbers, gap=optional(number()))
def fit_lines(sizes, times, count: int | None = 2, gap: float | None = None) -> tuple[Link, ...]:
    """Several links of which each message takes the fastest, fitted together: smallest α first.

    That is what communication software does: it keeps one protocol for small messages and others
    for large ones, and picks. The sizes, in order, are cut into `count` runs in every possible way,
    each run gets its own `fit_line`, and the cut whose *smallest line* comes closest to all the
    measured times wins. A line that is the fastest at none of the sizes is left out, so there may
    be fewer than `count`.

    sizes, times, gap and errors as in `fit_line`; `count` lines need at least 2·count different sizes. With
    count=None, cross-validation chooses: every fourth size is left out in turn and predicted by 1 to 4 lines
    fitted to the rest, and the fewest lines are taken that predict as well as the best, within its standard error.
    """
    if count is None:
        count = _best_number_of_lines(*_points(sizes, times, lines=1))
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise UsageError(f"fit_lines got count={count!r}: give the number of lines, 1 or more, or None")
    sizes, times = _points(sizes, times, lines=count)
    different = np.unique(sizes)

    pieces: dict[tuple[int, int], Link] = {}

    def piece(start: int, stop: int) -> Link:
        if (start, stop) not in pieces:
            inside = (sizes >= different[start]) & (sizes <= different[stop - 1])
            pieces[start, stop] = _line(sizes[inside], times[inside])
        return pieces[start, stop]

    best: list[Link] = []
    best_error = np.inf
    for cuts in combinations(range(2, len(different) - 1), count - 1):
        edges = (0, *cuts, len(different))
        if min(b - a for a, b in zip(edges, edges[1:])) < 2:
            continue
        links = [piece(a, b) for a, b in zip(edges, edges[1:])]
        error = float(np.sum((fastest(links, sizes) / times - 1) ** 2))
        if error < best_error * (1 - ROUNDING):
            best, best_error = links, error
    used = np.unique(np.argmin([link.time(sizes) for link in best], axis=0))
    return _fitted(sorted((best[i] for i in used), key=lambda link: (link.alpha, link.beta)), sizes, times, gap)


def _fitted(links, sizes, times, gap) -> tuple[Link, ...]:
    """The links with their gap, and with the median miss of all together."""
    error = float(np.median(np.abs(misses(links, sizes, times))))
    return tuple(replace(link, gap=link.alpha if gap is None else min(gap, link.alpha), error=error) for link in links)


def _best_number_of_lines(sizes, times, most: int = 4, folds: int = 4) -> int:
    different, place = np.unique(sizes, return_inverse=True)
    left_in_a_fold = len(different) - -(-len(different) // folds)
    if left_in_a_fold < 2:
        return 1
    errors = {}
    for count in range(1, min(most, left_in_a_fold // 2) + 1):
        off = np.empty(len(sizes))
        for fold in range(folds):
            out = place % folds == fold
            off[out] = fastest(fit_lines(sizes[~out], times[~out], count), sizes[out]) / times[out] - 1
        errors[count] = off
    return fewest(errors)


def fewest(errors: dict[int, np.ndarray]) -> int:
    """The smallest key whose mean miss is within one standard error of the best one's; what differs by rounding is alike."""
    means = {count: (np.abs(off).mean(), np.abs(off).std() / np.sqrt(len(off))) for count, off in errors.items()}
    least, spread = min(means.values())
    return next(count for count in sorted(means) if means[count][0] <= least + spread + ROUNDING)


@takes(links=LINKS, sizes=some_numbers)
def fastest(links: Link | Sequence[Link], sizes) -> np.ndarray:
    """Seconds for each size in bytes: of one link, or of the fastest of several."""
    links = [links] if isinstance(links, Link) else list(links)
    if not links:
        raise UsageError("fastest got no link: give one Link or a sequence of them")
    sizes = np.asarray(sizes, dtype=float)
    return np.min([link.time(sizes) for link in links], axis=0)


@takes(links=LINKS, sizes=some_numbers, times=some_numbers)
def misses(links: Link | Sequence[Link], sizes, times) -> np.ndarray:
    """Return how far the prediction is from each measured time: 0.2 for 20 % too long, -0.2 for 20 % too short."""
    sizes, times = _points(sizes, times, lines=0)
    return fastest(links, sizes) / times - 1


def _line(sizes: np.ndarray, times: np.ndarray) -> Link:
    # Sizes in units of the largest, so that the two columns are of one magnitude.
    unit = sizes.max()
    a, b = 1 / times, sizes / unit / times
    a, b, scale = a / a.max(), b / a.max(), a.max()
    aa, ab, bb, a1, b1 = a @ a, a @ b, b @ b, a.sum(), b.sum()
    determinant = aa * bb - ab * ab
    alpha, beta = (a1 * bb - b1 * ab) / determinant, (b1 * aa - a1 * ab) / determinant
    if beta < 0:
        alpha, beta = a1 / aa, 0.0
    elif alpha < 0:
        alpha, beta = 0.0, b1 / bb
    return Link(float(alpha / scale), float(beta / scale / unit))


def _points(sizes, times, lines: int) -> tuple[np.ndarray, np.ndarray]:
    sizes, times = np.asarray(sizes, dtype=float).ravel(), np.asarray(times, dtype=float).ravel()
    if len(sizes) != len(times):
        raise UsageError(f"a fit was given {len(sizes)} sizes and {len(times)} times: give one time for each size")
    if not (np.isfinite(sizes).all() and np.isfinite(times).all()):
        raise UsageError("a size or a time is not a finite number: leave out what was not measured")
    if (times <= 0).any():
        raise UsageError(
            f"the time at {sizes[times <= 0][0]:g} bytes is {times[times <= 0][0]:g} s: times must be greater than 0"
        )
    if (sizes < 0).any():
        raise UsageError(f"a size is {sizes[sizes < 0][0]:g} bytes: sizes must be 0 or more")
    if len(np.unique(sizes)) < 2 * lines:
        what = "a line needs" if lines == 1 else f"{lines} lines need"
        raise UsageError(f"a fit was given {len(np.unique(sizes))} different sizes: {what} at least {2 * lines}")
    return sizes, times
