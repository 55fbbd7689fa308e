"""Does ringtree.measure agree with an independent harness, on the same machine, backend and sizes?

    python benchmarks/measure.py [--ranks 4] [--rounds 5] [--min 8 --max 4M --step-factor 8] [--nccl-tests ./all_reduce_perf]

The other harness is the plain loop below: torch.distributed alone, nothing of ringtree, and its statistics are
numpy's. Both time all-reduces of floats, in place, the same number back to back after a barrier, and count
the slowest rank. Each runs in two homes: in processes that torchrun starts, and on the ranks that
`ringtree.start` starts, which share the cores with a kernel and a controller. Harness is compared with harness in the
same home; how far the homes lie apart is printed below, and is no matter of measuring.

All take turns for some rounds, so that what the machine does meanwhile hits all. A round gives one median a size;
over the rounds a harness reports the median of those and, as its noise, their smallest and largest. Two
agree at a size where these ranges meet. Beside them stand the quartiles of single batches.

On GPUs `--nccl-tests` names a built all_reduce_perf, which is then compared with those of torchrun (its in-place
time, a mean over calls and ranks; one process with all GPUs).
"""

import argparse
import functools
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import numpy as np

import ringtree
from ringtree.command.measure import byte_count
from ringtree.measure import logs, measure, sizes_between

LOOP = """
def loop(dist, device, batches, calls, sizes):
    import time
    import torch
    answer = {}
    for size in sizes:
        tensor = torch.zeros(size // 4, device=device)
        times = []
        for batch in range(batches + 3):
            dist.barrier()
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.monotonic()
            for _ in range(calls):
                dist.all_reduce(tensor)
            if device.type == "cuda":
                torch.cuda.synchronize()
            spent = torch.tensor((time.monotonic() - began) / calls, dtype=torch.float64, device=device)
            dist.all_reduce(spent, op=dist.ReduceOp.MAX)
            times.append(float(spent))
        answer[size] = times[3:]
    return answer
"""
PLAIN = f"""{LOOP}
import json, os, sys
import torch, torch.distributed as dist
gpu = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
if gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if gpu else "gloo")
answer = loop(dist, device, int(sys.argv[1]), int(sys.argv[2]), [int(each) for each in sys.argv[3:]])
if dist.get_rank() == 0:
    print(json.dumps(answer))
dist.destroy_process_group()
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=5, help="all-reduces timed together (5)")
    parser.add_argument("--batches", type=int, default=100, help="of the plain loop (100); ringtree decides by itself")
    parser.add_argument("--min", default="8", help="smallest size, bytes (8)")
    parser.add_argument("--max", default="4M", help="largest size (4M, where M is 2^20)")
    parser.add_argument("--step-factor", type=int, default=8, help="each size is so many times the one before (8)")
    parser.add_argument("--nccl-tests", metavar="PATH", help="a built all_reduce_perf, on GPUs")
    options = parser.parse_args()
    smallest, largest = (byte_count(getattr(options, name), f"--{name}") for name in ("min", "max"))
    options.sizes = sizes_between(smallest, largest, options.step_factor)
    with ringtree.start(options.ranks, timeout=600) as ranks:
        homes = {
            "in processes of torchrun": {"ringtree.measure": ours, "plain loop": plain},
            "on ranks of ringtree": {
                "ringtree.measure": functools.partial(ours_here, ranks),
                "plain loop": functools.partial(plain_here, ranks),
            },
        }
        if options.nccl_tests:
            homes["in processes of torchrun"]["nccl-tests"] = nccl_tests
        found = {home: {name: [] for name in harnesses} for home, harnesses in homes.items()}
        for _ in range(options.rounds):
            for home, harnesses in homes.items():
                for name, harness in harnesses.items():
                    found[home][name].append(harness(options))
    report(found, options)


# -- the harnesses: each gives {size: (median, quarter, three quarters)} of its batches, in seconds


def ours(options):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "times.csv"
        sizes = ["-b", options.min, "-e", options.max, "-f", options.step_factor]
        torchrun(options, "-m", "ringtree.measure", "all_reduce", "--in-place", *sizes, "--calls", options.calls, "--csv", path)
        return quartiles(logs.read(path))


def ours_here(ranks, options):
    return quartiles(measure("all_reduce", sizes=options.sizes, calls=options.calls, ranks=ranks, show=False))


def quartiles(table):
    if table["wrong"].any():
        raise SystemExit(f"wrong elements: {table['wrong'].tolist()}")
    return {row["size"]: (row["time"], row["q1"], row["q3"]) for row in table.to_dict("records")}


def plain(options):
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder) / "plain.py"
        script.write_text(PLAIN)
        said = torchrun(options, script, options.batches, options.calls, *options.sizes)
    return percentiles(json.loads(said.strip().splitlines()[-1]))


def plain_here(ranks, options):
    names = {"__name__": "__main__"}
    exec(LOOP, names)
    return percentiles(ranks.call(on_this_rank, names["loop"], options.batches, options.calls, options.sizes)[0])


def on_this_rank(loop, *arguments):
    import torch

    device = torch.device("cuda" if torch.distributed.get_backend() == "nccl" else "cpu")
    return loop(torch.distributed, device, *arguments)


def percentiles(answer):
    return {int(size): tuple(np.percentile(times, (50, 25, 75))) for size, times in answer.items()}


def nccl_tests(options):
    command = [options.nccl_tests, "-b", options.min, "-e", options.max, "-f", options.step_factor, "-g", options.ranks]
    table = logs.read(run(*command), collective="all_reduce")
    return {row["size"]: (row["time"],) * 3 for row in table.to_dict("records") if row["in_place"]}


def torchrun(options, *arguments):
    return run(sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", options.ranks, *arguments)


def run(*command):
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command[:6]))} … ended with code {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


# -- the report


def report(found, options):
    print(f"all-reduce of floats on {options.ranks} ranks, {options.calls} back to back, {options.rounds} rounds; times in µs")
    print("median of the rounds' medians, [their smallest and largest], (quartiles of single batches, median over rounds)")
    for home, rounds in found.items():
        print(f"\n{home}")
        agreed = sum(compare(size, rounds) for size in options.sizes)
        print(f"  agreement at {agreed} of {len(options.sizes)} sizes")
    print("\nthe plain loop's time on ranks of ringtree / in processes of torchrun")
    for size in options.sizes:
        here, there = (statistics.median(each[size][0] for each in rounds["plain loop"]) for rounds in reversed(found.values()))
        print(f"  {size:>10} B {here / there:6.2f}")


def compare(size, rounds):
    """Print what each harness found at one size; whether the ranges of all meet."""
    print(f"  {size} B")
    ranges = []
    for name, found in rounds.items():
        medians = [each[size][0] * 1e6 for each in found]
        quarters = [statistics.median(each[size][at] * 1e6 for each in found) for at in (1, 2)]
        ranges.append((min(medians), max(medians)))
        middle, spread = statistics.median(medians), f"[{min(medians):.1f}, {max(medians):.1f}]"
        print(f"    {name:18}{middle:11.1f}   {spread:>22}   ({quarters[0]:.1f} to {quarters[1]:.1f})")
    meet = max(low for low, _ in ranges) <= min(high for _, high in ranges)
    print(f"    {'agree: the ranges meet' if meet else 'DIFFER by more than the noise that they report'}")
    return meet


if __name__ == "__main__":
    main()
