"""All that is looked at, one after the other."""

from ringtree.doctor import computer, gpus, network, packages, processes, slurm
from ringtree.doctor.finding import FINE, NOTE, WRONG, Finding
from ringtree.errors import UsageError
from ringtree.units import count_text


def look(ranks: int = 4, quick: bool = False, running: int = 0) -> list[Finding]:
    """Return what this machine has for `ranks` ranks: a `Finding` each, GPUs first.

    running: so many of them run already, and have their memory and processes. quick: take no memory of a GPU's, which this
    process would keep; ask no other program unless there is a GPU that PyTorch does not see; look for no folders that were left.
    Raises UsageError where `ranks` is not a whole number from 1 on.
    """
    if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 1:
        raise UsageError(f"look({ranks!r}): give how many ranks are to run here, a whole number, 1 or more")
    count, of_gpus = gpus.glance() if quick else gpus.inspect()
    return [
        *of_gpus,
        *([] if quick else [packages.of_extras()]),
        *slurm.findings(count, computer.cores(), time_left=not quick),
        computer.memory(ranks - running),
        computer.cores_for(ranks),
        computer.threads(),
        computer.shared_memory(count or 0),
        computer.locked_memory(count or 0, computer.cards()),
        computer.open_files(),
        computer.processes_allowed(ranks - running),
        computer.folder(),
        network.loopback(),
        *network.interfaces(),
        processes.left_behind(),
        *([] if quick else [processes.folders()]),
    ]


def in_a_line(ranks: int = 4, running: int = 0) -> str:
    """A quick look in one line, for the head of a notebook: the first thing that is wrong and what to do, or that nothing is."""
    bad = [each for each in look(ranks, quick=True, running=running) if each.state == WRONG]
    if bad:
        more = f" ({len(bad) - 1} more: run `python -m ringtree.doctor` in a terminal)" if len(bad) > 1 else ""
        return f"This machine: {bad[0].topic}: {bad[0].seen}. What to do: {bad[0].do}{more}"
    return f"This machine: ready for {count_text(ranks, 'rank')}."


def worst(found) -> str:
    return max((each.state for each in found), key=(FINE, NOTE, WRONG).index, default=FINE)
