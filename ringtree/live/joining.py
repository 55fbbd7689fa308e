"""What runs inside a rank's process to make it a rank, and to hand over its variables.

`ringtree.live.cluster` sends these functions to the engines, which import them by name.
"""

import contextlib
import datetime
import inspect
import os
import pickle
import socket

import psutil
from IPython import get_ipython

from ringtree.live.processes.slurm_words import gpus_allotted
from ringtree.live.reports import frames, speech, whereabouts, works

_store = None  # must live as long as the rank


def place(kernels_host):
    """Return what the kernel needs to know to choose a backend: pid, host, GPUs here and allotted, and how other hosts reach this one.

    kernels_host: the name of the notebook's host; None where that is this one. `address` and `interface` are then
    loopback's, as `alone` is always.
    """
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    alone = "127.0.0.1", _loopback()
    address, interface = _address(kernels_host) if kernels_host else alone
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "gpus": gpus,
        "allotted": gpus_allotted(),
        "address": address,
        "interface": interface,
        "alone": alone,
    }


def _address(kernels_host):
    """(address, interface) of this host as other hosts see it; its own name often means 127.0.1.1.

    It is where packets to the kernel's host leave, else those to the world, else the first card that has an address.
    """
    found = psutil.net_if_addrs().items()
    cards = {each.address: name for name, addresses in found for each in addresses if each.family == socket.AF_INET}
    for there in (kernels_host, "192.0.2.1"):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
            probe.connect((there, 9))  # sends nothing: it asks the routing table
            if not (address := probe.getsockname()[0]).startswith("127."):
                return address, cards.get(address)
    others = [(address, name) for address, name in cards.items() if not address.startswith("127.")]
    return others[0] if others else ("127.0.0.1", _loopback())


def can_lock(folder):
    """Return whether this host sees the cluster's folder, and can lock a file in it: then ranks can meet there."""
    import fcntl  # which Windows lacks

    try:
        with open(os.path.join(folder, "lock"), "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:
        return False
    return True


def open_store(address, world_size):
    """On the first of ranks on several hosts: make the store that they meet at; returns its port.

    Left to itself it would listen on every interface, and it knows no password: so it gets a socket that
    listens at this address alone.
    """
    with socket.socket() as listening:
        listening.bind((address, 0))
        listening.listen(socket.SOMAXCONN)
        port = listening.getsockname()[1]
        _keep_store(address, port, world_size, is_master=True, master_listen_fd=listening.detach())
    return port


def meet_at_store(address, port, world_size):
    """Connect to the store that the first rank made."""
    _keep_store(address, port, world_size, is_master=False)


def _keep_store(address, port, world_size, **options):
    import torch.distributed as dist

    global _store
    _store = dist.TCPStore(address, port, world_size, wait_for_workers=False, **options)


def free_port(address):
    """A port that nobody listens at, for programs that make a store of their own."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


def join(rank, size, device, environment, interface, file, backend, timeout, stack_file):
    """Become rank `rank` of `size`: environment, process group, names for the reader, reports.

    interface: the card at which this host reaches the others, or loopback where all ranks share one host.
    file: where ranks meet, in a folder that nobody else can open; None where they met at a store.
    Returns the numbers of the threads that `ringtree.live.reports.diagnosis` looks at.
    """
    import torch
    import torch.distributed as dist

    os.environ.update(environment)
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)  # where Gloo would take what the host's name leads to
    threads = whereabouts.tell_where(stack_file)
    speech.keep_speech()
    works.note_works()
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        store=dist.FileStore(file, size) if file else _store,
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=timeout),
        device_id=device if device.type == "cuda" else None,
    )
    shell = get_ipython()
    shell.kernel._abort_queues = _abort_nothing
    shell.InteractiveTB.structured_traceback = frames.short_traceback
    names = dict(torch=torch, dist=dist, rank=rank, world_size=size, device=device)
    shell.user_ns.update(names)
    shell.user_ns_hidden.update(names)
    return threads


def _abort_nothing(*_):
    """A cell that raised must not take the next one with it, which may have come already.

    A kernel answers what waits behind a cell that raised with "aborted". Here every cell is waited for.
    """


def _loopback():
    """The name of this host's loopback interface: Linux's, or that of macOS and the BSDs."""
    return next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)


def variable(name):
    """The reader's variable `name`, packed for `ringtree.live.cluster`."""
    variables = get_ipython().user_ns
    if name not in variables:
        raise NameError(f"name {name!r} is not defined")
    return _packed(variables[name])


def returned(function, *args, **kwargs):
    """Return what the reader's function returns, packed for `ringtree.live.cluster`."""
    return _packed(function(*args, **kwargs))


def _packed(value):
    """(pickled, None), or (None, value) for a function of a cell, which ipyparallel can send and pickle cannot.

    Left to ipyparallel, dicts would be sorted, and what the notebook's kernel cannot read would never come.
    """
    return (None, value) if inspect.isfunction(value) else (pickle.dumps(value), None)
