"""How far a learner has come: kept in a file beside the notebook, so that it survives restarts.

The file holds all labs of its folder: {lab: {exercise: level}}. Several kernels may write it at once, and a learner may edit it.
"""

import contextlib
import itertools
import json
import os
import tempfile
import time
from pathlib import Path

FILE = ".progress.json"
PATIENCE = 2.0  # seconds to wait for another kernel that is writing; a stopped one must not stop this one


def read(lab: str, folder=".") -> dict:
    """Return the highest level reached in each exercise of a lab: 0 is right. Entries that cannot be read do not count."""
    try:
        return _levels(_parsed(Path(folder, FILE).read_bytes()), lab)
    except (OSError, ValueError):
        return {}


def note(lab: str, exercise: str, level: int) -> None:
    """Note that an exercise is right, and its level. A level that was reached stays, whatever is tried afterwards.

    Labs and entries of other hands stay too. A file that cannot be parsed is kept under another name.
    """
    with contextlib.suppress(OSError), _locked(Path(FILE)):  # a folder that cannot be written to keeps no marks
        try:
            text = Path(FILE).read_bytes()
            noted = _parsed(text)
            unread = not isinstance(noted.get(lab, {}), dict)
        except ValueError:
            noted, unread = {}, bool(text.strip())
        if level <= _levels(noted, lab).get(exercise, -1):
            return
        if unread:
            _keep_aside(text)
            noted.pop(lab, None)
        _replace({**noted, lab: {**noted.get(lab, {}), exercise: level}})


def _parsed(text: bytes) -> dict:
    """All labs. Raises ValueError where the text is not a dict in JSON."""
    try:
        noted = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(noted, dict):
        raise ValueError(f"expected a dict, got a {type(noted).__name__}")
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
