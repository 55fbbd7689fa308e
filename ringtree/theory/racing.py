"""Which algorithm is quickest: the field is the whole table, and what is left out is named.

print(race("all_reduce", 8, [1 << 10, 1 << 20, 1 << 30], machine))
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from textwrap import wrap

import pandas as pd

from ringtree import collectives
from ringtree.cost import Link, Machine
from ringtree.errors import UsageError
from ringtree.given import a, number, optional, several, takes, whole
from ringtree.simulated.dist import THROUGH_EACH_CARD
from ringtree.theory.costs import is_laid, is_run, seconds_of
from ringtree.theory.table import ALGORITHMS
from ringtree.units import binary_text, count_text, percent_text, seconds_text

__all__ = ["Race", "race"]

MOST_MESSAGES = 2_000_000
BAND = 0.1
WIDE = 88  # letters of a line that the book's pages show without scrolling


@dataclass(frozen=True)
class Race:
    """The times of all that took part.

    times: one row for each size and algorithm: size (bytes), algorithm, options (of those that its grid tries, the best), time
    (s). left_out: name to the reason. band: two times nearer than this part are not told apart. laid: those that went once
    through each card.
    """

    collective: str
    ranks: int
    machine: Machine
    times: pd.DataFrame
    left_out: dict[str, str]
    band: float
    laid: tuple[str, ...]

    def first(self, size: int) -> pd.DataFrame:
        """The quickest for this size, and behind it those that are not told apart from it."""
        of_size = self.times[self.times["size"] == size].sort_values("time", kind="stable")
        if of_size.empty:
            raise UsageError(f"this race had no vector of {size!r} bytes: give one of {sorted(set(self.times['size']))}")
        return of_size[of_size.time <= of_size.time.iloc[0] * (1 + self.band)].reset_index(drop=True)

    def winner(self, size: int) -> str:
        """The name of the quickest for this size."""
        return self.first(size).algorithm[0]

    def time(self, algorithm: str, size: int) -> float:
        """Seconds of one that took part, with its best options."""
        row = self.times[(self.times["size"] == size) & (self.times.algorithm == algorithm)]
        if row.empty:
            raise UsageError(
                f"{algorithm!r} took no part with {size!r} bytes: {self.left_out.get(algorithm, 'it is not in the table')}"
            )
        return float(row.time.iloc[0])

    @property
    def _band(self) -> str:
        return percent_text(self.band)

    def __str__(self) -> str:
        lines = [f"{self.collective} on {self.ranks} ranks, quickest of {self.times.algorithm.nunique()}:"]
        for size in dict.fromkeys(self.times["size"]):
            near = self.first(size)
            names = [_named(row.algorithm, row.options) for row in near.itertuples()]
            line = f"{binary_text(size):>8} {seconds_text(near.time[0]):>8}  {names[0]}"
            if len(names) > 1:
                behind = f"(within {self._band}: {', '.join(names[1:3])}{' …' if len(names) > 3 else ''})"
                line += f"   {behind}" if len(line) + len(behind) <= WIDE - 3 else f"\n{'':10}{behind}"
            lines.append(line)
        if self.band == self.machine.error:
            lines.append(f"two times are not told apart within {self._band}, the median miss of the machine's fit")
        if self.laid:
            lines.append(f"once through each card: {', '.join(self.laid)}")
        for reason in dict.fromkeys(self.left_out.values()):
            out = ", ".join(name for name, why in self.left_out.items() if why == reason)
            lines += wrap(f"left out, {reason}: {out}", WIDE, subsequent_indent=" " * 10, break_on_hyphens=False)
        return "\n".join(lines)


@takes(
    ranks=whole(1),
    sizes=several("a list of sizes in bytes"),
    machine=a(Link, Machine, words="a Link or a Machine"),
    gamma=number(),
    itemsize=whole(1),
    band=optional(number()),
    root=whole(),
)
def race(collective, ranks, sizes, machine, *, gamma=0.0, itemsize=4, band=None, root=0) -> Race:
    """Run every algorithm of the table that is valid for this many ranks, and time it by `cost_of`.

    collective: a name as `ringtree.collectives.find` reads it. sizes: bytes of the full vector, whole elements of `itemsize`.
    machine: a Link, or a Machine, whose `ranks_per_node` the algorithms over nodes use. band: two times that differ by less
    than this part are not told apart; left out, the median miss of the fit on a machine that was fitted, and 0.1 on another.
    root: of a collective that has one. Options go over the grid of their row, from the middle downhill.

    An algorithm that needs more than two million messages is left out and named, and so is one that this machine has no form
    for. Raises UsageError for a collective without algorithms, and for sizes that are not whole elements.
    """
    collective = collectives.find(collective).name
    machine = Machine(machine) if isinstance(machine, Link) else machine
    if band is None:
        band = BAND if machine.error is None else machine.error
    rows = [row for row in ALGORITHMS if row.collective == collective]
    if not rows:
        known = ", ".join(dict.fromkeys(row.collective for row in ALGORITHMS))
        raise UsageError(f"race got {collective!r}, for which the table has no algorithm: give one of {known}")
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int) or size < 0 or size % itemsize:
            raise UsageError(f"race got sizes with {size!r}: give bytes, whole elements of {itemsize}")
    table, left_out, laid = [], {}, []
    for row in rows:
        options = {"root": root} if "root" in row.taken else {}
        if reason := _out(row, ranks, machine):
            left_out[row.name] = reason
            continue
        if "ranks_per_node" in row.taken:
            options["ranks_per_node"] = machine.ranks_per_node or 1
        if is_laid(row, ranks, machine):
            laid.append(row.name)
        try:
            best = _best(row, ranks, sizes, machine, gamma, itemsize, options)
            table += [{"size": size, "algorithm": row.name} | each for size, each in zip(sizes, best)]
        except _TooMany:
            left_out[row.name] = f"more than {MOST_MESSAGES:,} messages"
            table = [each for each in table if each["algorithm"] != row.name]
    return Race(collective, ranks, machine, pd.DataFrame(table), left_out, band, tuple(laid))


class _TooMany(Exception):
    """It needs more messages than are run."""


def _out(row, ranks, machine) -> str | None:
    """Return why it takes no part here, or None."""
    nodes = machine.ranks_per_node or ranks
    over_nodes = "ranks_per_node" in row.taken and not row.laid
    if over_nodes and nodes >= ranks:
        return "for several nodes only"
    if over_nodes and ranks % nodes:
        return "for whole nodes only"
    if row.name in THROUGH_EACH_CARD and machine.cards_per_node == nodes < ranks:
        return f"through each card it is {THROUGH_EACH_CARD[row.name]}"
    several_cards = (machine.cards_per_node or 1) > 1 and nodes < ranks
    if row.laid and several_cards and not is_laid(row, ranks, machine):
        return "by one card of each node only, and the table has no form that uses all cards"
    if row.laid and several_cards and (ranks % nodes or nodes % machine.cards_per_node):
        return "through each card for whole nodes only"
    return None


def _best(row, ranks, sizes, machine, gamma, itemsize, options):
    """For each size the best options of its grid, found by going downhill from the middle, and the time with them."""
    times = _times(row, ranks, sizes, machine, gamma, itemsize)
    if not row.grid:
        return [{"options": {}, "time": times(options, number)} for number in range(len(sizes))]
    ((name, values),) = row.grid.items()

    def best(number):
        @cache
        def time(place):
            return times({**options, name: values[place]}, number)

        place = len(values) // 2
        while True:
            near = [other for other in (place - 1, place + 1) if 0 <= other < len(values)]
            better = min(near, key=time)
            if time(better) >= time(place):
                return {"options": {name: values[place]}, "time": time(place)}
            place = better

    return [best(number) for number in range(len(sizes))]


def _times(row, ranks, sizes, machine, gamma, itemsize):
    """A function of options and the number of a size to seconds; a program that is run is run for all sizes at once."""
    run, found = is_run(row, machine), {}

    def times(options, number):
        key = *options.values(), None if run else number
        if key not in found:
            some = sizes if run else [sizes[number]]
            count = 0
            for messages, _ in row.steps(ranks, some[0], itemsize, {"root": 0, **options}):
                count += len(messages)
                if count > MOST_MESSAGES:
                    raise _TooMany
            found[key] = seconds_of(row, ranks, some, machine, gamma, itemsize, options)
        return found[key][number if run else 0]

    return times


def _named(name, options):
    """As `chain_broadcast, 16 chunks`; what is no plural is said as `greedy_reduce, latency 8`."""
    said = [count_text(value, key[:-1]) if key.endswith("s") else f"{key} {value}" for key, value in options.items()]
    return ", ".join([name, *said])
