"""Start the ranks of a proof in fresh processes, wait with a deadline, and leave none behind."""

from __future__ import annotations

import contextlib
import functools
import math
import multiprocessing
import os
import re
import signal
import sys
import time

import torch

from ringtree.prove.rank import Plan, work

GRACE = 3.0  # seconds in which the other ranks may tell their own error, once one has failed
LOST = re.compile(r"[Cc]onnection (closed|reset)|[Bb]roken pipe|[Tt]imed out|closed by peer|Socket closed")


@functools.cache
def _context():
    """On Linux ranks are forked from a fresh process that has imported torch once; elsewhere each imports it for itself."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ringtree.prove.rank", "torch.distributed.fsdp", "torch._dynamo"])
    return context


def run(plan: Plan, numbers) -> dict[int, str]:
    """Run these meshes, which have the same number of ranks; return {number: why it has no result} for those without."""
    size, left, failed = math.prod(plan.meshes[numbers[0]]), list(numbers), {}
    while left:
        why = _attempt(plan, left, size)
        ended = [number for number in left if _all_left(plan, number, size)]
        left = [number for number in left if number not in ended]
        if left and why is None:
            why = "the ranks ended without a result: run it again"
        if left:
            failed[left.pop(0)] = why  # and go on with those behind it
    return failed


def _all_left(plan, number, size):
    return all(os.path.exists(plan.file(number, f"done{rank}")) for rank in range(size))


def _attempt(plan, numbers, size):
    """Run the meshes in turn, until one fails; return why, or None."""
    processes = [_context().Process(target=work, args=(rank, plan, tuple(numbers)), daemon=True) for rank in range(size)]
    try:
        for process in processes:
            process.start()
        return _watched(plan, numbers, processes)
    finally:
        for process in processes:
            if process.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                process.join()


def _watched(plan, numbers, processes):
    """Wait until all ranks have ended, one has failed, or a mesh takes too long; return what is wrong, or None."""
    numbers, size, since, failed = list(numbers), len(processes), time.monotonic(), None
    while True:
        while numbers and _all_left(plan, numbers[0], size):
            numbers.pop(0)
            since = time.monotonic()
        ended = [process.exitcode for process in processes]
        if not numbers and all(code is not None for code in ended):
            return None
        if failed is None and any(code not in (None, 0) for code in ended):
            failed = time.monotonic()
        everyone = all(code is not None for code in ended)
        if failed is not None and (everyone or time.monotonic() - failed > GRACE):
            return _failure(plan, numbers[0], ended)
        if everyone:
            return None
        if numbers and time.monotonic() - since > plan.timeout:
            return _hang(plan, numbers[0], processes)
        time.sleep(0.02)


def _failure(plan, number, ended):
    """What the first rank to fail said. What others say of a connection that was closed is a consequence."""
    told = {}
    for rank in range(len(ended)):
        if os.path.exists(path := plan.file(number, f"error{rank}")):
            told[rank] = torch.load(path)
    own = {rank: text for rank, text in told.items() if not LOST.search(text)}
    killed = [rank for rank, code in enumerate(ended) if code is not None and code < 0]
    if own:
        alike = [rank for rank, text in own.items() if text == own[min(own)]]
        who = "" if len(alike) == len(ended) else f"rank {', '.join(map(str, alike))}: "
        return who + own[min(own)]
    if killed:
        last = _last_line(plan, killed[0])
        return f"rank {killed[0]} was ended by {signal.Signals(-ended[killed[0]]).name}" + (f": {last}" if last else "")
    silent = [rank for rank, code in enumerate(ended) if code not in (None, 0) and rank not in told]
    if silent:
        last = _last_line(plan, silent[0])
        return f"rank {silent[0]} left with exit status {ended[silent[0]]}" + (f": {last}" if last else "")
    return f"rank {min(told)}: {told[min(told)]}" if told else "a rank failed without a word"


def _last_line(plan, rank):
    with contextlib.suppress(OSError), open(os.path.join(plan.folder, f"out.{rank}"), errors="replace") as file:
        lines = [line.strip() for line in file if line.strip()]
        return lines[-1][:300] if lines else ""


def _hang(plan, number, processes):
    """Which ranks have not finished after the deadline, and at which line of the user's file each stands."""
    late = [rank for rank, process in enumerate(processes) if not os.path.exists(plan.file(number, f"done{rank}"))]
    if hasattr(signal, "SIGUSR1"):
        for rank in late:
            with contextlib.suppress(ProcessLookupError, TypeError):
                os.kill(processes[rank].pid, signal.SIGUSR1)
        time.sleep(0.3)
    places = {rank: _place(plan, rank) for rank in late}
    by_place: dict[str, list[int]] = {}
    for rank, place in places.items():
        by_place.setdefault(place, []).append(rank)
    told = "; ".join(
        f"{'ranks' if len(ranks) > 1 else 'rank'} {', '.join(map(str, ranks))} {place}" for place, ranks in by_place.items()
    )
    return f"not finished after {plan.timeout:g} s: {told}"


def _place(plan, rank):
    """Where a rank stands, from what faulthandler wrote: thread by thread, the most recent call first."""
    with contextlib.suppress(OSError), open(os.path.join(plan.folder, f"stack.{rank}")) as file:
        threads = [re.findall(r'File "([^"]+)", line (\d+) in (\S+)', each) for each in file.read().split("hread 0x")]
        for frames in threads:
            for at, (name, line, _) in enumerate(frames):
                if os.path.dirname(name) == plan.step[2]:
                    called = [each for _, _, each in frames[:at] if each != "wrapper"]
                    return f"in {called[-1] if called else 'its own code'} ({os.path.basename(name)}, line {line})"
        if any("init_process_group" in each for frames in threads for _, _, each in frames):
            return "waits for the others to start"
    return "at a place that is not known"
