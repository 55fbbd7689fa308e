"""Single messages, timed by a ping-pong between two ranks."""

from __future__ import annotations

import statistics
import time

from ringtree.errors import UsageError
from ringtree.given import several, takes

# Sizes of a ping-pong from 1 byte to 64 MiB, in powers of two.
POWERS_OF_TWO = tuple(2**k for k in range(27))
ROUNDS = 5  # times that a ping-pong goes through all sizes: something else that runs for a moment spoils no size alone


@takes(sizes=several("a list of numbers of bytes"))
def ping_pong(sizes=POWERS_OF_TWO, repeats: int = 50, warmup: int = 3, at_most: int = 2**28, device=None, dist=None):
    """Rank 0 sends to rank 1, rank 1 sends the same bytes back; half a round trip is one message.

    A rank program: call it on every rank of a running process group, for instance with
    `ranks.call(measure.ping_pong)`. Ranks 0 and 1 play; any others return at once.

    sizes: message lengths in bytes, whole numbers of at least 1; repeats: timed round trips of each
    size; warmup: round trips before them whose times do not count; at_most: bytes that the timed
    round trips of a size may send one way, so that large messages are repeated less often, though
    5 times at least (or `repeats`, if that is less);
    device: where the buffers live, by default the current CUDA device under NCCL and else the CPU;
    dist: what speaks like `torch.distributed`, and it by default: an emulated link, for instance.

    The sizes are gone through several times, each time with a part of the repeats.

    Returns on rank 0 a list of plain rows, one for each size, in seconds *one way*:
    `{"bytes", "first", "min", "median", "repeats"}`. `first` is the first round trip of that size,
    the warm-up's; the row measured first holds the very first message of all. On a GPU these times hold two
    calls on the host and a wait for the device, so a row also has `queued`: many round trips are
    queued and waited for once, and what each further one adds, halved, is the message alone. On the other ranks
    it returns None.

    Raises UsageError for sizes, repeats or warm-ups that cannot be, or with fewer than two ranks;
    RuntimeError if bytes come back changed.
    """
    import torch

    dist = torch.distributed if dist is None else dist
    sizes = [_whole(size, "a size", "bytes") for size in sizes]
    repeats = _whole(repeats, "repeats", "timed round trips")
    warmup = _whole(warmup, "warmup", "round trips")
    if not sizes:
        raise UsageError("ping_pong got no sizes: give at least one number of bytes")
    if dist.get_world_size() < 2:
        raise UsageError(f"ping_pong runs between two ranks, and there is {dist.get_world_size()}: start two or more")
    if device is None:
        device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
    rank = dist.get_rank()
    if rank > 1:
        return None
    counts = [min(repeats, max(5, at_most // size)) for size in sizes]
    pairs = [_Pair(size, rank, torch.device(device), dist) for size in sizes]
    for pair in pairs:
        pair.play(warmup)
    for part in range(ROUNDS):
        for pair, count in zip(pairs, counts):
            pair.play(count * (part + 1) // ROUNDS - count * part // ROUNDS)
    rows = [pair.row(warmup, count) for pair, count in zip(pairs, counts)]
    return rows if rank == 0 else None


class _Pair:
    """The buffers of one size, and the times of its round trips so far."""

    def __init__(self, size, rank, device, dist):
        import torch

        self.sent = torch.arange(256, dtype=torch.uint8, device=device).repeat(size // 256 + 1)[:size]
        self.got = torch.zeros_like(self.sent)
        self.rank, self.device, self.dist = rank, device, dist
        self.times = []

    def play(self, count):
        self.times += [_seconds(1, self.sent, self.got, self.rank, self.device, self.dist) / 2 for _ in range(count)]

    def row(self, warmup, count):
        import torch

        if not torch.equal(self.got, self.sent):
            raise RuntimeError(f"rank {self.rank}: {len(self.sent)} bytes came back changed: the link or the backend is broken")
        timed = self.times[warmup:]
        row = {"bytes": len(self.sent), "first": self.times[0], "min": min(timed), "median": statistics.median(timed)}
        if self.device.type == "cuda":
            row["queued"] = self.queued(max(1, count // 2))
        return {**row, "repeats": count}

    def queued(self, more):
        """Seconds one way that each of `more` further round trips adds to one, all waited for once: the median of three."""
        slopes = []
        for _ in range(3):
            few, many = (_seconds(trips, self.sent, self.got, self.rank, self.device, self.dist) for trips in (1, 1 + more))
            slopes.append((many - few) / more / 2)
        return statistics.median(slopes)


def _seconds(trips, sent, got, rank, device, dist):
    """Of so many round trips, waited for once."""
    _finish(device)
    started = time.perf_counter()
    for _ in range(trips):
        if rank == 0:
            dist.send(sent, dst=1)
            dist.recv(got, src=1)
        else:
            dist.recv(got, src=0)
            dist.send(got, dst=0)
    _finish(device)
    return time.perf_counter() - started


def _finish(device) -> None:
    """Wait until the device has done what it was given: on a GPU, send and recv return before that."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def _whole(value, what: str, unit: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) and getattr(value, "dtype", None) is None:
        raise UsageError(f"ping_pong got {value!r} for {what}: give a whole number of {unit}, at least 1")
    if value != int(value) or value < 1:
        raise UsageError(f"ping_pong got {value!r} for {what}: give a whole number of {unit}, at least 1")
    return int(value)
