"""Fits of machines, kept from one run of the tests to the next: several files fit the same published clusters.

A kept fit is read only if its samples, the code below it and the packages that it computes with are what they were: their hash
is its file's name. A fresh clone has none, so the workflows compute each anew.
"""

import hashlib
import importlib.metadata
import os
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from ringtree.theory import machines

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "_build" / "fits"


@cache
def code():
    """A hash of all that a fit computes with: the ground, `theory`, and the packages below them."""
    files = [*(ROOT / "ringtree").glob("*.py"), *(ROOT / "ringtree" / "theory").rglob("*.py")]
    told = [sys.version, *(f"{name} {importlib.metadata.version(name)}" for name in ("numpy", "pandas", "scipy"))]
    told += [f"{path.relative_to(ROOT)}\n{path.read_text()}" for path in sorted(files)]
    return hashlib.sha256("\0".join(told).encode()).hexdigest()


class Kept(dict):
    """What `machines._found` is, with a file a fit behind it."""

    def __init__(self, folder=FOLDER, code=code):
        self.folder, self.code = folder, code

    def path(self, key):
        return self.folder / f"{hashlib.sha256(repr((self.code(), key)).encode()).hexdigest()}.npy"

    def __contains__(self, key):
        if not super().__contains__(key) and self.path(key).exists():
            found = np.load(self.path(key))
            found.flags.writeable = False
            super().__setitem__(key, (found[0], found[2:], found[1]))
        return super().__contains__(key)

    def __setitem__(self, key, found):
        super().__setitem__(key, found)
        logs, covariance, doubt = found
        self.folder.mkdir(parents=True, exist_ok=True)
        new = self.path(key).with_suffix(f".{os.getpid()}")
        with new.open("wb") as file:
            np.save(file, np.vstack([logs, doubt, covariance]))
        new.replace(self.path(key))


@pytest.fixture(autouse=True, scope="session")
def kept_fits():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machines, "_found", Kept())
        yield
