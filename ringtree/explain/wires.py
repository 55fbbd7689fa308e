"""What busbw means on each wire: bytes per second out of a node, on one of its NICs, and on a GPU's links inside it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringtree.collectives import find

__all__ = ["Load", "load"]


@dataclass(frozen=True)
class Load:
    """The fastest size of a sweep: bytes, seconds, bytes per second.

    out_of_node, nic, inside: what a node sends out, a NIC of it (None where their number is not given), and a GPU to
    others of its node, each one way, if the bytes went round rings; None where there is no such wire. half: the size from
    which on, up to the fastest, half of its busbw is reached.
    """

    size: float
    time: float
    busbw: float
    out_of_node: float | None
    nic: float | None
    inside: float | None
    half: float


def load(sweep, nics: int | None = None) -> Load:
    """Return what a sweep's highest busbw is on the wires.

    A ring passes through every GPU of a node and leaves the node once: NCCL runs one for each NIC or more, so that all
    together busbw leaves a node, and each GPU sends busbw, (g−1)/g of it to the next GPU of its node where g GPUs share a
    node. An all-to-all has no ring: of what a rank sends to p−1 others, p−g parts leave the node, for each of its g ranks.
    """
    busbw = sweep.busbw
    best = int(np.argmax(busbw))
    p, g, peak = sweep.ranks, sweep.cards, float(busbw[best])
    if find(sweep.collective, send_recv=True).before == "blocks":
        out, inside = g * peak * (p - g) / (p - 1), peak * (g - 1) / (p - 1)
    else:
        out, inside = peak, peak if sweep.nodes == 1 else peak * (g - 1) / g
    out = out if sweep.nodes > 1 else None
    below = np.flatnonzero(busbw[:best] < peak / 2)
    half = sweep.sizes[below[-1] + 1] if len(below) else sweep.sizes[0]
    return Load(
        float(sweep.sizes[best]),
        float(sweep.times[best]),
        peak,
        out,
        out / nics if out and nics else None,
        inside if g > 1 else None,
        float(half),
    )
