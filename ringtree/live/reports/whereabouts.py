"""A rank tells where it is: when it is asked, while its main thread hangs, and when it is ended."""

import ctypes
import faulthandler
import os
import signal
import sys
import threading

from ipykernel.control import ControlThread
from IPython import get_ipython

from ringtree.live.reports import frames, works

_kept = {}  # what must live as long as the rank


def tell_where(stack_file):
    """Answer `where_request` on the control thread, and write stacks to a file when asked by SIGUSR1 or ended by a signal.

    Returns what `ringtree.live.reports.diagnosis` needs to read those stacks: the threads' numbers.
    """
    _kept["stacks"] = open(stack_file, "w")
    _keep_last_words(f"{stack_file}.words")
    faulthandler.enable(file=_kept["stacks"], all_threads=True)  # an abort may come from a library's thread
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, file=_kept["stacks"], all_threads=True)
    kernel = get_ipython().kernel

    def where_request(stream, ident, parent):
        try:
            for output in (sys.stdout, sys.stderr):
                output.flush()
        except Exception:  # a cell may have put anything there
            pass
        try:
            content = {"status": "ok", **where()}
        except Exception as error:  # the report must come, whatever the frames hold
            content = {"status": "ok", "unknown": repr(error)}
        kernel.session.send(stream, "where_reply", content, parent=parent, ident=ident)

    kernel.control_handlers["where_request"] = where_request
    control = next((thread for thread in threading.enumerate() if isinstance(thread, ControlThread)), None)
    return {
        "main": threading.main_thread().ident,
        "control": control and control.ident,
        "control_id": control and control.native_id,
    }


def _keep_last_words(path):
    """Let what a C++ library says as it ends the process go to a file.

    Otherwise it goes into the pipe from which the kernel of this same process would have shown it.
    """
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        library._ZSt13get_terminatev.restype = ctypes.c_void_p
        before = ctypes.CFUNCTYPE(None)(library._ZSt13get_terminatev())
    except (OSError, AttributeError, ValueError):  # another C++ library than GNU's
        return

    def last():
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), 2)
        before()

    _kept["last"] = ctypes.CFUNCTYPE(None)(last)
    library._ZSt13set_terminatePFvvE(_kept["last"])


def where():
    """Return where the main thread is: line of the cell, function and line inside, and whom it waits for.

    Returns a dict: `idle` (between cells), `steps` (function, line number, source; outermost
    first, the reader's own frames only), and what `works.waiting` says of the torch.distributed
    call that it is in, with `call` None where it is in none.
    """
    stack = []
    frame = sys._current_frames()[threading.main_thread().ident]
    while frame:
        stack.append(frame)
        frame = frame.f_back
    steps = [
        (frame.f_code.co_name, *frames.line(frame.f_code.co_filename, frame.f_lineno))
        for frame in reversed(stack)
        if frames.is_readers(frame.f_code.co_filename)
    ]
    return {"idle": not steps, "steps": steps, **_waits(stack)}


def _waits(stack):
    """Return what the main thread waits in; of calls inside each other the outermost, which is what the reader wrote."""
    waiting = works.waiting(None)
    for frame in stack:
        filename, name = frame.f_code.co_filename, frame.f_code.co_name
        if said := works.waiting_of(frame):
            waiting = said
        elif "torch/distributed" in filename.replace(os.sep, "/") and name != "wrapper":
            waiting = works.waiting_in(name, frame.f_locals)
        elif frames.is_readers(filename) and not filename.startswith(frames.ALGORITHMS):
            break  # an algorithm may be what a link runs for a collective
    return waiting
