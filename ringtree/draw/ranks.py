"""Pictures of who holds what at several moments, one box a number, and of who gave it to whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from matplotlib.patches import FancyArrowPatch, Rectangle

from ringtree.draw.origins import Moved, origins
from ringtree.draw.picture import Picture, picture
from ringtree.draw.style import (
    INK,
    NARROW,
    PAPER,
    WIDE,
    canvas,
    letters,
    narrow,
    rank_colour,
    styled,
    title_height,
    write_title,
)
from ringtree.errors import UsageError
from ringtree.given import optional, several, takes, text
from ringtree.trace import Trace

HIGH = 36.0  # of a box on a wide page, in pixels


@takes(
    before=several("a list with an entry for each rank"),
    after=several("a list with an entry for each rank"),
    title=text,
    alt=optional(text),
)
def before_after(
    before: Sequence,
    after: Sequence,
    title: str = "",
    alt: str | None = None,
    *,
    by: str | Trace | None = None,
    root: int = 0,
    groups: Sequence[Sequence[int]] | None = None,
    names: tuple[str, str] = ("before", "after"),
) -> Picture:
    """Draw what every rank holds before a call and after it, and who gave to whom.

    before, after: one entry a rank: a list of numbers or short strings, a single one, or None for a
    rank that holds nothing; None inside a list is an empty box.
    by: what was called: a collective's name, or the trace of a run. It says who gave to whom, as arrows, and whose
    number a box holds, as the colour of that rank; a box that was made of several, as a sum is, has none. root: the
    root of the collective. groups: lists of ranks that called it each apart. names: of the two moments.

    Raises UsageError where the collective does not make `after` of `before`, and UsageError if before and after have
    different numbers of ranks, or none.
    """
    if len(before) != len(after):
        raise UsageError(
            f"before_after got {len(before)} ranks before and {len(after)} after: give one entry a rank, None for nothing"
        )
    return holdings([(names[0], before), (names[1], after, by)], title, alt or _say(title), root=root, groups=groups)


@styled
@takes(rows=several("a list of rows"), title=text, alt=optional(text))
def holdings(
    rows: Sequence[tuple],
    title: str = "",
    alt: str | None = None,
    *,
    root: int = 0,
    groups: Sequence[Sequence[int]] | None = None,
) -> Picture:
    """Draw what every rank holds at several moments: on a wide page one below the other, on a phone side by side.

    rows: (name, held by each rank), or with what made it of the row before: (name, held by each rank, by), as in `before_after`.
    """
    names, held = [row[0] for row in rows], [[_boxes(each) for each in row[1]] for row in rows]
    ranks = len(held[0]) if rows else 0
    if not ranks or any(len(by_rank) != ranks for by_rank in held):
        raise UsageError(
            "holdings was given no row, or rows of different lengths: give one row or more, with an entry for each rank"
        )
    moved = [
        origins(row[2] if len(row) > 2 else None, before, after, root, groups)
        for row, before, after in zip(rows[1:], held, held[1:])
    ]
    top = title_height(title)
    shown = _pairs(len(held)) if narrow() and _cramped(held) else [range(len(held))]
    panels = []
    for moments in shown:
        part = [held[moment] for moment in moments]
        places, end = _side_by_side(part, names[moments[-1]], top) if narrow() else _one_below_another(part, moved, top)
        panels.append((moments, places))
        top = end + 14
    ax = canvas(NARROW if narrow() else WIDE, end)
    write_title(ax, title)
    colours = _colours(held, moved)
    for moments, places in panels:
        _write_names(ax, [names[moment] for moment in moments], places)
        for moment, before, after in zip(moments[1:], places, places[1:]):
            _draw_gifts(ax, moved[moment - 1], before, after, in_turn=isinstance(rows[moment][-1], Trace))
        for moment, by_rank in zip(moments, places):
            for boxes, where, paints in zip(held[moment], by_rank, colours[moment]):
                for place, value, paint in zip(where, boxes or [None], paints or [None]):
                    _draw_box(ax, place, value, paint)
    return picture(ax.figure, alt or _say(title))


def _colours(held, moved) -> list:
    """By moment, rank and box: the colour of the rank that brought what is in it, or None."""
    colours = [[[rank_colour(rank)] * len(boxes or []) for rank, boxes in enumerate(held[0])]]
    for each in moved:
        colours.append([[_colour(box, colours[-1]) for box in boxes] for boxes in each.made_of])
    return colours


# -- where the boxes lie: by moment and rank, an array of (x, y, width, height), one row a box ---------------------------


def _one_below_another(held, moved, top):
    """A row for each moment, in it the ranks side by side; `top` pixels are taken by the title."""
    left, ranks = 70, len(held[0])
    column = (WIDE - left) / ranks
    box = min(38.0, (column - 10) / _most(held))
    y, places = top + 34, []
    for row, by_rank in enumerate(held):
        if row:
            # Ways that cross need height to be told apart.
            y += HIGH + (26 if not moved[row - 1].gave else 60 if ranks <= 4 else 84)
        starts = [left + column * (rank + 0.5) - box * len(boxes or [None]) / 2 for rank, boxes in enumerate(by_rank)]
        places.append([_line(x, y, box, HIGH, boxes) for x, boxes in zip(starts, by_rank)])
    return places, y + HIGH + 8


def _pairs(moments: int) -> list[range]:
    return [range(first, first + 2) for first in range(moments - 1)]


def _cramped(held) -> bool:
    """Return whether the moments side by side leave a phone's boxes too narrow for what is written in them."""
    longest = max(len(_text(value)) for by_rank in held for boxes in by_rank for value in boxes or [None])
    return len(held) > 2 and _widths(held)[1] < 6.2 * longest + 5


def _widths(held):
    """On a phone: the boxes of each moment, and how wide one is."""
    boxes, gaps = [_most([by_rank]) for by_rank in held], max(1, len(held) - 1)
    return boxes, min(32.0, (NARROW - (52 if gaps == 1 else 36) * gaps) / sum(boxes))


def _side_by_side(held, last_name, top):
    """A column for each moment, in it the ranks one below the other."""
    (widths, box), gaps = _widths(held), max(1, len(held) - 1)
    last = max(box * widths[-1], 6.6 * len(last_name))  # a name may be wider than the boxes below it
    between = min(150.0, (NARROW - box * sum(widths[:-1]) - last) / gaps)
    places = []
    for row, by_rank in enumerate(held):
        x = row * between + box * sum(widths[:row])
        places.append([_line(x, top + 38 + 50 * rank, box, 26.0, boxes) for rank, boxes in enumerate(by_rank)])
    return places, top + 38 + 50 * len(held[0]) - 16


def _line(x, y, wide, high, boxes) -> np.ndarray:
    return np.array([(x + wide * place, y, wide, high) for place in range(len(boxes or [None]))])


def _most(held) -> int:
    return max(1, *(len(boxes) for by_rank in held for boxes in by_rank if boxes is not None))


# -- what is drawn -------------------------------------------------------------------------------------------------------


def _write_names(ax, names, places) -> None:
    """The moments' names, and the ranks'."""
    first = places[0][0][0]
    for name, by_rank in zip(names, places):
        x, y, _, high = by_rank[0][0]
        ax.text(x if narrow() else 0, first[1] - 30 if narrow() else y + high / 2, name, va="center")
    for rank, boxes in enumerate(places[0]):
        bold = {"color": rank_colour(rank), "weight": "bold", "va": "center"}
        if narrow():
            ax.text(0, boxes[0, 1] - 10, f"rank {rank}", **bold)
        else:
            ax.text(boxes[:, 0].mean() + boxes[0, 2] / 2, boxes[0, 1] - 17, f"rank {rank}", ha="center", **bold)


def _draw_gifts(ax, moved: Moved, before, after, in_turn: bool) -> None:
    """An arrow from each rank that gave to each that was given something, between the boxes that are meant."""
    ways = [(src, dst, *_ends(src, dst, moved, before, after)) for src, dst in moved.gave]
    alike, place = Counter((dst, *end) for _, dst, _, end in ways), Counter()
    many = len(ways) > 16
    for number, (src, dst, start, end) in enumerate(ways, 1):
        # Arrows that would end in one point end beside each other.
        key = dst, *end
        aside = (place[key] - (alike[key] - 1) / 2) * min(9.0, 24 / alike[key])
        place[key] += 1
        end = (end[0], end[1] + aside) if narrow() else (end[0] + aside, end[1])
        arrow = {"arrowstyle": "-|>", "mutation_scale": 7 if many or narrow() else 11, "linewidth": 1.0 if many else 1.5}
        ax.add_patch(FancyArrowPatch(start, end, color=rank_colour(src), shrinkA=0, shrinkB=0, **arrow))
        if in_turn and 1 < len(ways) <= 6:
            (x0, y0), (x1, y1) = start, end
            box = {"facecolor": PAPER, "edgecolor": "none", "pad": 1}
            at = x0 + 0.25 * (x1 - x0), y0 + 0.25 * (y1 - y0)
            ax.text(*at, f"{number}.", ha="center", va="center", color=rank_colour(src), fontsize=letters(12), bbox=box)


def _ends(src: int, dst: int, moved: Moved, before, after):
    """Return where the arrow from one rank to another begins and ends."""
    made_of, given, got = moved.made_of[dst], before[src], after[dst]
    if narrow():
        x, y, wide, high = given[-1]
        return (x + wide + 3, y + high / 2), (got[0, 0] - 3, got[0, 1] + high / 2)
    used = sorted({place for box in made_of for rank, place in box or () if rank == src})
    filled = [place for place, box in enumerate(made_of) if src in {rank for rank, _ in box or ()}]
    start = given[used] if used else given
    end = got[filled] if filled else got
    half = given[0, 2] / 2
    return (start[:, 0].mean() + half, start[0, 1] + HIGH + 4), (end[:, 0].mean() + half, end[0, 1] - 4)


def _draw_box(ax, place, value, colour) -> None:
    x, y, width, height = place
    inside = (x + 1.5, y), width - 3, height
    if value is None:
        ax.add_patch(Rectangle(*inside, fill=False, linestyle=(0, (3, 3)), alpha=0.5))
        return
    if colour is not None:
        ax.add_patch(Rectangle(*inside, facecolor=colour, alpha=0.22, edgecolor="none"))
    ax.add_patch(Rectangle(*inside, fill=False, edgecolor=INK if colour is None else colour, linewidth=1.5))
    text = _text(value)
    # About 0.62 of the font size a digit: small enough to stay inside its box, never too small to read.
    low, high = (9.4, 12.0) if narrow() else (11.0, 15.0)
    size = max(low, min(high, (width - 8) / (0.62 * max(len(text), 1))))
    upright = len(text) > 1 and not narrow() and 0.62 * size * len(text) > width - 3  # too narrow for it: the text runs upwards
    ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=size, rotation=90 if upright else 0)


def _text(value) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:g}"


def _boxes(held) -> list | None:
    if held is None:
        return None
    if hasattr(held, "tolist"):
        held = held.tolist()
    return list(held) if isinstance(held, (list, tuple)) else [held]


def _colour(made_of, colours) -> str | None:
    """The colour of the box that a box was copied from; None for one that was made of several."""
    if not made_of or len(made_of) > 1:
        return None
    ((rank, place),) = made_of
    return colours[rank][place]


def _say(title: str) -> str:
    what = title.strip().rstrip(".:")
    return f"What each rank holds before and after: {what}." if what else "What each rank holds before and after the call."
