"""Start, restart and stop the ranks: engines, devices, backend, process group.

    ranks = ringtree.start(4)

starts four ipyparallel engines, each holding one rank of one process group, with
rank = engine id. On every rank the names `torch`, `dist`, `rank`, `world_size` and
`device` are there to use in `%%px` cells.
"""

import atexit
import contextlib
import os
import pickle
import shutil
import signal
import socket
import subprocess
import threading
import time

import psutil
from IPython import get_ipython
from IPython.display import display

from ringtree.errors import UsageError
from ringtree.given import number, whole
from ringtree.live import joining, placement
from ringtree.live.processes import launchers
from ringtree.live.reports import deadline
from ringtree.live.reports.diagnosis import Diagnosis, is_there, stack_file
from ringtree.waits import name_ranks

ENGINES_READY_SECONDS = 60  # for engines of this machine
LOOK = 0.2  # seconds between two looks at processes while ranks start
REMOTE_READY_SECONDS = 600  # other machines load their programs over a network, all at once


def start(
    size=4,
    *,
    backend=None,
    share_gpus=None,
    timeout=60.0,
    engines=None,
    ranks_per_node=None,
    options=None,
):
    """Start `size` ranks, replacing those that this kernel had, and show them in a table.

    size: how many ranks, 1 or more.
    backend: "nccl" or "gloo". Left out: NCCL where there are as many GPUs as ranks,
        Gloo on the CPU otherwise.
    share_gpus: let several NCCL ranks use one GPU (default: the environment variable
        RINGTREE_SHARE_GPUS, else no).
    timeout: seconds that a `%%px` cell may take before it is ended and reported, unless
        the cell says `--timeout`. The process group itself gives up after twice as long.
    engines: "fork" or "local" for this machine, "mpi", "slurm", or a dict from ssh host to
        number of ranks. Left out: "fork" on Linux, "local" elsewhere.
    ranks_per_node: with "slurm", how many ranks a node takes. Left out: as many as a node has GPUs, where it has some;
        else as Slurm places them.
    options: further configuration for ipyparallel's launchers, {"Class": {"trait": value}}.

    Returns `Ranks`. Raises UsageError with one sentence on arguments that cannot work.
    """
    _check(size, backend, timeout, ranks_per_node)
    if share_gpus is None:
        share_gpus = os.environ.get("RINGTREE_SHARE_GPUS", "") not in ("", "0")
    global _current
    ranks = Ranks(size, backend, share_gpus, timeout, engines, ranks_per_node, options or {})
    stop_current()  # only now: a start that fails leaves the old ranks as they were
    _current = ranks
    if get_ipython():
        display(_current)
    return _current


def _check(size, backend, timeout, ranks_per_node):
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise UsageError(f"start({size!r}): the number of ranks must be a whole number, 1 or more")
    if backend not in (None, "gloo", "nccl"):
        raise UsageError(
            f"backend={backend!r} is not one that ringtree starts: give 'nccl' (GPUs) or 'gloo' (CPU), "
            "or leave it out and the machine decides"
        )
    if not number(above=True).holds(timeout):
        raise UsageError(f"timeout={timeout!r}: give the seconds that a cell may take, more than 0")
    if ranks_per_node is not None and (not whole(1).holds(ranks_per_node) or size % ranks_per_node):
        raise UsageError(f"ranks_per_node={ranks_per_node!r} does not divide {size} ranks: give a divisor")


_current = None


def current():
    """The ranks of this kernel, or None."""
    return _current if _current and _current.running else None


def stop_current():
    if ranks := current():
        ranks.stop()


atexit.register(stop_current)


class Ranks:
    """Live ranks: one ipyparallel engine each, rank = engine id.

    size, backend, timeout, places (a `Place` a rank); `client`, `view` and `cluster` are ipyparallel's;
    `diagnosis` looks at ranks that do not come back.
    """

    def __init__(self, size, backend, share_gpus, timeout, engines, ranks_per_node, options):
        self.size = size
        self.timeout = timeout
        self._wanted = backend, share_gpus, engines, ranks_per_node, options
        self.running = False
        self.diagnosis = Diagnosis(self)
        self._start()

    # ------------------------------------------------------------ life

    def _start(self):
        backend, share_gpus, engines, ranks_per_node, options = self._wanted
        arguments, needed, self.folder, self.local = launchers.choose(engines, self.size, ranks_per_node, options)
        self._owner = os.getpid()
        self.job = None  # Slurm's, where it started them
        self.running = True
        try:
            self._start_engines(arguments, [needed, options])
            self._join(backend, share_gpus)
            self._check_processes(finished=True)
        except BaseException:
            self.stop()
            raise

    def _start_engines(self, arguments, options):
        self.cluster = launchers.new_cluster(self.size, self.folder, self.local, arguments, options)
        self.patience = ENGINES_READY_SECONDS if self.local else REMOTE_READY_SECONDS
        try:
            self.cluster.start_cluster_sync()
        except subprocess.CalledProcessError as error:
            raise UsageError(
                f"{error.cmd[0]} could not start the ranks: it exited with code {error.returncode}, "
                "having said why in the kernel's log; mend that, or leave engines= out"
            ) from error
        if job := launchers.slurm_job(self.cluster):
            job.wait_until_allotted()
            self.job = job
        self._wait_for_engines()
        self.view = self.client[list(range(self.size))]
        self.view.block = True

    def _wait_for_engines(self):
        until = time.monotonic() + self.patience
        while True:
            self.check_allotment()
            self._check_processes()
            self.client = self.cluster.connect_client_sync()
            try:
                self.client.wait_for_engines(self.size, interactive=False, timeout=1)
                return
            except TimeoutError:
                missing = [i for i in range(self.size) if i not in self.client.ids]
                # On a busy machine a client may miss the announcement of an engine that registers
                # while it connects; a client that connects afresh sees all engines.
                self.client.close()
                if time.monotonic() > until:
                    self._raise_not_started(missing, f"not within {self.patience} s, and without a word")

    def _join(self, backend, share_gpus):
        found = self._each(joining.place, [(None if self.local else socket.gethostname(),)] * self.size)
        hosts = [place["host"] for place in found]
        gpus = {place["host"]: place["gpus"] for place in found}
        allotted = {place["host"]: place["allotted"] for place in found}
        self.backend, devices, remark = placement.choose_backend(self.size, hosts, gpus, backend, share_gpus, allotted)
        plain = self._wanted[2] is None and launchers.refusal
        slower = f"Ranks start more slowly here: {launchers.refusal}." if plain else None
        self.remark = "\n".join(filter(None, [remark, slower])) or None
        self.places = placement.places(found, devices)
        shared = len(set(zip(hosts, devices))) < self.size and self.backend == "nccl"
        reached = [place["alone"] if len(gpus) == 1 else (place["address"], place["interface"]) for place in found]
        address, port, file = self._meet(reached[0][0], one_host=len(gpus) == 1)
        environments = placement.environments(self.places, address, port, shared)
        self.threads = self._each(
            joining.join,
            [
                (rank, self.size, place.device, environment, interface, file, self.backend, 2 * self.timeout, stacks)
                for rank, (place, environment, (_, interface)) in enumerate(zip(self.places, environments, reached))
                for stacks in [stack_file(self.folder, rank)]
            ],
        )

    def _meet(self, address, one_host):
        """Where ranks meet: (address, port, file). A file, wherever all ranks see the cluster's folder: nobody else can reach it.

        The address and the port are then for programs that read MASTER_ADDR and MASTER_PORT to make a store of their own.
        """
        if one_host or all(self._each(joining.can_lock, [(self.folder,)] * self.size)):
            return address, self._each(joining.free_port, [(address,)], [0])[0], os.path.join(self.folder, "meeting")
        (port,) = self._each(joining.open_store, [(address, self.size)], [0])
        self._each(joining.meet_at_store, [(address, port, self.size)] * (self.size - 1), range(1, self.size))
        return address, port, None

    def _each(self, function, arguments=None, ids=None):
        """Run a set-up function on every rank at once; a rank that dies meanwhile is an error."""
        ids = list(range(self.size)) if ids is None else list(ids)
        arguments = arguments or [()] * len(ids)
        waiting = [self.client[i].apply_async(function, *a) for i, a in zip(ids, arguments)]
        until = time.monotonic() + self.patience
        for result in waiting:
            while not result.done() and time.monotonic() < until:
                self._check_processes()
                result.wait(LOOK)
        return [result.get(0) for result in waiting]

    def _check_processes(self, finished=False):
        """Raise RuntimeError where a process of this machine that the ranks need has ended while they start."""
        if broken := self.diagnosis.broken(finished):
            raise RuntimeError(f"{deadline.describe_broken(broken)}; call ringtree.start again")
        if self.local and (gone := [i for i, each in sorted(_by_rank(self.cluster).items()) if not is_there(each.process)]):
            self._raise_not_started(gone, "without a word")

    def _raise_not_started(self, missing, otherwise):
        words = self.diagnosis.last_words(missing[0]) if missing else None
        raise RuntimeError(
            f"{name_ranks(missing)} did not start: "
            + (f"the last words were {words!r}" if words else otherwise)
            + "; in a terminal `python -m ringtree.doctor` looks for what stands in the way"
        ) from None

    def restart(self):
        """End all ranks, whatever they are doing, and start them afresh: their variables are gone."""
        with _no_interrupt():
            self.stop()
            self._start()

    def stop(self):
        """End all ranks. Calling it again does nothing."""
        if not self.running or os.getpid() != self._owner:
            return
        self.running = False
        if client := getattr(self, "client", None):
            with contextlib.suppress(Exception):
                client.close()
        if cluster := getattr(self, "cluster", None):
            _end_processes(cluster, self.local)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    # ------------------------------------------------------------ use

    def call(self, function, *args, timeout=None, **kwargs):
        """Run `function(*args, **kwargs)` on every rank; returns the results by rank.

        The function sees the rank's names (`torch`, `dist`, `rank`, …). A hang, an error or a
        death is reported as in a `%%px` cell: RanksStuck, RankError, RankDied.
        """
        self._check_running()
        result = self.view.apply_async(joining.returned, function, *args, **kwargs)
        packed = deadline.finish(self, result, list(range(self.size)), timeout or self.timeout)
        return [_unpacked(each, f"rank {i} returned") for i, each in enumerate(packed)]

    def pull(self, name):
        """The variable `name` of every rank, as a list by rank. UsageError where a rank has none, or none that can be sent."""
        self._check_running()
        waiting = [self.client[i].apply_async(joining.variable, name) for i in range(self.size)]
        return [self._pulled(i, name, result) for i, result in enumerate(waiting)]

    def _pulled(self, i, name, result):
        from ipyparallel.error import RemoteError

        try:
            return _unpacked(result.get(), f"rank {i} has in {name}")
        except RemoteError as error:
            raise UsageError(f"rank {i} cannot give {name!r}: {error.evalue}") from None

    def push(self, names):
        """Set variables on every rank: {"name": value}."""
        self._check_running()
        self.view.push(names, block=True)

    def _check_running(self):
        if not self.running:
            raise UsageError("these ranks were stopped: call ringtree.start again")
        self.check_allotment()

    def check_allotment(self):
        """Raise RankDied where Slurm has ended the job that the ranks were; they count as stopped then."""
        if self.job and (why := self.job.ended()):
            self.stop()
            raise deadline.RankDied(why)

    def __repr__(self):
        return placement.as_text(self.places, self.backend, self.remark) if self.running else f"{self.size} ranks, stopped"

    def _repr_html_(self):
        return placement.as_html(self.places, self.backend, self.remark) if self.running else None


def _unpacked(packed, whose):
    """What `joining` packed; `whose` begins the sentence where this process cannot read it."""
    pickled, value = packed
    try:
        return value if pickled is None else pickle.loads(pickled)
    except (AttributeError, ImportError) as error:
        raise UsageError(
            f"{whose} what this notebook's kernel does not know ({error}): give numbers, strings, tensors, or lists "
            "and dicts of them"
        ) from None


def _end_processes(cluster, local):
    """Kill what was forked at once; let ipyparallel end what it started elsewhere."""
    processes = [cluster.controller, *_engines(cluster)]
    forked = [process.pid for process in processes if isinstance(process, launchers.Forked)]
    if forked:
        with contextlib.suppress(RuntimeError, AttributeError):  # AttributeError: its start came to no end
            cluster.controller.server.ask("kill", pids=forked)
    elif local:
        for process in processes:
            with contextlib.suppress(OSError, psutil.Error):
                os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(Exception):
        cluster.stop_cluster_sync()


def _engines(cluster):
    return [*_by_rank(cluster).values()]


def _by_rank(cluster):
    """The launchers of engines of this machine, by rank; of one that has ended it may be missing."""
    sets = cluster.engines.values()
    return {int(i): engine for engine_set in sets for i, engine in getattr(engine_set, "launchers", {}).items()}


@contextlib.contextmanager
def _no_interrupt():
    """A second press of the stop button must not leave half-started ranks."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
