"""What Slurm must know of this machine, looked up and filled into its three files."""

import glob
import re
import socket
import subprocess
from pathlib import Path
from string import Template

HERE = Path(__file__).resolve().parent
FILES = ("slurm.conf", "gres.conf", "cgroup.conf")
PCI = Path("/sys/bus/pci/devices")
DRIVER = Path("/sys/module/nvidia/version")
# NVIDIA, "CUDA compatibility": what is built for any CUDA 13 runs on drivers of branch 580 and newer.
OLDEST_DRIVER = 580
MOST_CPUS = 4  # for a learner without a GPU: the labs start four ranks


def look_at_machine():
    """Cores and memory as slurmd finds them: a dict of text with host, address, cpus, sockets, cores, threads, memory (MiB)."""
    told = subprocess.run(["slurmd", "-C"], capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"(\w+)=(\S+)", told))
    return {
        "host": socket.gethostname().partition(".")[0],
        "address": own_address(),
        "cpus": found["CPUs"],
        "sockets": found.get("SocketsPerBoard", "1"),
        "cores": found["CoresPerSocket"],
        "threads": found["ThreadsPerCore"],
        "memory": found["RealMemory"],
    }


def own_address():
    """What this machine's own name stands for, where Slurm's two daemons listen: 127.0.1.1 on Debian and Ubuntu, as installed.

    Raises OSError, with what to do, where the name stands for nothing.
    """
    name = socket.gethostname()
    try:
        return socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        raise OSError(f"This machine's own name, {name}, has no address: write '127.0.1.1 {name}' into /etc/hosts.") from error


def find_gpus():
    """The device files of NVIDIA's GPUs, in their order: /dev/nvidia0, /dev/nvidia1, …"""
    return _numbered("/dev/nvidia[0-9]*")


def find_cards():
    """The device files of InfiniBand and RoCE cards, by which a program passes by the network of its own that a server has."""
    return _numbered("/dev/infiniband/uverbs[0-9]*")


def _numbered(pattern):
    return sorted(glob.glob(pattern), key=lambda path: int(re.search(r"\d+$", path)[0]))


def doubts():
    """What an administrator should look at before a hub is set up here: sentences."""
    there = sum(_is_gpu(each) for each in PCI.glob("*"))
    if there > len(find_gpus()):
        seen = f"This server has {there} of NVIDIA's GPUs, and {len(find_gpus())} device files /dev/nvidia0, …"
        yield f"{seen}: see that the driver is installed and loaded (`nvidia-smi -L` makes the files), or learners get none."
    version = DRIVER.read_text().strip() if DRIVER.exists() else ""
    if version and int(version.partition(".")[0]) < OLDEST_DRIVER:
        yield (
            f"NVIDIA's driver here is {version}, and the course's PyTorch, for CUDA 13, needs {OLDEST_DRIVER} or newer: "
            "with this one every lab runs on the CPU."
        )


def _is_gpu(device):
    """Whether a folder of PCI is a display or compute device of NVIDIA's."""
    told = {name: (device / name).read_text().strip() for name in ("vendor", "class") if (device / name).exists()}
    return told.get("vendor") == "0x10de" and told.get("class", "").startswith(("0x0300", "0x0302"))


def node_in(slurm_conf):
    """{"CPUs": …, "RealMemory": … (MiB), "gpus": …, "sharers": …, "shared": …, "sharing": …} that this file gives its largest
    node; {} where it names none. sharers: learners to a core. shared: the GPUs that are set aside for `sharing` learners each."""
    told = Path(slurm_conf).read_text() if Path(slurm_conf).exists() else ""
    found = [dict(re.findall(r"(\w+)=(\S+)", line)) for line in re.findall(r"^NodeName=.*", told, re.MULTILINE)]
    if not found:
        return {}
    most = max(found, key=lambda each: int(each.get("RealMemory", 0)))
    numbers = {name: int(most.get(name, 1)) for name in ("CPUs", "RealMemory")}
    there = {kind: int(count) for kind, count in re.findall(r"([^,]+):(\d+)", most.get("Gres", ""))}
    gpus = sum(count for kind, count in there.items() if kind.startswith("gpu"))
    shared = there.get("gpu:shared", 0)
    sharers = re.search(r"OverSubscribe=FORCE:(\d+)", told)
    numbers |= {"gpus": gpus, "sharers": int(sharers[1]) if sharers else 1}
    return numbers | {"shared": shared, "sharing": there["shard"] // shared if shared else 0}


def cpus_offered(node):
    """(CPUs of a learner without a GPU, CPUs for each GPU of one who has some), as `node_in` tells of a node.

    Without: as many as let 32 learners work at once, from 1 to MOST_CPUS. For a GPU: its part of half the node, a fraction where
    GPUs are many, so that who takes all GPUs does not take all CPUs.
    """
    cpus = node.get("CPUs", 1)
    alone = min(MOST_CPUS, max(1, cpus * node.get("sharers", 1) // 32))
    return alone, cpus / (2 * max(1, node.get("gpus", 0)))


def fill(into, *, gpus, memory, cards=(), shared=0, sharing=0, **values):
    """Write Slurm's files into the folder `into`.

    gpus, cards: paths of device files. memory: MiB, of which a tenth, 1 GiB at least, is kept for the hub and the system.
    shared: how many of the GPUs, the last ones, are set aside, each for `sharing` jobs that ask for a part of one; they are of a
    type of their own, for Slurm 22.05 gives whole also a GPU that others have parts of. values: what else the templates name.
    """
    kept = max(1024, int(memory) // 10)
    whole, apart = gpus[: len(gpus) - shared], gpus[len(gpus) - shared :]
    devices = {"gpu:whole" if apart else "gpu": whole, "gpu:shared": apart, "nic": cards}
    there = [f"{kind}:{len(paths)}" for kind, paths in devices.items() if paths]
    lines = [f"Name={kind.replace(':', ' Type=')} File={path}" for kind, paths in devices.items() for path in paths]
    if apart:
        there.append(f"shard:{sharing * shared}")
        lines += [f"Name=shard Count={sharing} File={path}" for path in apart]
    values |= {
        "memory": int(memory) - kept,
        "gres": f" Gres={','.join(there)}" if there else "",
        "device_lines": "\n".join(lines),
    }
    for name in FILES:
        template = Template((HERE / f"{name}.template").read_text())
        (Path(into) / name).write_text(template.substitute(values))
