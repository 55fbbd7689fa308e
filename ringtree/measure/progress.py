"""What the person at a running sweep sees and does: a progress bar, and an interrupt."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time

from ringtree import watching
from ringtree.units import size_text

BAR_AFTER = 2.0  # seconds before a sweep shows a progress bar


@contextlib.contextmanager
def interrupted_late(crew):
    """The first interrupt is noted in the list that this gives; the next one is what it always was."""
    noted = []
    if not crew.interruptible or threading.current_thread() is not threading.main_thread():
        yield noted
        return
    before = signal.getsignal(signal.SIGINT) or signal.default_int_handler

    def note(number, frame):
        noted.append(number)
        signal.signal(signal.SIGINT, before)
        print("stopping after the size that runs; interrupt again to stop at once", file=sys.stderr)

    signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def progress(what, jobs, crew):
    """tell(how many sizes are done, the size that runs): a bar for somebody who watches, gone without a size, and in the end."""
    out = _watched() if crew.interruptible else None
    if out is None:
        yield lambda done, size=None: None
        return
    from tqdm import tqdm

    class Bar(tqdm):
        monitor_interval = 0  # no thread that watches the bar

    name = what if isinstance(what, str) else getattr(what, "__name__", "program")
    began = time.monotonic()
    bar = Bar(total=len(jobs), file=out, unit="size", leave=False, dynamic_ncols=True, delay=BAR_AFTER or 1e-9)

    def tell(done, size=None):
        if time.monotonic() - began < BAR_AFTER:
            return
        bar.n = done
        if size is None:
            bar.clear()
        else:
            bar.set_description_str(f"{name}, {size_text(size)}", refresh=False)
            bar.refresh()

    try:
        yield tell
    finally:
        tell(len(jobs))
        bar.close()


def _watched():
    """Return where somebody sees a bar: a terminal, or a notebook that a person runs; None where nobody does."""
    shell = watching.shell()
    if hasattr(shell, "kernel"):
        return _Display() if watching.notebook_is_watched(shell) else None
    return sys.stderr if sys.stderr is not None and sys.stderr.isatty() else None


class _Display:
    """A file that shows its last line in a notebook, in place, as plain text."""

    encoding = "utf-8"

    def __init__(self):
        self._line = watching.Line()

    def write(self, text):
        if (line := text.strip("\r\n ")) or self._line.text is not None:
            self._line.show(line)

    def flush(self):
        pass
