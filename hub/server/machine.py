"""What Slurm must know of this machine, looked up and filled into its three files. Run."""

import glob
import re
import socket
import subprocess
from pathlib import Path
from string import Template

HERE = Path(__file__).resolve().parent
FILES = ("slurm.conf", "gres.conf", "cgroup.conf")


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
    return sorted(glob.glob("/dev/nvidia[0-9]*"), key=lambda path: int(re.search(r"\d+$", path)[0]))


def allottable_gib(slurm_conf):
    """The most memory that Slurm can allot to a job by this file, in GiB; None where there is none or it names no node's."""
    told = Path(slurm_conf).read_text() if Path(slurm_conf).exists() else ""
    found = re.findall(r"^NodeName=.*\bRealMemory=(\d+)", told, re.MULTILINE)
    return max(map(int, found)) // 1024 if found else None


def fill(into, *, gpus, memory, **values):
    """Write Slurm's files into the folder `into`.

    gpus: paths of device files. memory: MiB, of which a tenth, 1 GiB at least, is kept for the hub and the system.
    values: what else the templates name.
    """
    kept = max(1024, int(memory) // 10)
    values |= {
        "memory": int(memory) - kept,
        "gres": f" Gres=gpu:{len(gpus)}" if gpus else "",
        "gpu_lines": "\n".join(f"Name=gpu File={path}" for path in gpus),
    }
    for name in FILES:
        template = Template((HERE / f"{name}.template").read_text())
        (Path(into) / name).write_text(template.substitute(values))
