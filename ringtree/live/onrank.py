"""What runs inside a rank's process: joining the group, and saying where the rank is.

Nothing here is imported by the kernel for its effect; `ringtree.live.cluster` sends
these functions to the engines.
"""

import ctypes
import datetime
import faulthandler
import functools
import inspect
import linecache
import os
import pickle
import signal
import socket
import sys
import threading
import weakref

from ipykernel.compiler import get_tmp_directory
from IPython import get_ipython

_kept = {}  # what must live as long as the rank: its store, its stack file


def place():
    """What the kernel needs to know to choose a backend: pid, host, address, GPUs here."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {"pid": os.getpid(), "host": socket.gethostname(), "address": _address(), "gpus": gpus}


def _address():
    """This host's address as other hosts see it: a host's own name often means 127.0.1.1."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it asks the routing table
            return probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"


def open_store(address, port, world_size, first):
    """The store that ranks meet at: the first rank makes it and returns the port that it got."""
    import torch.distributed as dist

    _kept["store"] = dist.TCPStore(address, port, world_size, first, wait_for_workers=False)
    return _kept["store"].port


def join(rank, world_size, local_rank, local_world_size, node, address, port, backend, device, environment, timeout, stack_file):
    """Become rank `rank`: environment, process group, names for the reader, reports."""
    import torch
    import torch.distributed as dist

    os.environ.update(
        MASTER_ADDR=address,
        MASTER_PORT=str(port),
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK=str(local_rank),
        LOCAL_WORLD_SIZE=str(local_world_size),
        GROUP_RANK=str(node),
        **environment,
    )
    _report_where(stack_file)
    _note_works(dist)
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        store=_kept["store"],
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=timeout),
        device_id=device if device.type == "cuda" else None,
    )
    shell = get_ipython()
    shell.InteractiveTB.structured_traceback = _short_traceback
    names = dict(torch=torch, dist=dist, rank=rank, world_size=world_size, device=device)
    shell.user_ns.update(names)
    shell.user_ns_hidden.update(names)


def variable(name):
    """The reader's variable `name`, packed for `ringtree.live.cluster`."""
    variables = get_ipython().user_ns
    if name not in variables:
        raise NameError(f"name {name!r} is not defined")
    return _packed(variables[name])


def returned(function, *args, **kwargs):
    """What the reader's function returns, packed for `ringtree.live.cluster`."""
    return _packed(function(*args, **kwargs))


def _packed(value):
    """(pickled, None), or (None, value) for a function of a cell, which ipyparallel can send and pickle cannot.

    Left to ipyparallel, dicts would be sorted, and what the notebook's kernel cannot read would never come.
    """
    return (None, value) if inspect.isfunction(value) else (pickle.dumps(value), None)


def leave():
    """End the process group cleanly, where the rank still can."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


# ---------------------------------------------------------------- where is this rank?


def _report_where(stack_file):
    """Answer `where_request` on the control thread, which lives while the main thread hangs."""
    _kept["stacks"] = open(stack_file, "w")
    _keep_last_words(f"{stack_file}.words")
    faulthandler.enable(file=_kept["stacks"], all_threads=True)  # an abort may come from a library's thread
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, file=_kept["stacks"], all_threads=False)
    kernel = get_ipython().kernel

    def where_request(stream, ident, parent):
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            content = {"status": "ok", **where()}
        except Exception as error:  # the report must come, whatever the frames hold
            content = {"status": "ok", "unknown": repr(error)}
        kernel.session.send(stream, "where_reply", content, parent=parent, ident=ident)

    kernel.control_handlers["where_request"] = where_request


def _keep_last_words(path):
    """Let what a C++ library says as it ends the process go to a file.

    Otherwise it goes into the pipe from which the kernel of this same process would have shown it.
    """
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        library._ZSt13get_terminatev.restype = ctypes.c_void_p
        before = ctypes.CFUNCTYPE(None)(library._ZSt13get_terminatev())
    except (OSError, AttributeError, ValueError):  # another C++ library than GNU's
        return

    def last():
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), 2)
        before()

    _kept["last"] = ctypes.CFUNCTYPE(None)(last)
    library._ZSt13set_terminatePFvvE(_kept["last"])


def where():
    """Where the main thread is: line of the cell, function and line inside, and whom it waits for.

    Returns a dict: `idle` (between cells), `steps` (function, line number, source; outermost
    first, the reader's own frames only), and what `_waiting` says of the torch.distributed call
    that it is in, with `call` None where it is in none.
    """
    frames = []
    frame = sys._current_frames()[threading.main_thread().ident]
    while frame:
        frames.append(frame)
        frame = frame.f_back
    steps = [
        (frame.f_code.co_name, *_line(frame.f_code.co_filename, frame.f_lineno))
        for frame in reversed(frames)
        if _is_readers(frame.f_code.co_filename)
    ]
    waiting = _waiting(None)
    for frame in frames:  # innermost first; the outermost call in torch.distributed is what the reader wrote
        name, values = frame.f_code.co_name, frame.f_locals
        if "waits_for" in values and frame.f_code.co_filename.startswith(_PACKAGE):
            direction, peers = values["waits_for"]
            waiting = _waiting("wait", direction, peers)
        elif frame.f_code is _wait_code:
            waiting = _works.get(values["self"], _waiting("wait"))
        elif "torch/distributed" in frame.f_code.co_filename.replace(os.sep, "/") and name != "wrapper":
            waiting = _call(name, values)
        elif _is_readers(frame.f_code.co_filename):
            break
    return {"idle": not steps, "steps": steps, **waiting}


def _waiting(call, direction=None, peers=None, group=None, elements=None):
    """What a rank waits in: name of the call; "send", "recv", "collective" or "exchange"; the ranks
    it waits for; for a collective also the group's name and the number of elements, where known."""
    return {"call": call, "direction": direction, "peers": peers, "group": group, "elements": elements}


def _is_readers(filename):
    """Cells, scripts, and this package's algorithms and measuring: not Python's, a library's or our own insides."""
    if filename.startswith((get_tmp_directory(), *(os.path.join(_PACKAGE, room) for room in ("algorithms", "measure")))):
        return True
    return filename.endswith(".py") and not filename.startswith((_PACKAGE, _STANDARD)) and "site-packages" not in filename


_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_STANDARD = os.path.dirname(os.__file__) + os.sep


def _line(filename, number):
    return number, linecache.getline(filename, number).strip()


def _call(name, values):
    """A torch.distributed call, from its frame's local variables or its arguments."""
    import torch.distributed as dist

    group = values.get("group") or dist.group.WORLD
    if name in ("send", "isend", "recv", "irecv"):
        key = "dst" if "send" in name else "src"
        peer = values.get(key)
        if peer is None and values.get(f"group_{key}") is not None:
            peer = dist.get_global_rank(group, values[f"group_{key}"])
        return _waiting(name, "send" if key == "dst" else "recv", None if peer is None else [peer])
    if name in COLLECTIVES:
        tensor = values.get("tensor")
        elements = tensor.numel() if hasattr(tensor, "numel") else None
        return _waiting(name, "collective", dist.get_process_group_ranks(group), group.group_name, elements)
    return _waiting(name)


# A Work does not tell what it is the work of. So that a hang in `work.wait()` can be
# named, each Work is noted as it is made: what `_call` says.

_works = weakref.WeakKeyDictionary()
COLLECTIVES = (
    "broadcast reduce all_reduce gather all_gather all_gather_single all_gather_into_tensor scatter "
    "reduce_scatter reduce_scatter_single reduce_scatter_tensor all_to_all all_to_all_single barrier monitored_barrier "
    "broadcast_object_list gather_object all_gather_object scatter_object_list"
).split()
MAKES_WORK = ["isend", "irecv", *(name for name in COLLECTIVES if "object" not in name and "monitored" not in name)]


def _note_works(dist):
    if getattr(dist.isend, "_notes", False):
        return
    c10d = dist.distributed_c10d
    for name in MAKES_WORK:
        noting = _noting(getattr(c10d, name))
        for module in (c10d, dist):
            setattr(module, name, noting)
    batch = _noting_batch(c10d.batch_isend_irecv)
    c10d.batch_isend_irecv = dist.batch_isend_irecv = batch

    wait = dist.Work.wait

    @functools.wraps(wait)
    def noted_wait(self, *args, **kwargs):
        return wait(self, *args, **kwargs)

    global _wait_code
    _wait_code = noted_wait.__code__
    dist.Work.wait = noted_wait


_wait_code = None


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
            _works[work] = _call(function.__name__, values or signature.bind(*args, **kwargs).arguments)
        return work

    wrapper._notes = True
    return wrapper


def _check_peer(name, values):
    """A peer that is no other rank is an error; on Gloo torch 2.13 ends the process for some, without a word."""
    import torch.distributed as dist

    way, verb = ("dst", "send to") if name == "isend" else ("src", "receive from")
    for key, group in ((way, None), (f"group_{way}", values.get("group"))):
        peer, rank, size = values.get(key), dist.get_rank(group), dist.get_world_size(group)
        if isinstance(peer, int) and rank >= 0 and (peer == rank or not 0 <= peer < size):
            what = "itself" if peer == rank else f"rank {peer}"
            raise ValueError(f"rank {rank} wants to {verb} {what}: give another rank, from 0 to {size - 1}")


def _noting_batch(function):
    @functools.wraps(function)
    def wrapper(p2p_op_list):
        works = function(p2p_op_list)
        if len(works) < len(p2p_op_list):  # NCCL: one Work for the whole batch
            peers = sorted({op.peer for op in p2p_op_list})
            for work in works:
                _works[work] = _waiting("batch_isend_irecv", "exchange", peers)
        return works

    return wrapper


# ---------------------------------------------------------------- short tracebacks


def _short_traceback(etype, value, traceback, tb_offset=None, context=5):
    """The reader's own lines, then the error: no page of library frames."""
    import traceback as tb

    lines, inside = [], None
    for frame, number in tb.walk_tb(traceback):
        filename, name = frame.f_code.co_filename, frame.f_code.co_name
        if _is_readers(filename):
            number, source = _line(filename, number)
            where = f"line {number}" if name == "<module>" else f"{name}, line {number}"
            lines.append(f"{'  ' * len(lines)}{where}: {source}")
            inside = None
        elif lines and name != "wrapper" and filename != __file__:
            inside = inside or name
    if inside:
        lines.append(f"{'  ' * len(lines)}inside {inside}")
    return [*lines, *(line.rstrip("\n") for line in tb.format_exception_only(etype, value))]
