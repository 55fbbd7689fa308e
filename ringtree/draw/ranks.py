"""Pictures of who holds what: one column a rank, one box a number."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.patches import FancyArrowPatch, Rectangle

from ringtree.draw.picture import Picture, picture
from ringtree.draw.style import INK, canvas, rank_colour, styled


def before_after(
    before: Sequence,
    after: Sequence,
    title: str = "",
    alt: str | None = None,
    *,
    from_ranks: Sequence | None = None,
    names: tuple[str, str] = ("before", "after"),
) -> Picture:
    """What every rank holds before a call and after it.

    before, after: one entry a rank: a list of numbers or short strings, a single one, or None for a
    rank that holds nothing; None inside a list is an empty box. Before the call each box has its
    holder's colour. from_ranks: shaped like `after`, the rank that each box came from, to colour it;
    None, or a missing entry, leaves it without colour (a sum comes from everybody).

    Raises ValueError if before and after have different numbers of ranks, or none.
    """
    if len(before) != len(after):
        raise ValueError(
            f"before_after got {len(before)} ranks before and {len(after)} after; give one entry a rank, None for nothing."
        )
    own = [[rank] * len(_boxes(held) or []) for rank, held in enumerate(before)]
    return holdings([(names[0], before, own), (names[1], after, from_ranks)], title, alt or _say(title))


@styled
def holdings(rows: Sequence[tuple], title: str = "", alt: str | None = None) -> Picture:
    """What every rank holds at several moments, one moment a row, read downwards.

    rows: (name, held by each rank, rank that each box came from or None), as in `before_after`.
    """
    rows = [(name, [_boxes(held) for held in by_rank], origins) for name, by_rank, origins in rows]
    ranks = len(rows[0][1]) if rows else 0
    if not ranks or any(len(by_rank) != ranks for _, by_rank, _ in rows):
        raise ValueError("holdings needs at least one row, and the same number of ranks, at least one, in each.")
    most = max(1, *(len(held) for _, by_rank, _ in rows for held in by_rank if held is not None))
    left, width, high = 70, 720, 36
    column = (width - left) / ranks
    box = min(38.0, (column - 18) / most)
    top = 34 + (30 if title else 0)
    step = high + 44
    height = top + step * (len(rows) - 1) + high + 8
    ax = canvas(width, height)
    if title:
        ax.text(0, 14, title, fontsize=14, weight="bold", va="center")
    for rank in range(ranks):
        middle = left + column * (rank + 0.5)
        ax.text(middle, top - 17, f"rank {rank}", color=rank_colour(rank), weight="bold", ha="center", va="center")
        for above in range(len(rows) - 1):
            y = top + step * above + high
            ax.add_patch(
                FancyArrowPatch((middle, y + 8), (middle, y + 36), arrowstyle="-|>", mutation_scale=13,
                                color=INK, alpha=0.45, linewidth=1.5)
            )  # fmt: skip
    for index, (name, by_rank, origins) in enumerate(rows):
        y = top + step * index
        ax.text(0, y + high / 2, name, va="center")
        for rank, held in enumerate(by_rank):
            middle = left + column * (rank + 0.5)
            cells = [None] if held is None else held
            start = middle - box * len(cells) / 2
            for place, value in enumerate(cells):
                colour = _colour(origins, rank, place)
                _draw_box(ax, start + box * place, y, box, high, value, colour)
    return picture(ax.figure, alt or _say(title))


def _draw_box(ax, x, y, width, height, value, colour) -> None:
    if value is None:
        ax.add_patch(Rectangle((x + 1.5, y), width - 3, height, fill=False, linestyle=(0, (3, 3)), alpha=0.5))
        return
    if colour is not None:
        ax.add_patch(Rectangle((x + 1.5, y), width - 3, height, facecolor=colour, alpha=0.22, edgecolor="none"))
    ax.add_patch(
        Rectangle((x + 1.5, y), width - 3, height, fill=False, edgecolor=INK if colour is None else colour, linewidth=1.5)
    )
    text = value if isinstance(value, str) else f"{value:g}"
    # About 0.62 of the font size a digit: small enough to stay inside its box, never below 11 px.
    size = max(11.0, min(15.0, (width - 5) / (0.62 * max(len(text), 1))))
    ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=size)


def _boxes(held) -> list | None:
    if held is None:
        return None
    if hasattr(held, "tolist"):
        held = held.tolist()
    return list(held) if isinstance(held, (list, tuple)) else [held]


def _colour(origins, rank: int, place: int) -> str | None:
    if origins is None or origins[rank] is None:
        return None
    of_rank = _boxes(origins[rank])
    origin = of_rank[place] if place < len(of_rank) else None
    return None if origin is None else rank_colour(origin)


def _say(title: str) -> str:
    what = title.strip().rstrip(".:")
    return f"What each rank holds before and after: {what}." if what else "What each rank holds before and after the call."
