"""How far a learner has come: kept in a file beside the notebook, so that it survives restarts.

The file holds all labs of its folder: {lab: {exercise: level}}, and beside them what the last checks found. Several kernels may write it at once, and a learner may edit it.
"""

import contextlib
import itertools
import json
import os
import tempfile
import time
from pathlib import Path

from ringtree.errors import a_kind

FILE = ".progress.json"
CELLS = "as the cells stand"  # beside the labs: what came of the last check, and of which text of the answer
PATIENCE = 2.0  # seconds to wait for another kernel that is writing; a stopped one must not stop this one


def read(lab: str, folder=".") -> dict:
    """Return the highest level reached in each exercise of a lab: 0 is right. Entries that cannot be read do not count."""
    try:
        return _levels(_parsed(Path(folder, FILE).read_bytes()), lab)
    except (OSError, ValueError):
        return {}


def standing(lab: str, folder=".") -> dict:
    """Return by exercise (its level at the last check, or None where that failed; the name of the code that was checked)."""
    try:
        noted = _parsed(Path(folder, FILE).read_bytes()).get(CELLS)
    except (OSError, ValueError):
        return {}
    entries = noted.get(lab) if isinstance(noted, dict) else None
    return {
        exercise: tuple(entry)
        for exercise, entry in (entries.items() if isinstance(entries, dict) else ())
        if isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], int | None)
    }


def note_failed(lab: str, exercise: str) -> None:
    """Note that an exercise that was right once is wrong as its cell stands. One that never was right has no mark to lose."""
    if exercise in read(lab):
        _note(lab, exercise, None, [None, ""])


def note(lab: str, exercise: str, level: int, code: str | None = None) -> None:
    """Note that an exercise is right, and its level. A level that was reached stays, whatever is tried afterwards.

    code: names the text of the answer, if that is to be noted too. Labs and entries of other hands stay. A file that cannot be
    parsed is kept under another name.
    """
    _note(lab, exercise, level, None if code is None else [level, code])


def _note(lab: str, exercise: str, level: int | None, cell: list | None) -> None:
    with contextlib.suppress(OSError), _locked(Path(FILE)):  # a folder that cannot be written to keeps no marks
        try:
            text = Path(FILE).read_bytes()
            noted = _parsed(text)
            unread = not isinstance(noted.get(lab, {}), dict)
        except ValueError:
            noted, unread = {}, bool(text.strip())
        higher = level is not None and level > _levels(noted, lab).get(exercise, -1)
        if not higher and cell is None:
            return
        if unread:
            _keep_aside(text)
            noted.pop(lab, None)
        if higher:
            noted[lab] = {**noted.get(lab, {}), exercise: level}
        if cell is not None:
            cells = noted.get(CELLS) if isinstance(noted.get(CELLS), dict) else {}
            entries = cells.get(lab) if isinstance(cells.get(lab), dict) else {}
            noted[CELLS] = {**cells, lab: {**entries, exercise: cell}}
        _replace(noted)


def _parsed(text: bytes) -> dict:
    """All labs. Raises ValueError where the text is not a dict in JSON."""
    try:
        noted = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(noted, dict):
        raise ValueError(f"expected a dict, got {a_kind(noted)}")
    return noted


def _levels(noted: dict, lab: str) -> dict:
    levels = noted.get(lab)
    return {name: level for name, level in levels.items() if isinstance(level, int)} if isinstance(levels, dict) else {}


def _keep_aside(text: bytes) -> None:
    for number in itertools.count(1):
        with contextlib.suppress(FileExistsError), open(f"{FILE}.unreadable-{number}", "xb") as kept:
            kept.write(text)
            return


def _replace(noted: dict) -> None:
    """Put the whole in the file's place at once: a reader, or a crash, never meets a half-written file."""
    descriptor, temporary = tempfile.mkstemp(prefix=f"{FILE}.", dir=".")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(noted, file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, os.stat(FILE).st_mode & 0o777)
        os.replace(temporary, FILE)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _locked(path: Path):
    """Hold the lock on a file, which is made where it is missing, while it is read and replaced."""
    try:
        import fcntl
    except ImportError:  # Windows
        path.touch()
        yield
        return
    until = time.monotonic() + PATIENCE
    while True:
        with open(path, "ab") as file:
            if _acquired(fcntl, file) or time.monotonic() > until:
                if _is_at(path, file):  # otherwise another kernel has replaced it meanwhile
                    yield
                    return
        time.sleep(0.01)


def _acquired(fcntl, file) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _is_at(path: Path, file) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
