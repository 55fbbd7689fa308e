"""Fork processes from one that has imported what they need: ranks, kernels of notebooks, and what runs learners' answers.

A process that is forked takes no seconds for `import torch` and shares those pages with its neighbors. A fork server stays
single-threaded, computes nothing with OpenMP and does not touch CUDA: a child forked after any of these could hang.

    python forks.py PARENT ranks SOCKET                        # started by `ringtree.live.processes.launchers`
    python forks.py PARENT kernels SOCKET LISTENING FOLDER     # started by `ringtree.live.processes.warm`

The third is `ringtree.labs.marking.nursery`. Requests come over Unix sockets that other users cannot reach, from
`ringtree.live.processes.asking`. When its first socket closes or PARENT is gone, a server ends all that it has forked, and
itself: SIGKILL of a kernel leaves nothing behind.

As a script this file imports nothing from this package before the environment of a child is in force, so that
`book/ext/noting` can note all that a notebook reaches.
"""

import contextlib
import ctypes
import gc
import importlib.util
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
import types

# What every engine and controller would import for itself: three seconds of a core each.
RANKS = """IPython.core.completerlib IPython.extensions.storemagic ipykernel.debugger ipyparallel.controller.app
    ipyparallel.controller.hub ipyparallel.controller.task_scheduler ipyparallel.engine.app torch torch.distributed
    tornado.platform.asyncio""".split()
KERNELS = "ipykernel.iostream", "numpy", "pandas", "PIL.Image", "pyparsing", "torch._dynamo"  # what kernels import besides
FORK_SERVER = "RINGTREE_FORK_SERVER"  # in a kernel's environment: its process, its fork server's, and the socket between them
PR_SET_PDEATHSIG = 1  # of linux/prctl.h


# ---------------------------------------------------------------- how processes end


def die_with(parent=None):
    """Have Linux end this process when its parent ends. parent: its number, if known; it may have ended already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def forks_die_too():
    """From now on what this process forks ends with it."""
    parent = []
    os.register_at_fork(before=lambda: parent.append(os.getpid()), after_in_child=lambda: die_with(parent[-1]))


@contextlib.contextmanager
def watching(parent):
    """End if the parent ends meanwhile: an import may take long, and nothing asks for it any more."""
    signal.signal(signal.SIGALRM, lambda *_: os.getppid() == parent or os._exit(1))
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def limit(memory, file, seconds, processes):
    """Limit this process, and each that it starts. memory, file: bytes; memory and processes come on top of what is there.

    seconds: of a processor. processes: of this user; without effect on root.
    """
    import resource  # which Windows lacks

    with open("/proc/self/statm") as statm:
        address_space = int(statm.read().split()[0]) * resource.getpagesize()
    for what, most in (
        (resource.RLIMIT_AS, address_space + memory),
        (resource.RLIMIT_FSIZE, file),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, threads_of_mine() + processes),
    ):
        resource.setrlimit(what, (most, most))


def threads_of_mine():
    """Return the number of threads in all processes of this user: RLIMIT_NPROC counts these."""
    count, mine = 0, os.getuid()
    for name in os.listdir("/proc"):
        try:
            if name.isdecimal() and os.stat(f"/proc/{name}").st_uid == mine:
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:  # it has ended meanwhile
            continue
    return count


class Children:
    """The processes that this one has forked: which run, and by their numbers how the others ended."""

    def __init__(self):
        self.running, self.codes = set(), {}
        signal.signal(signal.SIGCHLD, self._reap)

    def fork(self):
        """Fork as os.fork does. The child is in a session of its own and ends with this process."""
        # Linux shares the cores out by sessions. Ranks of one session took 1.6 times as long for a short all-reduce.
        parent = os.getpid()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # it must not be reaped before it is known
        try:
            if pid := os.fork():
                self.codes.pop(pid, None)  # of another that had this number
                self.running.add(pid)
                return pid
            os.setsid()
            die_with(parent)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            return 0
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})

    def end(self, pids):
        """Kill the process groups of those that run."""
        for pid in self.running.intersection(pids):
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:  # it has no group of its own yet, or is gone
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _reap(self, *_):
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.running.discard(pid)
            self.codes[pid] = os.waitstatus_to_exitcode(status)


# ---------------------------------------------------------------- requests and answers


class Line:
    """A Unix socket over which JSON objects go, one a line, with open files beside them."""

    def __init__(self, connected):
        self.socket = connected
        self._text, self._files = b"", []

    def send(self, files=(), **content):
        """Send an object and some open files, by their numbers. Raises OSError where the other end is gone."""
        text = (json.dumps(content | {"files": len(files)}) + "\n").encode()
        sent = socket.send_fds(self.socket, [text], [*files]) if files else 0
        self.socket.sendall(text[sent:])

    def receive(self):
        """Wait until something comes; return [(object, its files)] for each line that is whole now.

        Raises EOFError where the other end has closed, or has sent what is no such line.
        """
        try:
            text, files, *_ = socket.recv_fds(self.socket, 2**16, 16)
        except OSError:
            raise EOFError from None
        if not text:
            raise EOFError
        self._files += files
        *whole, self._text = (self._text + text).split(b"\n")
        return [self._read(each) for each in whole]

    def _read(self, text):
        try:
            content = json.loads(text)
            count = content.pop("files")
            if len(self._files) < count:
                raise EOFError
            files, self._files = self._files[:count], self._files[count:]
        except (ValueError, TypeError, KeyError, AttributeError):
            raise EOFError from None
        return content, files

    def close(self):
        self.socket.close()
        for each in self._files:
            os.close(each)
        self._files = []


class Server:
    """Forks a process for each request.

    owner: the socket of those that started it; its end is theirs. parent: a process with which it ends too. listening: a
    socket at which others may connect and ask. folders: what it removes at its end.
    """

    def __init__(self, owner, parent=None, listening=None, folders=()):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._pid, self._children, self._folders = os.getpid(), Children(), [*folders]
        self._parent, self._gone, self._owner, self._listening = parent, None, Line(owner), listening
        self._lines = {self._owner}
        self._asked_for = {}  # by the number of a process, over which line
        self._watched = selectors.PollSelector()
        self._watched.register(owner, selectors.EVENT_READ, self._owner)
        if listening:
            self._watched.register(listening, selectors.EVENT_READ)

    def serve(self):
        """Do what is asked. Returns in a process that was forked, and there alone: (its request, its open files)."""
        try:
            if self._parent:
                self._gone = os.pidfd_open(self._parent)
                self._watched.register(self._gone, selectors.EVENT_READ)
            self._owner.send(number=0, ready=self._pid)
            while self._parent in (None, os.getppid()):
                for key, _ in self._watched.select(0.5):
                    if key.fileobj == self._gone:
                        return self._end()
                    if key.fileobj is self._listening:
                        self._connect()
                    elif wanted := self._hear(key.data):
                        return wanted
        except (OSError, EOFError):  # the owner no longer listens, or the parent is gone
            pass
        finally:
            if os.getpid() == self._pid:
                self._end()

    def _connect(self):
        line = Line(self._listening.accept()[0])
        self._lines.add(line)
        self._watched.register(line.socket, selectors.EVENT_READ, line)

    def _hear(self, line):
        """Do what has come over a line. Returns, in a child alone, what it is to become."""
        try:
            for request, files in line.receive():
                told = self._do(request, files, line)
                if told is None:
                    return request, files
                for each in files:
                    os.close(each)
                line.send(number=request.get("number"), **told)
        except (OSError, EOFError):
            if line is self._owner:
                raise
            self._watched.unregister(line.socket)
            line.close()
            self._lines.discard(line)
            self._children.end([pid for pid, its in self._asked_for.items() if its is line])
        return None

    def _do(self, request, files, line):
        """Return what to answer; None in a child."""
        match request:
            case {"do": "fork"}:
                return self._fork(line)
            case {"do": "kill", "pids": pids}:
                self._children.end(pids)
                return {}
            case {"do": "exit_codes", "pids": pids}:
                return {"codes": {pid: self._children.codes.get(pid) for pid in pids}}
            case {"do": "folder", "place": place}:
                try:
                    self._folders.append(tempfile.mkdtemp(prefix="ringtree-", dir=place))
                except OSError as error:
                    return {"refused": f"no folder could be made in {place}: {error.strerror}"}
                return {"folder": self._folders[-1]}
            case {"do": "nothing"}:
                return {}
        raise EOFError

    def _fork(self, line):
        try:
            pid = self._children.fork()
        except OSError as error:
            return {"refused": f"no process could be forked: {error.strerror}"}
        if pid:
            self._asked_for[pid] = line
            return {"pid": pid}
        for each in self._lines:
            each.close()
        if self._listening:
            self._listening.close()
        if self._gone is not None:
            os.close(self._gone)
        return None

    def _end(self):
        if sys.exc_info()[0]:
            traceback.print_exc()
        self._children.end(self._children.running)
        for each in self._folders:
            shutil.rmtree(each, ignore_errors=True)
        os._exit(0)


def load(names=()):
    """Import what every process that is forked from this one shall have."""
    for name in names:
        importlib.import_module(name)
    until = time.monotonic() + 2.0
    while len(threads := os.listdir("/proc/self/task")) != 1 and time.monotonic() < until:
        time.sleep(0.01)  # a thread that was told to end takes a moment
    if len(threads) != 1:
        sys.exit(f"the process that others are forked from must have one thread, and has {len(threads)}")
    gc.collect()
    gc.freeze()


# ---------------------------------------------------------------- ranks


def ranks(parent, owner):
    """Serve the kernel `parent`, which asks for engines and their controller."""
    # Jupyter's debugger cannot reach a rank, and importing it takes each a tenth of a second.
    sys.modules["debugpy"] = None
    try:
        with watching(parent):
            load(RANKS)
    except SystemExit as stop:
        Line(owner).send(number=0, refused=str(stop))
        raise
    request, _ = Server(owner, parent).serve()
    code = 1
    try:
        become_rank(request)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def become_rank(request):
    """Turn this child into the engine or controller that was asked for."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    take_streams(os.open(os.devnull, os.O_RDONLY), log, os.dup(log))
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.path[:0] = absolute(request["environment"].get("PYTHONPATH", ""), os.getcwd())  # which Python has read at its start
    sys.argv = request["arguments"]
    if request["role"] == "engine":
        import torch
        from ipyparallel.engine.app import IPEngine as App

        torch.seed()  # the server's generator was copied: each rank needs its own seed
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    else:
        from ipyparallel.controller import app

        from ringtree.live.processes.controller import UnixSocketController as App

        # The controller sleeps a quarter of a second for a database to connect; ours is a dict.
        app.time = types.SimpleNamespace(sleep=lambda seconds: None)
        forks_die_too()
    App.launch_instance(argv=request["arguments"][1:])


def take_streams(*descriptors):
    """Make these this process's standard input, output and error."""
    for number, each in enumerate(descriptors):
        os.dup2(each, number)
        os.close(each)


# ---------------------------------------------------------------- notebooks' kernels


def kernels(parent, owner, listening, folder):
    """Serve those who connect at `listening`, which lies in `folder`, until `parent` is gone or closes its socket."""
    os.environ["JPY_PARENT_PID"] = str(os.getpid())  # ipykernel reads it when it is imported
    try:
        load(name for name in (*RANKS, *KERNELS) if name != "ipykernel.debugger")  # kernels import it with debugpy
    except SystemExit as stop:
        sys.exit(f"{stop}: kernels are started as always, which takes longer")
    become_kernel(*Server(owner, parent, socket.socket(fileno=int(listening)), [folder]).serve())


def become_kernel(wanted, streams):
    """Turn this child into the kernel: its streams, its folder, its environment; the fork server; and then as `python -m` does."""
    take_streams(*streams)
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
    sys.argv = wanted["arguments"]
    gc.unfreeze()  # from here on it is a kernel like any other
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, os.getcwd())  # as `python -m` does; ipykernel_launcher takes the first entry away if it is this one
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def absolute(python_path, folder):
    """Return the entries of a PYTHONPATH as Python makes them at its start in `folder`."""
    entries = python_path.split(os.pathsep) if python_path else ()
    return list(dict.fromkeys(os.path.abspath(os.path.join(folder, each)) for each in entries))


def search_paths(paths, known, wanted):
    """Return `paths`, which begins with the entries `known` of the server's PYTHONPATH, with those of `wanted` in their place."""
    count = next((place for place, each in enumerate(paths) if each not in known), len(paths))
    return [*wanted, *(each for each in paths[count:] if each not in wanted)]


def fork_server():
    """Fork what the kernel's ranks will be forked from, and leave word of it in the environment."""
    ours, theirs = socket.socketpair()
    kernel, pid = os.getpid(), os.fork()
    if pid:
        theirs.close()
        os.environ[FORK_SERVER] = f"{kernel} {pid} {ours.detach()}"
        return
    try:
        os.setsid()
        ours.close()
        nothing = os.open(os.devnull, os.O_RDWR)
        take_streams(nothing, os.dup(nothing), os.dup(nothing))
        os.environ["OMP_NUM_THREADS"] = "1"
        ranks(kernel, theirs)
    finally:
        os._exit(1)


if __name__ == "__main__":
    if sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
        del sys.path[0]  # Python searches a script's folder first; what is forked from here must not
    parent, role, owner, *more = sys.argv[1:]
    {"ranks": ranks, "kernels": kernels}[role](int(parent), socket.socket(fileno=int(owner)), *more)
