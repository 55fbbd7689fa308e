"""A program that does not end is stopped: real time, beside the virtual."""

import ctypes
import sys
import threading

from ringtree.simulated.faults import program_steps


class TimeIsUp(BaseException):
    """Raised in a program that has not ended in time."""


class Deadline:
    """Interrupts what runs in its `with` block for too long: raises TimeIsUp there.

    seconds: of real time. steps: where the program was when time was up; empty before.
    """

    def __init__(self, seconds):
        self.seconds = seconds
        self.steps = []
        self._thread = threading.get_ident()

    def __enter__(self):
        self._timer = threading.Timer(self.seconds, self._interrupt)
        self._timer.daemon = True
        self._timer.start()
        return self

    def _interrupt(self):
        self.steps = program_steps(sys._current_frames()[self._thread])
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(TimeIsUp))

    def __exit__(self, *_):
        self._timer.cancel()
