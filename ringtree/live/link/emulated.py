"""A slow link, emulated live between the ranks of one host.

The ranks of a laptop share its cores and its memory, so what one times there is
the cores, not a link. `emulate(dist, link)` puts a link of your choice between
them: every message takes at least the α + nβ of that link, and the ranks are
free to compute meanwhile. What you see is an *emulated link*, and every picture
and line that comes from it says so.

How it works. Each rank tells a referee (a thread of rank 0) what it wants to
send and receive, and when. The referee pairs sends with receives and books the
sender's port out and the receiver's port in for g + nβ. Both ranks learn when the
message starts and when it arrives, α + nβ later. They move the bytes over Gloo, and
report it as complete when that moment has come. All of this happens in threads of
their own, so that messages make progress while the program computes.
"""

from __future__ import annotations

import heapq
import itertools
import json
import select
import socket
import threading
import time
import weakref
from multiprocessing import connection
from pathlib import Path

import torch

from ringtree import algorithms, calls, computing
from ringtree.collectives import call_names
from ringtree.cost import Link
from ringtree.errors import UsageError
from ringtree.given import a, takes
from ringtree.live.link.referee import Referee, send_at_once
from ringtree.live.link.streams import Stream, StreamWork
from ringtree.live.reports.works import wait_open, waiting
from ringtree.speaks import Among, Speaks

__all__ = ["emulate", "EmulatedLink", "EmulatedWork"]


@takes(link=a(Link, words="a Link"))
def emulate(dist, link):
    """Put `link` between the live ranks; every rank calls this. From then on `ringtree.compute` on this rank lasts as
    long as it says, on whatever link it stands, until every emulated link of this rank is gone.

    dist: `torch.distributed`, initialised. link: a `ringtree.Link`; a message takes the time of its *sender's* link.

    Returns an object to use in place of `torch.distributed` in a rank program:
    `get_rank`, `get_world_size`, `send`, `recv`, `isend`, `irecv`, `P2POp`,
    `batch_isend_irecv`, `new_group` and the collectives, with `tag=` and `group=`.
    A collective runs as the algorithm of `ringtree.algorithms` that stands for it in the
    simulator too; with async_op=True it runs beside the rank, in order within its group.

    A message starts when its sender and its receiver are both there, the sender's
    port out is free and the receiver's port in is free, and it keeps both for g + nβ.
    It is complete α + nβ after its start (never sooner), and until then the receiver's
    buffer is untouched. Whoever is ready first takes the ports first; a message that
    fits between two that are booked takes that place. A blocking send is a rendezvous.
    `barrier` costs nothing on the link.

    Only sensible for links with an α of a millisecond or so: the bookkeeping takes
    a few tenths of a millisecond a message, which a longer α hides. A β below that
    of the host's own memory (about 1 ns a byte) cannot be kept either.

    Raises RuntimeError where the ranks are not all on one host.
    """
    made = EmulatedLink(_wire(dist), link)
    computing.lasting(made)
    return made


class EmulatedLink(Speaks):
    """Speaks like `torch.distributed`; made by `emulate`."""

    ReduceOp = torch.distributed.ReduceOp

    def __init__(self, wire: _Wire, link):
        self._wire = wire
        self.link = link

    @property
    def label(self) -> str:
        """Return what every picture and line that comes from this link must carry."""
        return f"emulated link: {self.link}"

    def __repr__(self) -> str:
        return f"<{self.label}, rank {self._wire.rank} of {self._wire.size}>"

    def get_rank(self, group=None) -> int:
        return self._wire.rank if group is None else self._wire.dist.get_rank(group)

    def get_world_size(self, group=None) -> int:
        return self._wire.size if group is None else self._wire.dist.get_world_size(group)

    def get_process_group_ranks(self, group=None) -> list[int]:
        return list(range(self._wire.size)) if group is None else self._wire.dist.get_process_group_ranks(group)

    def new_group(self, ranks=None, **options):
        """As torch's: every rank calls it, in the same order."""
        return self._wire.dist.new_group(ranks, **options)

    def _begin(self, name, entries) -> list[EmulatedWork]:
        """Start these messages together; one work for each."""
        works = []
        for sends, tensor, peer, lane in entries:
            src, dst = (self._wire.rank, peer) if sends else (peer, self._wire.rank)
            work = EmulatedWork(src, dst, lane if isinstance(lane, int) else "{}: {}".format(*lane), tensor, sends)
            self._wire.post(work, self.link if sends else None)
            works.append(work)
        return works

    def _key(self, group):
        return group.group_name

    def collective(self, function: str, args, kwargs, over=None):
        """Run a collective of torch.distributed as messages; returns its work where it was called with async_op=True.

        over: what its algorithm sends them through, if not this link itself (`ringtree.traced` notes them).
        Raises TypeError and ValueError for what torch refuses.
        """
        asked = calls.read(function, args, kwargs)
        group = asked.group
        if (mine := self.get_rank(group)) < 0:
            return None
        ranks = self.get_process_group_ranks(group)
        asked.refuse(mine, ranks)
        members = Among(ranks, mine, None if group is None else group.group_name, (over or self)._begin)

        def call():
            if asked.row.before == "nothing" and group is None:
                self._wire.barrier()  # takes no time on the link
            else:
                asked.run(getattr(algorithms, asked.row.algorithm), members)

        name = "world" if group is None else group.group_name
        work = StreamWork(call, asked, ranks, name)
        stream = self._wire.streams.get(name)
        if not asked.async_op and not (stream and stream.busy):
            with wait_open(work.waiting):
                call()
            return None
        if stream is None:
            stream = self._wire.streams[name] = Stream(f"emulated link, collectives of {name}")
        stream.add(work)
        if asked.async_op:
            return work
        work.wait()
        return None

    def all_gather_object(self, object_list, obj, group=None) -> None:
        """Every rank's `obj`, on every rank: for results and notes. Does not pass over the link."""
        if group is not None:
            raise ValueError("an emulated link sends objects to the whole world: leave group= out")
        self._wire.all_gather_object(object_list, obj)

    def __getattr__(self, name):
        raise AttributeError(
            f"an emulated link has no {name!r}: it carries send, recv, isend, irecv, batch_isend_irecv and the "
            f"collectives {', '.join(call_names())}"
        )


class EmulatedWork:
    """A message under way, as `isend` and `irecv` return it.

    src, dst, tag, nbytes: which message. posted: when this rank asked for it; start,
    end: when it has its ports, None until they are booked. Seconds on the host's
    monotonic clock.
    """

    def __init__(self, src: int, dst: int, tag: int | str, tensor: torch.Tensor, sends: bool):
        if not isinstance(tensor, torch.Tensor) or not tensor.is_contiguous():
            raise ValueError(f"a message from rank {src} to rank {dst} needs a contiguous tensor: call .contiguous() first")
        self.src, self.dst, self.tag, self.sends = src, dst, tag, sends
        self.nbytes = tensor.numel() * tensor.element_size()
        self.posted = self.start = self.end = None
        # A GPU's tensor is copied when it is posted, on the stream the program is on.
        self.tensor = tensor
        self.payload = tensor.detach().cpu() if tensor.is_cuda else tensor.detach()
        self._done = threading.Event()
        self._error = None

    def wait(self, timeout=None) -> bool:
        """Wait until the message has arrived. timeout: a timedelta, or None forever."""
        direction, peer = ("send", self.dst) if self.sends else ("recv", self.src)
        with wait_open(waiting("wait", direction, [peer])):
            done = self._done.wait(None if timeout is None else timeout.total_seconds())
        if not done:
            raise RuntimeError(f"{direction} with rank {peer} was not complete within {timeout}")
        if self._error:
            raise RuntimeError(self._error)
        return True

    def is_completed(self) -> bool:
        """Has the message arrived (or failed)?"""
        time.sleep(0)  # lets the progress thread run where a program asks in a busy loop
        return self._done.is_set()

    def _finish(self, error: str | None = None) -> None:
        self._error = error
        self._done.set()

    def __repr__(self) -> str:
        state = "complete" if self._done.is_set() else "under way"
        return f"<message from rank {self.src} to rank {self.dst}, {self.nbytes} bytes, {state}, emulated link>"


# -- one rank's end of the wire ------------------------------------------------

_wires: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def _wire(dist) -> _Wire:
    """The wire under the current process group, laid once: its ports are shared by all links."""
    if not dist.is_initialized():
        raise UsageError("emulate() runs on live ranks, and there is no process group here: call it in a %%px cell")
    world = dist.group.WORLD
    if world not in _wires:
        _wires[world] = _Wire(dist)
    return _wires[world]


class _Wire:
    """Posts this rank's messages with the referee and carries out what it books."""

    def __init__(self, dist):
        self.dist = dist
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.streams = {}  # by name of the group, what runs collectives beside the rank
        self._group = dist.new_group(backend="gloo")  # carries the bytes, on the CPU
        self._require_one_host()
        address = [None]
        if self.rank == 0:
            referee = Referee(self.size)
            address = [(referee.address, referee.key)]
        dist.broadcast_object_list(address, src=0, group=self._group, device=torch.device("cpu"))
        place, key = address[0]
        self._control = connection.Client(tuple(place), authkey=key)
        send_at_once(self._control)
        self._control.send_bytes(json.dumps(self.rank).encode())
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._works: dict[int, EmulatedWork] = {}
        self._lost: dict[int | None, str] = {}  # None: the referee
        threading.Thread(target=self._progress, name="emulated link", daemon=True).start()

    def _require_one_host(self) -> None:
        hosts = [None] * self.size
        self.dist.all_gather_object(hosts, _host(), group=self._group)
        strangers = [rank for rank, host in enumerate(hosts) if host != hosts[0]]
        if strangers:
            names = ", ".join(str(rank) for rank in strangers)
            raise UsageError(
                f"emulate() needs all ranks on one host, whose clock they share, and rank {names} is not on the host of rank 0: "
                "start the ranks on one machine"
            )

    def barrier(self) -> None:
        self.dist.barrier(group=self._group)

    def all_gather_object(self, object_list, obj) -> None:
        self.dist.all_gather_object(object_list, obj, group=self._group)

    def post(self, work: EmulatedWork, link: Link | None) -> None:
        with self._lock:
            for lost, reason in self._lost.items():
                if lost in (None, work.src, work.dst):
                    raise RuntimeError(reason)
            number = next(self._numbers)
            self._works[number] = work
            work.posted = time.monotonic()
            what = [number, work.sends, work.src, work.dst, work.tag]
            times = [link.busy(work.nbytes), link.time(work.nbytes)] if link else [0.0, 0.0]
            size = [work.nbytes, str(work.payload.dtype), *times]
            self._control.send_bytes(json.dumps([*what, *size, work.posted]).encode())

    def _progress(self) -> None:
        """The background thread: begin what the referee has booked, finish what is due."""
        due = []  # (end, number, work, transfer, buffer)
        while True:
            # select, since poll rounds to whole milliseconds
            patience = max(0.0, due[0][0] - time.monotonic()) if due else None
            if select.select([self._control], [], [], patience)[0]:
                try:
                    news = json.loads(self._control.recv_bytes())
                except (EOFError, OSError):
                    self._give_up("The referee of the emulated link (in rank 0) is gone.")
                    return
                self._hear(news, due)
            while due and due[0][0] <= time.monotonic():
                self._complete(*heapq.heappop(due)[1:])

    def _hear(self, news: dict, due: list) -> None:
        if "lost" in news:
            lost = news["lost"]
            self._give_up(f"Rank {lost} is gone: its end of the emulated link has closed.", lost)
            return
        number = news["number"]
        work = self._works.get(number)
        if work is None:
            return  # given up meanwhile, because its peer is gone
        if "error" in news:
            self._end(number, work, news["error"])
            return
        work.start, work.end = news["start"], news["end"]
        try:
            transfer, buffer = self._begin(work, news["key"])
        except RuntimeError as problem:
            self._end(number, work, _lost_message(work, problem))
            return
        heapq.heappush(due, (work.end, number, work, transfer, buffer))

    def _begin(self, work: EmulatedWork, key: int):
        """Start moving the bytes; returns what to wait for, and where a received message lies."""
        if not work.nbytes:
            return None, None
        if work.sends:
            return self.dist.isend(work.payload, work.dst, group=self._group, tag=key), None
        # received beside the reader's buffer, which must not change before the end
        buffer = torch.empty_like(work.payload)
        return self.dist.irecv(buffer, work.src, group=self._group, tag=key), buffer

    def _complete(self, number: int, work: EmulatedWork, transfer, buffer) -> None:
        error = None
        try:
            # Both ranks posted this transfer when they heard of it, in the one order in
            # which the referee speaks, so this wait cannot be part of a circle.
            if transfer is not None:
                transfer.wait()
            if buffer is not None:
                work.tensor.detach().copy_(buffer)
        except RuntimeError as problem:
            error = _lost_message(work, problem)
        self._end(number, work, error)

    def _end(self, number: int, work: EmulatedWork, error: str | None) -> None:
        self._works.pop(number, None)
        work._finish(error)

    def _give_up(self, reason: str, peer: int | None = None) -> None:
        with self._lock:
            self._lost[peer] = reason
            for number, work in list(self._works.items()):
                if (peer is None or peer in (work.src, work.dst)) and work.start is None:
                    self._end(number, work, reason)


def _lost_message(work: EmulatedWork, problem: Exception) -> str:
    return f"The message from rank {work.src} to rank {work.dst} was lost: {problem}"


def _host() -> str:
    """A name that two processes share when they share a kernel, and so its clock."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip() if boot.exists() else socket.gethostname()


calls.give_collectives(EmulatedLink, EmulatedLink.collective)
