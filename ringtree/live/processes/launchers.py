"""ipyparallel launchers that pin rank = engine id and leave no process behind.

Two ways to start ranks on this machine: forked from a process that has imported
torch already (Linux), or as plain processes under a nanny (anywhere). Both kinds
end with the kernel, however it ends. For other machines, ipyparallel's own ssh,
MPI and Slurm launchers, with the id pinned.
"""

import asyncio
import atexit
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading

import psutil
from ipyparallel.cluster import launcher

from ringtree.errors import UsageError
from ringtree.live.processes import asking, forks, slurm, sockets, warm

PATIENCE = 10.0  # seconds for an answer of a fork server …
LITTLE_PATIENCE = 1.0  # … where nothing depends on it
ENDED = "the process that ranks are forked from has ended: call ringtree.start again, or start with engines='local'"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # four ranks on a few cores must not fight


class CannotFork(RuntimeError):
    """No rank can be forked in this process, for the reason that it says."""


class ForkServer:
    """Asks the process that ranks are forked from (`forks.ranks`), and waits for the answer.

    A server that was killed raises RuntimeError. So does one that does not answer, which is then killed: it was stopped.
    """

    def __init__(self):
        self.lock = threading.Lock()
        self.hello = None
        self.process, line = warm.Inherited.here() or asking.start(
            *(sys.executable, forks.__file__, os.getpid(), "ranks"),
            **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL),
            env={**os.environ, **ONE_THREAD},
        )
        self._asker = asking.Asker(line, ENDED)

    def ask(self, do, **request):
        answer = self._ask(PATIENCE, do, **request)
        if answer is None:
            self.process.kill()
            self.process.wait()
            raise RuntimeError("the process that ranks are forked from did not answer and was ended: call ringtree.start again")
        return answer

    def is_alive(self):
        """Return whether it still answers, or is at least there: it may be known to be killed a moment before it is gone."""
        try:
            self._ask(LITTLE_PATIENCE, "nothing")
        except RuntimeError:
            return False
        return True

    def _ask(self, patience, do, **request):
        with self.lock:
            if self.hello is None:
                self.hello = self._asker.answer()  # it may take long to import all
            if "refused" in self.hello:
                raise CannotFork(self.hello["refused"])
            return self._asker.ask(do, patience, **request)

    def close(self):
        """End the server, and all that was forked from it."""
        self._asker.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)

    def folder(self):
        """Return a new folder, which the server removes at its end."""
        return self.ask("folder", place=sockets.parent())["folder"]


_server = None
refusal = None  # why the fork server of this process did not begin: it would not the next time either


def can_fork():
    return sys.platform == "linux" and hasattr(os, "pidfd_open") and refusal is None


def fork_server():
    """The one fork server of this process, started when first asked for."""
    global _server
    if _server is None or _server.process.poll() is not None:
        _close()
        _server = ForkServer()
    return _server


@atexit.register
def _close():
    if _server is not None:
        _server.close()


def _after_fork_in_child():
    global _server
    _server = None  # a child of the kernel does not own the kernel's server


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class Forked:
    def start(self):
        self.server = fork_server()  # the one that knows how it ended
        answer = self.server.ask(
            "fork",
            role=self.role,
            arguments=["ip" + self.role, *self.find_args()[3:]],
            environment={**ONE_THREAD, **self.get_env()},
            folder=os.getcwd(),
            log=self.output_file,
        )
        self.pid = answer["pid"]
        self.process = psutil.Process(self.pid)
        self.notify_start(self.pid)
        self._start_waiting()


class _Pinned:
    """An engine whose id, and so its rank, is its place in the set."""

    def find_args(self):
        return [
            *super().find_args(),
            f"--IPEngine.id={self.identifier}",
            "--IPEngine.enable_nanny=False",
            # A busy controller is no reason for an engine to give up; a dead one ends it by other means.
            "--IPEngine.timeout=60",
            "--IPEngine.max_heartbeat_misses=0",
        ]


class ForkedController(Forked, launcher.LocalControllerLauncher):
    role = "controller"

    async def get_connection_info(self, timeout=None):
        # ipyparallel looks every 100 ms, and half a second later where a file was half written.
        while not all(_is_json(path) for path in self.connection_files.values()) and self.process.is_running():
            await asyncio.sleep(0.005)
        return await super().get_connection_info(timeout)


def _is_json(path):
    try:
        json.loads(pathlib.Path(path).read_text())
    except (OSError, ValueError):
        return False
    return True


class ForkedEngine(_Pinned, Forked, launcher.LocalEngineLauncher):
    role = "engine"


class ForkedEngineSet(launcher.LocalEngineSetLauncher):
    launcher_class = ForkedEngine


class _Nursed:
    removes = "-"

    def find_args(self):
        python, _, *module = super().find_args()
        return [python, "-m", "ringtree.live.processes.nanny", str(os.getpid()), self.removes, *module]

    def get_env(self):
        return {**ONE_THREAD, **super().get_env()}


class NursedController(_Nursed, launcher.LocalControllerLauncher):
    @property
    def removes(self):
        return str(self.profile_dir)


class NursedEngine(_Pinned, _Nursed, launcher.LocalEngineLauncher):
    pass


class NursedEngineSet(launcher.LocalEngineSetLauncher):
    launcher_class = NursedEngine


class MPIEngineSet(launcher.MPIEngineSetLauncher):
    @property
    def program(self):
        return slurm.ENGINE_MODULE


class SSHEngine(launcher.SSHEngineLauncher):
    def find_args(self):
        return [*super().find_args(), f"--IPEngine.id={self.parent.place(self.identifier)}"]


class SSHEngineSet(launcher.SSHEngineSetLauncher):
    launcher_class = SSHEngine

    def place(self, identifier):
        """The rank of engine `host/i`: hosts in the order given, ranks of a host together."""
        host, _, i = identifier.rpartition("/")
        hosts = list(self.engines)
        return sum(self.engines[earlier] for earlier in hosts[: hosts.index(host)]) + int(i)


def _folder_to_fork_from():
    global refusal
    try:
        return fork_server().folder()
    except CannotFork as error:
        refusal = str(error)
        raise


REMOTE = {"mpi": (MPIEngineSet, "mpiexec"), "slurm": (slurm.SlurmEngineSet, "sbatch"), "ssh": (SSHEngineSet, "ssh")}


def choose(engines, size, ranks_per_node=None, asked=None):
    """Turn `ringtree.start`'s `engines=` into what `ipyparallel.Cluster` wants. asked: its `options=`.

    Returns (arguments, options, folder, local): keyword arguments, configuration by class
    name, the profile folder, and whether all processes are on this machine. Raises UsageError with one sentence
    when the launcher is unknown or its command is missing.
    """
    if engines in (None, "fork") and can_fork():
        with contextlib.suppress(CannotFork):
            folder = _folder_to_fork_from()
            return {"engines": ForkedEngineSet, "controller": ForkedController}, {}, folder, True
    if engines == "fork":
        why = f"cannot be here ({refusal})" if refusal else "needs Linux"
        raise UsageError(f"engines='fork' {why}: leave engines= out, or give engines='local'")
    if engines in (None, "local"):
        folder = tempfile.mkdtemp(prefix="ringtree-", dir=sockets.parent())
        return {"engines": NursedEngineSet, "controller": NursedController}, {}, folder, True
    if isinstance(engines, dict):
        if sum(engines.values()) != size:
            raise UsageError(
                f"engines={engines} has places for {sum(engines.values())} ranks, and {size} were asked for: "
                "let the numbers add up"
            )
        name, hosts = "ssh", engines
    else:
        name, hosts = engines, None
    if name not in REMOTE or (name == "ssh" and hosts is None):
        raise UsageError(
            f"engines={engines!r} is not a way to start ranks: give 'fork' or 'local' (this machine), 'mpi', "
            "'slurm', or a dict from ssh host to number of ranks"
        )
    launcher_class, command = REMOTE[name]
    if shutil.which(command) is None:
        raise UsageError(
            f"engines={engines!r} needs the command {command}, which is not on this machine's PATH: "
            "start where it is, or leave engines= out to run the ranks on this machine"
        )
    # Connection files and logs must be seen from every node.
    folder = tempfile.mkdtemp(prefix=".ringtree-", dir=pathlib.Path.home())
    arguments = {"engines": launcher_class, "controller": NursedController, "controller_ip": "*"}
    options = {}
    if name == "slurm":
        options["SlurmEngineSet"] = {
            "batch_file_name": os.path.join(folder, "ranks.sbatch"),
            "namespace": slurm.namespace(folder, size, ranks_per_node, (asked or {}).get("SlurmEngineSet", {}).get("queue")),
        }
    if name == "ssh":
        options["SSHEngineSet"] = {"engines": hosts}
    return arguments, options, folder, False


def new_cluster(size, folder, local, arguments, options):
    """The `ipyparallel.Cluster` of what `choose` gave, with further options by class name; not yet started."""
    import ipyparallel

    if local:
        private = ["--IPController.transport=ipc", f"--IPController.ip={os.path.join(folder, 'socket')}"]
    else:
        private = ["--IPController.enable_curve=True"]
    cluster = ipyparallel.Cluster(
        n=size,
        profile_dir=folder,
        delay=0,
        log_level=100,
        load_profile=False,
        shutdown_atexit=False,
        controller_args=[
            # Registration waits for one or two heartbeats: beat often (ms), forgive much.
            f"--HeartMonitor.period={30 if local else 300}",
            "--HeartMonitor.max_heartmonitor_misses=300",
            "--IPController.use_threads=True",
            "--log-level=40",
            *private,
        ],
        **arguments,
    )
    for name in ("ForkedEngineSet", "NursedEngineSet"):
        cluster.config[name].delay = 0.0
    if local:
        cluster.config.NursedController.controller_cmd = [sys.executable, "-m", "ringtree.live.processes.controller"]
    for layer in options:
        for name, traits in layer.items():
            cluster.config[name].update(traits)
    return cluster


def slurm_job(cluster):
    """The job of Slurm that a cluster's engines are, or None."""
    return next((each for each in cluster.engines.values() if isinstance(each, slurm.SlurmEngineSet)), None)
