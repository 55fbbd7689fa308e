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
import signal
import socket
import threading
import time

from IPython import get_ipython
from IPython.display import display

from ringtree.errors import UsageError
from ringtree.given import number, whole
from ringtree.live import by_name, joining, placement
from ringtree.live.processes import launchers
from ringtree.live.processes.started import Started
from ringtree.live.reports import deadline
from ringtree.live.reports.diagnosis import Diagnosis
from ringtree.live.reports.rank import Rank

LOOK = 0.2  # seconds between two looks at processes while ranks start
RESTARTED = "The ranks were restarted and their variables are gone: run the cells that set them again."


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

    size, backend, timeout; places, a `ringtree.live.reports.rank.Rank` each; client and view, which are ipyparallel's.
    started: the processes. diagnosis: looks at ranks that do not come back.
    """

    def __init__(self, size, backend, share_gpus, timeout, engines, ranks_per_node, options):
        self.size = size
        self.timeout = timeout
        self._wanted = backend, share_gpus, engines, ranks_per_node, options
        self.running, self._owner = False, None  # the owner: the process that may end them
        self.started = self.client = self.view = self.diagnosis = None
        self.backend = self.remark = None
        self.places = []
        by_name.install()
        self._start()

    @property
    def cluster(self):
        """ipyparallel's."""
        return self.started.cluster

    # ------------------------------------------------------------ life

    def _start(self):
        backend, share_gpus, engines, ranks_per_node, options = self._wanted
        arguments, needed, folder, local = launchers.choose(engines, self.size, ranks_per_node, options)
        self.started = Started(self.size, folder, local, arguments, [needed, options])
        self._owner = os.getpid()
        self.running = True
        try:
            self.started.start()
            self._wait_for_engines()
            self.view = self.client[list(range(self.size))]
            self.view.block = True
            self._join(backend, share_gpus)
            self.started.check(finished=True)
        except BaseException:
            self.stop()
            raise

    def _wait_for_engines(self):
        until = time.monotonic() + self.started.patience
        while True:
            self.check_allotment()
            self.started.check()
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
                    self.started.raise_not_started(missing, f"not within {self.started.patience} s, and no reason was given")

    def _join(self, backend, share_gpus):
        found = self._each(joining.place, [(None if self.started.local else socket.gethostname(),)] * self.size)
        hosts = [place["host"] for place in found]
        gpus = {place["host"]: place["gpus"] for place in found}
        allotted = {place["host"]: place["allotted"] for place in found}
        self.backend, devices, remark = placement.choose_backend(self.size, hosts, gpus, backend, share_gpus, allotted)
        plain = self._wanted[2] is None and launchers.refusal
        slower = f"Ranks start more slowly here: {launchers.refusal}." if plain else None
        self.remark = "\n".join(filter(None, [remark, slower])) or None
        places = placement.places(found, devices)
        shared = len(set(zip(hosts, devices))) < self.size and self.backend == "nccl"
        reached = [place["alone"] if len(gpus) == 1 else (place["address"], place["interface"]) for place in found]
        address, port, file = self._meet(reached[0][0], one_host=len(gpus) == 1)
        environments = placement.environments(places, address, port, shared)
        files = [self.started.stack_file(number) for number in range(self.size)]
        threads = self._each(
            joining.join,
            [
                (number, self.size, place.device, environment, interface, file, self.backend, 2 * self.timeout, stacks)
                for number, (place, environment, (_, interface), stacks) in enumerate(zip(places, environments, reached, files))
            ],
        )
        self.places = [
            Rank(**vars(place), number=number, threads=its, stack_file=stacks)
            for number, (place, its, stacks) in enumerate(zip(places, threads, files))
        ]
        self.diagnosis = Diagnosis(self.places, self.client, self.started)

    def _meet(self, address, one_host):
        """Return where ranks meet: (address, port, file). A file, wherever all ranks see the cluster's folder: nobody else can reach it.

        The address and the port are then for programs that read MASTER_ADDR and MASTER_PORT to make a store of their own.
        """
        if one_host or all(self._each(joining.can_lock, [(self.started.folder,)] * self.size)):
            return address, self._each(joining.free_port, [(address,)], [0])[0], os.path.join(self.started.folder, "meeting")
        (port,) = self._each(joining.open_store, [(address, self.size)], [0])
        self._each(joining.meet_at_store, [(address, port, self.size)] * (self.size - 1), range(1, self.size))
        return address, port, None

    def _each(self, function, arguments=None, ids=None):
        """Run a set-up function on every rank at once; a rank that dies meanwhile is an error."""
        ids = list(range(self.size)) if ids is None else list(ids)
        arguments = arguments or [()] * len(ids)
        waiting = [self.client[i].apply_async(function, *a) for i, a in zip(ids, arguments)]
        until = time.monotonic() + self.started.patience
        for result in waiting:
            while not result.done() and time.monotonic() < until:
                self.started.check()
                result.wait(LOOK)
        return [result.get(0) for result in waiting]

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
        if self.client:
            with contextlib.suppress(Exception):
                self.client.close()
        self.started.end()

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
        packed = self.finish(result, list(range(self.size)), timeout or self.timeout)
        return [_unpacked(each, f"rank {i} returned") for i, each in enumerate(packed)]

    def finish(self, result, ids, seconds, tell=None, show=None):
        """Wait for `result` (an ipyparallel AsyncResult, one child a rank in `ids`); returns results by rank.

        seconds: the deadline. tell(done ids, seconds waited): called now and then while waiting.
        show(): called once all that will come has come, before any error is raised.
        Restarts the ranks where some are stuck or dead. Raises RankError, RanksStuck, RankDied.
        """
        outcome = deadline.finish(self.diagnosis, result, ids, seconds, tell)
        if show:
            show()
        if not outcome.error:
            return [outcome.results[i] for i in ids]
        if outcome.died:
            self.check_allotment()  # what has ended all ranks is more to the point than how each ended
        report, details = deadline.describe(self.diagnosis, outcome)
        if outcome.lost:
            self.restart()
            report += f"\n{RESTARTED}"
        raise outcome.error(report, details)

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
        if self.started.job and (why := self.started.job.ended()):
            self.stop()
            raise deadline.RankDied(why)

    def __repr__(self):
        return placement.as_text(self.places, self.backend, self.remark) if self.running else f"{self.size} ranks, stopped"

    def _repr_html_(self):
        return placement.as_html(self.places, self.backend, self.remark) if self.running else None


def _unpacked(packed, whose):
    """Return what `joining` packed; `whose` begins the sentence where this process cannot read it."""
    pickled, value = packed
    try:
        return value if pickled is None else pickle.loads(pickled)
    except (AttributeError, ImportError) as error:
        raise UsageError(
            f"{whose} what this notebook's kernel does not know ({error}): give numbers, strings, tensors, or lists "
            "and dicts of them"
        ) from None


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
