"""Fit the gap g of a port to measured times, which only programs that send to several ranks at once hold.

fit_gap(samples)         # all-to-alls or scatters of three group sizes or more

In a ring or a tree every step waits for an arrival, so its time is made of α and β alone, whatever g is. In an all-to-all or a
scatter that posts everything at once, each further rank of the group adds one message to the busiest port: g seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import nnls
from scipy.stats import t as student

from ringtree.collectives import spelling
from ringtree.errors import UsageError
from ringtree.given import a, optional, takes, whole
from ringtree.units import percent_text, seconds_text

__all__ = ["HOLD_A_GAP", "FittedGap", "fit_gap"]

HOLD_A_GAP = ("all_to_all", "scatter")
"""The collectives whose times hold g."""

_GROUPS = 3
_SHORT = 1.5  # a time is of a short message if it is at most so many times the shortest of its world
_MOST_OFF = 0.25


@dataclass(frozen=True)
class FittedGap:
    """A fitted gap: g in seconds, its 90 % interval (low, high), and on what it rests.

    wire: "inside" one node or "between" nodes. worlds: (ranks, nodes), each once. miss: the median relative miss of the fit.
    """

    gap: float
    low: float
    high: float
    wire: str
    worlds: tuple[tuple[int, int], ...]
    collective: str
    miss: float

    def __str__(self) -> str:
        groups = ", ".join(str(ranks) for ranks, _ in self.worlds)
        return (
            f"{seconds_text(self.gap)} ({seconds_text(self.low)} to {seconds_text(self.high)}), "
            f"inferred from the {self.collective} on {groups} ranks"
        )


@takes(samples=a(pd.DataFrame, list, tuple, words="a DataFrame or a list of dicts"), nics=optional(whole(1)))
def fit_gap(samples, nics: int | None = None) -> FittedGap:
    """Fit g to all-to-alls and scatters of one kind of wire: on one node each, or on several nodes each.

    samples: columns collective, size (bytes of the full vector), time (seconds), ranks, and nodes where there are several; rows
    of other collectives are left out. nics: network cards of a node, which its ranks share out evenly; needed where a node
    has several ranks, since then a card carries the messages of several.

    Assumes that the library posts all messages at once, as NCCL does in a group; one that goes in turns shows g = α. With m
    messages and b bytes through the busiest port, a short message's time is d + m·g + b·β; d, g and β are fitted with none
    below zero, each miss counted in percent. Of both collectives the one on more worlds is taken. The interval is from fits that leave out one world at a time (jackknife).

    Raises UsageError, in one sentence, where the samples do not hold g: fewer than three group sizes, no all-to-all or scatter,
    several wires, times that do not follow the form, or a g that they do not tell from 0.
    """
    table = pd.DataFrame(samples)
    if lacking := [name for name in ("collective", "size", "time", "ranks") if name not in table]:
        raise UsageError(f"fit_gap got samples without a column {', '.join(lacking)}: give collective, size, time and ranks")
    table = table.assign(collective=table.collective.map(spelling), nodes=table["nodes"] if "nodes" in table else 1)
    table = table[table.collective.isin(HOLD_A_GAP) & (table["size"] > 0) & (table.ranks > 1)]
    if table.empty:
        raise UsageError(
            f"the logs hold no {' or '.join(HOLD_A_GAP)}: give one, since in rings and trees every step waits for an arrival"
        )
    if (table.nodes > 1).nunique() == 2:
        raise UsageError(
            "some logs come from one node and some from several, so they measure two different wires: fit one kind at a time"
        )
    groups = {name: sorted({*zip(some.ranks.map(int), some.nodes.map(int))}) for name, some in table.groupby("collective")}
    collective = max(groups, key=lambda name: len(groups[name]))
    worlds = groups[collective]
    if len({ranks for ranks, _ in worlds}) < _GROUPS:
        sizes = " and ".join(f"{ranks}" for ranks, _ in worlds)
        raise UsageError(
            f"the {collective} was measured on {sizes} ranks only: "
            "it takes three group sizes or more to tell the gap from the start of a call"
        )
    table = table[table.collective == collective]
    if nics is None and any(1 < nodes < ranks for ranks, nodes in worlds):
        raise UsageError("several ranks of a node share its network cards: give nics, the cards of a node")
    short = _short(table)
    found = _fitted(short, nics)
    off = np.abs(found @ _terms(short, nics) / short.time.to_numpy() - 1)
    worst = max(float(np.median(off[_is(short, world)])) for world in worlds)
    if worst > _MOST_OFF:
        raise UsageError(
            f"a start, a gap for each message and bytes miss the times of a group by {percent_text(worst)}: "
            "the library changed its algorithm between the groups"
        )
    gap = float(found[1])
    others = [float(_fitted(short[~_is(short, world)], nics)[1]) for world in worlds]
    spread = np.sqrt((len(worlds) - 1) * np.mean((np.array(others) - np.mean(others)) ** 2))
    doubt = float(student.ppf(0.95, len(worlds) - 1) * spread)
    if gap <= doubt:
        raise UsageError(f"the times do not tell the gap from 0: it may be up to {seconds_text(gap + doubt)}")
    wire = "between" if worlds[0][1] > 1 else "inside"
    return FittedGap(gap, gap - doubt, gap + doubt, wire, tuple(worlds), collective, float(np.median(off)))


def _is(table, world):
    return ((table.ranks == world[0]) & (table.nodes == world[1])).to_numpy()


def _short(table) -> pd.DataFrame:
    """The rows whose time is mostly latency: those near the shortest of their collective and world."""
    shortest = table.groupby(["collective", "ranks", "nodes"])["time"].transform("min")
    return table[(table.time <= _SHORT * shortest) & (table.ranks > 1)].reset_index(drop=True)


def _terms(table, nics) -> np.ndarray:
    """Of every row: 1, messages through the busiest port, bytes through it."""
    p, nodes, n = (table[name].to_numpy(dtype=float) for name in ("ranks", "nodes", "size"))
    cards = p / nodes
    at_a_card = np.where(table.collective == "all_to_all", np.ceil(cards / np.minimum(nics or 1, cards)), 1.0)
    messages = np.where(nodes > 1, at_a_card * (p - cards), p - 1)
    return np.array([np.ones(len(p)), messages, messages * n / p])


def _fitted(table, nics) -> np.ndarray:
    """d, g and β."""
    terms = _terms(table, nics) / table.time.to_numpy()
    scale = terms.max(axis=1)
    return nnls((terms / scale[:, None]).T, np.ones(len(table)))[0] / scale
