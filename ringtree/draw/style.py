"""The look of every figure: one colour a rank, two widths, and matplotlib set up for pages that may be light or dark."""

from __future__ import annotations

import functools
import textwrap
from contextvars import ContextVar
from dataclasses import replace

import matplotlib
from matplotlib.figure import Figure

from ringtree.errors import UsageError
from ringtree.given import takes, whole

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
"""One color a rank. Each has a contrast of at least 3 : 1 with white and with the dark page, and
they stay apart for the three common kinds of color blindness. Label ranks all the same: color alone should never carry the "
"meaning."""

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


# A figure is drawn twice, in pixels: as wide as a page's column, and as wide as a phone. Each has letters that can be read.
WIDE, NARROW = 720, 352
_SMALL = {
    "font.size": 10.5,
    "axes.titlesize": 11.5,
    "axes.labelsize": 10.5,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "legend.fontsize": 10.5,
    "lines.markersize": 4,
}
_room: ContextVar[int | None] = ContextVar("room", default=None)


@takes(rank=whole(0))
def rank_colour(rank: int) -> str:
    """The colour of a rank; from rank 8 on the colours come round again."""
    return RANK_COLOURS[rank % len(RANK_COLOURS)]


def styled(function):
    """Decorator of a function that draws a `Picture`: with the book's settings of matplotlib, leaving the reader's alone.

    The function runs twice, for a wide page and for a phone, and the page shows the drawing that it has room for. `figure`
    gives it the width; what else must differ, it asks `narrow`.
    """

    @functools.wraps(function)
    def drawn(*args, **options):
        if _room.get():  # part of another drawing
            return function(*args, **options)
        wide, small = (_at(room, function, args, options) for room in (WIDE, NARROW))
        if not hasattr(wide, "narrow"):
            raise UsageError(f"{function.__name__}, which is styled, returned {wide!r}: return draw.picture(fig, alt)")
        return replace(wide, narrow=small.svg) if small.svg != wide.svg else wide

    return drawn


def _at(room: int, function, args, options):
    before = _room.set(room)
    try:
        with matplotlib.rc_context(RC | (_SMALL if narrow() else {})):
            return function(*args, **options)
    finally:
        _room.reset(before)


def narrow() -> bool:
    """Return whether the drawing that is being made is the one for a phone."""
    return _room.get() == NARROW


def letters(size: float) -> float:
    """The size of letters, in pixels, where a wide drawing has `size`."""
    return max(9.5, 0.82 * size) if narrow() else size


def fold(title: str, width: float = NARROW) -> str:
    """A bold title in lines that a phone has room for; as it is on a wide page."""
    return textwrap.fill(title, int(width / 6.8)) if narrow() else title


def headline(fig, title: str) -> None:
    """A title over all panels of a figure."""
    if title:
        fig.suptitle(fold(title), x=0.01, ha="left", fontsize=letters(14), weight="bold")


def figure(width: float = WIDE, height: float = 360, **subplots):
    """A figure of width × height CSS pixels, on a phone no wider than that, and its axes; call it inside a `styled` function.

    It belongs to no pyplot window, so nothing is shown twice in a notebook and nothing needs closing.
    Further arguments go to `Figure.subplots`.
    """
    width = min(width, NARROW) if narrow() else width
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


def title_height(title: str) -> float:
    """The pixels that a title takes at the top of a canvas."""
    return 30 + 15 * fold(title).count("\n") if title else 0


def write_title(ax, title: str) -> None:
    """The title of a canvas, at its top left."""
    if title:
        ax.text(0, 5, fold(title), fontsize=letters(14), weight="bold", va="top")
