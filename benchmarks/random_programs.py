"""Random rank programs of sends, receives, batches, waits and computing, to hold the simulator's clock against SimGrid's.

    python benchmarks/random_programs.py [--count 200] [--store tests/simulated/simgrid.json] [--system-python /usr/bin/python3]

A program is data: for each rank a list of steps. No rank has two messages on their way out, or two on their way in, at
once: there SimGrid would share the bandwidth between them, where the ranks of this project have ports that carry one
message at a time. Each program ends, since every step waits for steps that were drawn before it.
"""

import argparse
import json
import pathlib
import random
import sys

import torch
from simulator import on_simgrid

from ringtree import Link, Sketch, compute, simulate

LINK = Link(1e-3, 1e-6)
MOST_RANKS = 12


def draw(seed):
    """By rank, its steps: ["compute", seconds], ["send" or "recv", peer, bytes], ["start", [[sends, peer, bytes], …]] or ["wait"]."""
    rng = random.Random(seed)
    size = rng.randint(2, MOST_RANKS)
    steps, under_way = [[] for _ in range(size)], [set() for _ in range(size)]  # what is under way: True for out, False for in

    def start(rank, parts):
        if under_way[rank] & {sends for sends, _, _ in parts}:
            wait(rank)
        steps[rank].append(["start", parts])
        under_way[rank] |= {sends for sends, _, _ in parts}

    def wait(rank):
        steps[rank].append(["wait"])
        under_way[rank].clear()

    def half(rank, sends, peer, nbytes):
        if rng.random() < 0.5:
            start(rank, [[sends, peer, nbytes]])
        else:
            if sends in under_way[rank]:
                wait(rank)
            steps[rank].append(["send" if sends else "recv", peer, nbytes])

    for _ in range(rng.randint(5, 12) * size):
        what, nbytes = rng.random(), rng.randint(1, 4000)
        if what < 0.35:
            steps[rng.randrange(size)].append(["compute", rng.randint(1, 5000) * 1e-6])
        elif what < 0.8:
            source, target = rng.sample(range(size), 2)
            half(source, True, target, nbytes)
            half(target, False, source, nbytes)
        elif what < 0.9:
            circle = rng.sample(range(size), rng.randint(2, size))
            for left, rank, right in zip(circle[-1:] + circle[:-1], circle, circle[1:] + circle[:1]):
                if under_way[rank]:
                    wait(rank)
                start(rank, [[True, right, nbytes], [False, left, nbytes]])
        else:
            wait(rng.randrange(size))
    for rank in range(size):
        wait(rank)
    return steps


def rank_program(steps, dist, compute=compute, buffer=Sketch):
    """Carry out one rank's steps."""
    works = []
    for what, *given in steps[dist.get_rank()]:
        if what == "compute":
            compute(*given)
        elif what == "start":
            works += dist.batch_isend_irecv([
                dist.P2POp(dist.isend if sends else dist.irecv, buffer(nbytes, torch.uint8), peer)
                for sends, peer, nbytes in given[0]
            ])
        elif what == "wait":
            while works:
                works.pop(0).wait()
        else:
            peer, nbytes = given
            (dist.send if what == "send" else dist.recv)(buffer(nbytes, torch.uint8), peer)


def run(steps, link=LINK):
    """The program, simulated here."""
    return simulate(lambda dist: rank_program(steps, dist), [()] * len(steps), link, trace=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="programs to try (default: 200)")
    parser.add_argument("--store", type=pathlib.Path, help="write programs and SimGrid's makespans to this file")
    parser.add_argument("--system-python", default="/usr/bin/python3", help="the Python that has SimGrid")
    options = parser.parse_args()
    programs = [draw(seed) for seed in range(options.count)]
    given = json.dumps([LINK.alpha, LINK.beta, programs])
    theirs = on_simgrid(options.system_python, "simgrid_programs.py", given=given)
    if theirs is None:
        sys.exit(2)
    ours = [run(steps) for steps in programs]
    apart = [abs(run.makespan / other - 1) for run, other in zip(ours, theirs, strict=True)]
    messages = sum(run.messages for run in ours)
    print(f"{options.count} programs, {messages:,} messages: makespans differ by {max(apart):.1e} at most")
    if options.store:
        cases = [{"makespan": other, "steps": steps} for steps, other in zip(programs, theirs)]
        text = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
        options.store.write_text(f'{{"alpha": {LINK.alpha}, "beta": {LINK.beta}, "cases": [\n{text}\n]}}\n')
    sys.exit(max(apart) > 1e-9)


if __name__ == "__main__":
    main()
