"""Kernels that are forked from one process, which has imported what each kernel, and each fork server, would import for itself.

For programs that run many notebooks one after the other, as `make book` and `make test` do: importing is then a quarter of
all the work.

    with warm.kernels(): ...          # kernels that are started in here, by any process that is started in here

A kernel that comes from here forks its own fork server before it becomes a kernel, so that the processes below a kernel are
the same as without. `ringtree.live.processes.forks` does all that; `ringtree.live.processes.kernels` asks (`Kernel`), and
`ringtree.live.processes.launchers` takes the fork server over (`Inherited`).
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile

from ringtree.live.processes import asking, forks, sockets

HERE = os.path.dirname(os.path.realpath(__file__))
ADDRESS = "RINGTREE_WARM"  # "FOLDER=SOCKET", in the environment of those who start kernels: whose it is, and where it listens
ENDED = "the process that kernels are forked from has ended"


def address():
    """The socket, or None where there is none, or that of another copy of this package."""
    whose, _, path = os.environ.get(ADDRESS, "").partition("=")
    return path if whose == HERE else None


@contextlib.contextmanager
def kernels():
    """Kernels that are started in here are forked, also those of processes that are started in here."""
    if sys.platform != "linux" or address():
        yield
        return
    before = os.environ.get(ADDRESS)
    with tempfile.TemporaryDirectory(prefix="ringtree-warm-", dir=sockets.parent()) as folder:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(os.path.join(folder, "socket"))
            listening.listen(64)
            server, line = asking.start(
                *(sys.executable, forks.__file__, os.getpid(), "kernels"),
                after=(listening.fileno(), folder),
                pass_fds=[listening.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
        os.environ[ADDRESS] = f"{HERE}={folder}/socket"
        try:
            yield
        finally:
            del os.environ[ADDRESS]
            if before:
                os.environ[ADDRESS] = before
            server.kill()  # and with it its kernels
            server.wait()
            line.close()


def wait_for(pid, timeout):
    """Until a process, of whomever it is the child, has ended; subprocess.TimeoutExpired after `timeout` seconds."""
    with contextlib.suppress(ProcessLookupError):
        ended = os.pidfd_open(pid)
        try:
            if not select.select([ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {pid}", timeout)
        finally:
            os.close(ended)


class Kernel:
    """A kernel process of the server's, with as much of `subprocess.Popen` as a provisioner asks for."""

    stdin = stdout = stderr = None

    def __init__(self, arguments, *, env, cwd=None, stdout=None, stderr=None):
        self.returncode = None
        line = socket.socket(socket.AF_UNIX)
        line.connect(address())
        self._server = asking.Asker(line, ENDED)
        with open(os.devnull, "r+b") as nothing:
            streams = [
                {None: number, subprocess.DEVNULL: nothing}.get(each, each) for number, each in ((1, stdout), (2, stderr))
            ]
            files = [each if isinstance(each, int) else each.fileno() for each in (nothing, *streams)]
            asked = dict(arguments=arguments, environment=env, folder=cwd or os.getcwd())
            self.pid = self._server.ask("fork", files=files, **asked)["pid"]

    def poll(self):
        if self.returncode is None:
            try:
                self.returncode = self._server.ask("exit_codes", pids=[self.pid])["codes"][str(self.pid)]
            except RuntimeError:
                self.returncode = -signal.SIGKILL
            if self.returncode is not None:
                self._server.close()
        return self.returncode

    def wait(self, timeout=None):
        wait_for(self.pid, timeout)
        while self.poll() is None:  # the server has not heard of it yet
            select.select([], [], [], 0.01)
        return self.returncode

    def send_signal(self, signum):
        if self.poll() is None:
            os.kill(self.pid, signum)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


class Inherited:
    """The fork server that was forked before this process became a kernel; with as much of `subprocess.Popen` as is used."""

    @classmethod
    def here(cls):
        """(The one that waits for this process to take it over, the socket at which it is asked), or None."""
        kernel, *rest = map(int, os.environ.pop(forks.FORK_SERVER, "0").split())
        return (cls(rest[0]), socket.socket(fileno=rest[1])) if kernel == os.getpid() else None

    def __init__(self, pid):
        self.pid, self.returncode = pid, None

    def poll(self):
        return self._waited(os.WNOHANG)

    def wait(self, timeout=None):
        if self.poll() is None:
            wait_for(self.pid, timeout)
        return self._waited(0)

    def kill(self):
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _waited(self, how):
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, how)
            except ChildProcessError:  # somebody else has waited for it
                pid, status = self.pid, 0
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode
