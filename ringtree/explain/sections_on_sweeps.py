"""What is said of the sweeps as they were measured: what was read, where the library changed its way, what is on the wires."""

from __future__ import annotations

import numpy as np

from ringtree.explain import anomalies, wires
from ringtree.explain.blocks import Bullets, Paragraph, Section, Table
from ringtree.explain.expectations import choices_in
from ringtree.units import binary_text, bytes_text, count_text, seconds_text

__all__ = ["changes_and_slow_ways", "on_the_wires", "what_was_read"]

_MOST = 6  # of one kind of finding are shown; the rest is counted


def short(name: str, most: int = 30) -> str:
    """A log's name, its middle left out where it is long."""
    return name if len(name) <= most else f"{name[: most // 2 - 1]}…{name[-(most - most // 2) :]}"


def label(report, sweep) -> str:
    """Return what a sweep is called: its world, and its collective and its log where these tell it from others."""
    parts = [*([sweep.collective] if len(report.fits) > 1 else []), sweep.world, *filter(None, (sweep.algorithm, sweep.kind))]
    alike = sum(_what(one) == _what(sweep) for one in report.sweeps)
    return ", ".join(parts) + (f" ({short(sweep.name, 16)})" if alike > 1 else "")


def _what(sweep) -> tuple:
    """Return what two sweeps share that are draws of the same thing."""
    return sweep.collective, sweep.world, sweep.algorithm, sweep.kind


def what_was_read(report) -> Section:
    """Every log: collective, world, GPU, tool and versions; then what a reader should know of them."""
    rows = tuple(
        (
            short(sweep.name, 26),
            sweep.collective,
            str(sweep.ranks),
            str(sweep.nodes),
            _gpu(sweep),
            " ".join(filter(None, (sweep.tool, sweep.version))) or "–",
            sweep.nccl or "–",
        )
        for sweep in report.sweeps
    )
    times = sum(len(sweep.sizes) for sweep in report.sweeps)
    sizes = [size for sweep in report.sweeps for size in (sweep.sizes[0], sweep.sizes[-1])]
    blocks = [
        Table(("log", "collective", "ranks", "nodes", "GPU", "tool", "NCCL"), rows),
        Paragraph(f"{count_text(times, 'time')} of {binary_text(min(sizes))} to {binary_text(max(sizes))}."),
    ]
    notes = [f"{short(one.name)} could not be used: {one.why}." for one in report.unread]
    notes += [f"{short(sweep.name)}: {remark}." for sweep in report.sweeps for remark in sweep.remarks]
    sources = dict.fromkeys(sweep.source for sweep in report.sweeps if sweep.source)
    notes += [f"Published by {source}." for source in sources]
    return Section("read", "What was read", tuple([*blocks, Bullets(tuple(notes))] if notes else blocks))


def _gpu(sweep) -> str:
    name = (sweep.gpu or "–").removeprefix("NVIDIA ").removeprefix("Tesla ")
    return name if len(name) <= 18 else name[:17] + "…"


def changes_and_slow_ways(report) -> Section:
    """For each sweep: where a longer message was faster, where time leapt, where the slope changes, what NCCL took."""
    said = []
    for sweep in report.sweeps:
        if sweep.no_latency:
            found = ["timed back to back: a bend in these times tells how far the root ran ahead, not what the library did."]
        else:
            found = [*_slow(sweep), *_leaps(sweep), *_bends(sweep), *_taken(sweep, report.nccl_log)]
        said += [f"{label(report, sweep)}: {each}" for each in found]
    said += _draws(report)
    intro = Paragraph(
        "If a longer message is faster than a shorter one, the library chose a slow algorithm for the shorter one. No fitted "
        "machine can reproduce that. If the time rises faster than the size, the library has changed to a slower way. A bend "
        "is a change to a way with more bandwidth: another algorithm, protocol or number of channels; times do not say which."
    )
    nothing = "No sweep has a bend, a leap or a longer message that is faster: one line fits each."
    return Section(
        "ways", "Where the library changed its way, and where it took a slow one", (intro, Bullets(tuple(said) or (nothing,)))
    )


def _slow(sweep) -> list[str]:
    found = sorted(anomalies.slow(sweep.sizes, sweep.times), key=lambda one: -one.times_as_long)
    said = []
    for one in found[:_MOST]:
        first = " (the first size, which may hold what was left of warming up)" if one.worst == sweep.sizes[0] else ""
        others = [binary_text(size) for size in one.sizes if size != one.worst]
        and_others = f", and {', '.join(others)} longer than it too" if others else ""
        said.append(
            f"a slow way: {binary_text(one.worst)}{first} takes {seconds_text(one.time)}, {one.times_as_long:.1f} times as long "
            f"as {binary_text(one.longer)}, {seconds_text(one.faster)}{and_others}."
        )
    return said + ([f"{count_text(len(found) - _MOST, 'more slow way')}."] if len(found) > _MOST else [])


def _draws(report) -> list[str]:
    """Return how much several logs of one world differ."""
    worlds = {}
    for sweep in report.sweeps:
        worlds.setdefault(_what(sweep), []).append(dict(zip(sweep.sizes, sweep.times)))
    said = []
    for (collective, world, *_), several in worlds.items():
        shared = [size for size in several[0] if all(size in one for one in several)]
        if len(several) > 1 and shared:
            apart = np.array([max(one[size] for one in several) / min(one[size] for one in several) for size in shared])
            worst = binary_text(shared[int(apart.argmax())])
            said.append(
                f"{len(several)} logs of {collective} with {world}: the slowest takes {np.median(apart):.2f} times as long "
                f"as the fastest in the median over sizes, and {apart.max():.1f} times at {worst}: another "
                "draw of the network, or of its settings."
            )
    return said


def _leaps(sweep) -> list[str]:
    found = anomalies.leaps(sweep.sizes, sweep.times)
    said = [
        f"from {binary_text(before)} to {binary_text(size)} the time rises {more:.1f} times, the size {size / before:.3g} times: "
        "a slower way begins."
        for before, size, more in found[:_MOST]
    ]
    return said + ([f"{count_text(len(found) - _MOST, 'more leap')}."] if len(found) > _MOST else [])


def _bends(sweep) -> list[str]:
    found = anomalies.bends(sweep.sizes, sweep.times)
    if not found:
        return []
    places = [f"{binary_text(before)} and {binary_text(size)}" for before, size in found]
    return [f"{count_text(len(found), 'bend')}, between {'; between '.join(places)}."]


def _taken(sweep, nccl_log) -> list[str]:
    """Return what NCCL's own lines say that it took."""
    taken = choices_in(sweep.log, sweep) or choices_in(nccl_log, sweep)
    sizes = [size for size in sweep.sizes if size in taken]
    if not sizes:
        return []
    steps = [
        f"{' '.join(way)} from {binary_text(size)}" for size, way in anomalies.changes(sizes, [taken[size] for size in sizes])
    ]
    return [f"NCCL says that it took {', '.join(steps)}."]


def on_the_wires(report) -> Section:
    """busbw at its highest, and what that is out of a node, on a NIC and inside."""
    rows, loads = [], [(sweep, wires.load(sweep, report.nics)) for sweep in report.sweeps if sweep.collective != "barrier"]
    for sweep, one in loads:
        nic = "–" if one.nic is None else f"{8e-9 * one.nic:.0f} Gb/s"
        rows.append((
            label(report, sweep),
            _rate(one.busbw),
            binary_text(one.size),
            binary_text(one.half),
            _rate(one.out_of_node),
            nic,
            _rate(one.inside),
        ))
    blocks = [
        Paragraph(
            "busbw is what every link of a ring carries, one way. Rings leave a node once each, and all of them together carry "
            "busbw out of it, and as much in; inside, a GPU of g sends (g−1)/g of it to its neighbor. If it was rings:"
        ),
        Table(("highest", "busbw", "at", "half from", "out of a node", "a NIC", "a GPU, inside"), tuple(rows)),
    ]
    notes = _notes_on_wires(report, loads)
    return Section(
        "wires", "busbw, and what it means on each wire", tuple([*blocks, Bullets(tuple(notes))] if notes else blocks)
    )


def _notes_on_wires(report, loads) -> list[str]:
    notes = []
    if report.nics is None and any(sweep.nodes > 1 for sweep, _ in loads):
        notes.append("How many network cards a node has, the logs do not say: with --nics N there is a column for one of them.")
    for sweep, one in loads:
        if sweep.collective == "all_reduce" and sweep.nodes == 2:
            notes.append(
                f"On 2 nodes NCCL's pair of trees sends n out of a node where rings send {one.busbw * one.time / one.size:.2f} "
                f"n: if it took trees, {_rate(one.size / one.time)} left a node of the {sweep.world}, not {_rate(one.busbw)}."
            )
    if any(sweep.nodes == 1 and sweep.collective == "all_reduce" and (sweep.cards > 4) for sweep, _ in loads):
        notes.append(
            "Where the NVLink switch adds up (NVLS, from Hopper on), a GPU sends and receives n, and busbw may pass its link."
        )
    if any(sweep.no_latency for sweep, _ in loads):
        notes.append(
            "Timed back to back, long broadcasts and reduces show what their bandwidth is; short ones show no latency."
        )
    return notes


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{bytes_text(value)}/s"
