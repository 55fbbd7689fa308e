"""Programs of one collective side by side: the table of costs that the chapters print."""

from __future__ import annotations

from functools import partial

from ringtree.cost import Link
from ringtree.given import a, mapping, number, takes, whole
from ringtree.theory.costs import cost_of, lower_bound, textbook_time
from ringtree.theory.table import find, row_of
from ringtree.units import seconds_text

__all__ = ["cost_table"]


@takes(
    programs=mapping("a dict from a name to a program"),
    size=whole(1),
    nbytes=whole(0),
    link=a(Link, words="a Link"),
    gamma=number(),
    itemsize=whole(1),
)
def cost_table(programs, size, nbytes, link, *, gamma=0.0, itemsize=4) -> str:
    """Return what each program costs on `size` ranks over one kind of link, a line each, and below them what none can beat.

    programs: names to programs as `cost_of` takes them, or to (program, its options). nbytes, gamma, itemsize: as in `cost_of`.

    rounds: messages one after the other. path: bytes one after the other. port: bytes through the busier port, out or in, of
    the busiest rank; both are parts of n. time: of a run in the simulator. formula: the textbook's time, "-" where it has none
    that holds for this p and n. `at least` holds for each column by itself (`lower_bound`).
    """
    width = max(map(len, [*programs, "at least"]))
    lines, collective = [f"{f'p = {size}':{width}} rounds  path  port    time formula"], None
    for name, given in programs.items():
        program, options = given if isinstance(given, tuple) else (given, {})
        program = find(program).program if isinstance(program, str) else program
        # As somebody's own program, so that ours is run as well, and not counted from its schedule.
        run = cost_of(partial(program, **options), size, nbytes, link, gamma=gamma, itemsize=itemsize)
        row, formula = row_of(program), None
        if row is not None:
            collective = row.collective
            formula = textbook_time(program, size, nbytes, link, gamma=gamma, itemsize=itemsize, **options)
        lines.append(
            f"{name:{width}} {run.rounds:6}{_part(run.path_bytes / nbytes)}{_part(run.busiest_port / nbytes)}"
            f" {seconds_text(run.time):>7} {'-' if formula is None else seconds_text(formula):>7}"
        )
    if collective is not None:
        bound = lower_bound(collective, size)
        lines.append(f"{'at least':{width}} {bound.rounds:6}{_part(bound.moved)}{_part(bound.moved)}")
    return "\n".join(lines)


def _part(times):
    """So many times n, in six places."""
    return f"{times:6.2f}" if times < 100 else f"{times:6.1f}"
