"""Where ranks live: backend and devices, chosen from the hosts and their GPUs; and the table that shows them."""

import socket
from dataclasses import dataclass
from html import escape

from ringtree.errors import UsageError
from ringtree.units import count_text

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


def places(found, devices):
    """A `Place` a rank, by rank, from what each says of itself (`ringtree.live.joining.place`) and its device."""
    hosts = [each["host"] for each in found]
    nodes = list(dict.fromkeys(hosts))
    return [
        Place(each["pid"], each["host"], nodes.index(each["host"]), local_rank, device)
        for each, local_rank, device in zip(found, _local_ranks(hosts), devices)
    ]


def environments(places, address, port, shared):
    """By rank, the variables by which torch's own programs know where they are: those that torchrun sets.

    shared: ranks of NCCL share a GPU.
    """
    hosts = [place.host for place in places]
    return [
        {
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "WORLD_SIZE": str(len(places)),
            "LOCAL_RANK": str(place.local_rank),
            "LOCAL_WORLD_SIZE": str(hosts.count(place.host)),
            "GROUP_RANK": str(place.node),
            **({"NCCL_HOSTID": f"rank{rank}", **SHARED_GPU} if shared else {}),
        }
        for rank, place in enumerate(places)
    ]


def choose_backend(size, hosts, gpus, backend=None, share_gpus=False, allotted=None):
    """Choose backend and devices from where the ranks are and how many GPUs each host has.

    hosts: the host of each rank, by rank. gpus: a dict from host to its number of GPUs that PyTorch can open. allotted: the
    same for GPUs that a batch system has given.
    Returns (backend, devices by rank, remark): the remark is a sentence, or None.
    Raises UsageError where NCCL was asked for and cannot be.
    """
    crowded = {host: hosts.count(host) for host in gpus if hosts.count(host) > gpus[host]}
    dead = next((count for host, count in (allotted or {}).items() if count > gpus[host] == 0), 0)
    why = "PyTorch can open none: Gloo on the CPU is used. In a terminal `python -m ringtree.doctor` says more."
    told = f"Slurm allotted {count_text(dead, 'GPU')}, and {why}" if dead else None
    on_cpu = "gloo", ["cpu"] * size, told
    on_gpus = [f"cuda:{local % max(1, gpus[host])}" for host, local in zip(hosts, _local_ranks(hosts))]
    any_gpu = any(gpus.values())
    lacking = any(gpus[host] == 0 for host in gpus)
    if backend == "gloo":
        return *on_cpu[:2], None
    if backend == "nccl" and lacking:
        raise UsageError(
            "backend='nccl' needs an NVIDIA GPU for the ranks, and PyTorch sees none here: "
            "use backend='gloo', or leave backend out"
        )
    if not crowded:
        return "nccl", on_gpus, None
    there, here = next(iter(crowded.items()))
    few = f"{here} ranks and {gpus[there]} GPU{'' if gpus[there] == 1 else 's'} on one host"
    if share_gpus and not lacking:
        return "nccl", on_gpus, f"{few}: the ranks share GPUs, so times say nothing about a network."
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


# ---------------------------------------------------------------- the table


def as_text(places, backend, remark):
    """The table of ranks in plain text, with the remark below it."""
    rows = [("rank", "device", "backend", "host"), *_rows(places, backend)]
    text = "\n".join("  ".join(cell.ljust(7) for cell in row).rstrip() for row in rows)
    return text + (f"\n{remark}" if remark else "")


def as_html(places, backend, remark):
    """The same in HTML."""
    body = "".join(
        f'<tr><td><span class="rank rank-{row[0]}">{row[0]}</span></td>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in _rows(places, backend)
    )
    return (
        '<table class="ranks"><thead><tr><th>rank</th><th>device</th><th>backend</th>'
        f"<th>host</th></tr></thead><tbody>{body}</tbody></table>" + (f"<p>{escape(remark)}</p>" if remark else "")
    )


def _rows(places, backend):
    here = socket.gethostname()
    return [
        (str(i), place.device, backend, "this machine" if place.host == here else place.host) for i, place in enumerate(places)
    ]
