"""Measure on live ranks what only NCCL on a GPU shows: the parts of `make gpu-record`, one function a recording.

A part takes a `Stage`, which starts its ranks, and `quick`, for a trial with few sizes and repeats. It gives its rows, with
the columns of `recorded.RECORDINGS`, and its settings, plain data for the provenance. The same lines run over Gloo on
CPUs, where nothing is known of streams and NCCL, and those columns stay empty.

The functions with a leading underscore run on the ranks. They come together over a Gloo group of their own: a barrier over
NCCL would be NCCL's first call and spoil what follows.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from pathlib import Path

from ringtree.errors import UsageError
from ringtree.theory import nccl

SECONDS = 180.0  # that one question to the ranks may take: a rank whose fellow died would spin for ever
KIB, MIB = 1 << 10, 1 << 20


class Stage:
    """Starts ranks for a part, and remembers where they ran (`found`, a dict a rank) and with which environment.

    size: ranks of a part that does not say; backend and share_gpus as for `ringtree.start`.
    """

    def __init__(self, size, backend, share_gpus=False):
        self.size, self.backend, self.share_gpus = size, backend, share_gpus
        self.found, self.environment = [], {}

    @contextlib.contextmanager
    def start(self, size=None, **environment):
        """Ranks that have `environment` before anything reads it, ended in the end; a restart keeps it."""
        import ringtree

        options = {name: {"environment": environment} for name in ("ForkedEngineSet", "NursedEngineSet")}
        size, share = size or self.size, self.share_gpus or "CUDA_VISIBLE_DEVICES" in environment
        with ringtree.start(size, backend=self.backend, share_gpus=share, timeout=SECONDS, options=options) as ranks:
            yield ranks
            self.found = ranks.call(_where)  # afterwards, so that a part's first call is its own
            self.environment = {key: value for each in self.found for key, value in each["environment"].items()}


def _where():
    """What a rank knows of its device, its versions and NCCL's settings; nothing that names the host."""
    import platform

    import torch
    import torch.distributed as dist

    found = {
        "backend": dist.get_backend(), "device": None, "gpu": None, "capability": None, "cuda": None, "nccl": None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "environment": {
            key: value
            for key, value in sorted(os.environ.items())
            if key.startswith(("NCCL_", "TORCH_NCCL_")) and key not in ("NCCL_HOSTID", "NCCL_DEBUG_FILE")
        },
    }  # fmt: skip
    if found["backend"] == "nccl":
        mine = torch.cuda.get_device_properties(torch.cuda.current_device())
        found |= {
            "gpu": mine.name,
            "device": torch.cuda.current_device(),
            "capability": 10 * mine.major + mine.minor,
            "cuda": torch.version.cuda,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        }
    return found


# -- on the ranks ------------------------------------------------------------------


def _device():
    import torch

    return torch.device("cuda", torch.cuda.current_device()) if torch.distributed.get_backend() == "nccl" else torch.device("cpu")


def _finish(device):
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _meeting():
    """A function that holds every rank until all have come, without a word over NCCL."""
    import torch.distributed as dist

    aside = dist.new_group(backend="gloo")
    return lambda: dist.barrier(group=aside)


def _collectives(count, device):
    """Name → one call, for every collective that both backends have; `count` floats for the whole vector."""
    import torch
    import torch.distributed as dist

    ranks, rank = dist.get_world_size(), dist.get_rank()
    count -= count % ranks
    whole, other = torch.zeros(count, device=device), torch.zeros(count, device=device)
    shard = torch.zeros(count // ranks, device=device)
    right, left = (rank + 1) % ranks, (rank - 1) % ranks

    def exchange():
        sends = [dist.P2POp(dist.isend, whole, right), dist.P2POp(dist.irecv, other, left)]
        for work in dist.batch_isend_irecv(sends):
            work.wait()

    return {
        "all_reduce": lambda: dist.all_reduce(whole),
        "reduce": lambda: dist.reduce(whole, dst=0),
        "broadcast": lambda: dist.broadcast(whole, src=0),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, shard),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(shard, whole),
        "all_to_all": lambda: dist.all_to_all_single(other, whole),
        "send and recv, batched": exchange,
        "barrier": dist.barrier,
    }


def _first_calls(backwards, size, repeats):
    """[(collective, [seconds of the first call, of the next, …])], one collective after the other."""
    device = _device()
    meet, calls = _meeting(), list(_collectives(size // 4, device).items())
    times = []
    for name, call in calls[::-1] if backwards else calls:
        times.append((name, []))
        for _ in range(1 + repeats):
            meet()
            _finish(device)
            began = time.perf_counter()
            call()
            _finish(device)
            times[-1][1].append(time.perf_counter() - began)
    return times


def _in_order(collectives, dressed):
    """Seconds of each collective, once, between two barriers of the group itself, as a widely read tutorial times them.

    dressed: with the tensor made, and the result printed, inside the clock. "nothing" is no call at all.
    """
    import torch
    import torch.distributed as dist

    device, times = _device(), []
    calls = {"reduce": lambda x: dist.reduce(x, dst=0), "all_reduce": dist.all_reduce, "nothing": lambda x: None}
    for name in collectives:
        ready = torch.ones(1, device=device)
        dist.barrier()
        _finish(device)
        began = time.perf_counter()
        tensor = torch.ones(1, device=device) if dressed else ready
        calls[name](tensor)
        if dressed:
            with open(os.devnull, "w") as nowhere:
                print(f"rank {dist.get_rank()} has {tensor}", file=nowhere)
        _finish(device)
        dist.barrier()
        _finish(device)
        times.append(time.perf_counter() - began)
    return times


def _streams(case, size, late, repeats):
    """One dict a repeat: seconds from just before a call to when it returned, wait() returned, and all was done.

    case: one of CASES. late: seconds that the last rank sleeps before its call. events: between CUDA events around the call
    and its wait(); completed: what the Work says once wait() has returned. None where there is no such thing.
    """
    import torch
    import torch.distributed as dist

    device, meet = _device(), _meeting()
    on_gpu, is_late = device.type == "cuda", dist.get_rank() == dist.get_world_size() - 1 and late > 0
    tensor = torch.zeros(size // 4, device=device)
    dist.all_reduce(tensor)
    tensor[0].item()
    told = []
    for _ in range(repeats):
        _finish(device)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if on_gpu else []
        meet()
        if is_late:
            time.sleep(late)
        began = time.perf_counter()
        if on_gpu:
            events[0].record()
        work = dist.barrier() if case == "barrier()" else dist.all_reduce(tensor, async_op=case in ASYNC)
        row = {"returned": time.perf_counter() - began, "waited": None, "completed": None, "events": None}
        if work is not None:
            work.wait()
            row |= {"waited": time.perf_counter() - began, "completed": work.is_completed()}
        if on_gpu:
            events[1].record()
        if case == "all_reduce(), then .item()":
            tensor[0].item()
        else:
            _finish(device)
        row["done"] = time.perf_counter() - began
        if on_gpu:
            row["events"] = events[0].elapsed_time(events[1]) / 1e3 if events[1].query() else None
        told.append(row)
    return told


ASYNC = ("all_reduce(async_op=True), then wait()",)
CASES = ("all_reduce()", *ASYNC, "all_reduce(), then .item()", "barrier()")


def _loop(mode, matrix, size, steps):
    """Seconds a step of a loop that multiplies two square matrices and all-reduces `size` bytes (0: does not)."""
    import torch
    import torch.distributed as dist

    device, meet = _device(), _meeting()
    weights, out = torch.rand(matrix, matrix, device=device), torch.empty(matrix, matrix, device=device)
    gradient = torch.zeros(max(1, size // 4), device=device)

    def step():
        torch.mm(weights, weights, out=out)
        if size:
            dist.all_reduce(gradient)
        if mode == LOOPS[1]:
            _finish(device)
        elif mode == LOOPS[2]:
            out[0, 0].item()

    for _ in range(3):
        step()
    _finish(device)
    meet()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    _finish(device)
    return (time.perf_counter() - began) / steps


LOOPS = ("synchronize() once, at the end", "synchronize() in every step", ".item() in every step")


def _all_reduce_once(sizes):
    import torch
    import torch.distributed as dist

    device = _device()
    for size in sizes:
        dist.all_reduce(torch.zeros(size // 4, device=device))
        _finish(device)


# -- the parts ---------------------------------------------------------------------


def first_calls(stage, quick=False):
    """Each collective's first call on fresh ranks and the median of later ones, in one order and in the reverse."""
    size, repeats, rows = (4 * KIB, 3, []) if quick else (MIB, 20, [])
    with stage.start() as ranks:
        for order in ("forwards", "backwards"):
            if order == "backwards":
                ranks.restart()
            by_rank = ranks.call(_first_calls, order == "backwards", size, repeats)
            for place, calls in enumerate(zip(*by_rank), 1):
                first, *later = [max(times) for times in zip(*(times for _, times in calls))]
                name = calls[0][0]
                rows.append(
                    {
                        "order": order, "place": place, "collective": name, "size": 0 if name == "barrier" else size,
                        "first": first, "later": statistics.median(later), "fastest": min(later),
                    }
                )  # fmt: skip
    return rows, {"later": f"median of {repeats}", "time": "until synchronize() has returned, on the slowest rank"}


def order(stage, quick=False):
    """The experiment behind "all-reduce is faster than reduce": each order on fresh ranks, then again on warm ones."""
    repeats, rows = 3 if quick else 20, []
    inside = {True: "tensor, call and print", False: "the call alone"}
    with stage.start() as ranks:
        for dressed in (True, False):
            for names in (("reduce", "all_reduce"), ("all_reduce", "reduce"), ("nothing", "nothing")):
                if rows and not quick:
                    ranks.restart()
                fresh, *warm = [
                    [max(times) for times in zip(*ranks.call(_in_order, names, dressed))] for _ in range(1 + repeats)
                ]
                warm = [statistics.median(times) for times in zip(*warm)]
                rows += [
                    {"order": " then ".join(names), "inside": inside[dressed], "when": when, "collective": name, "time": seconds}
                    for when, times in (("first", fresh), ("warm", warm))
                    for name, seconds in zip(names, times)
                ]
    return rows, {"warm": f"median of {repeats}", "clock": "barrier to barrier, on the slowest rank"}


def streams(stage, quick=False):
    """When the host goes on, and when the work is done: on rank 0, with all ranks in time and with the last one late."""
    late, repeats, rows = (0.2, 2, []) if quick else (0.5, 7, [])
    with stage.start() as ranks:
        for size in [64 * KIB] if quick else [64 * KIB, 64 * MIB]:
            for seconds in (0.0, late):
                for case in CASES:
                    told = ranks.call(_streams, case, size, seconds, repeats)[0]
                    rows.append({"case": case, "size": 0 if case == "barrier()" else size, "late": seconds, **_median_of(told)})
    return rows, {"times": f"median of {repeats}, from just before the call, on rank 0", "late": "the last rank sleeps so long"}


def _median_of(told):
    """Of each time the median of those there are; what the Work says only where it always said the same."""
    found = {}
    for name in ("returned", "waited", "completed", "events", "done"):
        values = [row[name] for row in told if row[name] is not None]
        if name == "completed":
            found[name] = values[0] if len(set(values)) == 1 else "now and then" if values else None
        else:
            found[name] = statistics.median(values) if values else None
    return found


def synchronize(stage, quick=False):
    """What waiting for the GPU costs inside a training loop: small and large work, with and without an all-reduce."""
    steps, repeats, rows = (3, 2, []) if quick else (50, 5, [])
    work = [(64, 4 * KIB)] if quick else [(256, 64 * KIB), (4096, 16 * MIB)]
    with stage.start() as ranks:
        for matrix, gradient in work:
            for size in (0, gradient):
                for mode in LOOPS:
                    times = [max(ranks.call(_loop, mode, matrix, size, steps)) for _ in range(repeats)]
                    rows.append(
                        {"loop": mode, "matrix": matrix, "size": size, "steps": steps, "time": statistics.median(times)}
                    )
    return rows, {"time": f"a step's, on the slowest rank, median of {repeats} loops"}


def choices(stage, quick=False):
    """All-reduce for one size after another: measured without NCCL's log, then once more with it, for NCCL's choice."""
    from ringtree.measure import sizes_between

    sizes = sizes_between(8, 32 * KIB if quick else 64 * MIB, 64 if quick else 4)
    with stage.start() as ranks:
        table = _sweep(ranks, sizes, quick)
    measured_with = stage.environment
    chosen, remark = {}, "none, only NCCL tells"
    if stage.backend == "nccl":
        remark = "of a second run, with NCCL's log on"
        try:
            chosen = choices_in(_log_of(stage, sizes), sizes, stage.found[0]["capability"])
        except UsageError as error:  # an NCCL that logs otherwise: the times are worth keeping
            remark = f"not read: {error}"
        stage.environment = measured_with  # the times' own: they were taken without the log
    nothing = dict.fromkeys(("algorithm", "protocol", "channels", "expected"))
    rows = [
        {name: each[name] for name in ("size", "time", "low", "high")}
        | {"wrong": int(each["wrong"])}
        | chosen.get(each["size"], nothing)
        for each in table.to_dict("records")
    ]
    return rows, {"measure": table.attrs["settings"], "choice": remark}


def nccl_log(stage, quick=False):
    """The lines of rank 0's log that `nccl.read_tuning` and `nccl.read_platform` read."""
    if stage.backend != "nccl":
        raise UsageError("only NCCL writes this log")
    lines = nccl_lines(_log_of(stage, [8 << power for power in range(0, 24, 2)]))
    if not lines:
        raise UsageError("NCCL's log has none of the lines that are kept: is NCCL_DEBUG overruled in /etc/nccl.conf?")
    return [{"line": line} for line in lines], {"calls": "all_reduce, once a size"}


def time_slice(stage, quick=False):
    """All-reduce of 2, 3, … ranks on one and the same GPU, NCCL's ring: the time over the 2(p-1) steps of the ring."""
    from ringtree.measure import sizes_between

    environment = {}
    if stage.backend == "nccl":
        one = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        environment = {"CUDA_VISIBLE_DEVICES": one, "NCCL_ALGO": "Ring"}
    sizes, rows = sizes_between(8, 4 * KIB if quick else 4 * MIB, 512 if quick else 8), []
    for size in range(2, stage.size + 1):
        with stage.start(size, **environment) as ranks:
            table = _sweep(ranks, sizes, quick, calls=1)
        steps = 2 * (size - 1)
        rows += [
            {
                "ranks": size, "size": each["size"], "steps": steps,
                **{name: each[name] for name in ("time", "low", "high")}, "per_step": each["time"] / steps,
            }
            for each in table.to_dict("records")
        ]  # fmt: skip
    return rows, {"measure": table.attrs["settings"], "steps": "2(p-1), those of a ring"}


def _sweep(ranks, sizes, quick, **settings):
    """The table of an all-reduce for all of these sizes; KeyboardInterrupt where somebody ended it before."""
    from ringtree.measure import measure

    table = measure("all_reduce", sizes, ranks=ranks, show=False, budget=0.05 if quick else 1.0, **settings)
    if len(table) < len(sizes):
        raise KeyboardInterrupt  # `measure` takes it as the end of a table, and half a table is no recording
    return table


PARTS = {part.__name__: part for part in (first_calls, order, streams, synchronize, choices, nccl_log, time_slice)}


# -- NCCL's log ----------------------------------------------------------------------

# Lines that `nccl.read_tuning` or `nccl.read_platform` reads; the others tell of sockets, paths and hosts.
_TELLING = ("NCCL version", "Pattern ", " nRanks ", "coll channels", " | ", " Bytes -> ")


def _log_of(stage, sizes):
    """What NCCL on rank 0 wrote while it all-reduced each of these sizes once."""
    with tempfile.TemporaryDirectory(prefix="ringtree-nccl-") as folder:
        with stage.start(**nccl.DEBUG, NCCL_DEBUG_FILE=f"{folder}/nccl.%p") as ranks:
            ranks.call(_all_reduce_once, sizes)
            log = Path(folder) / f"nccl.{ranks.places[0].pid}"
            if not log.is_file():
                raise UsageError("NCCL wrote no log, though NCCL_DEBUG_FILE was set: is it overruled in /etc/nccl.conf?")
            return log.read_text(errors="replace")


def nccl_lines(log: str) -> list[str]:
    """The telling lines of a log, without the host, process and thread that each begins with."""
    lines = (line.rpartition("NCCL INFO ")[2].strip() for line in log.splitlines())
    found = [line if "NCCL version" not in line else line[line.index("NCCL version"):] for line in lines]
    return [line for line in found if any(word in line for word in _TELLING)]


def choices_in(log: str, sizes, capability=None) -> dict[int, dict]:
    """NCCL's choice for an all_reduce of each size that the log tells of: algorithm, protocol, channels, expected (seconds).

    expected is what that NCCL's own table gives for the choice, None where the log has no table for it.
    """
    tuning = nccl.read_tuning(log)
    found = {}
    for call in tuning.calls:
        if call["collective"] in (None, "all_reduce") and call["bytes"] in sizes:
            expected = _expected(tuning, call, capability)
            found[call["bytes"]] = {name: call[name] for name in ("algorithm", "protocol", "channels")} | {"expected": expected}
    return found


def _expected(tuning, call, capability):
    rows = [
        row
        for row in tuning.table
        if (row["communicator"], row["collective"]) == (0, "all_reduce")
        and (row["algorithm"], row["protocol"]) == (call["algorithm"], call["protocol"])
    ]
    if not rows:
        return call["seconds"]
    only = nccl.Tuning(rows, [], tuning.communicators, tuning.version)
    known = {"capability": capability} if capability else {}
    return nccl.predict_from_table(only, "all_reduce", call["bytes"], **known).seconds
