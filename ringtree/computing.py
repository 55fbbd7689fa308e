"""Computing, as a rank program says it: so many seconds, whatever runs the program.

    compute(2e-3, "backward", work=lambda: loss.backward())

Simulated, the rank's clock moves on by so much. Live, the work is done, or slept where there is none; a traced rank
notes it; on an emulated link it lasts so long at least, as the messages there do. It is given no link: it goes by those
that `emulate` and `traced` have made on this rank, of which `_wires` and `_tracers` know.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import weakref

from ringtree.errors import UsageError

__all__ = ["compute", "inside", "lasting", "noted_by", "refusing"]

_here = threading.local()  # .clock: (seconds, label) of the simulation that runs in this thread
_refuse = []  # of the simulations that run in this process, the outermost first: what refuses a thread of a program's own
_wires = weakref.WeakSet()  # emulated ones: while one is in use, `compute` lasts as long as it says
_tracers = []  # weak references, in the order in which they were made: the last that is in use notes the spans


def compute(seconds: float, label: str = "", work=None):
    """Compute for `seconds`; in a simulation that is all, and live it is what `work()` does.

    seconds: 0 or more. label: what a timeline writes on it. work: a function without arguments; it is not called in a
    simulation. Live it is called, and without one the rank sleeps for `seconds`. While a link that `ringtree.emulate` made is
    in use on this rank, it lasts `seconds` at least. What `ringtree.traced` made last, of all that is in use, notes the span.

    Returns what `work` returns, None where it is not called. Raises UsageError for seconds that are not a number from 0 on,
    and for work that cannot be called.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not (math.isfinite(seconds) and seconds >= 0):
        raise UsageError(f"compute got seconds={seconds!r}: give how long it takes, a finite number of seconds, 0 or more")
    if work is not None and not callable(work):
        raise UsageError(f"compute got work={work!r}: give a function without arguments, or leave it out")
    clock = getattr(_here, "clock", None)
    if clock is not None:
        clock(seconds, label)
        return None
    if _refuse:
        _refuse[-1]()
    start = time.monotonic()
    result = work() if work is not None else None
    if work is None or _wires:
        time.sleep(max(0.0, start + seconds - time.monotonic()))
    tracer = next(filter(None, (each() for each in reversed(_tracers))), None)
    if tracer is not None:
        tracer.computed(start, time.monotonic(), label)
    return result


@contextlib.contextmanager
def inside(clock):
    """While this is open, `compute` in this thread calls clock(seconds, label)."""
    before = getattr(_here, "clock", None)
    _here.clock = clock
    try:
        yield
    finally:
        _here.clock = before


@contextlib.contextmanager
def refusing(refuse):
    """While this is open, `compute` in a thread that is not `inside` a simulation calls refuse()."""
    _refuse.append(refuse)
    try:
        yield
    finally:
        _refuse.remove(refuse)


def noted_by(tracer) -> None:
    """From now on `compute` calls tracer.computed(start, end, label), until `tracer` is gone or another one is made."""
    _tracers[:] = [*(each for each in _tracers if each() is not None), weakref.ref(tracer)]


def lasting(wire) -> None:
    """From now on `compute` lasts as long as it says, until `wire` is gone."""
    _wires.add(wire)
