"""Collectives over a link that carries messages alone: each runs as an algorithm, in its turn, and beside its rank if asked.

As on NCCL's streams: the collectives of one group run one after the other, in the order of their calls. One with
async_op=True runs in a thread, and so does every later one of its group while that thread is busy.
"""

from __future__ import annotations

import queue
import threading
import time

from ringtree.live.reports import works

__all__ = ["Stream", "StreamWork"]


class Stream:
    """Runs what it is given in order, in a thread that ends with its process."""

    def __init__(self, name: str):
        self._queue = queue.SimpleQueue()
        self._left = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    @property
    def busy(self) -> bool:
        return self._left > 0

    def add(self, work: StreamWork) -> StreamWork:
        with self._lock:
            self._left += 1
        self._queue.put(work)
        return work

    def _serve(self) -> None:
        while True:
            work = self._queue.get()
            work.run()
            with self._lock:
                self._left -= 1
            work.finish()
            del work  # or it, and the link that it ran over, would live until the next


class StreamWork:
    """A collective under way. start, end: when it ran, in seconds of the host's monotonic clock; None before."""

    def __init__(self, call, asked, ranks, group_name):
        self._call = call
        elements = asked.tensors[0].numel() if asked.form == "one" and asked.tensors else None
        # what a report of a hang says that the rank waits in
        self.waiting = works.waiting(asked.function, "collective", list(ranks), group_name, elements)
        self._name = asked.function
        self.posted = time.monotonic()
        self.start = self.end = None
        self._error = None
        self._done = threading.Event()

    def run(self) -> None:
        self.start = time.monotonic()
        try:
            self._call()
        except Exception as error:  # told where the program waits for it
            self._error = error

    def finish(self) -> None:
        self.end = time.monotonic()
        self._done.set()

    def wait(self, timeout=None) -> bool:
        """Wait until the collective is done. timeout: a timedelta, or None forever."""
        with works.wait_open(self.waiting):
            done = self._done.wait(None if timeout is None else timeout.total_seconds())
        if not done:
            raise RuntimeError(f"{self._name} was not complete within {timeout}")
        if self._error:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Is it done (or has it failed)?"""
        time.sleep(0)  # lets its thread run where a program asks in a busy loop
        return self._done.is_set()

    def __repr__(self) -> str:
        return f"<{self._name}, {'complete' if self._done.is_set() else 'under way'}, emulated link>"
