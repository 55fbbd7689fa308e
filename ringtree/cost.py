"""The α-β model: what one message costs on a link, and for how long it keeps the ports of its two ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ringtree.errors import UsageError
from ringtree.given import a, optional, require, whole
from ringtree.units import bytes_text, seconds_text


@dataclass(frozen=True)
class Link:
    """A link whose messages of n bytes arrive α + n·β after their start, and keep their ports for g + n·β.

    alpha: seconds that every message pays, however short; beta: seconds for each byte; gap: g, the seconds of α during
    which neither of its two ports can serve another message, 0 ≤ g ≤ α. Left out, g is α: the textbook's one port, which
    carries one message at a time from its start to its arrival. All are finite and not negative. α and β are Hockney's
    (1994), g is LogP's gap (Culler et al. 1993, with long messages Alexandrov et al. 1995).

    error: of a fitted link, the median part by which the fit misses its measured times, 0.05 for 5 %; None of another. Links
    that differ in it alone are equal.
    """

    alpha: float
    beta: float
    gap: float | None = None
    error: float | None = field(default=None, compare=False, repr=False, kw_only=True)

    def __post_init__(self):
        for name, value, unit in (("alpha", self.alpha, "seconds"), ("beta", self.beta, "seconds per byte")):
            if not _is_number(value) or not math.isfinite(value) or value < 0:
                raise UsageError(f"Link got {name}={value!r}: give {unit}, a finite number that is not negative")
        if self.error is not None and (not _is_number(self.error) or not 0 <= self.error < math.inf):
            raise UsageError(f"Link got error={self.error!r}: give a part of 1, 0 or more, or leave it out")
        if self.gap is None:
            object.__setattr__(self, "gap", self.alpha)
        elif not _is_number(self.gap) or not 0 <= self.gap <= self.alpha:
            raise UsageError(
                f"Link got gap={self.gap!r} and alpha={self.alpha!r}: give seconds from 0 to alpha, or leave gap out for alpha"
            )

    @classmethod
    def of(cls, alpha: float, *, bandwidth: float, gap: float | None = None) -> Link:
        """Make a link from its α in seconds, its bandwidth in bytes per second (`math.inf` for β = 0) and its gap in seconds."""
        if not _is_number(bandwidth) or not bandwidth > 0:
            raise UsageError(
                f"Link.of got bandwidth={bandwidth!r}: give bytes per second, a number greater than 0 (450 GB/s is 450e9)"
            )
        return cls(alpha, 1 / bandwidth, gap)

    def time(self, nbytes):
        """Seconds from the start of one message of nbytes to its arrival: α + n·β. Takes a number or a NumPy array of numbers."""
        self._check(nbytes)
        return self.alpha + nbytes * self.beta

    def busy(self, nbytes):
        """Seconds for which one message of nbytes keeps its two ports: g + n·β. Takes what `time` takes."""
        self._check(nbytes)
        return self.gap + nbytes * self.beta

    @staticmethod
    def _check(nbytes):
        if isinstance(nbytes, (str, list, tuple)) or nbytes is None:
            raise UsageError(f"a Link got {nbytes!r} bytes: give a number, or a NumPy array of numbers")
        if not (nbytes >= 0 if _is_number(nbytes) else (nbytes >= 0).all()):
            raise UsageError(f"a Link got nbytes={nbytes!r}: a message has 0 bytes or more")

    @property
    def is_textbook(self) -> bool:
        """Return whether a message keeps its ports until it arrives: g = α."""
        return self.gap == self.alpha

    @property
    def bandwidth(self) -> float:
        """Bytes per second that very long messages approach, 1/β."""
        return 1 / self.beta if self.beta else math.inf

    @property
    def half_size(self) -> float:
        """n½ = α/β: the bytes at which α and n·β are equal, and half of the bandwidth is reached."""
        return self.alpha / self.beta if self.beta else math.inf

    def __repr__(self) -> str:
        gap = "" if self.is_textbook else f", gap={self.gap!r}"
        return f"Link(alpha={self.alpha!r}, beta={self.beta!r}{gap})"

    def __str__(self) -> str:
        speed = f"{bytes_text(self.bandwidth)}/s" if self.beta else "any bandwidth"
        gap = "" if self.gap is None or self.is_textbook else f", gap {seconds_text(self.gap)}"
        return f"α {seconds_text(self.alpha)}, {speed}{gap}"


@dataclass(frozen=True)
class Machine:
    """Ranks on nodes, with one link inside a node and another between nodes.

    inside: the `Link` between two ranks of a node. between: the link between ranks of
    different nodes (left out: the same). ranks_per_node: ranks 0 … r−1 are node 0, and so on
    (left out: one node). cards_per_node: network cards, which the ranks of a node share out evenly, in
    order. A message between nodes then keeps the two cards' ports and not the ranks', so that these
    talk inside the node meanwhile (left out: a rank has one port out and one in for all its messages).
    For how long a message keeps its ports is its link's to say, with cards and without.
    """

    inside: Link
    between: Link | None = None
    ranks_per_node: int | None = None
    cards_per_node: int | None = None

    def __post_init__(self):
        link, count = a(Link, words="a Link"), optional(whole(1))
        for name, kind in {"inside": link, "between": optional(link), "ranks_per_node": count, "cards_per_node": count}.items():
            require("Machine", name, getattr(self, name), kind)
        if self.cards_per_node is not None and self.ranks_per_node is None:
            raise UsageError("Machine got cards_per_node and no ranks_per_node: say how many ranks a node has")
        if self.between is not None and self.ranks_per_node is None:
            raise UsageError("Machine got a link between nodes and no ranks_per_node: say how many ranks a node has")

    @property
    def error(self) -> float | None:
        """The larger error of its links' fits; None where none was fitted."""
        errors = [link.error for link in (self.inside, self.between) if link is not None and link.error is not None]
        return max(errors, default=None)

    def node(self, rank: int) -> int:
        """The node of a rank."""
        return rank // self.ranks_per_node if self.ranks_per_node else 0

    def link(self, src: int, dst: int) -> Link:
        """The link that a message from rank src to rank dst takes."""
        if self.between is None or self.node(src) == self.node(dst):
            return self.inside
        return self.between

    def card(self, rank: int) -> tuple[int, int]:
        """The network card of a rank: (node, card)."""
        node, place = divmod(rank, self.ranks_per_node or rank + 1)
        if self.cards_per_node is None or self.ranks_per_node is None or self.cards_per_node >= self.ranks_per_node:
            return node, place
        return node, place * self.cards_per_node // self.ranks_per_node


def _is_number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) or _is_numpy_scalar(value)


def _is_numpy_scalar(value) -> bool:
    # Duck-typed, so that this room needs nothing but the standard library.
    return hasattr(value, "dtype") and getattr(value, "ndim", None) == 0
