"""How fast ranks start, answer and recover, against torchrun, plain ipyparallel and nbdistributed.

    python benchmarks/ranks.py [--repeats 5] [--only start|cell|recovery]

Every figure is a median over repeats, taken in turns in one run; what counts is the
ratio, since seconds are this machine's. nbdistributed is compared where it is
installed (`pip install nbdistributed==0.1.0`).
"""

import argparse
import contextlib
import importlib.util
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests"))
from helpers.live import Kernel

HELLO = """import torch, torch.distributed as dist
dist.init_process_group("gloo")
t = torch.ones(1)
dist.all_reduce(t)
print(dist.get_rank(), t.item())
dist.destroy_process_group()
"""
ALL_REDUCE = "t = torch.ones(1, device=device)\ndist.all_reduce(t)\nprint(t.item())"
PLAIN_START = """import ipyparallel
cluster = ipyparallel.Cluster(n=4, log_level=100)
client = cluster.start_and_connect_sync(activate=True)
client[:].block = True
"""
PLAIN_JOIN = """%%px
import os, torch, torch.distributed as dist
device = "cpu"
"""
PLAIN_GROUP = """import socket
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
def join(rank, port):
    import torch.distributed as dist
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=4)
waiting = [client[i].apply_async(join, i, port) for i in client.ids]
[each.get() for each in waiting]
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=["start", "cell", "recovery"])
    options = parser.parse_args()
    for name, benchmark in {"start": start, "cell": cell, "recovery": recovery}.items():
        if options.only in (None, name):
            benchmark(options.repeats)


def timed(run, *arguments):
    began = time.perf_counter()
    answer = run(*arguments)
    seconds = time.perf_counter() - began
    if getattr(answer, "error", None):
        raise RuntimeError(f"{arguments}: {answer.message}")
    return seconds


def report(title, rows, reference):
    print(f"\n{title}")
    for name, seconds in rows.items():
        middle = statistics.median(seconds)
        ratio = middle / statistics.median(rows[reference])
        print(
            f"  {name:32}{middle * 1e3:10.1f} ms   {ratio:6.2f} × {reference}   (from {min(seconds) * 1e3:.1f} to {max(seconds) * 1e3:.1f})"
        )


def start(repeats):
    rows = {"torchrun": [], "ringtree, fresh kernel": [], "ringtree, warm kernel": [], "plain ipyparallel, fresh kernel": []}
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder) / "hello.py"
        script.write_text(HELLO)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "4", str(script)]
        for _ in range(repeats):
            rows["torchrun"].append(timed(lambda: subprocess.run(torchrun, check=True, capture_output=True) and None))
            live = Kernel()
            rows["ringtree, fresh kernel"].append(
                timed(live.run, f"import ringtree\nringtree.start(4)\nget_ipython().run_cell_magic('px', '', {ALL_REDUCE!r})")
            )
            rows["ringtree, warm kernel"].append(
                timed(live.run, f"ringtree.start(4)\nget_ipython().run_cell_magic('px', '', {ALL_REDUCE!r})")
            )
            live.close()
            with plain_kernel() as (live, seconds):
                rows["plain ipyparallel, fresh kernel"].append(seconds + timed(live.run, f"%%px\n{ALL_REDUCE}"))
    report("from a kernel that is ready to four ranks after one all-reduce", rows, "torchrun")


@contextlib.contextmanager
def plain_kernel():
    """A kernel with four engines of plain ipyparallel in one process group, and the seconds that took.

    Plain engines outlive their kernel: they are stopped whatever happens here.
    """
    live = Kernel()
    try:
        yield live, sum(timed(live.run, code) for code in (PLAIN_START, PLAIN_JOIN, PLAIN_GROUP))
    finally:
        live.run("cluster.stop_cluster_sync()")
        live.close()


def cell(repeats):
    with contextlib.ExitStack() as kernels:
        plain, _ = kernels.enter_context(plain_kernel())
        ours = kernels.enter_context(contextlib.closing(Kernel()))
        ours.run("import ringtree")
        ours.run("ranks = ringtree.start(4)")
        compare_cells(repeats, {"ringtree %%px": (ours, "%%px\n"), "plain %%px": (plain, "%%px\n")}, kernels)


def compare_cells(repeats, kernels, closing):
    if importlib.util.find_spec("nbdistributed"):
        # Its workers are whatever `python` is first on the PATH.
        path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
        other = closing.enter_context(contextlib.closing(Kernel(PATH=path)))
        other.run("%load_ext nbdistributed")
        timed(other.run, "%dist_init -n 4")
        other.run("device = 'cpu'")
        kernels["nbdistributed"] = (other, "")
    rows = {name: [] for name in kernels}
    for turn in range(20 * repeats + 3):
        for name, (live, magic) in kernels.items():
            seconds = timed(live.run, magic + ALL_REDUCE)
            if turn >= 3:
                rows[name].append(seconds)
    report("a trivial all-reduce cell on four ranks, round trip", rows, "plain %%px")


def recovery(repeats):
    live = Kernel()
    live.run("import ringtree")
    live.run("ranks = ringtree.start(4)")
    hang = "%%px --timeout 1\nif rank:\n    dist.recv(torch.zeros(1, device=device), src=0)"
    rows = {"one second, the deadline": [], "report and restart after it": []}
    for _ in range(repeats):
        began = time.perf_counter()
        answer = live.run(hang)
        seconds = time.perf_counter() - began
        assert answer.error == "RanksStuck", answer.message
        rows["one second, the deadline"].append(1.0)
        rows["report and restart after it"].append(seconds - 1.0)
        assert live.run(f"%%px\n{ALL_REDUCE}").error is None
    report("recovery from a hang: from the deadline to ranks that are ready", rows, "one second, the deadline")
    live.close()


if __name__ == "__main__":
    main()
