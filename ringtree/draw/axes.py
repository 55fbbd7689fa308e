"""What drawings of costs share: logarithmic axes of bytes and seconds, curves' colours and dashes, names beside curves."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

from ringtree.draw.style import INK, PAPER, RANK_COLOURS, narrow
from ringtree.units import binary_text, bytes_text, seconds_text

# Curves are not ranks, but take the same colours: the palest last, since curves also colour their names.
CURVE_COLOURS = tuple(RANK_COLOURS[i] for i in (0, 1, 2, 3, 5, 6, 7, 4))


def dash(index: int):
    return ((0, (6, 3)), "-", (0, (2, 2)), (0, (6, 2, 1, 2)))[index % 4]


def size_axis(ax, low: float, high: float, binary: bool = False) -> None:
    """A logarithmic axis of bytes with about six labels, on a phone four, in powers of two or of ten."""
    base, text = (2.0, binary_text) if binary else (10.0, bytes_text)
    first, last = np.ceil(np.log(low) / np.log(base) - 1e-9), np.floor(np.log(high) / np.log(base) + 1e-9)
    most = 4 if narrow() else 6
    step = next(s for s in ((1, 2, 5, 10, 20) if binary else (1, 3, 6)) if (last - first) / s <= most or s in (6, 20))
    ticks = base ** np.arange(np.ceil(first / step) * step, last + 0.5, step)
    ax.set_xscale("log")
    ax.set_xlim(low / 1.5, high * 1.5)
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticklabels([text(tick) for tick in ticks])


def time_axis(ax, low: float, high: float) -> None:
    """A logarithmic axis of seconds: a label for each power of ten, and between them where there is room."""
    ax.set_yscale("log")
    ax.set_ylim(low, high)
    between = (1, 2, 5) if high / low < 300 else (1, 3) if high / low < 3e3 else (1,)
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    ticks = [part * 10.0**decade for decade in decades for part in between if low <= part * 10.0**decade <= high]
    ax.yaxis.set_major_locator(FixedLocator(ticks))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_yticklabels([seconds_text(tick) for tick in ticks])
    ax.grid(True)


def ratio_axis(ax, reach: float) -> None:
    """A logarithmic axis of factors from 1/reach to reach, around 1, with five labels at most."""
    far = max(step for step in (1.2, 1.5, 2, 5, 10, 100, 1000) if step < reach)
    near = {5: [2], 100: [10], 1000: [30]}.get(far, [])  # where there is room for one more
    steps = [*near, far]
    ticks = [*(1 / step for step in reversed(steps)), 1, *steps]
    ax.set_yscale("log")
    ax.set_ylim(1 / reach, reach)
    ax.yaxis.set_major_locator(FixedLocator(ticks))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_yticklabels([f"× {tick:.0f}" if tick > 9 else f"× {tick:.2g}" for tick in ticks])
    ax.grid(True, axis="y")


def note(ax, x, y, text, offset, color=INK, ha="left", **more) -> None:
    """Words beside a point of the data, on the page's background so that lines do not cross them."""
    words = ax.annotate(
        text,
        xy=(x, y),
        xytext=offset,
        textcoords="offset points",
        ha=ha,
        va="center",
        color=color,
        zorder=5,
        annotation_clip=False,
        bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1},
        **more,
    )
    words.set_in_layout(not narrow())  # on a phone the axes make no room for them: `picture` moves them to where they are whole


def name_right_ends(fig, ax, labels, gap: float = 18) -> None:
    """Write each label to the right of its curve's end (x, y), moved apart until none overlap; on a phone in short lines."""
    if narrow() and labels:
        labels = [(textwrap.fill(label, 13, break_long_words=False), *point) for label, *point in labels]
        gap = 2 + 12 * max(label.count("\n") + 1 for label, *_ in labels)
    texts = [
        ax.annotate(
            label,
            xy=(1, y),
            xycoords=("axes fraction", "data"),
            xytext=(8, 0),
            textcoords="offset points",
            ha="left",
            va="center",
            color=colour,
            annotation_clip=False,
        )
        for label, _, y, colour in labels
    ]
    fig.draw_without_rendering()
    wanted = [float(ax.transData.transform((1, y))[1]) for _, _, y, _ in labels]
    right = ax.transData.inverted().transform(ax.transAxes.transform((1, 0)))[0]
    for index, shift in _spread(wanted, gap).items():
        texts[index].set_position((8, shift))
        _, x, y, colour = labels[index]
        end = ax.transData.inverted().transform((0, wanted[index] + shift))[1]
        ax.plot([x, right], [y, end], color=colour, linewidth=1, linestyle=":", zorder=0, clip_on=False)


def _spread(wanted: Sequence[float], gap: float) -> dict[int, float]:
    """Return how far to move each height so that neighbors are at least `gap` apart and the group stays centered."""
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    groups: list[list[int]] = []

    def heights(group):
        middle = sum(wanted[i] for i in group) / len(group)
        return [middle + (k - (len(group) - 1) / 2) * gap for k in range(len(group))]

    for index in order:
        groups.append([index])
        while len(groups) > 1 and heights(groups[-1])[0] - heights(groups[-2])[-1] < gap:
            groups[-2:] = [groups[-2] + groups[-1]]
    return {i: height - wanted[i] for group in groups for i, height in zip(group, heights(group))}
