"""What is fitted: a machine for each collective, from all its sweeps; or why none can be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ringtree import theory
from ringtree.theory.samples import NO_LATENCY

__all__ = ["Fit", "fit"]


@dataclass(frozen=True, eq=False)
class Fit:
    """The sweeps of one collective, smallest world first, and the machine fitted to them, or None and why."""

    collective: str
    sweeps: tuple
    machine: theory.Fitted | None = None
    why_not: str = ""

    @property
    def worlds(self) -> list[tuple[int, int]]:
        """(ranks, nodes), each once, smallest first."""
        return sorted({(sweep.ranks, sweep.nodes) for sweep in self.sweeps})

    @property
    def largest(self):
        """The sweep on the most nodes, of these on the most ranks."""
        return max(self.sweeps, key=lambda sweep: (sweep.nodes, sweep.ranks))

    def predicted(self, sweep) -> np.ndarray:
        """Seconds that the fitted machine takes for each size of a sweep."""
        return self._table.loc[sweep.name].predicted.to_numpy()

    @property
    def _table(self) -> pd.DataFrame:
        assert self.machine is not None, self.why_not
        return self.machine.misses.set_index("run")


def fit(sweeps) -> list[Fit]:
    """A fit for each collective, in the order in which they come."""
    by_collective = {}
    for sweep in sweeps:
        by_collective.setdefault(sweep.collective, []).append(sweep)
    return [_fit(name, sorted(some, key=lambda one: (one.ranks, one.nodes))) for name, some in by_collective.items()]


def _fit(collective, sweeps) -> Fit:
    sweeps = tuple(sweeps)
    if collective not in theory.COLLECTIVES:
        return Fit(
            collective, sweeps, why_not=f"there is no closed form for {collective}; {', '.join(theory.COLLECTIVES)} have one."
        )
    if any(sweep.no_latency for sweep in sweeps):
        return Fit(
            collective,
            sweeps,
            why_not=f"{sweeps[0].tool} times a {collective} back to back, and {NO_LATENCY}. Its bandwidth at long messages "
            "stands, below. To have a latency, time each call with a barrier before it, as `python -m ringtree.measure` does.",
        )
    try:
        return Fit(collective, sweeps, theory.fit_machine(_samples(sweeps)))
    except ValueError as error:
        return Fit(collective, sweeps, why_not=f"{str(error).rstrip('.')}.")


def _samples(sweeps) -> pd.DataFrame:
    return pd.concat(
        pd.DataFrame({
            "run": sweep.name,
            "collective": sweep.collective,
            "algorithm": sweep.algorithm,
            "ranks": sweep.ranks,
            "nodes": sweep.nodes,
            "size": sweep.sizes,
            "time": sweep.times,
            "back_to_back": sweep.no_latency,
        })
        for sweep in sweeps
    )
