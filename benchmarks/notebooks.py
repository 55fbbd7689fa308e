"""How long chapters and labs take, one after the other, each in a kernel of its own: seconds from its start, and of CPU.

    python benchmarks/notebooks.py [--slowest 2] [--warm] [NAME ...]

NAME: part of a notebook's path, such as labs/ or 20-; left out, all. A lab is run with its solutions; of its cells the slowest
checks are named, of a chapter's the slowest cells. The load of the machine stands beside: seconds of a busy one say little.
"""

import argparse
import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from ringtree.live.processes import warm

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("JUPYTER_DEFAULT_PROVISIONER_NAME", "ringtree-unix-sockets")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", metavar="NAME", nargs="*", default=[""])
    parser.add_argument("--slowest", type=int, default=2, help="how many cells to name (%(default)s)")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument(
        "--warm", action="store_true", help="fork the kernels as the book's build does; their CPU is not known then"
    )
    options = parser.parse_args()
    if options.one:
        return time_one(options.one, options.slowest)
    with warm.kernels() if options.warm else contextlib.nullcontext():
        time_all(options)


def time_all(options):
    for path in sorted(ROOT.glob("notebooks/*.ipynb")) + sorted(ROOT.glob("labs/source/*/*.ipynb")):
        if not path.name.startswith("00-") and any(name in str(path.relative_to(ROOT)) for name in options.names):
            # in a process of its own, so that the seconds of CPU are those of this notebook's kernel and ranks
            subprocess.run([sys.executable, __file__, "--one", path, "--slowest", str(options.slowest)], check=False)


def time_one(path, slowest):
    notebook, seconds = nbformat.read(path, 4), {}
    with tempfile.TemporaryDirectory() as folder:
        place = folder if "labs" in path.parts else path.parent  # a lab keeps its progress beside it
        client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(place)}})
        load, began = os.getloadavg()[0], time.monotonic()
        with client.setup_kernel():
            for index, cell in enumerate(notebook.cells):
                if cell.cell_type == "code":
                    before = time.monotonic()
                    client.execute_cell(cell, index)
                    seconds[cell.id] = time.monotonic() - before
        whole = time.monotonic() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    if "labs" in path.parts:
        seconds = {name: each for name, each in seconds.items() if name.endswith("-check")}
    named = ", ".join(f"{name} {seconds[name]:.1f}" for name in sorted(seconds, key=seconds.get, reverse=True)[:slowest])
    cpu = "   -  " if warm.address() else f"{used.ru_utime + used.ru_stime:5.1f} s"
    print(f"{path.stem:24} {whole:5.1f} s  CPU {cpu}  load {load:.1f}  {named}", flush=True)


if __name__ == "__main__":
    main()
