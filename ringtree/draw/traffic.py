"""Who sends how much to whom: a matrix of bytes."""

from __future__ import annotations

from matplotlib.patches import Rectangle

from ..trace import Trace
from ..units import bytes_text
from .picture import Picture, picture
from .style import INK, RANK_COLOURS, figure, styled


@styled
def traffic(trace: Trace, *, ranks_per_node: int | None = None, title: str = "", alt: str | None = None) -> Picture:
    """The bytes that each rank sent to each other one in a run, as a matrix, with the sums of its rows and columns.

    A row is a sender, a column a receiver; the more bytes, the darker. ranks_per_node draws
    the borders of nodes. With more than 12 ranks, the numbers are left out but for the largest.

    Raises ValueError for a trace without messages.
    """
    if not trace:
        raise ValueError("traffic() was given a trace without messages; run something that sends first.")
    size = trace.size
    moved = {}
    for message in trace:
        pair = message.src, message.dst
        moved[pair] = moved.get(pair, 0) + message.nbytes
    most = max(max(moved.values()), 1)
    sent, received = trace.bytes_sent, trace.bytes_received
    numbers = size <= 12
    box = min(56.0, 560 / (size + 1)) if numbers else max(9.0, 480 / size)
    left, top, sums = 74.0, 62.0 + (26 if title else 0), 80.0 if numbers else 12.0
    width, height = left + box * size + sums, top + box * size + (34 if numbers else 14) + 24
    fig, ax = figure(max(width, 360), height)
    fig.set_layout_engine("none")
    ax.set_position((0, 0, 1, 1))
    ax.set(xlim=(0, max(width, 360)), ylim=(height, 0))
    ax.axis("off")
    if title:
        ax.text(0, 14, title, fontsize=14, weight="bold", va="center")
    middle = left + box * size / 2
    ax.text(middle, top - 42, "to rank", ha="center", va="center")
    ax.text(10, top + box * size / 2, "from rank", ha="center", va="center", rotation=90)
    step = 1 if numbers else 8 if size % 8 == 0 and size > 16 else 4
    for rank in range(0, size, step):
        at = box * (rank + 0.5)
        ax.text(left + at, top - 16, str(rank), ha="center", va="center", weight="bold")
        ax.text(left - 14, top + at, str(rank), ha="center", va="center", weight="bold")
    if not numbers:
        ax.add_patch(Rectangle((left, top), box * size, box * size, facecolor=INK, alpha=0.05, edgecolor="none"))
    text = max(11.0, min(13.0, box / 4.2))
    least, more = (0.12, 0.4) if numbers else (0.2, 0.8)  # under numbers the colour stays pale
    for src in range(size):
        for dst in range(size):
            x, y, nbytes = left + box * dst, top + box * src, moved.get((src, dst), 0)
            gap = 1.5 if box > 14 else 0.5
            place = (x + gap, y + gap), box - 2 * gap, box - 2 * gap
            if nbytes:
                ax.add_patch(Rectangle(*place, facecolor=RANK_COLOURS[0], alpha=least + more * nbytes / most, edgecolor="none"))
            elif numbers:
                ax.add_patch(Rectangle(*place, fill=False, edgecolor=INK, alpha=0.15, linewidth=1))
            if nbytes and numbers:
                ax.text(x + box / 2, y + box / 2, bytes_text(nbytes).replace(" ", "\n"), ha="center", va="center", fontsize=text)
    for border in range(ranks_per_node or size, size, ranks_per_node or size):
        at = box * border
        ax.plot([left + at] * 2, [top, top + box * size], color=INK, linewidth=1.5)
        ax.plot([left, left + box * size], [top + at] * 2, color=INK, linewidth=1.5)
    end = top + box * size
    if numbers:
        ax.text(left + box * size + 12, top - 16, "sends", va="center", alpha=0.75)
        ax.text(left - 8, end + 18, "receives", ha="right", va="center", alpha=0.75)
        for rank in range(size):
            at = box * (rank + 0.5)
            ax.text(left + box * size + 12, top + at, bytes_text(sent[rank]), va="center")
            ax.text(left + at, end + 18, bytes_text(received[rank]).replace(" ", "\n"), ha="center", va="center", fontsize=text)
    note = "" if numbers else f"strongest colour: {bytes_text(most)}"
    ax.text(left, height - 10, " · ".join(filter(None, (note, trace.label))), va="center", fontsize=12, alpha=0.75)
    return picture(fig, alt or f"Bytes from each rank to each other one: {size} ranks, {len(moved)} of {size * (size - 1)} pairs in use.")
