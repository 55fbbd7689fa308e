"""Who sends how much to whom: a matrix of bytes."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from matplotlib.patches import Rectangle

from ringtree.draw.picture import Picture, picture
from ringtree.draw.style import INK, NARROW, RANK_COLOURS, canvas, letters, narrow, styled, title_height, write_title
from ringtree.errors import UsageError
from ringtree.given import a, optional, takes, text, whole
from ringtree.trace import Trace
from ringtree.units import bytes_text


@styled
@takes(
    trace=a(Trace, words="a trace, such as simulate(…).trace"),
    ranks_per_node=optional(whole(1)),
    title=text,
    alt=optional(text),
)
def traffic(trace: Trace, *, ranks_per_node: int | None = None, title: str = "", alt: str | None = None) -> Picture:
    """The bytes that each rank sent to each other one in a run, as a matrix, with the sums of its rows and columns.

    A row is a sender, a column a receiver; the more bytes, the darker. ranks_per_node draws
    the borders of nodes. With more than 12 ranks, on a phone more than 8, the numbers are left out but for the largest.

    Raises UsageError for a trace without messages.
    """
    if not trace:
        raise UsageError("traffic() was given a trace without messages: run something that sends first")
    moved = {}
    for message in trace:
        pair = message.src, message.dst
        moved[pair] = moved.get(pair, 0) + message.nbytes
    size = trace.size
    grid = _laid_out(size, 58 + title_height(title))
    width = grid.left + grid.side + grid.right
    height = grid.top + grid.side + (34 if grid.numbers else 14) + 24
    ax = canvas(max(width, NARROW), height)
    write_title(ax, title)
    _draw_headings(ax, grid)
    _draw_boxes(ax, grid, moved)
    _draw_nodes(ax, grid, ranks_per_node or size)
    if grid.numbers:
        _draw_sums(ax, grid, trace)
    strongest = "" if grid.numbers else f"strongest colour: {bytes_text(_most(moved))}"
    below = " · ".join(filter(None, (strongest, trace.label)))
    ax.text(grid.left, height - 10, below, va="center", fontsize=letters(12), alpha=0.75)
    pairs = f"{len(moved)} of {size * (size - 1)} pairs in use"
    return picture(ax.figure, alt or f"Bytes from each rank to each other one: {size} ranks, {pairs}.")


class _Grid(NamedTuple):
    """Where the boxes lie, in pixels; `numbers`: whether they are large enough for their bytes."""

    size: int
    left: float
    right: float
    top: float
    box: float
    numbers: bool

    @property
    def side(self) -> float:
        return self.box * self.size

    @property
    def fontsize(self) -> float:
        return letters(max(11.0, min(13.0, self.box / 4.2)))


def _laid_out(size: int, top: float) -> _Grid:
    if narrow():
        numbers = size <= 8
        left, right = 42.0, 52.0 if numbers else 6.0
        return _Grid(size, left, right, top, min(40.0, (NARROW - left - right) / size), numbers)
    if size <= 12:
        return _Grid(size, 74.0, 80.0, top, min(56.0, 560 / (size + 1)), True)
    return _Grid(size, 74.0, 12.0, top, max(9.0, 480 / size), False)


def _most(moved) -> int:
    return max(max(moved.values()), 1)


def _draw_headings(ax, grid: _Grid) -> None:
    ax.text(grid.left + grid.side / 2, grid.top - 42, "to rank", ha="center", va="center")
    ax.text(10, grid.top + grid.side / 2, "from rank", ha="center", va="center", rotation=90)
    step = 1 if grid.numbers else 8 if grid.size % 8 == 0 and grid.size > 16 else 4
    for rank in range(0, grid.size, step):
        at = grid.box * (rank + 0.5)
        ax.text(grid.left + at, grid.top - 16, str(rank), ha="center", va="center", weight="bold")
        ax.text(grid.left - 14, grid.top + at, str(rank), ha="center", va="center", weight="bold")


def _draw_boxes(ax, grid: _Grid, moved) -> None:
    box, most = grid.box, _most(moved)
    gap = 1.5 if box > 14 else 0.5
    least, more = (0.12, 0.4) if grid.numbers else (0.2, 0.8)  # under numbers the colour stays pale
    if not grid.numbers:
        ax.add_patch(Rectangle((grid.left, grid.top), grid.side, grid.side, facecolor=INK, alpha=0.05, edgecolor="none"))
    for src, dst in product(range(grid.size), repeat=2):
        x, y, nbytes = grid.left + box * dst, grid.top + box * src, moved.get((src, dst), 0)
        place = (x + gap, y + gap), box - 2 * gap, box - 2 * gap
        if nbytes:
            shade = least + more * (nbytes / most)
            ax.add_patch(Rectangle(*place, facecolor=RANK_COLOURS[0], alpha=shade, edgecolor="none"))
        elif grid.numbers:
            ax.add_patch(Rectangle(*place, fill=False, edgecolor=INK, alpha=0.15, linewidth=1))
        if nbytes and grid.numbers:
            text = bytes_text(nbytes).replace(" ", "\n")
            ax.text(x + box / 2, y + box / 2, text, ha="center", va="center", fontsize=grid.fontsize)


def _draw_nodes(ax, grid: _Grid, ranks_per_node: int) -> None:
    """The borders between nodes."""
    for border in range(ranks_per_node, grid.size, ranks_per_node):
        at = grid.box * border
        ax.plot([grid.left + at] * 2, [grid.top, grid.top + grid.side], color=INK, linewidth=1.5)
        ax.plot([grid.left, grid.left + grid.side], [grid.top + at] * 2, color=INK, linewidth=1.5)


def _draw_sums(ax, grid: _Grid, trace: Trace) -> None:
    """Draw what each rank sends and receives in all, right of its row and below its column."""
    right, end = grid.left + grid.side + (4 if narrow() else 12), grid.top + grid.side
    ax.text(right, grid.top - 16, "sends", va="center", alpha=0.75)
    ax.text(0 if narrow() else grid.left - 8, end + 18, "receives", ha="left" if narrow() else "right", va="center", alpha=0.75)
    for rank, (sent, received) in enumerate(zip(trace.bytes_sent, trace.bytes_received, strict=True)):
        at = grid.box * (rank + 0.5)
        ax.text(right, grid.top + at, bytes_text(sent), va="center")
        text = bytes_text(received).replace(" ", "\n")
        ax.text(grid.left + at, end + 18, text, ha="center", va="center", fontsize=grid.fontsize)
