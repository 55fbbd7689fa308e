"""One rank as it can be seen from outside: its process, its threads, and the stacks that it writes down."""

import contextlib
import ctypes
import os
import pathlib
import re
import signal
import socket
from dataclasses import dataclass

import psutil

from ringtree.live.placement import Place


@dataclass(frozen=True)
class Rank(Place):
    """A rank that has joined.

    threads: the numbers of its threads, from `ringtree.live.joining.join`. stack_file: where it writes its stacks.
    """

    number: int
    threads: dict
    stack_file: str

    def is_here(self):
        """Return whether it lives on the kernel's own host, where it can be looked at."""
        return self.host == socket.gethostname()

    def process_state(self):
        """psutil's word for the state of its process ("stopped", "running", …), or None."""
        if self.is_here():
            with contextlib.suppress(psutil.Error):
                return psutil.Process(self.pid).status()
        return None

    def is_gone(self):
        """Return whether its process, on this host, has ended."""
        return self.process_state() in (None, psutil.STATUS_ZOMBIE)

    # ------------------------------------------------------------ its stacks

    def stack_lines(self, fatal=False):
        """The reader's lines in the last stack of its main thread that it wrote, outermost first: [(function, number)].

        A rank writes its stack when asked (`ask_for_stack`) and, which is what `fatal` asks for, when a signal such as
        SIGABRT or SIGSEGV ends it. Empty where there is none, as after SIGKILL, or on another host.
        """
        text = self._stacks_text()
        if fatal:
            text = text.partition("Fatal Python error")[2]
        main = [frames for number, frames in _threads(text) if number == self.threads["main"]]
        lines = [re.findall(r'File "[^"]*ipykernel_[^"]*", line (\d+) in (\S+)', frames) for frames in main]
        last = next((found for found in reversed(lines) if found), [])
        return [(function, int(number)) for number, function in reversed(last)]

    def stacks(self, since):
        """(main thread's frames, control thread's frames) of each stack that it wrote after `since`, see `written`."""
        seen = _threads(self._stacks_text(since))
        of = [[frames for number, frames in seen if number == self.threads[name]] for name in ("main", "control")]
        return list(zip(*of))

    def _stacks_text(self, since=0):
        with contextlib.suppress(OSError):  # it is on another host, or the folder has been removed
            with open(self.stack_file) as stacks:
                stacks.seek(since)
                return stacks.read()
        return ""

    def written(self):
        """Return how much it has written of stacks."""
        with contextlib.suppress(OSError):
            return os.path.getsize(self.stack_file)
        return 0

    def ask_for_stack(self):
        """Have a signal handler in C write down where the rank is, which cannot answer; see `stack_lines`.

        The signal goes to the control thread: in the main thread it could end a call, such as C's sleep, before its time.
        """
        if not (self.is_here() and hasattr(signal, "SIGUSR1")):
            return
        tgkill = getattr(ctypes.CDLL(None), "tgkill", None)
        if tgkill and self.threads["control_id"]:
            tgkill(self.pid, self.threads["control_id"], signal.SIGUSR1)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGUSR1)

    # ------------------------------------------------------------ its threads

    def wake_ups(self):
        """Return how often its control thread has been woken since it began, or None where that cannot be read (Linux has it)."""
        if not self.is_here():
            return None
        try:
            status = self._tasks().joinpath(str(self.threads["control_id"]), "status").read_text()
            return int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status, re.MULTILINE)[1])
        except (OSError, TypeError):
            return None

    def run_times(self):
        """Nanoseconds for which each thread but its control thread has had a core, by the thread's number (Linux)."""
        times = {}
        for thread in self._tasks().iterdir():
            if thread.name == str(self.threads["control_id"]):
                continue  # it writes the stacks
            with contextlib.suppress(OSError):  # it has ended meanwhile
                times[thread.name] = int((thread / "schedstat").read_text().split()[0])
        return times

    def _tasks(self):
        return pathlib.Path(f"/proc/{self.pid}/task")


def _threads(text):
    """(thread's number, its frames, innermost first) in what faulthandler wrote; each stack's last is the main thread."""
    found = re.findall(r"[Tt]hread 0x([0-9a-f]+) \(most recent call first\):\n((?:  .*\n)*)", text)
    return [(int(number, 16), frames) for number, frames in found]
