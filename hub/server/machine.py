"""What Slurm must know of this machine, looked up and filled into its three files. Run; `main`, for a real server, not run.

    python machine.py --state /var/lib/ringtree-hub --into /etc/slurm
"""

import argparse
import glob
import re
import socket
import subprocess
from pathlib import Path
from string import Template

HERE = Path(__file__).resolve().parent
FILES = ("slurm.conf", "gres.conf", "cgroup.conf")


def look_at_machine():
    """Cores and memory as slurmd finds them: a dict of text with host, cpus, sockets, cores, threads, memory (MiB)."""
    told = subprocess.run(["slurmd", "-C"], capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"(\w+)=(\S+)", told))
    return {
        "host": socket.gethostname().partition(".")[0],
        "cpus": found["CPUs"],
        "sockets": found.get("SocketsPerBoard", "1"),
        "cores": found["CoresPerSocket"],
        "threads": found["ThreadsPerCore"],
        "memory": found["RealMemory"],
    }


def find_gpus():
    """The device files of NVIDIA's GPUs, in their order: /dev/nvidia0, /dev/nvidia1, …"""
    return sorted(glob.glob("/dev/nvidia[0-9]*"), key=lambda path: int(re.search(r"\d+$", path)[0]))


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


def main():
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--into", default="/etc/slurm", help="where slurm.conf, gres.conf and cgroup.conf are written")
    asked.add_argument("--state", default="/var/lib/ringtree-hub", help="the hub's folder")
    asked.add_argument("--sharers", type=int, default=4, help="how many learners may share a core")
    asked.add_argument("--hours", type=int, default=12, help="the longest that a learner may ask for")
    given = asked.parse_args()
    fill(
        given.into,
        **look_at_machine(),
        gpus=find_gpus(),
        node="server",
        controller_port=6817,
        node_port=6818,
        slurm_user="slurm",
        munge_socket="/run/munge/munge.socket.2",
        state="/var/lib/slurm",
        logs="/var/log/slurm",
        prolog_controller=HERE / "wait-until-saved",
        epilog=HERE / "clear-away",
        sharers=given.sharers,
        hours=given.hours,
    )


if __name__ == "__main__":
    main()
