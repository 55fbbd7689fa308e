"""The collectives: one table of their names, of who has what before and after, and of what they need at least.

    find("all-reduce").name           # "all_reduce": torch's spelling; hyphens, MPI's and nccl-tests' names are read too
    find("all_gather").moved(8)       # 7/8: bytes that some rank must send or receive, as a part of n
    bus_factor("all_reduce", 8)       # 14/8: busbw over algbw

n is the full vector, the sum of the shards where there are shards, as nccl-tests counts it. Whoever needs a list of
collectives, or of torch.distributed's functions for them, takes it from here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass

from ringtree.errors import UsageError

__all__ = ["Collective", "NAMES", "SEND_RECV", "TABLE", "bus_factor", "call_names", "find", "spelling"]


@dataclass(frozen=True)
class Collective:
    """One collective.

    name: torch's spelling. before, after: what a rank has: "whole" (n bytes), "shard" (n/p), "blocks" (n/p for each rank)
    or "nothing". root: None, or torch's argument for the one rank that alone has something before ("src") or after
    ("dst"). reduces: whether it takes an operation. calls: torch.distributed's functions for it, each with its form: "one" tensor,
    in place; a "list" of shards; or all shards "flat" in one tensor. aliases: other names. algorithm: of
    `ringtree.algorithms`, which stands for it where nobody names one. laps: how often its bytes go round the ring by
    which NCCL does it; 0 where NCCL has no ring for it.

    meaning: what a rank has after, (before, rank, root, op) to its blocks, or None where nothing is promised. before: by
    rank, the blocks that it has, of which p make a whole; op: a list of blocks to one block. least: ranks to `moved`,
    where that does not follow from the shapes.
    """

    name: str
    before: str
    after: str
    calls: dict[str, str]
    meaning: Callable
    root: str | None = None
    reduces: bool = False
    aliases: tuple[str, ...] = ()
    algorithm: str | None = None
    laps: int = 0
    least: Callable | None = None

    @property
    def sharded(self) -> bool:
        """Return whether what a rank passes is counted in shards, of which p make the full vector."""
        return "shard" in (self.before, self.after) or self.before == "blocks"

    @property
    def in_place_only(self) -> bool:
        """Return whether torch has it in place alone: the result replaces what was given."""
        return set(self.calls.values()) == {"one"}

    def moved(self, ranks: int) -> float:
        """Bytes that some rank sends or receives at least, as a part of n. Source: Chan et al. 2007."""
        if self.least:
            return self.least(ranks)
        if self.before == self.after == "nothing":
            return 0
        if self.before == self.after == "whole":
            return 2 * (ranks - 1) / ranks if self.root is None else min(ranks - 1, 1)
        return (ranks - 1) / ranks

    def reduced(self, ranks: int) -> float:
        """Bytes that some rank reduces at least, as a part of n. Source: Chan et al. 2007."""
        return (ranks - 1) / ranks if self.reduces else 0.0

    def bus_factor(self, ranks: int) -> float:
        """busbw / algbw: 1, or the part of n that every link of a ring carries. Source: nccl-tests, doc/PERFORMANCE.md."""
        everyone = self.before == "whole" and self.root is None
        return self.moved(ranks) if self.sharded or everyone else 1.0


def _blockwise(before, op):
    return [op(list(blocks)) for blocks in zip(*before)]


def _joined(before):
    return [block for blocks in before for block in blocks]


TABLE = (
    Collective(
        "broadcast",
        "whole",
        "whole",
        {"broadcast": "one"},
        lambda before, rank, root, op: before[root],
        root="src",
        aliases=("bcast",),
        algorithm="mst_broadcast",
        laps=1,
    ),
    Collective(
        "reduce",
        "whole",
        "whole",
        {"reduce": "one"},
        lambda before, rank, root, op: _blockwise(before, op) if rank == root else None,
        root="dst",
        reduces=True,
        algorithm="mst_reduce",
        laps=1,
    ),
    Collective(
        "scatter",
        "whole",
        "shard",
        {"scatter": "list"},
        lambda before, rank, root, op: [before[root][rank]],
        root="src",
        aliases=("scatterv",),
        algorithm="mst_scatter",
    ),
    Collective(
        "gather",
        "shard",
        "whole",
        {"gather": "list"},
        lambda before, rank, root, op: _joined(before) if rank == root else None,
        root="dst",
        aliases=("gatherv",),
        algorithm="mst_gather",
    ),
    Collective(
        "all_gather",
        "shard",
        "whole",
        {"all_gather": "list", "all_gather_single": "flat", "all_gather_into_tensor": "flat"},
        lambda before, rank, root, op: _joined(before),
        aliases=("allgather", "allgatherv"),
        algorithm="ring_all_gather",
        laps=1,
    ),
    Collective(
        "reduce_scatter",
        "whole",
        "shard",
        {"reduce_scatter": "list", "reduce_scatter_single": "flat", "reduce_scatter_tensor": "flat"},
        lambda before, rank, root, op: [op([blocks[rank] for blocks in before])],
        reduces=True,
        aliases=("reducescatter",),
        algorithm="ring_reduce_scatter",
        laps=1,
    ),
    Collective(
        "all_reduce",
        "whole",
        "whole",
        {"all_reduce": "one"},
        lambda before, rank, root, op: _blockwise(before, op),
        reduces=True,
        aliases=("allreduce",),
        algorithm="ring_all_reduce",
        laps=2,
    ),
    Collective(
        "all_to_all",
        "blocks",
        "blocks",
        {"all_to_all": "list", "all_to_all_single": "flat"},
        lambda before, rank, root, op: [blocks[rank] for blocks in before],
        aliases=("alltoall", "alltoallv"),
        algorithm="pairwise_all_to_all",
    ),
    Collective(
        "barrier",
        "nothing",
        "nothing",
        {"barrier": "one"},
        lambda before, rank, root, op: [],
        algorithm="dissemination_barrier",
    ),
)
NAMES = tuple(row.name for row in TABLE)
SEND_RECV = Collective(
    "send_recv",
    "whole",
    "whole",
    {},
    lambda before, rank, root, op: before[root] if rank == 1 else None,
    root="src",
    aliases=("sendrecv",),
    laps=1,
)
"""One message from one rank to another: no collective, but timed and predicted beside them."""


def find(name, *, send_recv=False) -> Collective:
    """The collective of that name; send_recv: whether one message counts as one.

    A name is torch's, that of one of torch.distributed's functions, or another that is in use; hyphens are as good as
    underscores. Raises UsageError for anything else.
    """
    row = _rows(send_recv).get(_spelled(name))
    if row is None:
        known = [*NAMES, *([SEND_RECV.name] if send_recv else [])]
        near = difflib.get_close_matches(_spelled(name), known, n=1)
        raise UsageError(
            f"{name!r} is not a collective: {f'did you mean {near[0]}? G' if near else 'g'}ive one of {', '.join(known)}"
        )
    return row


def _spelled(name) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|-", "_", str(name)).replace("__", "_").lower().removesuffix("_perf")


def _rows(send_recv) -> dict[str, Collective]:
    rows = [*TABLE, *([SEND_RECV] if send_recv else [])]
    return {name: row for row in rows for name in (row.name, *row.calls, *row.aliases)}


def spelling(name):
    """The table's name for a collective or a single message; what is neither comes back as it was given."""
    row = _rows(send_recv=True).get(_spelled(name))
    return row.name if row else name


def call_names() -> tuple[str, ...]:
    """All of torch.distributed's functions that are collectives of this table."""
    return tuple(name for row in TABLE for name in row.calls)


def bus_factor(collective, ranks: int) -> float:
    """busbw / algbw: what a collective's size / time is multiplied by, to compare it with one link.

    2(p−1)/p for an all-reduce; (p−1)/p for all-gather, reduce-scatter, all-to-all, gather and scatter;
    1 for broadcast, reduce and a single message (`send_recv`); a barrier moves nothing. Source:
    nccl-tests, doc/PERFORMANCE.md, and its scatter.cu and gather.cu. Raises UsageError for
    a collective that is none of these, or without ranks.
    """
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise UsageError(f"bus_factor got {ranks!r} ranks: give a whole number, 1 or more")
    return find(collective, send_recv=True).bus_factor(ranks)
