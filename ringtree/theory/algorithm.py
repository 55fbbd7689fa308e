"""What the table of algorithms says of each, a row."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

__all__ = ["Algorithm"]


@dataclass(frozen=True)
class Algorithm:
    """One row of the table.

    collective: its name in `ringtree.collectives`. program: the function of `ringtree.algorithms`. steps: its schedule,
    (p, n, itemsize, options) to steps, each a list of messages (src, dst, bytes) and whether the receivers reduce what comes.
    textbook: the cost as books give it; form: the same as a function (p, n, link, gamma, options) to
    seconds; holds: where that is exact, (p, elements, options) to bool. source: key of the reference.
    time: where ranks do not wait at the end of every step, (steps, p, machine, gamma, options) to seconds. stepwise: whether
    the steps, or `time`, say when messages move; where not, the program is simulated. grid: for each
    option the values that a race tries. laid: whether it goes from rank to rank through every node, a ring, a chain or a pair
    of trees, so that a machine with several cards a node has it once through each.
    """

    collective: str
    program: Callable
    steps: Callable
    textbook: str
    form: Callable | None
    holds: Callable
    source: str
    time: Callable | None = None
    stepwise: bool = True
    grid: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    laid: bool = False

    @property
    def name(self) -> str:
        return self.program.__name__

    @property
    def taken(self) -> tuple[str, ...]:
        """The names of its parameters."""
        return tuple(inspect.signature(self.program).parameters)


# The values that a race tries.
CHUNKS = {"chunks": (1, 2, 4, 8, 16, 32, 64, 128, 256)}
SLICES = {"slices": (2, 4, 8)}
LATENCY = {"latency": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)}
