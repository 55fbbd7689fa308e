"""Pictures of what messages cost: times over sizes, the model's two parts, misses, machines side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.ticker import FixedLocator

from ringtree.cost import Link
from ringtree.draw.axes import CURVE_COLOURS, dash, name_right_ends, note, ratio_axis, size_axis, time_axis
from ringtree.draw.picture import Picture, picture
from ringtree.draw.style import INK, RANK_COLOURS, figure, headline, letters, narrow, styled
from ringtree.errors import UsageError
from ringtree.given import a, mapping, number, optional, several, takes, text
from ringtree.theory.lines import fastest, misses
from ringtree.units import binary_text, bytes_text, seconds_text

ALPHA_COLOUR, BETA_COLOUR = RANK_COLOURS[1], RANK_COLOURS[0]


@styled
@takes(link=a(Link, words="a Link"), sizes=several("a list of sizes in bytes"), title=text, alt=optional(text))
def shares(link: Link, sizes: Sequence[float], title: str = "", alt: str | None = None) -> Picture:
    """One bar a message size, split into the part of its time that is α and the part that is n·β.

    link: the link; sizes: bytes, a handful.
    """
    sizes = list(sizes)
    fig, ax = figure(720, 80 + 46 * len(sizes))
    for row, size in enumerate(sizes):
        part = link.alpha / link.time(size)
        y = -row
        for left, width, colour in ((0, part, ALPHA_COLOUR), (part, 1 - part, BETA_COLOUR)):
            ax.barh(y, width, left=left, height=0.62, color=colour, alpha=0.28)
            ax.barh(y, width, left=left, height=0.62, fill=False, edgecolor=colour, linewidth=1.5)
        for left, width, name in ((0, part, "α"), (part, 1 - part, "nβ")):
            if width > (0.27 if narrow() else 0.11):  # where there is room for the words
                text = f"{name} {100 * width:.0f} %" if width < 0.995 else f"{name}, all but {100 * (1 - width):.1g} %"
                ax.text(left + width / 2, y, text, ha="center", va="center", weight="bold")
        ax.text(-0.015, y, bytes_text(size), ha="right", va="center", weight="bold")
        ax.text(1.015, y, seconds_text(link.time(size)), ha="left", va="center")
    ax.text(-0.015, 0.72, "message", ha="right", va="center", alpha=0.75)
    ax.text(1.015, 0.72, "takes", ha="left", va="center", alpha=0.75)
    ax.set(xlim=(0, 1), ylim=(-len(sizes) + 0.5, 1.0))
    ax.axis("off")
    if title:
        ax.set_title(title)
    alt = alt or "Bars for messages of growing size: the short ones are nearly all α, the long ones nearly all n times β."
    return picture(fig, alt)


@styled
@takes(link=a(Link, words="a Link"), low=number(above=True), high=number(above=True), title=text, alt=optional(text))
def model(link: Link, low: float = 1.0, high: float = 1e9, title: str = "", alt: str | None = None) -> Picture:
    """Time over message size on one link: the floor α, the slope n·β, their sum, and n½ where they cross.

    low, high: the sizes at the ends of the axis, bytes.
    """
    fig, ax = figure(720, 340)
    sizes = np.logspace(np.log10(low), np.log10(high), 200)
    ax.plot(sizes, np.full_like(sizes, link.alpha), color=ALPHA_COLOUR, linestyle=(0, (5, 3)))
    ax.plot(sizes, sizes * link.beta, color=BETA_COLOUR, linestyle=(0, (5, 3)))
    ax.plot(sizes, link.time(sizes), color=INK, linewidth=3)
    bottom = link.alpha / 30
    size_axis(ax, low, high)
    time_axis(ax, bottom, float(link.time(high)) * 1.6)
    half = link.half_size
    ax.plot([half, half], [bottom, 2 * link.alpha], color=INK, linewidth=1, linestyle=":")
    ax.plot(half, 2 * link.alpha, "o", color=INK, markersize=8)
    note(ax, half, bottom, f"n½ = α/β = {bytes_text(half)}", (8, 14))
    note(ax, half, 2 * link.alpha, "half α, half nβ", (-12, 10), ha="right")
    note(ax, low, link.alpha, "α", (14, -18), color=ALPHA_COLOUR)
    middle = (half * high) ** 0.5
    note(ax, middle, middle * link.beta, "nβ", (12, -14), color=BETA_COLOUR)
    note(ax, (low * half) ** 0.5, link.alpha, "α + nβ", (0, 14), ha="center")
    ax.set(xlabel="message size n", ylabel="time")
    if title:
        ax.set_title(title)
    alt = (
        alt or "Time over message size: flat at α for short messages, rising with n times β for long ones, the bend at n half."
    )
    return picture(fig, alt)


@styled
@takes(
    measured=mapping("a dict from a name to (sizes, times)"),
    fits=optional(mapping("a dict from a name to a Link, several, or a function")),
    bands=optional(mapping("a dict from the name of a fit to its band")),
    title=text,
    alt=optional(text),
    xlabel=text,
)
def times(
    measured: Mapping[str, tuple],
    fits: Mapping[str, Link | Sequence[Link] | Callable] | None = None,
    title: str = "",
    alt: str | None = None,
    *,
    bands: Mapping[str, Callable] | None = None,
    xlabel: str = "message size",
) -> Picture:
    """Measured times over size as dots, and fitted lines, both axes logarithmic.

    measured: label → (sizes in bytes, times in seconds); fits: label → a Link, or several of which
    the fastest counts, or a function from an array of bytes to seconds. bands: label of a fit → a function from an
    array of bytes to (low, high) seconds, shaded in the colour of that fit. xlabel: what the sizes
    are sizes of. Each is named at its right end. Messages of 0 bytes have no place on a logarithmic axis and are left out.

    Raises UsageError when a band belongs to no fit.
    """
    stray = [label for label in bands or {} if label not in (fits or {})]
    if stray:
        known = ", ".join(fits or {}) or "none"
        raise UsageError(f"times() was given a band for {stray[0]!r}, which is not one of the fits: give bands for {known}")
    measured = {label: _without_empty(*points) for label, points in measured.items()}
    fig, ax = figure(720, 380)
    low = min(np.min(sizes) for sizes, _ in measured.values())
    high = max(np.max(sizes) for sizes, _ in measured.values())
    labels = _draw_measured(ax, measured, alone=not fits)
    grid = np.logspace(np.log10(low), np.log10(high), 300)
    shown = [np.asarray(seconds, dtype=float) for _, seconds in measured.values()]
    for index, (label, links) in enumerate((fits or {}).items()):
        last, reached = _draw_fit(ax, grid, links, (bands or {}).get(label), index)
        shown.extend(reached)
        labels.append((label, high, last, CURVE_COLOURS[index % len(CURVE_COLOURS)]))
    seconds = np.concatenate(shown)
    size_axis(ax, low, high, binary=True)
    time_axis(ax, seconds.min() / 1.6, seconds.max() * 1.6)
    ax.set(xlabel=xlabel, ylabel="time")
    if title:
        ax.set_title(title)
    name_right_ends(fig, ax, labels)
    return picture(fig, alt or f"Time over message size, both axes logarithmic: {'; '.join([*measured, *(fits or {})])}.")


def _draw_measured(ax, measured, alone: bool) -> list[tuple]:
    """Dots, joined and coloured where no fits are drawn among them; returns (label, size, time, colour) of each last one."""
    labels = []
    for index, (label, (sizes, seconds)) in enumerate(measured.items()):
        colour = CURVE_COLOURS[index % len(CURVE_COLOURS)] if alone else INK
        joined = {"linestyle": "-", "linewidth": 1.5} if alone else {"linestyle": "none"}
        ax.plot(sizes, seconds, **joined, marker="o", color=colour, zorder=3)
        labels.append((label, sizes.max(), seconds[np.argmax(sizes)], colour))
    return labels


def _draw_fit(ax, grid, links, band, index: int) -> tuple:
    """A fit, its band, and the links of which it is the fastest; returns its last time, and times that must be in view."""
    colour = CURVE_COLOURS[index % len(CURVE_COLOURS)]
    predicted = links(grid) if callable(links) else fastest(links, grid)
    reached = [predicted] if callable(links) else []
    if band:
        edges = band(grid)
        ax.fill_between(grid, *edges, color=colour, alpha=0.18, linewidth=0)
        reached.extend(edges)
    ax.plot(grid, predicted, color=colour, linestyle=dash(index), linewidth=2.5)
    for link in [] if isinstance(links, Link) or callable(links) else links:
        ax.plot(grid, link.time(grid), color=colour, linestyle=":", linewidth=1.2, alpha=0.8)
    return predicted[-1], reached


@styled
@takes(fits=mapping("a dict from a name to a Link or several"), title=text, alt=optional(text))
def residuals(sizes, seconds, fits: Mapping[str, Link | Sequence[Link]], title: str = "", alt: str | None = None) -> Picture:
    """Draw how far each fit misses each measured time, in per cent, over the message size.

    sizes: bytes; seconds: measured; fits: label → a Link or several. One panel a fit, all on one
    scale, so that they can be compared by eye. Messages of 0 bytes are left out.
    """
    sizes, seconds = _without_empty(sizes, seconds)
    fig, axes = figure(720, 70 + 150 * len(fits), nrows=len(fits), squeeze=False, sharex=True, sharey=True)
    reach = max(10.0, *(float(np.max(np.abs(misses(links, sizes, seconds)))) * 115 for links in fits.values()))
    step = next(s for s in (5, 10, 20, 50, 100, 200, 500, 1000, 10**9) if reach / s < 3)
    for index, (ax, (label, links)) in enumerate(zip(axes[:, 0], fits.items())):
        colour = CURVE_COLOURS[index % len(CURVE_COLOURS)]
        off = 100 * misses(links, sizes, seconds)
        ax.axhline(0, color=INK, linewidth=1)
        ax.vlines(sizes, 0, off, color=colour, linewidth=2, alpha=0.6)
        ax.plot(sizes, off, "o", color=colour, markersize=6)
        ax.set_ylim(-reach, reach)
        ticks = [k * step for k in range(-2, 3) if abs(k * step) <= reach]
        ax.yaxis.set_major_locator(FixedLocator(ticks))
        ax.set_yticklabels([f"{tick:+d} %" if tick else "0 %" for tick in ticks])
        ax.set_title(label, color=colour, fontsize=letters(13))
        ax.grid(True, axis="y")
        size_axis(ax, min(sizes), max(sizes), binary=True)
    axes[-1, 0].set_xlabel("message size")
    axes[0, 0].annotate(
        "↑ predicted too long",
        xy=(1, 1),
        xycoords="axes fraction",
        xytext=(0, 6),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=letters(12),
        alpha=0.75,
    )
    headline(fig, title)
    return picture(fig, alt or f"Miss of the measured times in per cent, over the message size: {'; '.join(fits)}.")


@styled
@takes(panels=mapping("a dict from a panel's name to its predictors"), title=text, alt=optional(text))
def ratios(panels: Mapping[str, Mapping[str, tuple]], title: str = "", alt: str | None = None) -> Picture:
    """Predicted over measured time, over the message size: one panel a measured run, one curve a predictor.

    panels: label → {predictor → (sizes in bytes, predicted / measured)}. All panels have one logarithmic scale, on
    which twice as long and half as long are equally far from 1. A predictor is named in the last panel that has it.
    Messages of 0 bytes are left out.

    Raises UsageError when there is nothing to draw, a predictor has no sizes, or a ratio is not above 0.
    """
    panels = {label: {name: _without_empty(*points) for name, points in each.items()} for label, each in panels.items()}
    every = [points for each in panels.values() for points in each.values()]
    if not every or not all(len(off) and np.min(off) > 0 for _, off in every):
        raise UsageError(
            "ratios() draws predicted / measured: give at least one panel, sizes for each predictor, and ratios above 0"
        )
    sizes, off = (np.concatenate(column) for column in zip(*every))
    names = list(dict.fromkeys(name for each in panels.values() for name in each))
    last = {name: label for label, each in panels.items() for name in each}
    fig, axes = figure(720, 110 + 118 * len(panels), nrows=len(panels), squeeze=False, sharex=True)
    for ax, (label, each) in zip(axes[:, 0], panels.items()):
        ax.axhline(1, color=INK, linewidth=1)
        for name, points in each.items():
            place = names.index(name)
            look = {"color": CURVE_COLOURS[place], "linestyle": dash(place), "marker": "oDs^"[place % 4]}
            ax.plot(*points, **look, linewidth=1.5, markersize=4.5)
        ax.set_title(label, fontsize=letters(13))
        ratio_axis(ax, 1.15 * max(1.5, float(np.exp(np.abs(np.log(off)).max()))))
        size_axis(ax, np.min(sizes), np.max(sizes), binary=True)
    axes[-1, 0].set_xlabel("message size")
    for ax, (label, each) in zip(axes[:, 0], panels.items()):
        ends = [(name, x[-1], y[-1], CURVE_COLOURS[names.index(name)]) for name, (x, y) in each.items() if last[name] == label]
        name_right_ends(fig, ax, ends)
    headline(fig, title)
    return picture(fig, alt or f"Predicted over measured time, by message size, for {'; '.join(panels)}: {', '.join(names)}.")


@styled
@takes(rows=several("a list of (label, value, value)"), names=several("two names"), xlabel=text, title=text, alt=optional(text))
def compare(rows: Sequence[tuple], names: tuple[str, str], xlabel: str, title: str = "", alt: str | None = None) -> Picture:
    """Two numbers for each of several things, as two dots on one row joined by a line.

    rows: (label, first, second), in per cent; names: what the first and the second number are.
    """
    rows = list(rows)
    fig, ax = figure(720, 92 + 27 * len(rows))
    for y, (_, first, second) in enumerate(reversed(rows)):
        ax.plot([first, second], [y, y], color=INK, alpha=0.35, linewidth=2, zorder=1)
        ax.plot(first, y, "o", color=CURVE_COLOURS[0], markersize=9, zorder=2)
        ax.plot(second, y, "D", color=CURVE_COLOURS[1], markersize=8, zorder=3)
    top = len(rows) - 1
    for place, (name, at) in enumerate(zip(names, rows[0][1:])):
        above = 14 + 13 * place if narrow() else 16  # two names are wider than a phone
        note(ax, at, top, name, (0, above), ha="center", color=CURVE_COLOURS[place], weight="bold")
    ax.set_yticks(range(len(rows)), [label for label, *_ in reversed(rows)])
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.set(xlim=(0, max(max(a, b) for _, a, b in rows) * 1.12), ylim=(-0.6, top + (1.6 if narrow() else 1.1)), xlabel=xlabel)
    ax.grid(True, axis="x")
    if title:
        ax.set_title(title)
    return picture(fig, alt or f"For each of {len(rows)} rows, two dots: {names[0]} and {names[1]}.")


@styled
@takes(
    costs=mapping("a dict from a name to a function from bytes to seconds, or to sizes and times"),
    low=optional(number()),
    high=optional(number()),
    label=text,
    title=text,
    alt=optional(text),
)
def curves(
    costs: Mapping[str, Callable | tuple],
    low: float | None = None,
    high: float | None = None,
    *,
    label: str = "",
    title: str = "",
    alt: str | None = None,
    aside: Sequence[str] = (),
) -> Picture:
    """Time over size of several algorithms, both axes logarithmic, with the sizes at which another becomes the fastest.

    costs: name → a function from bytes to seconds (drawn as a line), or (sizes in bytes, times in
    seconds) of runs (dots, joined). low, high: bytes at the ends of the axis; left out, those of
    the runs, or 64 B to 1 GiB. label: where the times come from ("predicted", "simulated", the
    label of a trace). aside: names of costs that are shown beside the race and never called the fastest; where there are
    any, a line is dashed if it is one of them, else solid.

    Between two runs the time is taken as a straight line on these axes.
    Raises UsageError when there is nothing to draw, or a time is not above 0.
    """
    runs = {name: _run(name, cost) for name, cost in costs.items() if not callable(cost)}
    sizes = [size for each, _ in runs.values() for size in each]
    low, high = low or min(sizes, default=64.0), high or max(sizes, default=2.0**30)
    if not costs or low >= high:
        raise UsageError(
            f"curves() was given {len(costs)} costs from {low:g} to {high:g} bytes: give at least one, and low below high"
        )
    grid = np.unique(np.round(np.geomspace(low, high, 400)))
    seconds = {name: _seconds(cost if callable(cost) else runs[name], grid) for name, cost in costs.items()}
    for name, times in seconds.items():
        if not np.nanmin(times, initial=np.inf) > 0:
            raise UsageError(
                f"curves() was given a time of 0 s or less for {name!r}: give times above 0, because its axis is logarithmic"
            )
    fig, ax = figure(720, 380)
    colours = {name: CURVE_COLOURS[index % len(CURVE_COLOURS)] for index, name in enumerate(costs)}
    labels = []
    for index, (name, times) in enumerate(seconds.items()):
        line, width = ("-", 1.5) if name in runs else (_line(name, index, aside), 2.5)
        ax.plot(grid, times, color=colours[name], linestyle=line, linewidth=width)
        if name in runs:
            ax.plot(*runs[name], linestyle="none", marker="o", color=colours[name], zorder=3)
        drawn = np.flatnonzero(np.isfinite(times))[-1]
        labels.append((name, grid[drawn], times[drawn], colours[name]))
    every = np.concatenate(list(seconds.values()))
    bottom = np.nanmin(every) / 2.5
    size_axis(ax, low, high, binary=True)
    time_axis(ax, bottom, np.nanmax(every) * 1.6)
    racing = {name: times for name, times in seconds.items() if name not in aside}
    _mark_crossovers(ax, _crossovers(racing, grid), bottom, colours)
    ax.set(xlabel="message size", ylabel="time")
    if title:
        ax.set_title(title)
    ax.set_title(label, loc="right", fontsize=letters(12), fontweight="normal")
    name_right_ends(fig, ax, labels)
    alt = alt or f"Time over message size, both axes logarithmic, and which is the fastest where: {', '.join(racing)}."
    return picture(fig, alt)


def _line(name, index, aside):
    return ((0, (4, 3)) if name in aside else "-") if aside else dash(index)


def _seconds(cost, grid) -> np.ndarray:
    """The times of a cost on a grid of sizes; not a number where runs say nothing."""
    if callable(cost):
        return np.array([float(cost(int(size))) for size in grid])
    order = np.argsort(cost[0])
    sizes, times = cost[0][order], cost[1][order]
    inside = np.exp(np.interp(np.log(grid), np.log(sizes), np.log(times)))
    return np.where((grid >= sizes[0]) & (grid <= sizes[-1]), inside, np.nan)


def _mark_crossovers(ax, crossovers, bottom: float, colours) -> None:
    for index, (size, time, name) in enumerate(crossovers):
        ax.plot([size, size], [bottom, time], color=INK, linewidth=1, linestyle=":")
        ax.plot(size, time, "o", color=INK, markersize=7, zorder=4)
        note(ax, size, bottom, f"{name} from {binary_text(size)}", (6, 12 + 17 * (index % 3)), color=colours[name])


def _crossovers(seconds: Mapping[str, np.ndarray], grid) -> list[tuple[float, float, str]]:
    """(size, time, the name that is fastest from there on) wherever the fastest changes."""
    names = list(seconds)
    table = np.array([np.where(np.isfinite(seconds[name]), seconds[name], np.inf) for name in names])
    fastest, found = table.argmin(axis=0), []
    for at in np.flatnonzero(np.diff(fastest)):
        one, other = table[fastest[at]], table[fastest[at + 1]]
        if not np.all(np.isfinite([one[at], one[at + 1], other[at], other[at + 1]])):
            continue  # a curve begins or ends here, which is no crossing
        before, after = np.log(other[at] / one[at]), np.log(one[at + 1] / other[at + 1])
        part = before / (before + after) if before + after > 0 else 0.5
        size = np.exp(np.log(grid[at]) + part * np.log(grid[at + 1] / grid[at]))
        time = np.exp(np.log(one[at]) + part * np.log(one[at + 1] / one[at]))
        found.append((float(size), float(time), names[fastest[at + 1]]))
    return found


def _run(name: str, cost) -> tuple[np.ndarray, np.ndarray]:
    try:
        sizes, seconds = cost
        matching = len(sizes) == len(seconds)
    except (TypeError, ValueError):
        matching = False
    if not matching:
        raise UsageError(
            f"curves() was given {cost!r} for {name!r}: give a function from bytes to seconds, or sizes and as many times"
        )
    return _without_empty(sizes, seconds)


def _without_empty(sizes, seconds) -> tuple[np.ndarray, np.ndarray]:
    sizes, seconds = np.asarray(sizes, dtype=float), np.asarray(seconds, dtype=float)
    return sizes[sizes > 0], seconds[sizes > 0]
