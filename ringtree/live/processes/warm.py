"""Kernels that are forked from one process, which has imported what each kernel, and each fork server, would import for itself.

For who runs many notebooks one after the other, as `make book` and `make test` do: importing is then half of all the work.

    with warm.kernels(): ...          # kernels that are started in here, by any process that is started in here
    python warm.py DESCRIPTOR FOLDER      # what it starts, which listens there; ends, and the folder goes, when standard input closes

A kernel that comes from here (`serve`, `become`) forks its own fork server before it becomes a kernel (`fork_server`), so that
the processes below a kernel are the same as without. It imports nothing of this package before its own environment is in
force: what a notebook reaches can be noted (`book/ext/noting`). `ringtree.live.processes.kernels` asks (`Kernel`), and
`ringtree.live.processes.launchers` takes the fork server over (`Inherited`).
"""

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ADDRESS = "RINGTREE_WARM"  # "FOLDER=SOCKET", in the environment of those who start kernels: whose it is, and where it listens
FORK_SERVER = "RINGTREE_FORK_SERVER"  # the kernel's process, its fork server's, and the two ends of their pipes
MORE = "ipykernel.iostream", "numpy", "pandas", "PIL.Image", "pyparsing", "torch._dynamo"
LEFT = "ipykernel.debugger"  # ranks import it without debugpy, kernels with it


# ---------------------------------------------------------------- who starts kernels


def address():
    """The socket, or None where there is none, or that of another copy of this package."""
    whose, _, path = os.environ.get(ADDRESS, "").partition("=")
    return path if whose == str(HERE) else None


@contextlib.contextmanager
def kernels():
    """Kernels that are started in here are forked, also those of processes that are started in here."""
    from ringtree.live.processes import sockets

    if sys.platform != "linux" or address():
        yield
        return
    before = os.environ.get(ADDRESS)
    with tempfile.TemporaryDirectory(prefix="ringtree-warm-", dir=sockets.parent()) as folder:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(os.path.join(folder, "socket"))
        listening.listen(64)
        server = subprocess.Popen(
            [sys.executable, __file__, str(listening.fileno()), folder],
            stdin=subprocess.PIPE,
            pass_fds=[listening.fileno()],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        listening.close()
        os.environ[ADDRESS] = f"{HERE}={folder}/socket"
        try:
            yield
        finally:
            del os.environ[ADDRESS]
            if before:
                os.environ[ADDRESS] = before
            server.kill()  # and with it its kernels
            server.wait()
            server.stdin.close()


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
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(address())
        self._replies = self._line.makefile("rb")
        nothing = os.open(os.devnull, os.O_RDWR)
        try:
            streams = [
                {None: number, subprocess.DEVNULL: nothing}.get(each, each) for number, each in ((1, stdout), (2, stderr))
            ]
            socket.send_fds(
                self._line, [b"\0"], [nothing, *(each if isinstance(each, int) else each.fileno() for each in streams)]
            )
            self.pid = self._ask(arguments=arguments, environment=env, folder=cwd or os.getcwd())["pid"]
        finally:
            os.close(nothing)

    def _ask(self, **asked):
        self._line.sendall((json.dumps(asked) + "\n").encode())
        line = self._replies.readline()
        if not line:
            raise RuntimeError("the process that kernels are forked from has ended")
        return json.loads(line)

    def poll(self):
        if self.returncode is None:
            try:
                self.returncode = self._ask(ended=True)["code"]
            except (OSError, RuntimeError):
                self.returncode = -signal.SIGKILL
            if self.returncode is not None:
                self._replies.close()
                self._line.close()
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
        """The one that waits for this process to take it over, or None."""
        kernel, *rest = map(int, os.environ.pop(FORK_SERVER, "0").split())
        return cls(*rest) if kernel == os.getpid() else None

    def __init__(self, pid, requests, replies):
        self.pid, self.returncode = pid, None
        self.stdin, self.stdout = open(requests, "wb", buffering=0), open(replies, "rb", buffering=0)

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


# ---------------------------------------------------------------- the server, a program of its own


def serve(listening, folder):
    """Fork a kernel for each connection. Returns only in the child, with what it was asked to run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    forkserver = preload()
    lines, codes, server = {}, {}, os.getpid()  # file descriptor: (its socket, the kernel's process)
    try:
        while True:
            ready, _, _ = select.select([0, listening, *lines], [], [])
            if 0 in ready:
                break
            if listening in ready:
                line, _ = listening.accept()
                wanted, streams = receive(line)
                if wanted is None:  # who asked has gone meanwhile, or did not say for what
                    for each in (line.detach(), *streams):
                        os.close(each)
                    continue
                pid = os.fork()
                if pid == 0:
                    os.setsid()
                    forkserver["die_with"](server)
                    signal.signal(signal.SIGINT, signal.default_int_handler)
                    for each in (listening, line, *(its for its, _ in lines.values())):
                        each.close()
                    return wanted, streams
                for each in streams:
                    os.close(each)
                lines[line.fileno()] = line, pid
                answer(line, pid=pid)
            for number in [each for each in ready if each in lines]:
                line, pid = lines[number]
                if not line.recv(4096):  # who asked for it has gone, or has seen it end
                    if codes.pop(pid, None) is None:
                        with contextlib.suppress(ProcessLookupError):
                            os.killpg(pid, signal.SIGKILL)
                        os.waitpid(pid, 0)
                    line.close()
                    del lines[number]
                    continue
                if pid not in codes:
                    ended, status = os.waitpid(pid, os.WNOHANG)
                    if ended:
                        codes[pid] = os.waitstatus_to_exitcode(status)
                answer(line, code=codes.get(pid))
    finally:
        if os.getpid() == server:
            for _, pid in lines.values():
                if pid not in codes:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(0)


def preload():
    """Import, as a fork server does, and more. Returns what `forkserver.py` has."""
    os.environ["JPY_PARENT_PID"] = str(os.getpid())  # ipykernel reads it when it is imported
    forkserver = runpy.run_path(str(HERE / "forkserver.py"), run_name="forkserver")
    forkserver["search_no_neighbors"]()
    try:
        forkserver["load"]([name for name in (*forkserver["PRELOADED"], *MORE) if name != LEFT])
    except SystemExit as stop:
        sys.exit(f"{stop}: kernels are started as always, which takes longer")
    return forkserver


def receive(line):
    """(what is asked for, the three standard streams)."""
    _, streams, _, _ = socket.recv_fds(line, 1, 3)
    text = line.makefile("rb").readline()
    return json.loads(text) if text.endswith(b"\n") and len(streams) == 3 else None, streams


def answer(line, **content):
    with contextlib.suppress(OSError):
        line.sendall((json.dumps(content) + "\n").encode())


def become(wanted, streams):
    """Turn this child into the kernel: its streams, its folder, its environment; the fork server; and then as `python -m` does."""
    for number, each in enumerate(streams):
        os.dup2(each, number)
        os.close(each)
    before, server_folder = os.environ.get("PYTHONPATH", ""), os.getcwd()
    os.environ.clear()
    os.environ.update(wanted["environment"], JPY_PARENT_PID=str(os.getppid()))
    os.chdir(wanted["folder"])
    tempfile.tempdir = None
    sys.modules["numpy"].random.seed()
    known, wanted_paths = absolute(before, server_folder), absolute(os.environ.get("PYTHONPATH", ""), os.getcwd())
    sys.path[:] = search_paths(sys.path, known, wanted_paths)
    new = [each for each in wanted_paths if each not in known]
    if found := importlib.machinery.PathFinder.find_spec("sitecustomize", new):
        found.loader.exec_module(importlib.util.module_from_spec(found))
    fork_server()
    if "OMP_NUM_THREADS" not in os.environ:
        sys.modules["torch"].set_num_threads(len(os.sched_getaffinity(0)))
    module, *rest = wanted["arguments"]
    sys.argv = [module, *rest]
    gc.unfreeze()  # from here on it is a kernel like any other
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, os.getcwd())  # as `python -m` does; ipykernel_launcher takes the first entry away if it is this one
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def absolute(python_path, folder):
    """Return the entries of a PYTHONPATH as Python makes them at its start in `folder`: absolute, each once."""
    entries = python_path.split(os.pathsep) if python_path else ()
    return list(dict.fromkeys(os.path.abspath(os.path.join(folder, each)) for each in entries))


def search_paths(paths, known, wanted):
    """Return `paths`, which begins with the entries `known` of the server's PYTHONPATH, with those of `wanted` in their place."""
    count = next((place for place, each in enumerate(paths) if each not in known), len(paths))
    return [*wanted, *(each for each in paths[count:] if each not in wanted)]


def fork_server():
    """Fork what the kernel's ranks will be forked from, and leave word of it in the environment."""
    from_kernel, requests = os.pipe()
    replies, to_kernel = os.pipe()
    kernel, pid = os.getpid(), os.fork()
    if pid:
        os.close(from_kernel)
        os.close(to_kernel)
        os.environ[FORK_SERVER] = f"{kernel} {pid} {requests} {replies}"
        return
    try:
        os.setsid()
        os.close(requests)
        os.close(replies)
        nothing = os.open(os.devnull, os.O_RDWR)
        for each, number in ((from_kernel, 0), (to_kernel, 1), (nothing, 2)):
            os.dup2(each, number)
            os.close(each)
        os.environ["OMP_NUM_THREADS"] = "1"
        path = str(HERE / "forkserver.py")
        sys.argv = [path, str(kernel), runpy.run_path(str(HERE / "sockets.py"))["parent"]()]
        runpy.run_path(path, run_name="__main__")
    finally:
        os._exit(1)


if __name__ == "__main__":
    become(*serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2]))
