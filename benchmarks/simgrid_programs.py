"""Random rank programs on SimGrid, for benchmarks/random_programs.py: programs on standard input, makespans on standard output."""

import json
import os
import sys

from random_programs import rank_program
from simgrid import this_actor
from simgrid_ranks import SPEED, run_on_ranks


def main():
    alpha, beta, programs = json.load(sys.stdin)
    print(json.dumps([in_a_child(makespan, steps, alpha, beta) for steps in programs]))


def makespan(steps, alpha, beta):
    sends = {(rank, step[1]) for rank, each in enumerate(steps) for step in each if step[0] == "send"}
    starts = [(rank, part) for rank, each in enumerate(steps) for step in each if step[0] == "start" for part in step[1]]
    pairs = sorted(sends | {(rank, peer) for rank, (is_send, peer, _) in starts if is_send})

    def program(dist):
        rank_program(steps, dist, compute=lambda seconds: this_actor.execute(seconds * SPEED))

    return run_on_ranks(len(steps), pairs, alpha, beta, program)


def in_a_child(function, *arguments):
    """SimGrid runs one simulation a process."""
    here, there = os.pipe()
    if os.fork() == 0:
        os.write(there, json.dumps(function(*arguments)).encode())
        os._exit(0)
    os.close(there)
    with os.fdopen(here) as answer:
        result = json.load(answer)
    os.wait()
    return result


if __name__ == "__main__":
    main()
