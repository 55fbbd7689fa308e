"""Ask the system for free memory and for the processes of this user, by the standard library alone."""

import contextlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """One process of this user: its number, its parent's, whether it has ended and waits for its parent, its threads."""

    number: int
    parent: int
    zombie: bool
    threads: int
    words: tuple[str, ...]


def free_memory() -> int:
    """Return the bytes that new processes can take without swapping."""
    with contextlib.suppress(OSError):
        for line in (PROC / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    name = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"  # macOS counts all pages alone
    return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")


def processes() -> list[Process]:
    """Return the processes of this user."""
    return list(_from_proc() if (PROC / "self" / "status").exists() else _from_ps())


def _from_proc():
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                facts = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
                if int(facts["Uid"].split()[0]) == os.getuid():
                    words = (folder / "cmdline").read_text(errors="replace").rstrip("\0").split("\0")
                    zombie = facts["State"].split()[0] in "ZX"
                    yield Process(int(folder.name), int(facts["PPid"]), zombie, int(facts.get("Threads", 1)), tuple(words))


def _from_ps():
    """The same where there is no /proc: a process counts as one thread, and its words are cut at spaces."""
    told = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,uid=,stat=,args="], capture_output=True, text=True, timeout=30).stdout
    for line in told.splitlines():
        number, parent, user, state, *words = line.split()
        if int(user) == os.getuid():
            yield Process(int(number), int(parent), state.startswith("Z"), 1, tuple(words))


def exists(number: int) -> bool:
    """Return whether a process has this number, whoever it belongs to."""
    try:
        os.kill(number, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
