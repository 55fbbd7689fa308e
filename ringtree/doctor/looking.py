"""All that is looked at, one after the other."""

from ringtree.doctor import computer, gpus, network, processes, slurm
from ringtree.doctor.finding import FINE, NOTE, WRONG, Finding
from ringtree.errors import UsageError
from ringtree.units import count_text


def look(ranks: int = 4) -> list[Finding]:
    """What this machine has for `ranks` ranks: a `Finding` each, GPUs first.

    Raises UsageError where `ranks` is no whole number from 1 on.
    """
    if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 1:
        raise UsageError(f"look({ranks!r}): give how many ranks are to run here, a whole number, 1 or more")
    seen = gpus.seen()
    count = len(seen.names)
    return [
        *gpus.findings(seen),
        *slurm.findings(count, computer.cores()),
        computer.memory(ranks),
        computer.cores_for(ranks),
        computer.threads(),
        computer.shared_memory(count),
        computer.locked_memory(count, computer.cards()),
        computer.open_files(),
        computer.processes_allowed(ranks),
        computer.folder(),
        network.loopback(),
        *network.interfaces(),
        processes.left_behind(),
        processes.folders(),
    ]


def in_a_line(ranks: int = 4) -> str:
    """The same in one sentence: what is wrong, or that nothing is."""
    found = look(ranks)
    bad = [each for each in found if each.state == WRONG]
    if bad:
        more = f" ({len(bad) - 1} more: python -m ringtree.doctor)" if len(bad) > 1 else ""
        return f"{bad[0].topic}: {bad[0].seen}; {bad[0].do}{more}"
    return f"Nothing is in the way of {count_text(ranks, 'rank')} here."


def worst(found) -> str:
    return max((each.state for each in found), key=(FINE, NOTE, WRONG).index, default=FINE)
