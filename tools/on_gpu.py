"""Measure on live ranks what only NCCL on a GPU shows: the parts of `make gpu-record`, one function a recording.

A part takes a `Stage`, which starts its ranks, and `quick`, for a trial with few sizes and repeats. It gives its rows, with
the columns of `recordings.RECORDINGS`, and its settings. The same lines run over Gloo on CPUs, where nothing is known of
streams and of NCCL's choices, and those columns stay empty.

The functions with a leading underscore that take no Stage run on the ranks, which import this file: `Stage.start` puts its
folder on their PYTHONPATH. They come together over a Gloo group of their own: a barrier over NCCL would be NCCL's first call
and spoil what follows.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from pairing import DEADLINE_SECONDS

from ringtree.errors import UsageError
from ringtree.theory import nccl

SECONDS = 180.0  # that one question to the ranks may take: a rank whose fellow died would spin forever
KIB, MIB = 1 << 10, 1 << 20
HERE = Path(__file__).resolve().parent


class Stage:
    """Starts a part's ranks, over NCCL where there are GPUs, and keeps what they first said of themselves: `found`, by rank."""

    def __init__(self, gpus, size=4):
        self.size, self.backend, self.share_gpus = size, "nccl" if gpus else "gloo", 0 < gpus < size
        self.found = []

    @contextlib.contextmanager
    def start(self, **environment):
        """Ranks that have `environment` before anything reads it, ended in the end; a restart keeps it."""
        from ringtree.live.cluster import start

        environment |= {"PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])}
        options = {name: {"environment": environment} for name in ("ForkedEngineSet", "NursedEngineSet")}
        how = {"backend": self.backend, "share_gpus": self.share_gpus, "timeout": SECONDS, "options": options}
        with start(self.size, **how) as ranks:
            yield ranks
            self.found = self.found or ranks.call(_where)  # afterwards, so that a part's first call is its own


# -- on the ranks ------------------------------------------------------------------


def _where():
    """What a rank knows of its GPU, its versions and NCCL's settings; nothing that names the host."""
    told = [name for name in sorted(os.environ) if name.startswith(("NCCL_", "TORCH_NCCL_"))]
    environment = {name: os.environ[name] for name in told if name not in ("NCCL_HOSTID", "NCCL_DEBUG_FILE")}
    if module := sys.modules.get("sitecustomize"):
        environment |= {"names of PyTorch 2.13 given to": torch.__version__} if hasattr(module, "NEWER") else {}
    found = {"backend": dist.get_backend(), "torch": torch.__version__, "environment": environment}
    if _device() == "cpu":
        return found | dict.fromkeys(("device", "gpu", "capability", "cuda", "nccl"))
    mine = torch.cuda.get_device_properties(torch.cuda.current_device())
    return found | {
        "device": torch.cuda.current_device(),
        "gpu": mine.name,
        "capability": 10 * mine.major + mine.minor,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
    }


def _device():
    return "cuda" if dist.get_backend() == "nccl" else "cpu"


def _finish():
    if _device() == "cuda":
        torch.cuda.synchronize()


def _meeting():
    """A function that holds every rank until all have come, without a word over NCCL."""
    aside = dist.new_group(backend="gloo")
    return lambda: dist.barrier(group=aside)


def _in_order(collectives, dressed):
    """Seconds of each collective, once, between two barriers of the group itself, as a widely read tutorial times them.

    dressed: with the tensor made, and put into words, inside the clock. "nothing" is no call at all.
    """
    times = []
    calls = {"reduce": lambda x: dist.reduce(x, dst=0), "all_reduce": dist.all_reduce, "nothing": lambda x: None}
    for name in collectives:
        ready = torch.ones(1, device=_device())
        dist.barrier()
        _finish()
        began = time.perf_counter()
        tensor = torch.ones(1, device=_device()) if dressed else ready
        calls[name](tensor)
        if dressed:
            str(tensor)
        _finish()
        dist.barrier()
        _finish()
        times.append(time.perf_counter() - began)
    return times


ASYNC = "all_reduce(async_op=True), then wait()"
CASES = ("all_reduce()", ASYNC, "all_reduce(), then .item()", "barrier()")


def _streams(case, size, late, repeats):
    """A dict a repeat: seconds from just before a call to when it returned, wait() returned, and all was done.

    late: seconds that the last rank sleeps before its call. events: between CUDA events around the call and its wait().
    None where there is no such thing.
    """
    meet, told, on_gpu = _meeting(), [], _device() == "cuda"
    tensor = torch.zeros(size // 4, device=_device())
    dist.all_reduce(tensor)
    for _ in range(repeats):
        _finish()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if on_gpu else []
        meet()
        if dist.get_rank() == dist.get_world_size() - 1:
            time.sleep(late)
        began = time.perf_counter()
        if on_gpu:
            events[0].record()
        work = dist.barrier() if case == "barrier()" else dist.all_reduce(tensor, async_op=case == ASYNC)
        row = {"returned": time.perf_counter() - began, "waited": None, "events": None}
        if work is not None:
            work.wait()
            row["waited"] = time.perf_counter() - began
        if on_gpu:
            events[1].record()
        if case.endswith(".item()"):
            tensor[0].item()
        else:
            _finish()
        row["done"] = time.perf_counter() - began
        if on_gpu:
            events[1].synchronize()
            row["events"] = events[0].elapsed_time(events[1]) / 1e3
        told.append(row)
    return told


LOOPS = {
    "synchronize() once, at the end": lambda out: None,
    "synchronize() in every step": lambda out: _finish(),
    ".item() in every step": lambda out: out[0, 0].item(),
}


def _loop(mode, matrix, size, steps):
    """Seconds a step of a loop that multiplies two square matrices and all-reduces `size` bytes (0: does not)."""
    meet, warmup = _meeting(), 3
    weights, out = torch.rand(matrix, matrix, device=_device()), torch.empty(matrix, matrix, device=_device())
    gradient = torch.zeros(max(1, size // 4), device=_device())
    for step in range(-warmup, steps):
        if step == 0:
            _finish()
            meet()
            began = time.perf_counter()
        torch.mm(weights, weights, out=out)
        if size:
            dist.all_reduce(gradient)
        LOOPS[mode](out)
    _finish()
    return (time.perf_counter() - began) / steps


def _unpaired(after):
    """Rank 0 receives from rank 1, which never sends, and reads: after an all-reduce, or as the group's first call."""
    tensor = torch.zeros(1, device=_device())
    if after:
        dist.all_reduce(tensor)
    if dist.get_rank() == 0:
        dist.recv(tensor, src=1)
        tensor.item()


# -- the parts ---------------------------------------------------------------------


def order(stage, quick=False):
    """The experiment behind "all-reduce is faster than reduce": each order on fresh ranks, then again on warm ones."""
    repeats, rows = 3 if quick else 20, []
    with stage.start() as ranks:
        for inside, dressed in (("tensor, call and print", True), ("the call alone", False)):
            for names in (("reduce", "all_reduce"), ("all_reduce", "reduce"), ("nothing", "nothing")):
                if rows and not quick:
                    ranks.restart()
                runs = [[max(times) for times in zip(*ranks.call(_in_order, names, dressed))] for _ in range(1 + repeats)]
                for when, times in (("first", runs[0]), ("warm", map(statistics.median, zip(*runs[1:])))):
                    what = {"order": " then ".join(names), "inside": inside, "when": when}
                    rows += [{**what, "collective": name, "time": seconds} for name, seconds in zip(names, times)]
    return rows, {"warm": f"median of {repeats}", "clock": "barrier to barrier, on the slowest rank"}


def streams(stage, quick=False):
    """When the host goes on, and when the work is done: on rank 0, with all ranks in time and with the last one late."""
    import pandas

    late, repeats, rows = (0.2, 2, []) if quick else (0.5, 7, [])
    with stage.start() as ranks:
        for size in [64 * KIB] if quick else [64 * KIB, 64 * MIB]:
            for seconds in (0.0, late):
                for case in CASES:
                    told = ranks.call(_streams, case, size, seconds, repeats)[0]
                    what = {"case": case, "size": 0 if case == "barrier()" else size, "late": seconds}
                    rows.append(what | pandas.DataFrame(told, dtype=float).median().to_dict())
    return rows, {"times": f"median of {repeats}, from just before the call, on rank 0", "late": "the last rank sleeps so long"}


def synchronize(stage, quick=False):
    """What waiting for the GPU costs inside a training loop: small and large work, with and without an all-reduce."""
    steps, repeats, rows = (3, 2, []) if quick else (50, 5, [])
    with stage.start() as ranks:
        for matrix, gradient in [(64, 4 * KIB)] if quick else [(256, 64 * KIB), (4096, 16 * MIB)]:
            for size in (0, gradient):
                for mode in LOOPS:
                    times = [max(ranks.call(_loop, mode, matrix, size, steps)) for _ in range(repeats)]
                    what = {"loop": mode, "matrix": matrix, "size": size, "steps": steps}
                    rows.append({**what, "time": statistics.median(times)})
    return rows, {"time": f"a step's, on the slowest rank, median of {repeats} loops"}


def choices(stage, quick=False):
    """All-reduce for one size after another: measured without NCCL's log, then once more with it, for NCCL's choice."""
    from ringtree.measure import sizes_between

    sizes = sizes_between(8, 32 * KIB if quick else 64 * MIB, 64 if quick else 4)
    table = _sweep(stage, sizes, 0.05 if quick else 1.0)
    chosen, remark = {}, "none, only NCCL tells"
    if stage.backend == "nccl":
        try:
            chosen = choices_in(_log_of(stage, sizes), sizes, stage.found[0]["capability"])
            remark = "of a second run, with NCCL's log on"
        except UsageError as error:  # an NCCL that logs otherwise: the times are worth keeping
            remark = f"not read: {error}"
    measured = table[["size", "time", "low", "high", "wrong"]].to_dict("records")
    return [row | chosen.get(row["size"], {}) for row in measured], {"measure": table.attrs["settings"], "choice": remark}


def _sweep(stage, sizes, budget, **environment):
    from ringtree.measure import measure

    with stage.start(**environment) as ranks:
        table = measure("all_reduce", sizes, ranks=ranks, show=False, budget=budget)
    if len(table) < len(sizes):
        raise KeyboardInterrupt  # `measure` takes it as the end of a table, and half a table is no recording
    return table


def _log_of(stage, sizes):
    """What NCCL wrote while the ranks all-reduced each of these sizes."""
    with tempfile.TemporaryDirectory(prefix="ringtree-nccl-") as folder:
        _sweep(stage, sizes, 0.01, **nccl.DEBUG, NCCL_DEBUG_FILE=f"{folder}/nccl.%p")
        return "\n".join(path.read_text(errors="replace") for path in Path(folder).iterdir())


def choices_in(log: str, sizes, capability) -> dict[int, dict]:
    """NCCL's choice for an all_reduce of each size that the log tells of: algorithm, protocol, channels, expected (seconds).

    expected is what that NCCL's own table gives for the choice, None where the log has no table for it.
    """
    tuning, found = nccl.read_tuning(log), {}
    for call in tuning.calls:
        if call["collective"] in (None, "all_reduce") and call["bytes"] in sizes and call["bytes"] not in found:
            choice = {name: call[name] for name in ("algorithm", "protocol", "channels")}
            found[call["bytes"]] = choice | {"expected": _expected(tuning, call, capability)}
    return found


def _expected(tuning, call, capability):
    chosen = call["algorithm"], call["protocol"]
    only = replace(tuning, table=[row for row in tuning.table if (row["algorithm"], row["protocol"]) == chosen])
    with contextlib.suppress(UsageError):  # a log without a table, or a choice that is not in it
        return nccl.predict_from_table(only, "all_reduce", call["bytes"], capability=capability).seconds
    return call["seconds"]


def hangs(stage, quick=False):
    """Where an unpaired recv hangs, as the ranks' own report says: as the group's first call, and as a later one."""
    from ringtree.live.reports.deadline import RanksStuck

    rows, seconds, cases = [], 1.0 if quick else 20.0, [("recv as the first call", False), ("recv after an all_reduce", True)]
    with stage.start() as ranks:
        for case, after in cases[:1] if quick else cases:
            try:
                ranks.call(_unpaired, after, timeout=seconds)
                report = "nothing hung"
            except RanksStuck as stuck:
                report = stuck.report
            rows.append({"case": case, "report": report})
    return rows, {"deadline": f"{seconds} s"}


def pairing(stage, quick=False):
    """What becomes of the programs that decide NCCL's rules of pairing, each on ranks of its own (`pairing.py`)."""
    with stage.start():
        pass  # for the provenance: these programs have processes of their own
    command = [sys.executable, str(HERE / "pairing.py"), "--backend", stage.backend]
    command += ["--share"] * stage.share_gpus + ["--quick"] * quick
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(said.stdout), {
        "deadline": f"{DEADLINE_SECONDS} s",
        "lazy": "no device_id",
        "eager": "with device_id",
        "connected": "eager, used before",
    }


PARTS = {part.__name__: part for part in (order, streams, synchronize, choices, hangs, pairing)}
