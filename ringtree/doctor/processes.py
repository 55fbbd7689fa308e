"""What earlier ranks of mine have left: processes whose kernel is gone, and folders that nobody uses."""

import contextlib
import itertools
import os
import re
from pathlib import Path

from ringtree.doctor import system
from ringtree.doctor.finding import fine, note, wrong
from ringtree.live.processes import sockets
from ringtree.units import count_text

WATCHED = re.compile(r"(?:/ringtree/live/processes/forks\.py|^ringtree\.live\.processes\.nanny)$")
STOCK = ("ipyparallel.engine", "ipyparallel.controller")


def left_behind():
    stale = sorted(process.number for process in system.processes() if _is_stale(process))
    if stale:
        seen = f"their kernel is gone, and they are still there: {', '.join(map(str, stale))}"
        return wrong("stale ranks", seen, f"end them: kill -9 {' '.join(map(str, stale))}")
    return fine("stale ranks", "none")


def _is_stale(process):
    """Ranks end with their kernel; one that did not (a machine that was suspended, a container of another kind) is seen here."""
    if process.zombie:
        return False
    for word, watched in itertools.pairwise(process.words):
        if WATCHED.search(word):
            return watched.isdigit() and not system.exists(int(watched))
    return any(word in STOCK for word in process.words) and process.parent == 1


def folders():
    if not os.path.isdir("/proc/self/fd"):
        return fine("left folders", "not looked for on this system")
    used = _files_open()
    left = sorted(str(path) for path in _of_ranks() if not any(name.startswith(f"{path}/") for name in used))
    if left:
        return note(
            "left folders", f"{count_text(len(left), 'folder')} of ranks that are gone", f"remove: rm -r {' '.join(left)}"
        )
    return fine("left folders", "none")


def _of_ranks():
    """Folders of mine in which ranks of one start met: there is ipyparallel's `security` in them."""
    for place, pattern in ((sockets.parent(), "ringtree-*"), (Path.home(), ".ringtree-*")):
        for path in Path(place).glob(pattern):
            with contextlib.suppress(OSError):
                if path.stat().st_uid == os.getuid() and (path / "security").is_dir():
                    yield path


def _files_open():
    """Names of the files that my processes have open."""
    names = set()
    for process in system.processes():
        with contextlib.suppress(OSError):
            names |= {os.readlink(each) for each in Path(f"/proc/{process.number}/fd").iterdir() if each.is_symlink()}
    return names
