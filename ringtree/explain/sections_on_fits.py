"""What is said of the fitted machines: their numbers, how they stand beside what was measured, and what they foretell."""

from __future__ import annotations

import numpy as np

from ringtree.explain import forecasts, gaps, nearest, verdicts
from ringtree.explain.blocks import Bullets, Paragraph, Section, Table
from ringtree.explain.limits import limits
from ringtree.explain.sections_on_sweeps import label
from ringtree.units import binary_text, bytes_text, count_text, percent_text, seconds_text

__all__ = ["by_the_gap", "more_nodes", "the_machine", "the_nearest", "three_beside_each_other", "what_stays_open"]

_WORDS = {
    "start": "to start a call",
    "enter_network": "to enter the network",
    "hop_inside": "a hop inside a node",
    "hop_between": "a hop between nodes",
    "bandwidth_inside": "bandwidth inside",
    "bandwidth_between": "bandwidth of a node",
    "pipelining": "pipelining of a tree (κ)",
}


def the_machine(report) -> Section:
    """Each fitted machine's determined numbers with their intervals, and how well it predicts what it has not seen."""
    blocks: list = []
    for fit in report.fits:
        if fit.machine is None:
            blocks.append(Paragraph(f"{fit.collective}: no machine is fitted: {fit.why_not}"))
            continue
        machine = fit.machine
        unseen = machine.unseen.miss.abs()
        ways = ", ring or tree" if fit.collective == "all_reduce" else ""
        hidden = "each world predicted from the others" if machine.worlds > 2 else "every second size predicted from the rest"
        blocks += [
            Paragraph(
                f"{fit.collective}, {count_text(len(machine.model.protocols), 'protocol')} (as many as predict best), fitted to "
                f"{count_text(len(machine.misses), 'time')} of {count_text(machine.worlds, 'world size')}: the median miss is "
                f"{percent_text(machine.misses.miss.abs().median())}. With {hidden}, the median miss is {percent_text(unseen.median())}, "
                f"and nine of ten are below {percent_text(unseen.quantile(0.9))}. A call takes the fastest protocol{ways}. "
                "Numbers that the logs have determined:"
            ),
            _numbers(machine.parameters),
        ]
    return Section("machine", "The fitted machine", tuple(blocks))


def _numbers(parameters) -> Table:
    rows = [
        (
            f"{row.protocol}  {_WORDS[row.parameter]}",
            _value(row.value, row.unit),
            f"{_value(row.low, row.unit)} to {_value(row.high, row.unit)}",
        )
        for row in parameters[parameters.determined].itertuples()
    ]
    return Table(("protocol and number", "value", "90 % interval"), tuple(rows) or (("none", "–", "–"),))


def three_beside_each_other(report) -> Section:
    """Measured, fitted and NCCL's own model: a table of the largest world, and a line for every sweep."""
    blocks: list = [
        Paragraph(
            "A miss is predicted over measured, less 1. NCCL's own model is not a fit: it is what NCCL expects before any "
            "measurement, and what it chooses by."
        )
    ]
    for fit in report.fits:
        if fit.machine is not None:
            blocks.append(_beside(report, fit))
    rows = tuple(_overall(report, fit, sweep) for fit in report.fits for sweep in fit.sweeps)
    blocks.append(Table(("median miss (and largest)", "fitted", "NCCL's model"), rows))
    why = dict.fromkeys(_basis(report.expectations[sweep.name]) for sweep in report.sweeps)
    return Section("beside", "Measured, fitted, and NCCL's own model", (*blocks, Bullets(tuple(why))))


def _basis(expectation) -> str:
    if not expectation.choices:
        return f"NCCL's own model is missing. {expectation.basis}"
    return f"NCCL's own model: {expectation.basis}."


def _beside(report, fit) -> Table:
    sweep, predicted = fit.largest, fit.predicted(fit.largest)
    choices = report.expectations[sweep.name].choices or [None] * len(sweep.sizes)
    step = max(1, -(-len(sweep.sizes) // 14))
    shown = sorted({*range(0, len(sweep.sizes), step), len(sweep.sizes) - 1})
    rows = []
    for i in shown:
        size, time, choice = sweep.sizes[i], sweep.times[i], choices[i]
        nccl = (
            ("–", "–", "–")
            if choice is None
            else (
                seconds_text(choice.seconds),
                _signed(choice.seconds / time - 1),
                f"{choice.algorithm} {choice.protocol}",
            )
        )
        rows.append((
            binary_text(size),
            seconds_text(time),
            seconds_text(predicted[i]),
            _signed(predicted[i] / time - 1),
            *nccl,
        ))
    return Table((label(report, sweep), "measured", "fitted", "miss", "NCCL expects", "miss", "and takes"), tuple(rows))


def _overall(report, fit, sweep):
    cells, expectation = [label(report, sweep)], report.expectations[sweep.name]
    for predicted in (
        fit.predicted(sweep) if fit.machine is not None else None,
        np.array([choice.seconds for choice in expectation.choices]) if expectation.choices else None,
    ):
        if predicted is None:
            cells.append("–")
        else:
            off = np.abs(predicted / sweep.times - 1)
            cells.append(f"{percent_text(np.median(off))} ({percent_text(off.max())})")
    return tuple(cells)


def the_nearest(report) -> Section:
    """For each fitted machine the published one that comes nearest, its numbers beside the fitted ones, and its source."""
    blocks: list = []
    for fit in report.fits:
        if fit.machine is None:
            continue
        found = nearest.near(fit.machine, without={sweep.run for sweep in fit.sweeps})
        if not found:
            blocks.append(Paragraph(f"{fit.collective}: these logs determine no number that a published machine also has."))
            continue
        one = found[0]
        rows = tuple(
            (nearest.NUMBERS[name][0], _value(mine, _unit(name)), _value(theirs, _unit(name)), f"{mine / theirs:.2g}")
            for name, (mine, theirs) in one.shared.items()
        )
        beginning = f"{one.cluster}." if one.factor < 3 else f"none is near; the nearest is {one.cluster}."
        only = " That is only one number, and many machines share it." if len(one.shared) == 1 else ""
        blocks += [
            Paragraph(
                f"{fit.collective}: {beginning} The numbers that both have determined differ by a factor of "
                f"{one.factor:.2f} (root mean square).{only} Source: {'; '.join(one.sources)}."
            ),
            Table(("number", "fitted", "published", "ratio"), rows),
        ]
    return Section(
        "nearest", "The nearest published machine", tuple(blocks) or (Paragraph("No machine is fitted, so none is near."),)
    )


def more_nodes(report) -> Section:
    """Return what twice and four times the nodes will do, with intervals and what such intervals have held."""
    blocks: list = []
    for fit in report.fits:
        found = forecasts.forecasts(fit)
        if not found:
            why = (
                "no machine is fitted"
                if fit.machine is None
                else "no log comes from several nodes, so nothing is known about the network"
            )
            blocks.append(Paragraph(f"{fit.collective}: not predicted: {why}."))
            continue
        base = dict(zip(fit.largest.sizes, fit.largest.times))
        rows = []
        for size in dict.fromkeys(one.size for one in found):
            cells = [
                f"{seconds_text(one.time)} ({seconds_text(one.low)} to {seconds_text(one.high)})"
                for one in found
                if one.size == size
            ]
            rows.append((binary_text(size), seconds_text(base[size]) if size in base else "–", *cells))
        worlds = [f"{nodes} nodes, {ranks} ranks" for ranks, nodes in dict.fromkeys((one.ranks, one.nodes) for one in found)]
        blocks += [
            Table((fit.collective, f"measured on {fit.largest.nodes}", *worlds), tuple(rows)),
            Paragraph(f"In brackets the 90 % interval. {forecasts.held(fit)}"),
        ]
    return Section("more", "Twice and four times the nodes", tuple(blocks))


def by_the_gap(report) -> Section:
    """Return which program is quickest at g = α and at the wires' g, and at which g the verdict turns; and where that g is from."""
    blocks: list = [Paragraph(gaps.sentences(report.gaps))]
    for fit, found in zip(report.fits, report.verdicts):
        if why := verdicts.why_not(fit):
            blocks.append(Paragraph(f"{fit.collective}: no verdict: {why}."))
        blocks += map(_verdicts, found)
    if any(report.verdicts):
        blocks.append(
            Paragraph(
                "The quickest of all programs of the table, on the fitted machine, not counting the start of a call"
                f"{_cards(report)}. Below the g in the "
                "last column the second is quicker, above it the first; – marks a verdict that g does not change by more than the "
                f"fit's median miss ({', '.join(dict.fromkeys(percent_text(one.band) for found in report.verdicts for one in found))})."
            )
        )
    return Section("gap", "Which program is quickest, by the gap between messages", tuple(blocks))


def _cards(report) -> str:
    if max(sweep.nodes for sweep in report.sweeps) == 1:
        return ""
    return (
        f", with {count_text(report.nics, 'network card')} a node"
        if report.nics
        else ", with one network card a node (--nics N)"
    )


def _verdicts(one) -> Table:
    world = f"{one.collective}, {one.ranks} ranks, {count_text(one.nodes, 'node')}"
    rows = [
        (
            binary_text(each.size),
            *(f"{verdicts.short(one.collective, way)} {seconds_text(way[2])}" for way in (each.textbook, each.wire)),
            "–" if each.turns is None else seconds_text(each.turns),
        )
        for each in one.each
    ]
    return Table((world, "g = α (textbook)", f"g = {seconds_text(one.gap)}", "turns at g"), tuple(rows))


def what_stays_open(report) -> Section:
    """Return what these logs cannot say."""
    several = len(report.fits) > 1
    said = [f"{fit.collective}: {each}" if several else each for fit in report.fits for each in limits(fit)]
    return Section("open", "What these logs cannot say", (Bullets(tuple(dict.fromkeys(said))),))


def _unit(name: str) -> str:
    return "B/s" if name.startswith("bandwidth") else "s"


def _value(value: float, unit: str) -> str:
    return {"s": seconds_text(value), "B/s": f"{bytes_text(value)}/s", "": f"{value:.2f}"}[unit]


def _signed(part: float) -> str:
    return f"{round(100 * part):+d} %"
