"""`dist` in the learner's process: it looks like torch.distributed, and hands every call over to the judge."""

import torch

from ringtree.collectives import call_names
from ringtree.simulated import faults

GROUPS = "get_rank", "get_world_size", "get_global_rank", "get_process_group_ranks", "new_group"
MESSAGES = "send", "recv", "isend", "irecv", "batch_isend_irecv"
FORWARDED = (*GROUPS, *MESSAGES, *call_names())


class RankDist:
    """`dist` as a learner's function sees it here; the judge has the one that does the work."""

    ReduceOp = torch.distributed.ReduceOp

    def __init__(self, talk, rank, size):
        self._talk, self._rank, self._size = talk, rank, size

    def get_rank(self, group=None):
        return self._rank if group is None else self._talk.call("get_rank", (group,), {})

    def get_world_size(self, group=None):
        return self._size if group is None else self._talk.call("get_world_size", (group,), {})

    def P2POp(self, op, tensor, peer=None, group=None, tag=0, group_peer=None):
        name = {RankDist.isend: "isend", RankDist.irecv: "irecv"}.get(getattr(op, "__func__", None), op)
        return P2POp(name, tensor, {"peer": peer, "group": group, "tag": tag, "group_peer": group_peer})

    def __getattr__(self, name):
        raise AttributeError(faults.lacks(name))


class P2POp:
    """An entry of a batch. op: "isend", "irecv", or what was given instead."""

    def __init__(self, op, tensor, to):
        self.op, self.tensor, self.to = op, tensor, to


def _forward(name):
    def method(self, *args, **kwargs):
        return self._talk.call(name, args, kwargs)

    method.__name__ = name
    return method


for _name in FORWARDED:
    if _name not in vars(RankDist):
        setattr(RankDist, _name, _forward(_name))


class Group:
    """A group that the judge knows by its number."""

    def __init__(self, number, ranks):
        self.number, self.ranks = number, tuple(ranks)


class Work:
    """A work that the judge knows by its number. touches: (tensor, whether it is written) of what is in flight."""

    def __init__(self, talk, number, touches):
        self._talk, self._number = talk, number
        talk.in_flight[number] = touches

    def wait(self, timeout=None):
        self._talk.ask({"kind": "wait", "work": self._number})
        self._talk.landed(self._number)
        return True

    def is_completed(self):
        done = self._talk.ask({"kind": "done", "work": self._number})
        if done:
            self._talk.landed(self._number)
        return done


class Reference:
    """An object of the judge's: its methods are called there."""

    def __init__(self, talk, number):
        self._talk, self._number = talk, number


def reference(talk, number, kind, methods):
    def method(name):
        return lambda self, *args: self._talk.method(self._number, name, args)

    return type(kind, (Reference,), {name: method(name) for name in methods})(talk, number)
