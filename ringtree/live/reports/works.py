"""What a rank waits in: the call, and the ranks that it waits for.

A function of ours that waits says so: `with wait_open(waiting(…)):`. Torch's functions tell by their arguments, all but
`work.wait()`: a Work does not tell what it is the work of. So each Work is noted as it is made.
"""

import functools
import inspect
import sys
import weakref

from ringtree.collectives import call_names
from ringtree.speaks import no_other_rank

# What waits for ranks of a group: the collectives, and what torch makes of them for objects and for debugging.
COLLECTIVES = (
    *call_names(),
    *("monitored_barrier", "broadcast_object_list", "gather_object", "all_gather_object", "scatter_object_list"),
)
_notes = False  # whether works are noted
_noted = weakref.WeakKeyDictionary()
_open = {}  # the waits that are open now, in all threads, by the frame that waits


def waiting(call, direction=None, peers=None, group=None, elements=None):
    """Return what a rank waits in: name of the call; "send", "recv", "collective" or "exchange"; the ranks
    it waits for; for a collective also the group's name and the number of elements, where known."""
    return {"call": call, "direction": direction, "peers": peers, "group": group, "elements": elements}


class wait_open:
    """While this is open, a report says that the function in whose `with` it stands waits in `what`, made by `waiting`."""

    def __init__(self, what):
        self._what = what

    def __enter__(self):
        self._frame = sys._getframe(1)
        _open[self._frame] = self._what

    def __exit__(self, *_):
        del _open[self._frame]


def waiting_of(frame):
    """Return what the function in this frame waits in by its own word, or None."""
    return _open.get(frame)


def waiting_in(name, values):
    """Return what a torch.distributed call waits in, from its frame's local variables or its arguments."""
    import torch.distributed as dist

    group = values.get("group") or dist.group.WORLD
    if name in ("send", "isend", "recv", "irecv"):
        key = "dst" if "send" in name else "src"
        peer = values.get(key)
        if peer is None and values.get(f"group_{key}") is not None:
            peer = dist.get_global_rank(group, values[f"group_{key}"])
        return waiting(name, "send" if key == "dst" else "recv", None if peer is None else [peer])
    if name in COLLECTIVES:
        tensor = values.get("tensor")
        elements = tensor.numel() if hasattr(tensor, "numel") else None
        return waiting(name, "collective", dist.get_process_group_ranks(group), group.group_name, elements)
    return waiting(name)


def note_works():
    """From now on note what each Work is the work of, and refuse a peer that is not another rank."""
    import torch.distributed as dist

    global _notes
    if _notes:
        return
    _notes = True
    c10d = dist.distributed_c10d
    for name in ("isend", "irecv", *call_names()):
        noting = _noting(getattr(c10d, name))
        for module in (c10d, dist):
            setattr(module, name, noting)
    batch = _noting_batch(c10d.batch_isend_irecv)
    c10d.batch_isend_irecv = dist.batch_isend_irecv = batch

    wait = dist.Work.wait

    @functools.wraps(wait)
    def noted_wait(self, *args, **kwargs):
        with wait_open(_noted.get(self) or waiting("wait")):
            return wait(self, *args, **kwargs)

    dist.Work.wait = noted_wait


def _noting(function):
    signature = inspect.signature(function)
    message = function.__name__ in ("isend", "irecv")

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        values = None  # bound only where they are needed: it takes some microseconds
        if message:
            values = signature.bind(*args, **kwargs).arguments
            _check_peer(function.__name__, values)
        work = function(*args, **kwargs)
        if work is not None:
            _noted[work] = waiting_in(function.__name__, values or signature.bind(*args, **kwargs).arguments)
        return work

    return wrapper


def _check_peer(name, values):
    """Raise ValueError for a peer that is not another rank. On Gloo, torch 2.13 ends the process for some, without a word."""
    import torch.distributed as dist

    way = "dst" if name == "isend" else "src"
    for key, group in ((way, None), (f"group_{way}", values.get("group"))):
        peer, rank, size = values.get(key), dist.get_rank(group), dist.get_world_size(group)
        if isinstance(peer, int) and rank >= 0 and (peer == rank or not 0 <= peer < size):
            raise ValueError(f"rank {rank} {no_other_rank(peer, rank, size, sends=name == 'isend')}")


def _noting_batch(function):
    @functools.wraps(function)
    def wrapper(p2p_op_list):
        works = function(p2p_op_list)
        if len(works) < len(p2p_op_list):  # NCCL: one Work for the whole batch
            peers = sorted({op.peer for op in p2p_op_list})
            for work in works:
                _noted[work] = waiting("batch_isend_irecv", "exchange", peers)
        return works

    return wrapper
