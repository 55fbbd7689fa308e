"""What `.ci/run` tries of the hub: the small cut, or the whole if something has changed since the whole last passed.

`python3 tests/hub/last_whole_run.py` prints "cut" or "whole". `make test-hub` writes the file RECORD when the whole has passed.
"""

import hashlib
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORD = "tests/hub/last-whole-run"
# What runs on a hub, and what marks there, with the tests themselves. Text for readers is left out.
PARTS = (
    "hub",
    "tests/hub",
    "tests/helpers/browser.py",
    "tests/helpers/foreign.py",
    "book/jupyter",
    "ringtree/live",
    "ringtree/labs/marking",
    "labs/nbgrader_config.py",
    "requirements.txt",
    "requirements.lock",
    "requirements-cuda.lock",
)


def files(root=ROOT):
    """The files of PARTS, in order. Raises FileNotFoundError if a part is missing."""
    for part in PARTS:
        path = root / part
        if path.is_file():
            yield path
            continue
        inside = [each for each in sorted(path.rglob("*")) if each.is_file()]
        if not inside:
            raise FileNotFoundError(f"{path}: expected a file, or a folder with files")
        for each in inside:
            name = each.relative_to(root).as_posix()
            if name != RECORD and each.suffix not in (".md", ".pyc"):
                yield each


def fingerprint(root=ROOT):
    """The SHA-256 of the names, the texts and the leave to execute of all these files."""
    whole = hashlib.sha256()
    for path in files(root):
        whole.update(f"{path.relative_to(root).as_posix()}\0{os.access(path, os.X_OK)}\0".encode())
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def write(value, root=ROOT):
    (root / RECORD).write_text(f"{value}\n")


def to_try(root=ROOT):
    """ "cut" if the whole has passed on exactly these files, otherwise "whole"."""
    record = root / RECORD
    return "cut" if record.exists() and record.read_text().strip() == fingerprint(root) else "whole"


if __name__ == "__main__":
    print(to_try())
