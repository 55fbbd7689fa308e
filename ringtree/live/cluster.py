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
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from dataclasses import dataclass
from html import escape

import psutil
from IPython import get_ipython
from IPython.display import display

from ringtree.errors import UsageError
from ringtree.live import deadline, launchers, onrank
from ringtree.waits import name_ranks

ENGINES_READY_SECONDS = 60  # for engines of this machine
REMOTE_READY_SECONDS = 600  # a batch queue may take its time
PATIENCE = 3.0  # seconds in which a rank that can say where it is will have said so …
MORE_PATIENCE = 10.0  # … also where its answer must wait for its turn on a busy core

# NCCL refuses two ranks on one GPU, unless they seem to be on two hosts. Then they
# talk over sockets: the results are right, the times are not a network's.
SHARED_GPU = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_NET": "Socket",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MNNVL_ENABLE": "0",
    "GLOO_SOCKET_IFNAME": "lo",
}


@dataclass(frozen=True)
class Place:
    """Where one rank lives: its process, host and node, and the device that it uses."""

    pid: int
    host: str
    node: int
    local_rank: int
    device: str


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
    ranks_per_node: with "slurm", how many ranks a node takes.
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
    if not timeout > 0:
        raise UsageError(f"timeout={timeout!r}: give the seconds that a cell may take, more than 0")
    if ranks_per_node is not None and (ranks_per_node < 1 or size % ranks_per_node):
        raise UsageError(f"ranks_per_node={ranks_per_node!r} does not divide {size} ranks: give a divisor")


_current = None


def current():
    """The ranks of this kernel, or None."""
    return _current if _current and _current.running else None


def stop_current():
    if ranks := current():
        ranks.stop()


atexit.register(stop_current)


def choose_backend(size, hosts, gpus, backend=None, share_gpus=False):
    """Choose backend and devices from where the ranks are and how many GPUs each host has.

    hosts: the host of each rank, by rank. gpus: a dict from host to its number of GPUs.
    Returns (backend, devices by rank, remark): the remark is a sentence, or None.
    Raises UsageError where NCCL was asked for and cannot be.
    """
    local_ranks = _local_ranks(hosts)
    crowded = {host: hosts.count(host) for host in gpus if hosts.count(host) > gpus[host]}
    on_cpu = "gloo", ["cpu"] * size, None
    on_gpus = [f"cuda:{local % max(1, gpus[host])}" for host, local in zip(hosts, local_ranks)]
    any_gpu = any(gpus.values())
    lacking = any(gpus[host] == 0 for host in gpus)
    if backend == "gloo":
        return on_cpu
    if backend == "nccl" and lacking:
        raise UsageError(
            "backend='nccl' needs an NVIDIA GPU for the ranks, and PyTorch sees none here: "
            "use backend='gloo', or leave backend out"
        )
    if not crowded:
        return "nccl", on_gpus, None
    here, there = next(iter(crowded.items()))[::-1], next(iter(crowded))
    few = f"{here[0]} ranks and {gpus[there]} GPU{'' if gpus[there] == 1 else 's'} on one host"
    if share_gpus and not lacking:
        return "nccl", on_gpus, f"{few}: the ranks share GPUs, so times say nothing of a network."
    if backend == "nccl":
        raise UsageError(
            f"{few}: NCCL wants one GPU a rank; start fewer ranks, or add share_gpus=True "
            "to let ranks share a GPU (right results, meaningless times)"
        )
    if any_gpu:
        return *on_cpu[:2], f"{few}: Gloo on the CPU is used. share_gpus=True runs NCCL with ranks sharing a GPU."
    return on_cpu


def _local_ranks(hosts):
    return [hosts[:rank].count(host) for rank, host in enumerate(hosts)]


class Ranks:
    """Live ranks: one ipyparallel engine each, rank = engine id.

    size, backend, timeout, places (a `Place` a rank); `client` and `view` are ipyparallel's.
    """

    def __init__(self, size, backend, share_gpus, timeout, engines, ranks_per_node, options):
        self.size = size
        self.timeout = timeout
        self._wanted = backend, share_gpus, engines, ranks_per_node, options
        self.running = False
        self._start()

    # ------------------------------------------------------------ life

    def _start(self):
        backend, share_gpus, engines, ranks_per_node, options = self._wanted
        arguments, needed, self._folder, self.local = launchers.choose(engines, self.size, ranks_per_node)
        self._owner = os.getpid()
        self.running = True
        try:
            self._start_engines(arguments, [needed, options])
            self._join(backend, share_gpus)
        except BaseException:
            self.stop()
            raise

    def _start_engines(self, arguments, options):
        import ipyparallel

        self._cluster = ipyparallel.Cluster(
            n=self.size,
            profile_dir=self._folder,
            delay=0,
            log_level=100,
            load_profile=False,
            shutdown_atexit=False,
            controller_args=[
                # Registration waits for one or two heartbeats: beat often (ms), forgive much.
                f"--HeartMonitor.period={30 if self.local else 300}",
                "--HeartMonitor.max_heartmonitor_misses=300",
                "--IPController.use_threads=True",
                "--log-level=40",
            ],
            **arguments,
        )
        for name in ("ForkedEngineSet", "NursedEngineSet"):
            self._cluster.config[name].delay = 0.0
        for layer in options:
            for name, traits in layer.items():
                self._cluster.config[name].update(traits)
        try:
            self._cluster.start_cluster_sync()
        except subprocess.CalledProcessError as error:
            raise UsageError(
                f"{error.cmd[0]} could not start the ranks: it exited with code {error.returncode}, "
                "having said why in the kernel's log; mend that, or leave engines= out"
            ) from error
        self._wait_for_engines(ENGINES_READY_SECONDS if self.local else REMOTE_READY_SECONDS)
        self.view = self.client[list(range(self.size))]
        self.view.block = True

    def _wait_for_engines(self, seconds):
        until = time.monotonic() + seconds
        while True:
            self.client = self._cluster.connect_client_sync()
            try:
                self.client.wait_for_engines(self.size, interactive=False, timeout=1)
                return
            except TimeoutError:
                missing = [i for i in range(self.size) if i not in self.client.ids]
                # On a busy machine a client may miss the announcement of an engine that registers
                # while it connects; a client that connects afresh sees all engines.
                self.client.close()
                if time.monotonic() > until or (self.local and len(_engines(self._cluster)) < self.size):
                    words = self.last_words(missing[0]) if missing else None
                    raise RuntimeError(
                        f"{name_ranks(missing)} did not start: "
                        + (f"the last words were {words!r}" if words else f"not within {seconds} s, and without a word")
                    ) from None

    def _join(self, backend, share_gpus):
        found = self._each(onrank.place)
        hosts = [place["host"] for place in found]
        gpus = {place["host"]: place["gpus"] for place in found}
        self.backend, devices, self.remark = choose_backend(self.size, hosts, gpus, backend, share_gpus)
        nodes = list(dict.fromkeys(hosts))
        self.places = [
            Place(place["pid"], place["host"], nodes.index(place["host"]), local_rank, device)
            for place, local_rank, device in zip(found, _local_ranks(hosts), devices)
        ]
        shared = len(set(zip(hosts, devices))) < self.size and self.backend == "nccl"
        address = "127.0.0.1" if len(nodes) == 1 else found[0]["address"]
        port = self.client[0].apply_async(onrank.open_store, address, 0, self.size, True).get(30)
        self._each(
            onrank.open_store,
            [(address, port, self.size, False) for _ in range(1, self.size)],
            range(1, self.size),
        )
        self._each(
            onrank.join,
            [
                (
                    rank,
                    self.size,
                    place.local_rank,
                    hosts.count(place.host),
                    place.node,
                    address,
                    port,
                    self.backend,
                    place.device,
                    {"NCCL_HOSTID": f"rank{rank}", **SHARED_GPU} if shared else {},
                    2 * self.timeout,
                    self._stack_file(rank),
                )
                for rank, place in enumerate(self.places)
            ],
        )

    def _each(self, function, arguments=None, ids=None):
        """Run a set-up function on every rank at once; a rank that dies meanwhile is an error."""
        ids = list(range(self.size)) if ids is None else list(ids)
        arguments = arguments or [()] * len(ids)
        waiting = [self.client[i].apply_async(function, *a) for i, a in zip(ids, arguments)]
        return [result.get(ENGINES_READY_SECONDS) for result in waiting]

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
        if cluster := getattr(self, "_cluster", None):
            self._end_processes(cluster)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end_processes(self, cluster):
        """Kill what was forked at once; let ipyparallel end what it started elsewhere."""
        forked = [
            process.pid
            for process in [cluster.controller, *_engines(cluster)]
            if isinstance(process, launchers.Forked)
        ]
        if forked:
            with contextlib.suppress(RuntimeError, OSError):
                launchers.fork_server().ask("kill", pids=forked)
        elif self.local:
            for process in [cluster.controller, *_engines(cluster)]:
                with contextlib.suppress(OSError, psutil.Error):
                    os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(Exception):
            cluster.stop_cluster_sync()

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
        result = self.view.apply_async(onrank.returned, function, *args, **kwargs)
        packed = deadline.finish(self, result, list(range(self.size)), timeout or self.timeout)
        return [_unpacked(each, f"rank {i} returned") for i, each in enumerate(packed)]

    def pull(self, name):
        """The variable `name` of every rank, as a list by rank. UsageError where a rank has none, or none that can be sent."""
        self._check_running()
        waiting = [self.client[i].apply_async(onrank.variable, name) for i in range(self.size)]
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

    def where(self, ids):
        """Where each of these ranks is now (see `ringtree.live.onrank.where`); None for no answer.

        A rank answers in a tenth of a second, on busy cores in a second or two. `PATIENCE` is what it
        gets, `MORE_PATIENCE` while its main thread computes, and a stopped process gets none.
        """
        client = self.client
        waiting = {
            i: client._send(
                client._control_stream, "where_request", content={}, ident=client._engines[i].encode()
            )
            for i in ids
            if i in client._engines
        }
        asked = time.monotonic()
        for i, reply in waiting.items():
            while not reply.wait(deadline.LOOK) and time.monotonic() < asked + self._patience(i):
                pass
        replies = [waiting.get(i) for i in ids]
        return {i: reply.result()["content"] if reply and reply.done() else None for i, reply in zip(ids, replies)}

    def _patience(self, i):
        return {"stopped": 0, "running": MORE_PATIENCE}.get(self.process_state(i), PATIENCE)

    def ask_for_stack(self, i):
        """Have a signal handler in C write down where a rank is that cannot answer; see `stack_lines`."""
        if self._is_here(i) and hasattr(signal, "SIGUSR1"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.places[i].pid, signal.SIGUSR1)
            time.sleep(0.1)

    def stack_lines(self, i):
        """The reader's lines in the last stack that rank i wrote, outermost first: [(function, number)].

        A rank writes its stack when asked (`ask_for_stack`) and when a fatal signal such as SIGABRT
        or SIGSEGV ends it. Empty where there is none, as after SIGKILL, or on another host.
        """
        if not self._is_here(i):
            return []
        with open(self._stack_file(i)) as stacks:
            threads = stacks.read().split("most recent call first):")
        lines = [re.findall(r'File "[^"]*ipykernel_[^"]*", line (\d+) in (\S+)', thread) for thread in threads]
        last = next((found for found in reversed(lines) if found), [])
        return [(function, int(number)) for number, function in reversed(last)]

    def process_state(self, i):
        """psutil's word for the state of a rank's process ("stopped", "running", …), or None."""
        if self._is_here(i):
            with contextlib.suppress(psutil.Error):
                return psutil.Process(self.places[i].pid).status()
        return None

    def _is_here(self, i):
        return self.places[i].host == socket.gethostname()

    def dead(self):
        """The ranks whose process is gone."""
        return [i for i in range(self.size) if self._is_gone(i)]

    def _is_gone(self, i):
        if not self._is_here(i):
            return i not in self.client.ids
        try:
            return psutil.Process(self.places[i].pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def exit_code(self, i):
        """How a dead rank ended: its exit code, or minus the number of the signal; None where unknown."""
        pid = self.places[i].pid
        if isinstance(self._cluster.controller, launchers.Forked):
            return launchers.fork_server().ask("exit_codes", pids=[pid])["codes"][str(pid)]
        until = time.monotonic() + 1
        while self.local and time.monotonic() < until:
            for engine_set in self._cluster.engines.values():
                if ended := engine_set.stop_data.get("engines", {}).get(str(i)):
                    return ended["exit_code"]
            time.sleep(0.05)  # its nanny looks five times a second
        return None

    def _stack_file(self, i):
        return os.path.join(self._folder, f"stack-{i}.txt")

    def last_words(self, i):
        """What ended a rank's process, in its own words: a C++ exception's, or the last line of its log; or None."""
        with contextlib.suppress(OSError):
            with open(f"{self._stack_file(i)}.words", errors="replace") as words:
                return words.read().partition("what():")[2].strip() or None
        path = os.path.join(self._folder, "log")
        with contextlib.suppress(OSError):
            for name in os.listdir(path):
                if name.endswith(f"-{i}.log"):
                    with open(os.path.join(path, name), errors="replace") as log:
                        lines = [line.strip() for line in log if line.strip()]
                    return lines[-1] if lines else None
        return None

    # ------------------------------------------------------------ looks

    def _rows(self):
        here = socket.gethostname()
        return [
            (str(i), place.device, self.backend, "this machine" if place.host == here else place.host)
            for i, place in enumerate(self.places)
        ]

    def __repr__(self):
        if not self.running:
            return f"{self.size} ranks, stopped"
        rows = [("rank", "device", "backend", "host"), *self._rows()]
        text = "\n".join("  ".join(cell.ljust(7) for cell in row).rstrip() for row in rows)
        return text + (f"\n{self.remark}" if self.remark else "")

    def _repr_html_(self):
        if not self.running:
            return None
        body = "".join(
            f'<tr><td><span class="rank rank-{row[0]}">{row[0]}</span></td>'
            + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
            + "</tr>"
            for row in self._rows()
        )
        remark = f"<p>{escape(self.remark)}</p>" if self.remark else ""
        return (
            '<table class="ranks"><thead><tr><th>rank</th><th>device</th><th>backend</th>'
            f"<th>host</th></tr></thead><tbody>{body}</tbody></table>{remark}"
        )


def _unpacked(packed, whose):
    """What `onrank` packed; `whose` begins the sentence where this process cannot read it."""
    pickled, value = packed
    try:
        return value if pickled is None else pickle.loads(pickled)
    except (AttributeError, ImportError) as error:
        raise UsageError(
            f"{whose} what this notebook's kernel does not know ({error}): give numbers, strings, tensors, or lists "
            "and dicts of them"
        ) from None


def _engines(cluster):
    sets = cluster.engines.values()
    return [engine for engine_set in sets for engine in getattr(engine_set, "launchers", {}).values()]


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
