"""The processes of one start, on this machine or another: whether they are all there, how one ended, and their end."""

import contextlib
import os
import shutil
import signal
import subprocess
import time

import psutil

from ringtree.errors import UsageError
from ringtree.live.processes import launchers
from ringtree.live.reports.deadline import describe_broken
from ringtree.waits import name_ranks

READY_SECONDS = 60  # for engines of this machine
REMOTE_READY_SECONDS = 600  # other machines load their programs over a network, all at once

FORK_SERVER = "the fork server", "with which all ranks end"
CONTROLLER = "the controller", "which carries all messages between this notebook and the ranks"


class Started:
    """An `ipyparallel.Cluster`, not yet started, from what `ringtree.live.processes.launchers.choose` gave.

    folder: its own. local: whether all of it is on this machine. job: Slurm's, once that has started the engines.
    """

    def __init__(self, size, folder, local, arguments, options):
        self.folder, self.local, self.job = folder, local, None
        try:
            self.cluster = launchers.new_cluster(size, folder, local, arguments, options)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    @property
    def patience(self):
        """Seconds until the ranks must be ready."""
        return READY_SECONDS if self.local else REMOTE_READY_SECONDS

    def start(self):
        """Start all of them; where they have to wait in Slurm's queue, wait."""
        try:
            self.cluster.start_cluster_sync()
        except subprocess.CalledProcessError as error:
            raise UsageError(
                f"{error.cmd[0]} could not start the ranks: it exited with code {error.returncode}, "
                "and the kernel's log says why; fix that, or leave engines= out"
            ) from error
        if job := launchers.slurm_job(self.cluster):
            job.wait_until_allotted()
            self.job = job

    def check(self, finished=False):
        """Raise RuntimeError where a process of this machine that the ranks need has ended while they start."""
        if broken := self.broken(finished):
            raise RuntimeError(f"{describe_broken(broken)}; call ringtree.start again")
        if gone := self.gone():
            self.raise_not_started(gone, "no reason was given")

    def raise_not_started(self, missing, otherwise):
        """Raise RuntimeError with the last words of the first of these ranks; otherwise: what is said where it had none."""
        words = self.last_words(missing[0]) if missing else None
        raise RuntimeError(
            f"{name_ranks(missing)} did not start: "
            + (f"the last words were {words!r}" if words else otherwise)
            + "; in a terminal `python -m ringtree.doctor` looks for what stands in the way"
        ) from None

    def stack_file(self, i):
        """Return where rank i writes its stacks."""
        return os.path.join(self.folder, f"stack-{i}.txt")

    def broken(self, finished=False):
        """Say which process has ended that the ranks cannot do without, and how; None while all are there.

        finished: whether the ranks have just finished. One of them may have killed what it was forked from, which is not
        yet gone then: it is asked for an answer.
        """
        controller = self.cluster.controller
        forked = isinstance(controller, launchers.Forked)
        if forked:
            process = controller.server.process
            if process.poll() is not None or (finished and not controller.server.is_alive()):
                return FORK_SERVER, process.wait()
        if _runs(controller.process):
            return None
        if forked:
            return CONTROLLER, _forked_exit_code(controller.server, controller.pid)
        return CONTROLLER, (controller.stop_data or {}).get("exit_code")

    def gone(self):
        """The ranks whose engine, on this machine, has ended."""
        return [i for i, engine in sorted(self._engines().items()) if not _runs(engine.process)] if self.local else []

    def dead_ranks(self):
        """{rank: exit code or None} of those that a batch system has seen end."""
        return self.job.dead_ranks() if self.job else {}

    def exit_code(self, i, pid):
        """Return how rank i ended, which was process `pid`: its exit code, or minus the number of the signal; None where unknown."""
        if self.job:
            return self.dead_ranks().get(i)
        if isinstance(self.cluster.controller, launchers.Forked):
            return _forked_exit_code(self.cluster.controller.server, pid)
        until = time.monotonic() + 1
        while self.local and time.monotonic() < until:
            for engine_set in self.cluster.engines.values():
                if ended := engine_set.stop_data.get("engines", {}).get(str(i)):
                    return ended["exit_code"]
            time.sleep(0.05)  # its nanny looks five times a second
        return None

    def last_words(self, i):
        """Return what ended a rank's process, in its own words: a C++ exception's, or the last line of its log; or None."""
        with contextlib.suppress(OSError):
            with open(f"{self.stack_file(i)}.words", errors="replace") as words:
                return words.read().partition("what():")[2].strip() or None
        path = os.path.join(self.folder, "log")
        with contextlib.suppress(OSError):
            for name in os.listdir(path):
                if name.endswith(f"-{i}.log"):
                    with open(os.path.join(path, name), errors="replace") as log:
                        lines = [line.strip() for line in log if line.strip()]
                    return lines[-1] if lines else None
        return None

    def end(self):
        """Kill what was forked at once; let ipyparallel end what it started elsewhere. Remove the folder."""
        processes = [self.cluster.controller, *self._engines().values()]
        forked = [process.pid for process in processes if isinstance(process, launchers.Forked)]
        if forked:
            with contextlib.suppress(RuntimeError, AttributeError):  # AttributeError: its start came to no end
                self.cluster.controller.server.ask("kill", pids=forked)
        elif self.local:
            for process in processes:
                with contextlib.suppress(OSError, psutil.Error):
                    os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(Exception):
            self.cluster.stop_cluster_sync()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _engines(self):
        """The launchers of engines of this machine, by rank; of one that has ended it may be missing."""
        sets = self.cluster.engines.values()
        return {int(i): engine for engine_set in sets for i, engine in getattr(engine_set, "launchers", {}).items()}


def _forked_exit_code(server, pid):
    with contextlib.suppress(RuntimeError):
        return server.ask("exit_codes", pids=[pid])["codes"][str(pid)]
    return None  # it has ended with the server


def _runs(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
