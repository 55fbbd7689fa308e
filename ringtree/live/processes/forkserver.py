"""Fork engines and their controller from one process that has imported torch once.

A rank that is forked from here needs no second for `import torch`, and shares
those pages with its neighbours. The server is a script of its own, started by
`ringtree.live.processes.launchers`:

    python forkserver.py KERNEL_PID FOLDER

It reads requests from standard input and answers on standard output, one JSON
object a line, with the number of the request. It ends, with all that it started, when standard input closes or
when the kernel is gone: SIGKILL of a kernel leaves nothing behind. What they keep lies in a new
folder below FOLDER.

It stays single-threaded, computes nothing with OpenMP and does not touch CUDA:
a child forked after any of these could hang.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import types

PRELOADED = (
    "IPython.core.completerlib",
    "IPython.extensions.storemagic",
    "ipykernel.debugger",
    "ipyparallel.controller.app",
    "ipyparallel.controller.hub",
    "ipyparallel.controller.task_scheduler",
    "ipyparallel.engine.app",
    "torch",
    "torch.distributed",
    "tornado.platform.asyncio",
)
"""What every engine and controller would import for itself: three seconds of a core each."""

PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None, use_errno=True)
running = set()
exit_codes = {}


def search_no_neighbors():
    """Take this folder, which Python searches first for a script, out of what the processes forked from here search."""
    if sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
        del sys.path[0]


def main():
    search_no_neighbors()
    kernel, place = int(sys.argv[1]), sys.argv[2]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, reap)
    replies = os.dup(1)
    os.set_inheritable(replies, False)
    os.dup2(2, 1)  # whatever prints later cannot spoil the replies
    kernel_gone = os.pidfd_open(kernel)
    if os.getppid() != kernel:
        os._exit(1)

    with watching(kernel):
        try:
            preload()
        except SystemExit as stop:
            answer(replies, refused=str(stop))
            raise
    folder = tempfile.mkdtemp(prefix="ringtree-", dir=place)
    try:
        answer(replies, ready=os.getpid(), folder=folder)
        serve(kernel, kernel_gone, replies)
    except OSError:  # the kernel no longer listens
        pass
    finally:
        end(running, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)


@contextlib.contextmanager
def watching(kernel):
    """End if the kernel ends meanwhile: an import may take long, and nothing asks for it any more."""
    signal.signal(signal.SIGALRM, lambda *_: os.getppid() == kernel or os._exit(1))
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def preload():
    # Jupyter's debugger cannot reach a rank, and importing it takes each a tenth of a second.
    sys.modules["debugpy"] = None
    load(PRELOADED)


def load(names):
    """Import what every process that is forked from this one shall have."""
    for name in names:
        importlib.import_module(name)

    threads = os.listdir("/proc/self/task")
    if len(threads) != 1:
        sys.exit(f"what others are forked from must have one thread, and has {len(threads)}")
    gc.collect()
    gc.freeze()


def serve(kernel, kernel_gone, replies):
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(kernel_gone, select.POLLIN)
    pending = b""
    while True:
        events = dict(poll.poll(500))
        if kernel_gone in events or os.getppid() != kernel:
            return
        if 0 not in events:
            continue
        received = os.read(0, 65536)
        if not received:
            return
        pending += received
        while b"\n" in pending:
            line, pending = pending.split(b"\n", 1)
            request = json.loads(line)
            told = {}
            if request["do"] == "fork":
                told = {"pid": fork(request, (replies, kernel_gone))}
            elif request["do"] == "kill":
                end(request["pids"], signal.SIGKILL)
            elif request["do"] == "exit_codes":
                told = {"codes": {pid: exit_codes.get(pid) for pid in request["pids"]}}
            answer(replies, number=request["number"], **told)


def answer(replies, **content):
    os.write(replies, (json.dumps(content) + "\n").encode())


def reap(*_):
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        running.discard(pid)
        exit_codes[pid] = os.waitstatus_to_exitcode(status)


def end(pids, signum):
    """Signal the process groups of those pids that are ours."""
    for pid in list(pids):
        if pid in running:
            try:
                os.killpg(pid, signum)
            except ProcessLookupError:  # it has no group of its own yet, or is gone
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signum)


def fork(request, private_descriptors):
    server = os.getpid()
    pid = os.fork()
    if pid:
        running.add(pid)
        return pid
    code = 1
    try:
        become(request, server, private_descriptors)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def become(request, server, private_descriptors):
    """Turn this fresh child into the engine or controller that was asked for."""
    # A session of its own: Linux shares the cores out by sessions, and ranks that were in one
    # session together took 1.6 times as long for a short all-reduce (four ranks on two cores).
    os.setsid()
    die_with(server)
    for signum in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_DFL)
    for descriptor in private_descriptors:
        os.close(descriptor)
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    # Python reads PYTHONPATH when it starts, and this process has started: so its entries are put in here.
    if "PYTHONPATH" in request["environment"]:
        sys.path[:0] = [os.path.abspath(each) for each in os.environ["PYTHONPATH"].split(os.pathsep)]
    sys.argv = request["arguments"]
    running.clear()

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


def die_with(parent):
    """Linux ends this process when its parent ends, which may be now."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def forks_die_too():
    """From now on what this process forks ends with it."""
    parent = []
    os.register_at_fork(before=lambda: parent.append(os.getpid()), after_in_child=lambda: die_with(parent[-1]))


if __name__ == "__main__":
    main()
