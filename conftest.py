"""What pytest needs to know about notebooks: pictures and HTML are not compared, their text is; kernels do without ports;
and what nbval ran is kept for the book (`book/executed.py`)."""

import contextlib
import gc
import os
import sys
import tempfile
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent / "book"))

import executed

from ringtree.live import warm

executed.start_without_ports()

PICTURES = ("text/html", "text/markdown", "image/svg+xml", "application/javascript")

warm_kernels = contextlib.ExitStack()


def pytest_configure(config):
    # Workers have it from the process that starts them; a hub starts its kernels itself.
    if not hasattr(config, "workerinput") and "RINGTREE_HUB" not in os.environ:
        warm_kernels.enter_context(warm.kernels())


def pytest_unconfigure(config):
    warm_kernels.close()
    # pytest goes through all objects five times now. After thousands of tests that takes longer than the five seconds that
    # xdist gives its workers to end before it interrupts them.
    gc.freeze()


def pytest_collection_finish():
    # Several test workers share the cores, and threads of torch that wait for work keep a core busy.
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


def pytest_collectstart(collector):
    if hasattr(collector, "skip_compare"):  # a notebook, collected by nbval
        collector.skip_compare += PICTURES


class Run:
    """One notebook while nbval runs it: what it reaches is noted from before its kernel starts to after its last cell."""

    def __init__(self):
        self.began, self.outputs, self.passed = time.monotonic(), [], True
        self.folder = tempfile.TemporaryDirectory(prefix="ringtree-reached-")
        self.log = Path(self.folder.name) / "log"
        self.before = dict(os.environ)
        os.environ.update(executed.noting(self.log))

    def end(self, path):
        if self.passed:
            executed.keep(path, self.outputs, self.log, time.monotonic() - self.began)
        os.environ.clear()
        os.environ.update(self.before)
        self.folder.cleanup()


runs = {}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if is_cell(item) and item.parent not in runs:
        runs[item.parent] = Run()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    outcome = yield
    if is_cell(item):
        run = runs[item.parent]
        run.passed &= outcome.excinfo is None
        run.outputs.append(item.test_outputs)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item):
    if is_cell(item) and len(runs[item.parent].outputs) == sum(cell.cell_type == "code" for cell in item.parent.nb.cells):
        runs.pop(item.parent).end(item.parent.path)


def is_cell(item):
    return hasattr(item, "test_outputs")
