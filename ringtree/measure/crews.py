"""The ranks that a sweep times: those that this kernel started, or this rank and the others of its group."""

from __future__ import annotations

import datetime
import os
import sys

from ringtree.errors import UsageError


def ranks_to_time(ranks, timeout):
    """The ranks to ask, and whether this process is the one that prints."""
    cluster = sys.modules.get("ringtree.live.cluster")  # no ranks were started before it was imported
    ranks = ranks or (cluster and cluster.current())
    if ranks is not None:
        if not ranks.running:
            raise UsageError("these ranks were stopped: call ringtree.start again")
        return LiveRanks(ranks, timeout), True
    import torch.distributed as dist

    if not dist.is_initialized():
        raise UsageError(
            "there are no ranks to measure on: run `ringtree.start(4)` first, or call measure on ranks that have a process group"
        )
    return AmongRanks(), dist.get_rank() == 0


class LiveRanks:
    """The ranks that `ringtree.start` started, asked from outside."""

    interruptible = True

    def __init__(self, ranks, timeout=None):
        from ringtree.live.reports.deadline import RankError

        self.failures = (RankError,)
        self.ranks, self.timeout = ranks, timeout
        self.size, self.backend = ranks.size, ranks.backend

    def call(self, function, *arguments, budget, **settings):
        # The budget is for the batches; the first calls, and as many seconds as a cell may take, come on top.
        seconds = self.timeout or self.ranks.timeout + budget
        return self.ranks.call(function, *arguments, budget=budget, timeout=seconds, **settings)[0]

    def provenance(self, link=None):
        hosts = len({place.host for place in self.ranks.places})
        return _provenance(self.ranks.call(where_it_runs), hosts, link) | (
            {"remark": self.ranks.remark} if self.ranks.remark else {}
        )


class AmongRanks:
    """This rank and the others, which run the same lines: every rank calls the same at the same time."""

    interruptible = False  # one rank must not stop alone
    failures = ()

    def __init__(self):
        import torch.distributed as dist

        self.size, self.backend = dist.get_world_size(), dist.get_backend()

    def call(self, function, *arguments, **settings):
        return function(*arguments, **settings)

    def provenance(self, link=None):
        import torch.distributed as dist

        found = [None] * self.size
        dist.all_gather_object(found, where_it_runs() | {"host": _host()})
        return _provenance(found, len({each["host"] for each in found}), link)


def where_it_runs():
    """Return what a rank knows of itself that a reader of its times must know; nothing that names the host."""
    import torch

    backend = torch.distributed.get_backend()
    facts = {"backend": backend, "device": "CPU", "torch": torch.__version__, "nccl": None}
    if backend == "nccl":
        facts["device"] = torch.cuda.get_device_name()
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    facts["cores"] = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return facts


def _host():
    import socket

    return socket.gethostname()


def _provenance(found, hosts, link):
    gpus = found[0]["backend"] == "nccl" and link is None
    return {
        "tool": "ringtree.measure",
        "backend": found[0]["backend"],
        "link": None if link is None else f"emulated link: {link}",
        "ranks": len(found),
        "hosts": hosts,
        "devices": [each["device"] if gpus else "CPU" for each in found],
        "cores": found[0]["cores"],
        "clock": "CUDA events" if gpus else "monotonic clock",
        "torch": found[0]["torch"],
        "nccl": found[0]["nccl"],
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
