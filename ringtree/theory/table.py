"""The algorithms in one table: for each its schedule, its cost as books give it, where that is exact, and its source."""

from __future__ import annotations

from ringtree.errors import UsageError
from ringtree.theory.algorithm import Algorithm
from ringtree.theory.all_reduce_rows import ALL_REDUCES
from ringtree.theory.rooted_rows import ROOTED
from ringtree.theory.rows import ROWS

__all__ = ["ALGORITHMS", "Algorithm", "find", "row_of"]

ALGORITHMS = [*ROOTED, *ROWS, *ALL_REDUCES]


def find(program) -> Algorithm:
    """The row of an algorithm, from its function or its name."""
    if row := row_of(program):
        return row
    raise UsageError(f"{program!r} is not one of our algorithms: give one of {', '.join(row.name for row in ALGORITHMS)}")


def row_of(program) -> Algorithm | None:
    """The same, or None where it is none of ours: somebody's own rank program."""
    return next((row for row in ALGORITHMS if program in (row.program, row.name)), None)
