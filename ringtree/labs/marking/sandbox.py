"""The sandbox as the marking process holds it: one process for each exercise, with limits, and all of them ended afterwards."""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

import psutil

from ringtree.labs.marking.verdict import MOST
from ringtree.live.processes import asking

KEPT = "PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "LANG", "LC_ALL"  # of the environment
NOT_STARTED = "the sandbox did not start: check that `python -c 'import ringtree.labs'` works"
BEGINNING = 60.0  # seconds until the first process has imported everything


class Sandbox:
    """Forks a process for each exercise. At the end of the context it has ended all of them.

    enclose: the words of a command that starts another command as its child and lets it see less than this process does. It
    must pass its open files on.
    """

    def __init__(self, enclose=()):
        self._enclose = [*enclose]

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="ringtree-sandbox-", ignore_cleanup_errors=True)
        self._process, self._nursery, self._own = None, None, ()
        return self

    def __exit__(self, *_):
        if self._process is not None:
            end_below(self._process)
            self._process.kill()
            self._process.wait()
            self._nursery.close()
        self._folder.cleanup()

    def ask(self, request, until):
        """Return the line that a new process answers to a request, as bytes without its end, or None if none comes.

        request: plain values for JSON. until: of `time.monotonic`; the process is ended then, and in any case once it answered.
        """
        if self._process is None or self._process.poll() is not None:
            self._start()
        ours, theirs = socket.socketpair()
        with ours:
            with theirs, contextlib.suppress(RuntimeError):  # if the nursery has just died, our end of the pair closes
                self._nursery.ask("fork", max(0.0, until - time.monotonic()), files=[theirs.fileno()])
            try:
                return _answer(ours, json.dumps(request).encode(), until)
            finally:
                self._end_all()

    def _end_all(self):
        """End the process of an exercise, and all that it started and that is below the nursery or this process."""
        end_below(self._process, but=self._own)
        if _adopts:
            end_below(psutil.Process(), but=self._own)

    def _start(self):
        if self._process is not None:
            self._nursery.close()
        home = self._folder.name
        threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
        environment = {name: os.environ[name] for name in KEPT if name in os.environ} | threads
        environment |= {"HOME": home, "TMPDIR": home, "MPLBACKEND": "agg", "CUDA_VISIBLE_DEVICES": ""}
        self._process, line = asking.start(
            *(*self._enclose, sys.executable, "-m", "ringtree.labs.marking.nursery"),
            **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL),
            env=environment,
            cwd=home,
        )
        self._nursery = asking.Asker(line, NOT_STARTED)
        if self._nursery.answer(patience=BEGINNING) is None:
            raise RuntimeError(NOT_STARTED)
        enclosed = psutil.Process(self._process.pid).children() if self._enclose else []
        self._own = [self._process.pid, *(each.pid for each in enclosed)]


def _answer(connection, request, until):
    """Send a request; return the first line that comes back, or None if it does not come in time or exceeds `MOST` bytes."""
    found = bytearray()
    with contextlib.suppress(OSError):  # the process has ended, or time is up
        connection.settimeout(max(0.001, until - time.monotonic()))
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        while b"\n" not in found and len(found) <= MOST and (left := until - time.monotonic()) > 0:
            connection.settimeout(left)
            part = connection.recv(MOST + 1 - len(found))
            if not part:
                break
            found += part
    line, end, _ = found.partition(b"\n")
    return bytes(line) if end and len(found) <= MOST else None


_adopts = False


def guard_this_process():
    """Adopt the orphans of submissions from now on, so that they can be ended, and close this process's memory to other
    processes of the same user."""
    global _adopts
    libc = ctypes.CDLL(None)
    _adopts = libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36  # of linux/prctl.h


def end_below(process, but=()):
    """End everything that a process has started, except for some process numbers. Stop each process first: it might start
    another one meanwhile."""
    for _ in range(100):
        with contextlib.suppress(psutil.NoSuchProcess):
            below = [each for each in psutil.Process(process.pid).children(recursive=True) if each.pid not in but]
            living = [each for each in below if _ends(each)]
            for each in living:
                _send(each, signal.SIGSTOP)
            for each in living:
                _send(each, signal.SIGKILL)
            if not living:
                return
        time.sleep(0.005)


def _ends(process):
    """Return whether a process still has to be ended. Reap it if it has ended and is ours."""
    with contextlib.suppress(ChildProcessError):
        if process.ppid() == os.getpid() and os.waitpid(process.pid, os.WNOHANG)[0]:
            return False
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _send(process, what):
    with contextlib.suppress(psutil.Error, OSError):
        process.send_signal(what)
