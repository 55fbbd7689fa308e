"""Time a call, or one collective at one size: on ranks, under `ringtree`, `torchrun` or anything else, or alone."""

from __future__ import annotations

import math
import sys
import time
from functools import partial
from statistics import median
from typing import NamedTuple

from ringtree.collectives import bus_factor
from ringtree.errors import UsageError
from ringtree.given import any_number, several, takes
from ringtree.measure.buffers import prepare
from ringtree.measure.call import check_link, describe
from ringtree.units import count_text, seconds_text

LEAST = 6  # batches: fewer have no 95 % interval of their median
BATCH_SECONDS = 5e-3  # calls that are shorter are timed several together
MOST_CALLS = 20  # as nccl-tests times together unless told otherwise


class Timing(NamedTuple):
    """What `timed` found, in seconds.

    time: the median; low, high: its 95 % interval; min, max: the shortest and the longest; first: the first call, which counts
    in none of these; calls: how many do; stable: whether the interval got narrow enough before the budget was spent.
    """

    time: float
    low: float
    high: float
    min: float
    max: float
    first: float
    calls: int
    stable: bool

    def __str__(self):
        low, high = seconds_text(self.low), seconds_text(self.high)
        return f"{seconds_text(self.time)} (95 % sure: {low} to {high}, {count_text(self.calls, 'call')})"


def timed(call, *, warmup=2, budget=0.3, stable=0.05, group=None, device=None) -> Timing:
    """Return how long call() takes. On ranks all of them call this at the same time, each with its own call, and get the same answer.

    call: a function without arguments. warmup: calls after the first that do not count. budget: seconds that the counted calls
    may take together, so far as 6 of them allow; stable: stop sooner when the 95 % interval of the median is within this part of
    it. group: the ranks that take part, by default all. device: what must have finished before the clock is read, by default this
    rank's GPU under NCCL, and in a process without ranks the current GPU if PyTorch uses it.

    The first call is timed apart. Before each of the others the ranks meet in a barrier, and of each the slowest rank's time
    counts. The answer is the median of these, for what disturbs a call only makes it longer, at times by much, and a median
    does not move for that; between `low` and `high` lies the true median with 95 % confidence (`median_interval`). Method and
    source: Hoefler, Belli 2015, Scientific Benchmarking of Parallel Computing Systems, rules 5, 6 and 10.

    Raises UsageError on arguments that cannot be, and whatever the call raises.
    """
    if not callable(call):
        raise UsageError(f"timed got {call!r}: give a function without arguments, such as lambda: dist.all_reduce(x)")
    check_settings(warmup, 1, budget, stable)
    batch = partial(_meet_and_time, call, group, _device_of(device, group))
    first = max(batch(0.0)[0])
    for _ in range(warmup):
        batch(0.0)
    by_rank, _, narrow = _batches_until_stable(batch, budget, stable)
    slowest = [max(times) for times in by_rank]
    low, high = median_interval(slowest)
    return Timing(median(slowest), low, high, min(slowest), max(slowest), first, len(slowest), narrow)


def _meet_and_time(call, group, device, began):
    """One call after a barrier: (every rank's time, 0 wrong elements, seconds since `began` where they are most)."""
    real = _ranks_here()
    if real is not None:
        real.barrier(group=group)
    mine = [stopwatch(call, device), time.monotonic() - began]
    times, spent = zip(*([mine] if real is None else _share(mine, group)))
    return times, 0, max(spent)


def _ranks_here():
    """torch.distributed, where this process has a process group; without one PyTorch need not be loaded."""
    real = getattr(sys.modules.get("torch"), "distributed", None)
    return real if real is not None and real.is_available() and real.is_initialized() else None


def _device_of(device, group):
    """The torch device to wait for; None where there is none to wait for."""
    torch, real = sys.modules.get("torch"), _ranks_here()
    if device is not None:
        import torch

        return torch.device(device)
    gpu = torch is not None and (torch.cuda.is_initialized() if real is None else real.get_backend(group) == "nccl")
    return torch.device("cuda", torch.cuda.current_device()) if gpu else None


def time_collective(
    what,
    size,
    *,
    of=None,
    op=None,
    dtype="float",
    root=0,
    in_place=None,
    check=True,
    warmup=5,
    calls=None,
    budget=1.0,
    stable=0.05,
    link=None,
    dist=None,
    device=None,
    options=None,
):
    """Time a collective of `size` bytes; every rank calls this, and every rank returns the same row.

    The arguments are those of `ringtree.measure.measure`, for one size. Further ones:
    dist: what a rank program is given, by default torch.distributed itself, or the emulated link.
    device: where the buffers live, by default this rank's GPU under NCCL and else the CPU.
    options: a dict of further arguments for the program.

    How it is timed. The first call is timed apart, then `warmup` calls are made. Then batches: fresh
    inputs, a barrier, and between two looks at the clock `calls` calls one after the other. Of a
    batch the slowest rank's time counts, divided by `calls`. After every batch the ranks tell
    each other their times, outside the clock, so that all of them stop at the same one: when
    the 95 % interval of the median (see `median_interval`) is within `stable` of it, or when
    `budget` seconds are spent, but not before the 6th. In every batch one call is checked: the timed one
    where it can be, and else one more, on fresh inputs, outside the clock.

    On a GPU the time is between two CUDA events on the current stream; on a CPU the monotonic clock's.

    Raises UsageError on arguments that cannot be, and whatever the collective itself raises.
    """
    import torch

    real = torch.distributed
    if not real.is_initialized():
        raise UsageError(
            "time_collective runs on ranks, and there is no process group here: call init_process_group first, or use measure"
        )
    ranks = real.get_world_size()
    check_settings(warmup, calls, budget, stable)
    call = describe(what, of, op, dtype, root, in_place, ranks, real.get_backend(), options)
    dist, device = _surroundings(call, dist, link, device)
    count = call.count(size, ranks)
    batch = partial(_batch, prepare(call, count, dist, device), device, check)
    times, wrong, _ = batch(1)
    first = max(times)
    warm = [max(batch(1)[0]) for _ in range(warmup)]
    calls = calls or _calls_together(call, min([first, *warm]))
    by_rank, errors, narrow = _batches_until_stable(partial(batch, calls), budget, stable)
    row = {
        "collective": call.collective.name,
        "program": call.name,
        "ranks": ranks,
        "size": call.size(count, ranks),
        "count": count,
        "type": call.dtype if count else "none",
        "redop": call.op,
        "root": call.root,
        "in_place": call.in_place,
    }
    return (
        row
        | summary(row["collective"], ranks, row["size"], [max(times) for times in by_rank])
        | {
            "wrong": max(wrong, errors) if check else None,
            "first": first,
            "batches": len(by_rank),
            "calls": calls,
            "stable": narrow,
            "by_rank": tuple(median(times) for times in zip(*by_rank)),
        }
    )


def _batches_until_stable(batch, budget, stable):
    """(each batch's times by rank, wrong elements in the worst, whether the median got stable within the budget)."""
    by_rank, slowest, wrong, began = [], [], 0, time.monotonic()
    while True:
        times, errors, spent = batch(began)
        by_rank.append(times)
        slowest.append(max(times))
        wrong = max(wrong, errors)
        narrow = is_stable(slowest, stable)
        if narrow or len(slowest) >= LEAST and spent >= budget:
            return by_rank, wrong, narrow


def _batch(job, device, check, calls, began=0.0):
    """(every rank's time for a call, wrong elements on all ranks, seconds since `began` where they are most)."""
    import torch

    job.refresh()
    torch.distributed.barrier()
    seconds = stopwatch(lambda: [job.run() for _ in range(calls)], device) / calls
    if check and calls > 1 and not job.repeatable:
        job.refresh()
        job.run()
    times, wrong, spent = zip(*_share([seconds, job.wrong() if check else 0, time.monotonic() - began]))
    return times, int(sum(wrong)), max(spent)


def summary(collective, ranks, size, slowest) -> dict:
    """The times of a row, seconds, and its bandwidths, bytes a second, from the slowest rank's time of each batch."""
    import numpy

    middle, (low, high) = median(slowest), median_interval(slowest)
    q1, q3 = numpy.quantile(slowest, (0.25, 0.75)).tolist()
    algbw = size / middle if middle > 0 else math.nan
    return {
        "time": middle,
        "algbw": algbw,
        "busbw": algbw * bus_factor(collective, ranks),
        "min": min(slowest),
        "q1": q1,
        "q3": q3,
        "max": max(slowest),
        "low": low,
        "high": high,
    }


def check_settings(warmup, calls, budget, stable) -> None:
    """UsageError unless the settings of a measurement can be."""
    whole = {"warmup": (warmup, 0), "calls": (1 if calls is None else calls, 1)}
    for name, (value, least) in whole.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UsageError(f"{name}={value!r}: give a whole number of calls, {least} or more")
    for name, value, unit in (
        ("budget", budget, "seconds for a size"),
        ("stable", stable, "a part of the median, such as 0.05"),
    ):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or not value > 0:
            raise UsageError(f"{name}={value!r}: give {unit}, more than 0")


def _surroundings(call, dist, link, device):
    """Return what the call runs over, and where its buffers live."""
    import torch

    real = torch.distributed
    check_link(call, link)
    if link is not None:
        from ringtree.live.link.emulated import emulate

        return emulate(real, link), torch.device("cpu")
    if device is None:
        device = torch.device("cuda", torch.cuda.current_device()) if real.get_backend() == "nccl" else torch.device("cpu")
    return dist or real, torch.device(device)


def stopwatch(run, device=None) -> float:
    """Seconds that run() takes on this rank.

    Between two CUDA events on a GPU, by the monotonic clock on a CPU.
    """
    if device is None or device.type != "cuda":
        began = time.perf_counter()
        run()
        return time.perf_counter() - began
    import torch

    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    began.record()
    run()
    ended.record()
    ended.synchronize()
    return began.elapsed_time(ended) / 1e3  # it says milliseconds


def _share(mine, group=None):
    """Every rank's list of numbers, by rank, on every rank of the group."""
    import torch

    dist = torch.distributed
    where = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    mine = torch.tensor(mine, dtype=torch.float64, device=where)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, mine, group=group)
    return torch.stack(everyone).tolist()


def _calls_together(call, seconds):
    """Calls back to back, so that the clock's grain and the barrier's unevenness weigh little.

    With a root, ranks may run ahead into the next call, and calls back to back would overlap:
    those are timed one by one.
    """
    if call.root >= 0:
        return 1
    return max(1, min(MOST_CALLS, int(BATCH_SECONDS / max(seconds, 1e-9))))


# -- order statistics ----------------------------------------------------------


@takes(times=several("a list of one or more times", any_number.holds))
def median_interval(times) -> tuple[float, float]:
    """Two of the times, between which the true median lies with 95 % confidence, whatever its distribution.

    The k-th smallest and the k-th largest, where k is the largest number so that of n fair coins fewer
    than k show heads with a chance of at most 2.5 %. Up to 5 times there is none, and smallest and
    largest are given. A measurement that stops when the interval is narrow makes it a little
    too narrow. Source: Hoefler, Belli 2015, Scientific Benchmarking of Parallel Computing Systems.
    """
    if not len(times):
        raise UsageError("median_interval got no times: give at least one")
    ordered, n = sorted(times), len(times)
    k = _order(n)
    return ordered[k - 1], ordered[n - k]


def _order(n):
    if n > 60:  # the binomial distribution is as good as normal
        return int((n - 1.96 * math.sqrt(n)) / 2)
    k, chance = 0, 1 / 2**n
    while chance <= 0.025:
        k += 1
        chance += math.comb(n, k) / 2**n
    return max(k, 1)


def is_stable(times, part: float) -> bool:
    """Return whether the 95 % interval of the median is within `part` of the median, on both sides."""
    if len(times) < LEAST:
        return False
    middle, (low, high) = median(times), median_interval(times)
    return max(high - middle, middle - low) <= part * middle
