"""Where the step player puts the ranks (in a ring, in a row, as a tree or on a grid), and how large a rank's cells are."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict

from ringtree.draw.player_words import ChunkNames
from ringtree.errors import UsageError
from ringtree.trace import Trace

LAYOUTS = ("ring", "row", "tree", "grid")


def layout_of(trace: Trace) -> str:
    """Return the layout in which the ways between the ranks of a run look like what they are."""
    size, ways = trace.size, {tuple(sorted((message.src, message.dst))) for message in trace}
    if all(high - low == 1 for low, high in ways):
        return "row"
    if all(high - low in (1, size - 1) for low, high in ways):
        return "ring"
    if len(ways) == size - 1:
        with contextlib.suppress(ValueError):
            _parents(trace)
            return "tree"
    return "grid" if _columns(trace) else "ring"


def _columns(trace: Trace) -> int:
    """Return how many columns a grid has that the ranks fill row by row, each exchanging with its own row and column alone; 0 for none."""
    for columns in range(trace.size // 2, 1, -1):
        if trace.size % columns == 0 and all(
            (message.src - message.dst) % columns == 0 or message.src // columns == message.dst // columns for message in trace
        ):
            return columns
    return 0


def geometry(trace: Trace, layout: str, parents) -> dict:
    """Places of the ranks, and the ways between them; up to 16 ranks in a drawing that fits a phone."""
    size, width = trace.size, 340
    wires = sorted({(message.src, message.dst) for message in trace})
    both = any((dst, src) in wires for src, dst in wires)
    radius = 20 if size <= 8 else 15 if size <= 16 else 10
    if layout == "ring":
        places, height = _ring(size, width, radius)
    elif layout == "row":
        width = max(width, 21 * size)
        places, height, radius = _row(size, width, radius, longest=max(abs(src - dst) for src, dst in wires))
    elif layout == "grid":
        if not (columns := _columns(trace)):
            raise UsageError("player() finds no grid in this run: give another layout")
        places, height, radius = _grid(size, columns, width, radius)
    else:
        above = _parents(trace) if parents is None else list(parents)
        if len(above) != size or above.count(None) != 1 or not set(above) <= {None, *range(size)}:
            raise UsageError(
                f"player() got parents={parents!r}: give one rank for each of {size} ranks, None for the root alone"
            )
        width = max(width, 21 * len(set(range(size)) - set(above)))
        places, height, radius = _tree(above, width, radius)
    return {
        "layout": layout,
        "width": width,
        "height": round(height),
        "radius": round(radius, 1),
        "both": both,
        "apart": round(min((math.dist(places[src], places[dst]) for src, dst in wires), default=0), 1),
        "places": [[round(x, 1), round(y, 1)] for x, y in places],
        "wires": wires,
    }


def _ring(size, width, radius):
    reach = (width - 2 * radius) / 2 - (30 if size > 4 else 16)
    middle = width / 2, reach + radius + 18
    turns = [2 * math.pi * rank / size for rank in range(size)]
    places = [(middle[0] + reach * math.sin(turn), middle[1] - reach * math.cos(turn)) for turn in turns]
    return places, 2 * (reach + radius) + 36


def _row(size, width, radius, longest):
    """longest: how many ranks the longest way passes; its curve sets the height."""
    step = (width - 2 * radius - 8) / max(1, size - 1)
    radius = min(radius, max(8, step / 2 - 3))
    # The curve is drawn through a point twice as far aside as the curve itself goes.
    rise = min(0.31 * (longest * step), 110) + 16
    height = 2 * max(rise, radius + 8)
    return [(radius + 4 + rank * step, height / 2) for rank in range(size)], height, radius


def _grid(size, columns, width, radius):
    step = min(120, (width - 2 * radius - 40) / (columns - 1))
    left, top = (width - (columns - 1) * step) / 2, radius + 34
    places = [(left + rank % columns * step, top + rank // columns * step) for rank in range(size)]
    return places, 2 * top + (size // columns - 1) * step, min(radius, max(8, step / 2 - 6))


def _parents(trace: Trace) -> list[int | None]:
    """Each rank below the one that it first received from; or, where that is no tree, first sent to."""
    received, sent = {}, {}
    for message in trace:
        received.setdefault(message.dst, message.src)
        sent.setdefault(message.src, message.dst)
    for peers in (received, sent):
        # In an all-reduce the root sends too, but begins after all others.
        for root in [rank for rank in range(trace.size) if rank not in peers] or list(peers)[-1:]:
            above = [None if rank == root else peers.get(rank) for rank in range(trace.size)]
            if above.count(None) == 1 and all(_reaches(above, rank, root) for rank in range(trace.size)):
                return above
    raise UsageError("player() finds no tree in this run: give parents=, the rank above each rank, or another layout")


def _reaches(above, rank, root) -> bool:
    for _ in above:
        if rank == root:
            return True
        rank = above[rank]
    return False


def _tree(above, width, radius):
    """Places of a tree: leaves side by side, each other rank over the middle of those below it."""
    below = defaultdict(list)
    for rank, parent in enumerate(above):
        below[parent].append(rank)
    (root,) = below[None]
    leaves = [rank for rank in range(len(above)) if not below[rank]]
    step = width / len(leaves)
    x, depth, used = {}, {root: 0}, []

    def set_out(rank):
        for child in below[rank]:
            depth[child] = depth[rank] + 1
            set_out(child)
        if below[rank]:
            x[rank] = (x[below[rank][0]] + x[below[rank][-1]]) / 2
        else:
            x[rank] = (len(used) + 0.5) * step
            used.append(rank)

    set_out(root)
    if len(depth) != len(above):
        raise UsageError(
            f"player() got parents={above!r}, a circle of ranks: give a tree, in which each rank but the root has one rank above it"
        )
    radius = min(radius, max(8, step / 2 - 3))
    rise = max(2 * radius + 30, min(92, 250 / max(1, max(depth.values()))))
    places = [(x[rank], radius + 6 + rise * depth[rank]) for rank in range(len(above))]
    return places, rise * max(depth.values()) + 2 * radius + 12, radius


def cells(names: ChunkNames) -> dict:
    """The columns of a rank's cells, and how wide and how high a cell is, in pixels."""
    text = names.mode == "text"
    count = sum(len(letters) for _, letters, _ in names.columns)
    room = 344 - (74 if names.size > 10 else 64) - 12 * (len(names.columns) - 1)
    width = 100 if text else max(16, min(44, room // count))
    columns = [[name, [""] * len(letters) if text else letters, first] for name, letters, first in names.columns]
    return {"mode": names.mode, "slots": names.slots, "columns": columns, "cell": width, "row": 32 if names.size <= 10 else 25}
