"""A program that does not end is stopped: real time, beside the virtual."""

import ctypes
import math
import signal
import sys
import threading
import time

from ringtree.simulated.faults import program_steps

PATIENCE = 6  # a program may take at most six times its limit, if the machine is busy with other work
MOMENT = 0.2  # seconds that a run which is to end has to end by itself
AGAIN = 1.0  # seconds after which one that has not stopped is told again: it slept, or caught what told it


class TimeIsUp(BaseException):
    """Raised in a program that has not ended in time."""


def queued(task):
    """Seconds for which a thread was ready to run while the cores ran others; 0 where the system does not tell (not Linux).

    task: "thread-self" for who asks, or "self/task/" and a native identity.
    """
    try:
        with open(f"/proc/{task}/schedstat") as told:
            return int(told.read().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


class Deadline:
    """Interrupts what runs in its `with` block for too long: raises TimeIsUp there.

    seconds: of real time, without what the program waited for a core: on a machine full of others a right program is slow.
    running(): the thread to interrupt, by its identity, or None where the next just begins; left out, that of the block.
    steps: where the program was when time was up; empty before. In the main thread also what sleeps is interrupted, and what
    catches everything.
    """

    def __init__(self, seconds, running=None):
        self.seconds = seconds
        self.steps = []
        here = threading.get_ident()
        self._running = running or (lambda: here)
        self._lock, self._told, self._stopped = threading.Lock(), 0, threading.Event()
        self._in_main = threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGUSR2")
        self._asks = False
        self._timer = self._around = None

    def __enter__(self):
        try:
            if self._in_main:
                self._around = sys._getframe(1)
                _open.append(self)
                self._handler = signal.signal(signal.SIGUSR2, _tell_main)
            self._latest = time.monotonic() + PATIENCE * self.seconds
            self._granted = queued("thread-self")
            self._wait(self.seconds)
        except BaseException:  # somebody interrupts
            self.__exit__()
            raise
        return self

    def _wait(self, seconds):
        self._timer = threading.Timer(seconds, self._interrupt)
        self._timer.daemon = True
        self._timer.start()

    def hurry(self):
        """Time is up in a moment."""
        with self._lock:
            if not self._stopped.is_set():
                self._timer.cancel()
                self._granted = math.inf
                self._wait(MOMENT)

    def _interrupt(self):
        main = threading.main_thread().ident
        thread = self._running()
        native = next((each.native_id for each in threading.enumerate() if each.ident == thread), None)
        waited = queued(f"self/task/{native}") - self._granted
        more = 0.1 if thread is None else min(waited, self._latest - time.monotonic())
        with self._lock:
            if self._stopped.is_set():
                return
            if more > 0.05:
                self._granted += more
                self._wait(more)
                return
            if frame := sys._current_frames().get(thread):
                self.steps = program_steps(frame)
            if not self._in_main or thread != main:
                _raise_in(thread, TimeIsUp)
        if self._in_main and (thread == main or not self._stopped.wait(AGAIN)):
            self._asks = True
            signal.pthread_kill(main, signal.SIGUSR2)
            while not self._stopped.wait(AGAIN):
                signal.pthread_kill(main, signal.SIGUSR2)

    def _tell(self, frame):
        """Ends what the main thread does in `frame`."""
        self._told += 1
        if self._told > 1:  # what catches everything round and round is caught between two rounds, at whatever line that is
            sys.settrace(lambda *_: None)
            while frame and frame is not self._around:
                frame.f_trace, frame = _raise, frame.f_back
        raise TimeIsUp

    def stop(self):
        """It has ended, or its end is on the way: nobody is interrupted from now on."""
        try:
            self._stop()
        except TimeIsUp:  # it was on its way when the block ended
            self._stop()

    def _stop(self):
        with self._lock:
            self._stopped.set()
            if self._timer:
                self._timer.cancel()
        if self._told > 1:
            sys.settrace(None)
            self._told = 1

    def __exit__(self, *_):
        try:
            self.stop()
        finally:
            if self in _open:
                signal.signal(signal.SIGUSR2, self._handler)
                _open.remove(self)
            self._around = None


_open = []  # the deadlines of the main thread, the outermost first


def _tell_main(_, frame):
    """Raises for a deadline that asks for it; not while one begins or ends, which must come to its end: it asks again."""
    asking = next((each for each in _open if each._asks and not each._stopped.is_set()), None)
    if asking and not _begins_or_ends(frame):
        asking._tell(frame)


def _begins_or_ends(frame):
    while frame:
        if frame.f_code in _BEGIN_OR_END:
            return True
        frame = frame.f_back
    return False


_BEGIN_OR_END = {each.__code__ for each in (Deadline.__enter__, Deadline.__exit__, Deadline.stop, _tell_main)}


def _raise_in(thread, error):
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), error and ctypes.py_object(error))


def _raise(_, event, __):
    if event == "line":
        raise TimeIsUp
    return _raise
