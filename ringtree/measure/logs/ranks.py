"""How many ranks ran, from the numbers that a log prints of its rows.

busbw is size / time multiplied by a factor that the number of ranks gives, 2(p−1)/p for an all-reduce and (p−1)/p where
there are shards, so that it says how many ran, within what rounding leaves. For the others the factor is always 1. The
count of a collective on shards says it too: it is of one shard, and the size of all. Source: nccl-tests, doc/PERFORMANCE.md
and the functions GetBw and PrintLine of its sources.
"""

from __future__ import annotations

import math

from ringtree.measure.logs.types import itemsize_of
from ringtree.units import count_text

MANY = 10**6  # nobody has run more
NONE = (0, 0)


def ranks_of(rows, collective, told, source):
    """(ranks or None, sentences for the reader): what is told by `source`, unless the numbers of the rows contradict it."""
    if told is not None and agrees(rows, collective, told):
        return told, []
    found = _common(_evidence(rows, collective, _by_bandwidth)) or _common(_evidence(rows, collective, _by_count))
    if found is None:
        return told, []
    first, last = found
    are = f"are those of {count_text(first, 'rank') if first == last else f'{first} to {last} ranks'}"
    if told is None:
        sentence = f"nothing says how many ranks ran: the bandwidths {are}"
    else:
        sentence = f"{source} {count_text(told, 'rank')}, and the bandwidths {are}"
    if first == last:
        return first, [f"{sentence}, which is used"]
    return None, [f"{sentence}: give how many, with ranks="]


def agrees(rows, collective, ranks):
    """Return whether at least half of the rows that say how many ranks ran, by bandwidth or by count, allow this number."""
    evidence = [_evidence(rows, collective, each) for each in (_by_bandwidth, _by_count)]
    agreeing = [2 * sum(first <= ranks <= last for first, last in each) >= len(each) for each in evidence if each]
    return any(agreeing) or not agreeing


def _evidence(rows, collective, by):
    return [allowed for row in rows if "busbw_bounds" in row and (allowed := by(row, collective))]


def impossible(rows, collective):
    """A sentence where most rows have bandwidths that this collective has on no number of ranks, else None."""
    clear = [row for row in rows if "busbw_bounds" in row and _factor(row)[1] < 1.2 * _factor(row)[0]]
    if 2 * sum(_by_bandwidth(row, collective) == NONE for row in clear) > len(clear):
        return (
            f"its busbw / algbw is one that {collective.name} does not have on any number of ranks: is it another collective?"
        )
    return None


def _factor(row):
    """Return between which numbers busbw / (size / time) lies."""
    (low, high), (least, most) = row["busbw_bounds"], row["algbw_bounds"]
    return max(low, 0) / most if most > 0 else 0.0, high / least if least > 0 else math.inf


def _by_bandwidth(row, collective):
    """(fewest, most) ranks that a row's factor allows; NONE where none has it; None where it says nothing."""
    low, high = _factor(row)
    if collective.bus_factor(2) == collective.bus_factor(3):
        return None if low <= collective.bus_factor(2) <= high else NONE
    largest = 2 * collective.bus_factor(2)  # with ever more ranks
    if high >= largest and low < collective.bus_factor(3):
        return None
    fewest = math.ceil(largest / (largest - low) - 1e-9) if low < largest else MANY + 1
    most = math.floor(min(largest / (largest - high) + 1e-9, MANY)) if high < largest else MANY
    return (fewest, most) if fewest <= most else NONE


def _by_count(row, collective):
    itemsize = itemsize_of(row["type"])
    if not (collective.sharded and itemsize and row["count"]):
        return None
    ranks, rest = divmod(row["size"], row["count"] * itemsize)
    return (ranks, ranks) if rest == 0 and 1 < ranks <= MANY else None


def _common(evidence):
    """(fewest, most) ranks that the most rows allow, if that is at least half of them."""
    if not evidence:
        return None
    begins, ends = sorted(first for first, _ in evidence), sorted(last for _, last in evidence)
    open_at, best, at, ended = 0, 0, 0, 0
    for begun, first in enumerate(begins, 1):
        while ends[ended] < first:
            ended += 1
        open_at = begun - ended
        if open_at > best and first > 0:
            best, at = open_at, first
    if 2 * best < len(evidence):
        return None
    return at, min(last for first, last in evidence if first <= at <= last)
