"""What twice and four times the nodes will do, by the fitted machine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringtree.theory import HELD
from ringtree.units import percent_text

__all__ = ["Forecast", "forecasts", "held"]


@dataclass(frozen=True)
class Forecast:
    """One size on a world that nobody has timed: seconds, and between which a measurement is expected (90 %)."""

    size: float
    ranks: int
    nodes: int
    time: float
    low: float
    high: float


def forecasts(fit, times=(2, 4)) -> list[Forecast]:
    """The largest world with so many times the nodes and as many cards on each; none where no log is of several nodes."""
    base = fit.largest
    if fit.machine is None or base.nodes == 1 or fit.collective == "send_recv":
        return []
    found = []
    for factor in times:
        ranks, nodes, sizes = base.ranks * factor, base.nodes * factor, some_sizes(base.sizes)
        middle = fit.machine.model.time(fit.collective, sizes, ranks, nodes)
        low, high = fit.machine.interval(fit.collective, sizes, ranks, nodes)
        found += [Forecast(float(n), ranks, nodes, *map(float, each)) for n, *each in zip(sizes, middle, low, high)]
    return found


def some_sizes(sizes) -> np.ndarray:
    """The ends of a sweep and a few powers of two between them."""
    low, high = np.min(sizes), np.max(sizes)
    return np.unique([low, *(2.0**k for k in (13, 16, 20, 24, 28) if low < 2.0**k < high), high])


def held(fit) -> str:
    """Return how many times of hidden worlds such an interval held on the published clusters, in a sentence."""
    if fit.machine.worlds >= 3:
        return (
            f"On the published clusters such an interval held {percent_text(HELD['three or more'])} of the times of worlds hidden "
            f"from the fit, and {percent_text(HELD['the worst'])} of the worst of them."
        )
    if fit.machine.worlds == 2 and len({nodes > 1 for _, nodes in fit.worlds}) == 2:
        return f"Fitted to two worlds, such an interval held {percent_text(HELD['two'])} of the times of the published clusters' others."
    return (
        f"Fitted to worlds of one kind, one node or several, such an interval held {percent_text(HELD['one'])} of the times of a "
        f"published world of the other kind, and {percent_text(HELD['two'])} of its own kind where there were two."
    )
