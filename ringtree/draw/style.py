"""The look of every figure: one colour a rank, and matplotlib set up for pages that may be light or dark."""

from __future__ import annotations

import matplotlib
from matplotlib.figure import Figure

RANK_COLOURS = (
    "#4a57ee",  # 0 blue
    "#f25a0a",  # 1 orange
    "#55957f",  # 2 green
    "#b235b0",  # 3 magenta
    "#6f6572",  # 4 slate
    "#bb3a12",  # 5 brick
    "#149bea",  # 6 sky
    "#998652",  # 7 sand
)
"""One colour a rank. Each has a contrast of at least 3 : 1 with white and with the dark page, and
they stay apart for the three common kinds of colour blindness. Label ranks all the same: colour
alone should never carry the meaning."""

# Stand-ins that `picture` turns into the page's own text and background colours.
INK = "#0b0a09"
PAPER = "#f4f5f6"

RC = {
    # One matplotlib point is one CSS pixel of the SVG, so font sizes below are pixels on the page.
    "figure.dpi": 72,
    "savefig.dpi": 72,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "savefig.edgecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "ringtree",
    "path.simplify": False,
    # Set explicitly, so that a reader's own matplotlibrc cannot change a figure.
    "font.family": "DejaVu Sans",
    "font.size": 13,
    "axes.titlesize": 14,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 13,
    "xtick.labelsize": 12,
    "ytick.labelsize": 12,
    "text.usetex": False,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "patch.edgecolor": INK,
    "hatch.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 1,
    "axes.grid": False,
    "grid.color": INK,
    "grid.alpha": 0.13,
    "grid.linewidth": 1,
    "lines.linewidth": 2,
    "lines.markersize": 5,
    "lines.solid_capstyle": "round",
    "xtick.direction": "out",
    "ytick.direction": "out",
    "figure.constrained_layout.use": True,
}


def rank_colour(rank: int) -> str:
    """The colour of a rank; from rank 8 on the colours come round again."""
    return RANK_COLOURS[rank % len(RANK_COLOURS)]


def styled(function):
    """Decorator: run a drawing function with the book's matplotlib settings, leaving the reader's alone."""
    return matplotlib.rc_context(RC)(function)


def figure(width: float = 720, height: float = 360, **subplots):
    """A figure of width × height CSS pixels and its axes; call it inside a `styled` function.

    It belongs to no pyplot window, so nothing is shown twice in a notebook and nothing needs closing.
    Further arguments go to `Figure.subplots`.
    """
    fig = Figure(figsize=(width / 72, height / 72))
    return fig, fig.subplots(**subplots)


def canvas(width: float, height: float):
    """Axes without a scale that fill their figure: one unit is one pixel, y runs downwards; call it as `figure`."""
    fig, ax = figure(width, height)
    fig.set_layout_engine("none")
    ax.set_position((0, 0, 1, 1))
    ax.set(xlim=(0, width), ylim=(height, 0))
    ax.axis("off")
    return ax
