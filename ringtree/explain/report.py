"""The report: what was read, what is fitted, and what is said of it, in the order in which a page shows it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ringtree.errors import UsageError
from ringtree.explain import as_text, fitting, forecasts, reading, sections_on_fits, sections_on_sweeps, verdicts
from ringtree.explain.expectations import check, expectation
from ringtree.explain.gaps import MOST, Gap, gaps
from ringtree.given import number as a_number
from ringtree.given import require
from ringtree.units import seconds_text

__all__ = ["Explanation", "explain"]


def explain(
    *sources, ranks=None, nodes=None, gpus_per_node=None, collective=None, nics=None, nccl_log="", gap=None
) -> Explanation:
    """Your cluster from its logs: what was read, the fitted machine, and what it will do on more nodes.

    sources: paths of logs of nccl-tests, rccl-tests or OSU, names of published runs (`data.runs()`), or tables of
    `ringtree.measure`. ranks, nodes: what the logs do not say, one number for all or a list with one for each;
    gpus_per_node instead of nodes. collective: where the logs do not name it. nics: network cards of a node.
    nccl_log: the text of a run with NCCL_DEBUG=INFO, for NCCL's own model. gap: seconds between two messages at a port, of
    every wire; left out, what the logs hold, or the described wires'.

    Shown or printed, it is the report in words; `page()` is a page of its own. Raises UsageError where nothing can be
    read; where some of the logs cannot, they are named in the report and in `unread`.
    """
    for what, value in (("gpus_per_node", gpus_per_node), ("nics", nics)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise UsageError(f"{what}={value!r}: give a whole number, 1 or more")
    if gap is not None:
        require("explain", "gap", gap, a_number())
        if gap >= MOST:
            raise UsageError(f"gap={gap!r} is {seconds_text(gap)}: give seconds below {MOST:g}, such as 0.3e-6")
    if nccl_log:
        check(nccl_log)
    given = reading.Given(_numbers("ranks", ranks), _numbers("nodes", nodes), gpus_per_node, collective)
    sweeps, unread = reading.read(sources, given)
    if not sweeps:
        raise UsageError("; ".join(each.why for each in unread) or "no log was given: give one or more")
    return Explanation(tuple(sweeps), tuple(unread), nics, nccl_log, gap)


def _numbers(what, value) -> tuple[int, ...]:
    numbers = () if value is None else tuple(value) if isinstance(value, (tuple, list)) else (value,)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise UsageError(f"{what}={value!r}: give a whole number, 1 or more, or one for each log")
    return numbers


_SECTIONS = {
    "read": sections_on_sweeps.what_was_read,
    "machine": sections_on_fits.the_machine,
    "beside": sections_on_fits.three_beside_each_other,
    "ways": sections_on_sweeps.changes_and_slow_ways,
    "wires": sections_on_sweeps.on_the_wires,
    "nearest": sections_on_fits.the_nearest,
    "more": sections_on_fits.more_nodes,
    "gap": sections_on_fits.by_the_gap,
    "open": sections_on_fits.what_stays_open,
}


@dataclass(frozen=True)
class Explanation:
    """What logs say of a cluster. sweeps: what was read; unread: what could not be, each with its reason; nics: of a node.

    gap: as given, in seconds.
    """

    sweeps: tuple
    unread: tuple = ()
    nics: int | None = None
    nccl_log: str = ""
    gap: float | None = None

    @cached_property
    def fits(self) -> list[fitting.Fit]:
        """A fitted machine for each collective, or why there is none."""
        return fitting.fit(self.sweeps)

    @cached_property
    def expectations(self) -> dict:
        """NCCL's own model of each sweep, by the sweep's name."""
        return {sweep.name: expectation(sweep, self.nccl_log) for sweep in self.sweeps}

    @cached_property
    def gaps(self) -> dict[str, Gap]:
        """The gap of each wire, by its name, and where it is from."""
        return gaps(self.sweeps, self.gap, self.nics)

    @cached_property
    def verdicts(self) -> list:
        """For each fit, which program is quickest by the gap: a list of `verdicts.Verdicts`."""
        return [verdicts.verdicts(fit, self.gaps, self.nics) for fit in self.fits]

    @cached_property
    def sections(self) -> tuple:
        """All that is said, as sections of paragraphs, lists and tables."""
        return tuple(section(self) for section in _SECTIONS.values())

    def forecasts(self, times=(2, 4)) -> list[forecasts.Forecast]:
        """Return what so many times the nodes of each collective's largest world will do, at a few sizes."""
        return [one for fit in self.fits for one in forecasts.forecasts(fit, times)]

    def part(self, name: str) -> str:
        """One part in words: read, machine, beside, ways, wires, nearest, more, gap or open. Raises UsageError for another."""
        if name not in _SECTIONS:
            raise UsageError(f"the report has no part {name!r}: give one of {', '.join(_SECTIONS)}")
        return as_text.text_of([_SECTIONS[name](self)])

    def __str__(self) -> str:
        return as_text.text_of(self.sections)

    __repr__ = __str__

    def page(self) -> str:
        """The same as one HTML page with drawings and sliders, which needs no network."""
        from ringtree.explain.page import page_of

        return page_of(self)
