"""The learner's processes, as the judge holds them: started with limits, one a rank, and all ended, whatever they started."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

import psutil

from ringtree.labs.marking.pipe import Ended, Garbled, Pipe

KEPT = "PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "LANG", "LC_ALL"  # of the environment
PATIENCE = 0.2  # seconds
A_CELL = 10.0  # seconds that a cell may take
BEGINNING = 60.0  # seconds until the first process has imported everything
FEW = 4  # ranks, whose processes are started before the first run: most wrong answers need no more
TRIES = 4  # of running a notebook's cells: after each the cell that held it is left out


class Nursery:
    """Forks processes for ranks; a context, which at its end has ended all of them.

    enclose: the words of a command that runs another command as a child of its own, where it sees less than this process
    does; it hands its open files on.
    """

    def __init__(self, enclose=()):
        self._enclose = [*enclose]

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._process, self._own = None, ()
        return self

    def __exit__(self, *_):
        if self._process is not None:
            end_below(self._process)
            self._process.kill()
            self._process.wait()
            self._control.close()
        self._folder.cleanup()

    def rank(self):
        """A pipe to a new process."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        ours, theirs = socket.socketpair()
        with theirs, contextlib.suppress(OSError):  # one that has just died leaves a pipe that ends
            socket.send_fds(self._control, [b"n"], [theirs.fileno()])
        return Pipe(ours, PATIENCE)

    def end_ranks(self):
        """And what they have started, as far as it is still below the nursery or has come to this process."""
        if self._process is not None:
            end_below(self._process, but=self._own)
        if _adopts:
            end_below(psutil.Process(), but=self._own)

    def _start(self):
        self._control, theirs = socket.socketpair()
        with theirs:
            home = self._folder.name
            threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
            environment = {name: os.environ[name] for name in KEPT if name in os.environ} | threads
            environment |= {"HOME": home, "TMPDIR": home, "MPLBACKEND": "agg", "CUDA_VISIBLE_DEVICES": ""}
            nothing = subprocess.DEVNULL
            self._process = subprocess.Popen(
                [*self._enclose, sys.executable, "-m", "ringtree.labs.marking.nursery", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=environment,
                cwd=home,
                start_new_session=True,
                stdin=nothing,
                stdout=nothing,
                stderr=nothing,
            )
        self._control.settimeout(BEGINNING)
        if self._control.recv(1) != b"r":
            raise RuntimeError("the process for answers did not start: does `python -c 'import ringtree.labs'` work?")
        enclosed = psutil.Process(self._process.pid).children() if self._enclose else []
        self._own = [self._process.pid, *(each.pid for each in enclosed)]


_adopts = False


def guard_this_process():
    """From now on what learners' processes leave behind comes to this one, to be ended; and no process of the same user,
    but root's, may look into its memory."""
    global _adopts
    libc = ctypes.CDLL(None)
    _adopts = libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36  # of linux/prctl.h


def end_below(process, but=()):
    """End everything that a process has started, but some by their numbers. Each is stopped first, or it might start another
    meanwhile."""
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
    """Whether a process still has to be ended; one that has ended and is ours is reaped."""
    with contextlib.suppress(ChildProcessError):
        if process.ppid() == os.getpid() and os.waitpid(process.pid, os.WNOHANG)[0]:
            return False
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _send(process, what):
    with contextlib.suppress(psutil.Error, OSError):
        process.send_signal(what)


class RankProcess:
    """One rank's process. defined: the functions asked for that its cells define. wrong: what went wrong in its cells. late:
    those that took too long."""

    def __init__(self, pipe):
        self.pipe, self.busy, self.cell = pipe, False, None
        self.defined, self.wrong, self.late = (), (), ()

    def wait_until_ready(self, until):
        """Raises Ended where it ends, says what is no message, or is not ready at `until`; `cell` is the one that it was in."""
        self.pipe.until = until
        try:
            while True:
                message, _ = self.pipe.receive()
                if message.get("kind") == "ready":
                    self.defined = tuple(each for each in message["defined"] if isinstance(each, str))
                    self.wrong = tuple(str(each)[:300] for each in message["wrong"][:20])
                    self.late = tuple(each for each in message["late"] if type(each) is int)
                    break
                self.cell = message["number"]
        except (Garbled, KeyError, TypeError):
            raise Ended from None
        self.pipe.until = None


class Ranks:
    """The processes of one answer: rank r's has the number r, and runs the notebook's cells first.

    cells: {number: text}. names: of the functions that are asked for. most: ranks that a run may have. until: of
    time.monotonic, when they must be ready. skip: a set of cells that are known to take too long; those that are found out
    here are put into it.
    """

    def __init__(self, nursery, cells, names, most, until, skip):
        self._nursery, self._cells, self._names, self._most = nursery, cells, list(names), most
        self._until, self._skip, self._found = until, skip, {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for each in self._found.values():
            each.pipe.close()
        self._nursery.end_ranks()

    def prepare(self, count):
        """Have processes for ranks 0 to count − 1. Raises Ended where there can be none."""
        if 0 not in self._found:
            self._found[0] = self._first()
        more = {number: self._begun() for number in range(count) if number not in self._found}
        until = self._patience()
        for each in more.values():
            each.wait_until_ready(until)
        self._found |= more

    def idle(self, number):
        """The process of a rank, ready for a run: another where an earlier run has left it in the middle."""
        if number in self._found and self._found[number].busy:
            self._found.pop(number).pipe.close()
        self.prepare(number + 1 if number < FEW else self._most)
        return self._found[number]

    def _first(self):
        """The first shows which cells take too long: all others leave them out."""
        for _ in range(TRIES):
            found = self._begun()
            try:
                found.wait_until_ready(self._patience())
                self._skip.update(found.late)
                return found
            except Ended:
                if found.cell not in self._cells:
                    break
                self._skip.add(found.cell)
        raise Ended

    def _patience(self):
        return min(time.monotonic() + 3 * A_CELL, self._until)

    def _begun(self):
        found = RankProcess(self._nursery.rank())
        message = {"cells": self._cells, "skip": sorted(self._skip), "seconds": A_CELL, "names": self._names}
        found.pipe.send(message)
        return found
