"""The simulator: microseconds a message, beside SimGrid running the same rank programs.

    python benchmarks/simulator.py [--system-python /usr/bin/python3]

SimGrid (Debian: apt install python3-simgrid) is asked for the same algorithm, ranks, sizes, α and
β, at g = α: in these algorithms every step waits for an arrival, so they take as long at every g. The makespans must
agree to 1e-6. It runs under the system's Python with this environment's
packages, so both must be the same Python version.

Then what a sweep over 40 sizes costs beside one run, in seconds of CPU, both in this process.
"""

import argparse
import json
import os
import pathlib
import site
import subprocess
import sys
import time

import torch

from ringtree import algorithms
from ringtree.cost import Link, Machine
from ringtree.simulated.simulation import simulate
from ringtree.simulated.sketch import Sketch
from ringtree.simulated.sweep import sweep

HERE = pathlib.Path(__file__).resolve().parent
LINK = Link(10e-6, 1 / 450e9)
CASES = [
    ("ring_all_reduce", 16),
    ("ring_all_reduce", 64),
    ("ring_all_gather", 64),
    ("recursive_doubling_all_reduce", 64),
    ("mst_broadcast", 64),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system-python", default="/usr/bin/python3")
    options = parser.parse_args()
    print(f"{'':36}{'µs a message':>22}{'SimGrid':>12}   ratios      makespans differ by")
    print(f"{'':36}{'tensors':>11}{'sketches':>11}{'':12}")
    for name, size in CASES:
        elements = 256 * size
        moved = ours(name, [torch.ones(elements) for _ in range(size)])
        sketched = ours(name, [Sketch(elements) for _ in range(size)])
        other = simgrid(options.system_python, name, size, elements)
        line = f"{name + f', {size} ranks':36}{per_message(moved):11.1f}{per_message(sketched):11.1f}"
        if other:
            apart = abs(other["makespan"] - moved["makespan"]) / moved["makespan"]
            ratios = [per_message(other) / per_message(each) for each in (moved, sketched)]
            line += f"{per_message(other):12.1f}   {ratios[0]:.0f} × {ratios[1]:.0f} ×   {apart:.1e}"
            if apart > 1e-6:
                line += "   TOO FAR APART"
        print(line, flush=True)
    for name, size in CASES:
        print(sizes_at_once(name, size), flush=True)
    began = time.perf_counter()
    run = simulate(algorithms.ring_all_reduce, [Sketch(1 << 20) for _ in range(1024)], LINK, trace=False)
    print(
        f"\nring all-reduce of 1,024 ranks, no payload, no trace: {run.messages:,} messages in {time.perf_counter() - began:.1f} s"
    )


def sizes_at_once(name, size, sizes=40):
    """A line: the price of so many sizes in runs of one, the quickest of three each, in this process."""
    program, counts = getattr(algorithms, name), [int(256 * size * 2 ** (i / 4)) for i in range(sizes)]
    cases = [(count, Machine(LINK), 0.0) for count in counts]
    one = cpu(lambda: simulate(program, [Sketch(counts[0])] * size, LINK, trace=False))
    all_of_them = cpu(lambda: sweep(program, lambda count: [Sketch(count)] * size, cases))
    return f"{name + f', {size} ranks':40}{sizes} sizes for the price of {all_of_them / one:.1f} runs"


def cpu(work):
    """Seconds of CPU, of the quickest of three."""
    seconds = []
    for _ in range(3):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)


def ours(name, inputs):
    """The fastest of three runs without a trace."""
    runs = []
    for _ in range(3):
        began = time.perf_counter()
        run = simulate(getattr(algorithms, name), inputs, LINK, trace=False)
        runs.append({"makespan": run.makespan, "messages": run.messages, "seconds": time.perf_counter() - began})
    return min(runs, key=lambda run: run["seconds"])


def simgrid(python, name, size, elements):
    return on_simgrid(python, "simgrid_ranks.py", name, size, elements, LINK.alpha, LINK.beta)


def on_simgrid(python, script, *arguments, given=""):
    """What a script of this folder answers under a Python that has SimGrid; None, and why, where it has not."""
    paths = os.pathsep.join([str(HERE.parent), *site.getsitepackages()])
    done = subprocess.run(
        [python, str(HERE / script), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": paths},
        input=given,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        print(f"  SimGrid was not run: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def per_message(run):
    return run["seconds"] / run["messages"] * 1e6


if __name__ == "__main__":
    main()
