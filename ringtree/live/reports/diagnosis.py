"""What the kernel finds out about ranks that do not come back: where they are, why they do not say so, how they ended."""

import contextlib
import ctypes
import os
import pathlib
import re
import signal
import socket
import time

import psutil

from ringtree.live.processes import launchers

LOOK = 0.02  # seconds between two looks
PATIENCE = 3.0  # seconds in which a rank that can say where it is will have said so …
MORE_PATIENCE = 10.0  # … also where its answer must wait for its turn on a busy core

FORK_SERVER = "the fork server", "with which all ranks end"
CONTROLLER = "the controller", "which carries all messages between this notebook and the ranks"

# A thread that waits for the interpreter is woken every 5 ms, and a main thread that runs Python code then hands it
# over: a rank that computes in Python answers after 10 to 20 such turns, however busy the cores are.
WAKE_UPS = 20
A_STACK = 2.0  # seconds that a rank may take to write down where it is
RUNS = 2e6  # nanoseconds of a core: a thread that took more meanwhile was not just woken


class Diagnosis:
    """Looks at the ranks of a `ringtree.live.cluster.Ranks` from outside."""

    def __init__(self, ranks):
        self._ranks = ranks

    # ------------------------------------------------------------ where it is

    def where(self, ids):
        """Where each of these ranks is now, by rank: see `ringtree.live.reports.whereabouts.where`.

        One that does not answer has `silent` instead: "stopped" (its process), "held" (a call holds its interpreter,
        which is proven), "gone", or "slow", where all that is known is that it has not answered within `seconds`;
        and `computes`, whether its main thread was seen to run.
        """
        client = self._ranks.client
        replies = {
            i: client._send(client._control_stream, "where_request", content={}, ident=client._engines[i].encode())
            for i in ids
            if i in client._engines
        }
        found = {i: {"silent": "gone", "computes": False} for i in ids if i not in replies}
        silences = {i: Silence(self, i) for i in replies}
        while silences:
            replies[next(iter(silences))].wait(LOOK)
            for i in list(silences):
                if replies[i].done():
                    found[i] = replies[i].result()["content"]
                elif verdict := silences[i].look():
                    found[i] = verdict
                if i in found:
                    del silences[i]
        return {i: found[i] for i in ids}

    def stack_lines(self, i, fatal=False):
        """The reader's lines in the last stack of its main thread that rank i wrote, outermost first: [(function, number)].

        A rank writes its stack when asked (`ask_for_stack`) and, which is what `fatal` asks for, when a signal such as
        SIGABRT or SIGSEGV ends it. Empty where there is none, as after SIGKILL, or on another host.
        """
        text = self._stacks_text(i)
        if fatal:
            text = text.partition("Fatal Python error")[2]
        main = [frames for number, frames in _threads(text) if number == self._ranks.threads[i]["main"]]
        lines = [re.findall(r'File "[^"]*ipykernel_[^"]*", line (\d+) in (\S+)', frames) for frames in main]
        last = next((found for found in reversed(lines) if found), [])
        return [(function, int(number)) for number, function in reversed(last)]

    def stacks(self, i, since):
        """(main thread's frames, control thread's frames) of each stack that rank i wrote after `since`, see `written`."""
        seen = _threads(self._stacks_text(i, since))
        of = [[frames for number, frames in seen if number == self._ranks.threads[i][name]] for name in ("main", "control")]
        return list(zip(*of))

    def _stacks_text(self, i, since=0):
        with contextlib.suppress(OSError):  # it is on another host, or the folder has been removed
            with open(self._stack_file(i)) as stacks:
                stacks.seek(since)
                return stacks.read()
        return ""

    def written(self, i):
        """How much rank i has written of stacks."""
        with contextlib.suppress(OSError):
            return os.path.getsize(self._stack_file(i))
        return 0

    def ask_for_stack(self, i):
        """Have a signal handler in C write down where a rank is that cannot answer; see `stack_lines`.

        The signal goes to the control thread: in the main thread it could end a call, such as C's sleep, before its time.
        """
        if not (self.is_here(i) and hasattr(signal, "SIGUSR1")):
            return
        pid, thread = self._ranks.places[i].pid, self._ranks.threads[i]["control_id"]
        tgkill = getattr(ctypes.CDLL(None), "tgkill", None)
        if tgkill and thread:
            tgkill(pid, thread, signal.SIGUSR1)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)

    def wake_ups(self, i):
        """How often rank i's control thread has been woken since it began, or None where that cannot be read (Linux has it)."""
        if not self.is_here(i):
            return None
        thread = self._ranks.threads[i]["control_id"]
        try:
            status = self._task(i).joinpath(str(thread), "status").read_text()
            return int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status, re.MULTILINE)[1])
        except (OSError, TypeError):
            return None

    def run_times(self, i):
        """Nanoseconds for which each thread of rank i but its control thread has had a core, by the thread's number (Linux)."""
        times = {}
        for thread in self._task(i).iterdir():
            if thread.name == str(self._ranks.threads[i]["control_id"]):
                continue  # it writes the stacks
            with contextlib.suppress(OSError):  # it has ended meanwhile
                times[thread.name] = int((thread / "schedstat").read_text().split()[0])
        return times

    def _task(self, i):
        return pathlib.Path(f"/proc/{self._ranks.places[i].pid}/task")

    def process_state(self, i):
        """psutil's word for the state of a rank's process ("stopped", "running", …), or None."""
        if self.is_here(i):
            with contextlib.suppress(psutil.Error):
                return psutil.Process(self._ranks.places[i].pid).status()
        return None

    def is_here(self, i):
        """Whether rank i lives on the kernel's own host, where it can be looked at."""
        return self._ranks.places[i].host == socket.gethostname()

    # ------------------------------------------------------------ how it ended

    def dead(self):
        """The ranks whose process is gone."""
        return [i for i in range(self._ranks.size) if self.is_gone(i)]

    def is_gone(self, i):
        job = self._ranks.job
        if job and i in job.dead_ranks():
            return True
        if not self.is_here(i):
            return i not in self._ranks.client.ids
        try:
            return psutil.Process(self._ranks.places[i].pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def exit_code(self, i):
        """How a dead rank ended: its exit code, or minus the number of the signal; None where unknown."""
        if self._ranks.job:
            return self._ranks.job.dead_ranks().get(i)
        pid, cluster = self._ranks.places[i].pid, self._ranks.cluster
        if isinstance(cluster.controller, launchers.Forked):
            return _forked_exit_code(cluster.controller.server, pid)
        until = time.monotonic() + 1
        while self._ranks.local and time.monotonic() < until:
            for engine_set in cluster.engines.values():
                if ended := engine_set.stop_data.get("engines", {}).get(str(i)):
                    return ended["exit_code"]
            time.sleep(0.05)  # its nanny looks five times a second
        return None

    def broken(self, finished=False):
        """Say which process has ended that the ranks cannot do without, and how; None while all are there.

        finished: whether the ranks have just finished. One of them may have killed what it was forked from, which is not
        yet gone then: it is asked for an answer.
        """
        controller = self._ranks.cluster.controller
        if isinstance(controller, launchers.Forked):
            process = controller.server.process
            if process.poll() is not None or (finished and not controller.server.is_alive()):
                return FORK_SERVER, process.wait()
        if not is_there(controller.process):
            if isinstance(controller, launchers.Forked):
                return CONTROLLER, _forked_exit_code(controller.server, controller.pid)
            return CONTROLLER, (controller.stop_data or {}).get("exit_code")
        return None

    def last_words(self, i):
        """What ended a rank's process, in its own words: a C++ exception's, or the last line of its log; or None."""
        with contextlib.suppress(OSError):
            with open(f"{self._stack_file(i)}.words", errors="replace") as words:
                return words.read().partition("what():")[2].strip() or None
        path = os.path.join(self._ranks.folder, "log")
        with contextlib.suppress(OSError):
            for name in os.listdir(path):
                if name.endswith(f"-{i}.log"):
                    with open(os.path.join(path, name), errors="replace") as log:
                        lines = [line.strip() for line in log if line.strip()]
                    return lines[-1] if lines else None
        return None

    def _stack_file(self, i):
        return stack_file(self._ranks.folder, i)


def _forked_exit_code(server, pid):
    with contextlib.suppress(RuntimeError):
        return server.ask("exit_codes", pids=[pid])["codes"][str(pid)]
    return None  # it has ended with the server


def is_there(process):
    """Whether a `psutil.Process` runs."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def stack_file(folder, i):
    """Where rank i writes its stacks."""
    return os.path.join(folder, f"stack-{i}.txt")


def _threads(text):
    """(thread's number, its frames, innermost first) in what faulthandler wrote; each stack's last is the main thread."""
    found = re.findall(r"[Tt]hread 0x([0-9a-f]+) \(most recent call first\):\n((?:  .*\n)*)", text)
    return [(int(number, 16), frames) for number, frames in found]


class Silence:
    """Looks at a rank that has been asked where it is and has not answered, until it is plain why or patience ends.

    That a call holds the interpreter is proven so: the control thread, which is to answer, has been woken again and
    again, as one is that waits for the interpreter; two stacks, with `WAKE_UPS` before and between them, show that
    neither it nor the main thread has moved; and meanwhile at most one thread has run, so none runs in turns with it.
    """

    def __init__(self, diagnosis, i):
        self._diagnosis, self._i = diagnosis, i
        self._began = time.monotonic()
        self._computes = False
        self._times = []
        self._start_over()

    def look(self):
        """None as long as the rank may answer, or why it does not: see `Diagnosis.where`."""
        here, state = self._diagnosis.is_here(self._i), self._diagnosis.process_state(self._i)
        self._computes = self._computes or state == psutil.STATUS_RUNNING
        if here and state in (None, psutil.STATUS_ZOMBIE):
            return self._verdict("gone")
        if state == psutil.STATUS_STOPPED:
            return self._verdict("stopped")
        if here and self._is_held():
            self._computes = self._ran or state == psutil.STATUS_RUNNING  # in that call, not before it
            return self._verdict("held")
        patience = MORE_PATIENCE if self._computes else PATIENCE
        if time.monotonic() >= self._began + patience:
            if here:
                self._have_its_stack_written()
            return self._verdict("slow", patience)
        return None

    def _have_its_stack_written(self):
        """Ask for it, and give it the time that it takes on a busy core to be there whole."""
        written, before = self._diagnosis.written(self._i), None
        self._diagnosis.ask_for_stack(self._i)
        end = time.monotonic() + A_STACK
        while time.monotonic() < end:
            time.sleep(0.1)
            found = self._diagnosis.stacks(self._i, written)
            if found and found == before:
                break
            before = found

    def _verdict(self, why, seconds=None):
        return {"silent": why, "computes": self._computes, "seconds": seconds}

    def _start_over(self):
        self._asked, self._stacks = 0, []
        self._woken = self._diagnosis.wake_ups(self._i)
        self._written = self._diagnosis.written(self._i)

    def _is_held(self):
        woken = self._diagnosis.wake_ups(self._i)
        if woken is None or self._woken is None:
            return False
        if self._asked < 2:
            if woken >= self._woken + WAKE_UPS:
                self._diagnosis.ask_for_stack(self._i)
                self._asked, self._woken = self._asked + 1, woken
                self._times = [*self._times[-1:], self._diagnosis.run_times(self._i)]
            return False
        before, self._stacks = self._stacks, self._diagnosis.stacks(self._i, self._written)
        if self._stacks != before or len(before) < 2:  # the second is still being written
            return False
        first, second = self._times
        running = [thread for thread, spent in second.items() if spent - first.get(thread, 0) > RUNS]
        if self._stacks[0] == self._stacks[1] and len(running) <= 1:
            self._ran = bool(running)
            return True
        self._start_over()
        return False
