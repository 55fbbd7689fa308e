"""The rank programs of this project on SimGrid, for benchmarks/simulator.py.

    python3 simgrid_ranks.py ALGORITHM RANKS ELEMENTS ALPHA BETA

Needs SimGrid's Python interface (Debian: python3-simgrid) and this project on PYTHONPATH.
Every ordered pair of ranks that the program uses has a one-way link of its own; SimGrid's model
is CM02 with all correction factors 1, so that a message takes α + nβ. Prints the makespan in
simulated seconds, the number of messages and the real seconds, as JSON.
"""

import json
import sys
import time

from simgrid import Actor, Engine, LinkInRoute, Mailbox, NetZone

from ringtree import algorithms
from ringtree.simulated.sketch import Sketch

PLAIN_MODEL = [
    "--cfg=network/model:CM02",
    "--cfg=network/latency-factor:1",
    "--cfg=network/bandwidth-factor:1",
    "--cfg=network/weight-S:0",
    "--cfg=network/TCP-gamma:1e20",
    "--cfg=network/crosstraffic:0",
    "--cfg=contexts/stack-size:128",
    "--cfg=surf/precision:1e-12",
    "--cfg=maxmin/precision:1e-12",
    "--log=root.thres:critical",
]
SPEED = 1e9  # of a host: to execute SPEED flops takes a second
sent = 0


class Dist:
    """What a rank program asks of torch.distributed, said to SimGrid's mailboxes."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def get_rank(self):
        return self.rank

    def get_world_size(self):
        return self.size

    def isend(self, tensor, dst):
        global sent
        sent += 1
        return Mailbox.by_name(f"{self.rank}>{dst}").put_async("x", tensor.nbytes)

    def irecv(self, tensor, src):
        return Mailbox.by_name(f"{src}>{self.rank}").get_async()

    def send(self, tensor, dst):
        self.isend(tensor, dst).wait()

    def recv(self, tensor, src):
        Mailbox.by_name(f"{src}>{self.rank}").get()

    def P2POp(self, op, tensor, peer):
        return op, tensor, peer

    def batch_isend_irecv(self, operations):
        return [_Work(op(tensor, peer)) for op, tensor, peer in operations]


class _Work:
    def __init__(self, started):
        self.started = started  # for a receive (communication, place of its data): both must live
        self.communication = started[0] if isinstance(started, tuple) else started

    def wait(self):
        self.communication.wait()


def pairs(name, size):
    """The ordered pairs of ranks that an algorithm uses: found by simulating it here."""
    from ringtree.cost import Link
    from ringtree.simulated.simulation import simulate

    trace = simulate(getattr(algorithms, name), [Sketch(size) for _ in range(size)], Link(1.0, 0.0)).trace
    return sorted({(message.src, message.dst) for message in trace})


def run_on_ranks(size, pairs, alpha, beta, program):
    """Run program(dist) on every rank; returns the makespan. pairs: the ordered pairs of ranks that need a link. Once a process."""
    engine = Engine(["simgrid", *PLAIN_MODEL])
    zone = NetZone.create_full_zone("ranks")
    hosts = [zone.create_host(f"rank{rank}", SPEED) for rank in range(size)]
    for src, dst in pairs:
        link = zone.create_link(f"{src}-{dst}", 1 / beta).set_latency(alpha).seal()
        zone.add_route(hosts[src].netpoint, hosts[dst].netpoint, None, None, [LinkInRoute(link)], False)
    zone.seal()
    for rank in range(size):
        Actor.create(f"rank{rank}", hosts[rank], program, Dist(rank, size))
    engine.run()
    return Engine.clock if not callable(Engine.clock) else Engine.clock()


def main():
    name, size, elements, alpha, beta = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *map(float, sys.argv[4:])
    used, algorithm = pairs(name, size), getattr(algorithms, name)
    began = time.perf_counter()
    makespan = run_on_ranks(size, used, alpha, beta, lambda dist: algorithm(Sketch(elements), dist))
    print(json.dumps({"makespan": makespan, "messages": sent, "seconds": time.perf_counter() - began}))


if __name__ == "__main__":
    main()
