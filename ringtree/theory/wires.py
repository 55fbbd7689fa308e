"""What the wires of a GPU cluster carry, as the pages take them where nothing was measured: each figure with its source.

The gap of a wire is seldom measured by itself, so where a verdict depends on it, a page shows it at several.
"""

from dataclasses import replace

from ringtree.cost import Link
from ringtree.given import number, require

__all__ = ["CARD_GAP", "NVLINK_GAP", "card", "nvlink"]

CARD_GAP = 0.3e-6
"""Seconds between two messages at a network card, with one queue pair: 0.40 µs in openucx/ucx issue 8851 (ib_read_bw, 2.5
million messages a second), 0.13 to 0.27 µs in linux-rdma/perftest issue 273 (ib_write_bw, 7.5 or 3.7 million), 0.18 µs in its
issue 65 (ib_send_bw, 1,024 bytes)."""

NVLINK_GAP = 0.1e-6
"""Seconds between two messages of a GPU over NVLink: an assumption. A kernel stores to all its peers at once, so it is far
below the hop of about a microsecond; sglang's one-shot all-reduce among 8 H100 takes 5.7 µs in all, call included (pull
request 2904)."""


def card(alpha: float = 5e-6, *, bandwidth: float = 50e9, gap: float = CARD_GAP) -> Link:
    """A network card: α in seconds, bytes per second each way, and the gap, no longer than α."""
    return _wire("card", alpha, bandwidth, gap)


def nvlink(alpha: float = 1e-6, *, bandwidth: float = 370e9, gap: float = NVLINK_GAP) -> Link:
    """A GPU's NVLinks together: α in seconds, bytes per second each way, and the gap, no longer than α."""
    return _wire("nvlink", alpha, bandwidth, gap)


def _wire(name, alpha, bandwidth, gap):
    require(name, "gap", gap, number())
    link = Link.of(alpha, bandwidth=bandwidth)
    return replace(link, gap=min(gap, link.alpha))
