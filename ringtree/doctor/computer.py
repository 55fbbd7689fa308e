"""This computer: memory, cores and threads, limits of a process, shared memory, the folder that ranks meet in."""

import contextlib
import os
import resource
import shutil
from pathlib import Path

from ringtree.doctor import system
from ringtree.doctor.finding import fine, note, wrong
from ringtree.live.processes import sockets
from ringtree.units import binary_text, count_text

RANK_MEMORY = 110e6  # bytes that an idle rank takes, a quarter of a learner's 470 MB with server and kernel (20 at once)
OPEN_FILES = 1024
NCCL_SEGMENT = 9_637_888  # bytes; one for each connection over shared memory (NCCL issue 290, pytorch/ci-infra 490)
GOOD_SHM = 1 << 30  # what NVIDIA's containers are started with: --shm-size=1g


def memory(ranks, available=None):
    available = _memory() if available is None else available
    needed = ranks * RANK_MEMORY
    seen = f"{binary_text(available)} free, and {count_text(ranks, 'rank')} take about {binary_text(needed)}"
    if available < needed:
        return wrong("memory", seen, "end what else runs here, ask for more memory, or start fewer ranks")
    return fine("memory", seen)


def _memory():
    """Bytes that this process may still take: of the machine, and of its control group."""
    free = system.free_memory()
    for most, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        for folder in _control_groups():
            with contextlib.suppress(OSError, ValueError):
                free = min(free, int((folder / most).read_text()) - int((folder / used).read_text()))
    return free


def _control_groups():
    """Folders that say what this process's control group may use; version 2's, then version 1's memory group."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds in ("", "memory"):
                root = Path("/sys/fs/cgroup", kinds)
                yield root / path.lstrip("/")
                yield root


def cores():
    """Cores that this process may use at a time: those it is bound to, or fewer where its control group has a quota."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    for folder in _control_groups():
        with contextlib.suppress(OSError, ValueError):
            quota, period = (folder / "cpu.max").read_text().split()
            bound = min(bound, int(quota) / int(period))
    return bound


def cores_for(ranks, there=None):
    there = cores() if there is None else there
    seen = f"{there:g} for {count_text(ranks, 'rank')}"
    if there < ranks:
        return note("cores", seen, "results are right; times are those of cores that ranks share, not those of a network")
    return fine("cores", seen)


def threads(environment=os.environ):
    given = environment.get("OMP_NUM_THREADS")
    if given is None or given == "1":
        return fine("threads", "one a rank")
    return note(
        "threads",
        f"OMP_NUM_THREADS={given}",
        "ranks that this book starts take one thread each; your own scripts take this many",
    )


def open_files(soft=None):
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if soft is None else soft
    if soft == resource.RLIM_INFINITY or soft >= OPEN_FILES:
        return fine("open files", "no limit" if soft == resource.RLIM_INFINITY else f"{soft} allowed")
    return wrong(
        "open files", f"{soft} allowed, and a kernel with its ranks may need {OPEN_FILES}", f"run `ulimit -n {OPEN_FILES}`"
    )


def processes_allowed(ranks, soft=None, mine=None):
    """Threads count, and a rank has about thirty."""
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0] if soft is None else soft
    if soft == resource.RLIM_INFINITY:
        return fine("processes", "no limit")
    mine = _threads_of_mine() if mine is None else mine
    seen = f"{soft} allowed, {mine} there"
    if soft - mine < 40 * (ranks + 2):
        return wrong("processes", seen, "end what else you run (`ps -u $USER`), or have the limit raised (`ulimit -u`)")
    return fine("processes", seen)


def _threads_of_mine():
    return sum(process.threads for process in system.processes())


def shared_memory(gpus, there=None, free=None):
    """Return where NCCL's ranks on one host pass data that cannot go from GPU to GPU. Gloo does without."""
    if free is None:
        if not os.path.isdir("/dev/shm"):
            return fine("shared memory", "no /dev/shm, and NCCL is not used") if not gpus else _no_shm()
        usage = shutil.disk_usage("/dev/shm")
        there, free = usage.total, usage.free
    seen = f"/dev/shm has {binary_text(there)}, {binary_text(free)} free"
    if not gpus:
        return fine("shared memory", seen)
    if free < gpus * NCCL_SEGMENT:
        return wrong("shared memory", f"{seen}; NCCL takes {binary_text(NCCL_SEGMENT)} and more a GPU", SHM)
    if there < GOOD_SHM:
        return note("shared memory", seen, SHM)
    return fine("shared memory", seen)


SHM = "start the container with --shm-size=1g, or mount a tmpfs of 1 GiB at /dev/shm; nccl-* there without a process can go"


def _no_shm():
    return wrong("shared memory", "there is no /dev/shm", SHM)


def locked_memory(gpus, cards, soft=None):
    """InfiniBand and RoCE cards read memory that may not move."""
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] if soft is None else soft
    if soft == resource.RLIM_INFINITY or not (gpus and cards):
        return fine(
            "locked memory", "no limit" if soft == resource.RLIM_INFINITY else f"{binary_text(soft)}, and no card here needs it"
        )
    do = "set `ulimit -l unlimited` (in a container --ulimit memlock=-1; under Slurm PropagateResourceLimitsExcept=MEMLOCK)"
    return wrong("locked memory", f"{binary_text(soft)} at most, and the cards {', '.join(cards)} want no limit", do)


def cards(folder="/sys/class/infiniband"):
    """InfiniBand and RoCE cards of this host."""
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def folder():
    """Return where ranks keep their sockets: they must be able to write there."""
    try:
        place = sockets.parent()
    except FileNotFoundError as error:
        return wrong("temporary folder", f"none can be written to: {error}", "set TMPDIR to a folder of yours")
    if not os.access(place, os.W_OK | os.X_OK):
        return wrong("temporary folder", f"{place} cannot be written to", "set TMPDIR to a folder of yours with a short name")
    free = shutil.disk_usage(place).free
    if free < 100e6:
        return wrong(
            "temporary folder", f"{place} has {binary_text(free)} free", "make room there, or set TMPDIR to another folder"
        )
    return fine("temporary folder", f"{place}, {binary_text(free)} free")
