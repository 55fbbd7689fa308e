"""How long a collective takes on a machine whose software keeps several protocols.

    model = Model((Protocol(start=7e-6, hop_inside=0.6e-6, …), …), ranks_per_node=4)
    model.time("all_reduce", 1 << 20, ranks=64, nodes=16)      # ring and tree in closed form
    model.time(rabenseifner_all_reduce, 1 << 20, ranks=64, nodes=16)      # anything else: simulated

A protocol is one way of sending: how long a call takes to start, what a hop costs inside a
node and between nodes, and how fast bytes go on each. Software has several, one for short
messages and others for long ones, and takes the fastest; so does `Model.time`, over every
protocol and over ring and tree. The closed forms are those by which NCCL chooses (its
`src/graph/tuning.cc`): hops along the path, each with its latency, plus bytes over bandwidth.

`ringtree.theory.fit_machine` finds the numbers from measurements.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from ringtree import collectives
from ringtree.cost import Machine
from ringtree.errors import UsageError
from ringtree.given import Kind, any_number, either, number, one_of, optional, require, several, some_numbers, takes, whole
from ringtree.theory.wires import card, nvlink
from ringtree.units import bytes_text, seconds_text

__all__ = ["COLLECTIVES", "SIMULATED", "Model", "Protocol", "closed_form", "seconds_of_calls"]

NUMERIC = either(some_numbers, any_number)


@dataclass(frozen=True)
class Protocol:
    """One way of sending, as seven numbers.

    start: seconds before the first hop, once a call. enter_network: seconds more, once a call, where
    there is more than one node. hop_inside, hop_between: seconds for each hop inside a node and
    between nodes, whatever its length. bandwidth_inside, bandwidth_between: bytes per second that a
    ring keeps up, inside one node, and in and out of each node. pipelining: how well a tree overlaps
    its hops, as κ in `closed_form`: 1 is the best cut into equal chunks.
    """

    start: float
    enter_network: float
    hop_inside: float
    hop_between: float
    bandwidth_inside: float
    bandwidth_between: float
    pipelining: float = 1.0

    def __post_init__(self):
        for field in fields(self):
            require("Protocol", field.name, getattr(self, field.name), NUMERIC)
            value, speed = np.asarray(getattr(self, field.name)), field.name.startswith("bandwidth")
            if not np.isfinite(value).all() or (value < 0).any() or speed and not value.all():
                which = "greater than 0" if speed else "that is not negative"
                raise UsageError(f"Protocol got {field.name}={value}: give a finite number {which}")

    def machine(self, ranks_per_node: int | None, gap: float | None = None, error: float | None = None) -> Machine:
        """The α-β `Machine` of this protocol, whose nodes share their way out, for the simulator.

        gap: seconds between two messages at a port, no longer than a hop; left out, those of `theory.wires`. error: of the fit.
        """
        inside, between = (
            replace(wire(float(hop), bandwidth=float(speed), **({} if gap is None else {"gap": gap})), error=error)
            for wire, hop, speed in (
                (nvlink, self.hop_inside, self.bandwidth_inside),
                (card, self.hop_between, self.bandwidth_between),
            )
        )
        if ranks_per_node is None:
            return Machine(inside)
        return Machine(inside, between, ranks_per_node, cards_per_node=1)

    def __str__(self) -> str:
        hops = f"{seconds_text(self.hop_inside)} and {seconds_text(self.hop_between)} a hop inside and between nodes"
        speeds = f"{bytes_text(self.bandwidth_inside)}/s and {bytes_text(self.bandwidth_between)}/s"
        return f"starts in {seconds_text(self.start)}, {hops}, {speeds}"


COLLECTIVES = tuple(row.name for row in (*collectives.TABLE, collectives.SEND_RECV) if row.laps)
"""What has a closed form here; every other collective is simulated."""
SIMULATED = tuple(row.name for row in collectives.TABLE if not row.laps)


def _ring(collective: str, p, nodes):
    """Of NCCL's ring of p ranks on N nodes: hops one after the other, how many of them go between nodes, and bytes
    that a rank sends for each byte of the full vector. Numbers or arrays of them."""
    row = collectives.find(collective, send_recv=True)
    if row.root:  # along the ring as a chain
        return p - 1, nodes - 1, np.minimum(p - 1, 1)
    return row.laps * (p - 1), row.laps * nodes, row.laps * (p - 1) / p


@takes(collective=one_of(*COLLECTIVES), ranks=whole(1), nodes=whole(1))
def ring_share(collective: str, ranks: int, nodes: int = 1) -> float:
    """Bytes that a rank of a ring sends for each byte of the full vector: busbw over algbw."""
    return float(_ring(collective, ranks, nodes)[2])


@takes(protocol=Kind("a Protocol", lambda value: hasattr(value, "hop_inside")), sizes=NUMERIC, ranks=NUMERIC, nodes=NUMERIC)
def closed_form(collective: str, algorithm: str, protocol: Protocol, sizes, ranks, nodes):
    """Seconds of NCCL's ring or tree under one protocol: latency along the path, plus bytes over bandwidth.

    collective: one of COLLECTIVES; "send_recv" is one message one way, between 2 ranks. algorithm:
    "ring", or "tree" for an all_reduce. sizes: bytes of the full vector; ranks, nodes: whole numbers, a
    number or an array each, as many ranks on every node.

    Ring: 2(p−1) hops for an all-reduce, p−1 for the others; of a lap, as many go between nodes as there
    are nodes (NCCL itself counts one fewer). A rank sends 2(p−1)/p, (p−1)/p or 1 times n; a broadcast and a reduce go along the ring
    as a chain.

    Tree: a chain inside each node and a binary tree between nodes, up and down again: the path is
    L = 2·[(p/N − 1)·hop_inside + lg N·hop_between], and a rank passes on 2n bytes in all, x = 2n/bandwidth.
    A vector in one piece pays n/bandwidth on every hop. Cut into chunks it pays x once, and
    2κ·√(L·x/2) for filling the pipeline; for κ = 1 that is the least of (hops + chunks − 1)·(α + n/chunks·β)
    over the number of chunks, up and down overlapping. Chunks that are posted ahead follow
    each other by the gap g and not by α, which makes κ about √(g/α). The smaller of the two counts.

    Raises UsageError for another collective or algorithm.
    """
    return seconds_of_calls(collective, algorithm, sizes, ranks, nodes)(protocol)


def seconds_of_calls(collective: str, algorithm: str, sizes, ranks, nodes):
    """Prepare `closed_form` for these calls: return a function of a protocol, for callers that try many.

    It accepts any object with a `Protocol`'s attributes.
    """
    collective = collectives.spelling(collective)
    if collective not in COLLECTIVES:
        raise UsageError(f"closed_form got {collective!r}: give one of {', '.join(COLLECTIVES)}")
    if algorithm != "ring" and (algorithm, collective) != ("tree", "all_reduce"):
        raise UsageError(f"closed_form got {algorithm!r} for {collective}: give 'ring', or 'tree' for an all_reduce")
    n, p, nodes = (np.asarray(each, dtype=float) for each in (sizes, ranks, nodes))
    several = nodes > 1
    if algorithm == "ring":
        steps, hops_between, share = _ring(collective, p, nodes)
        hops_between = several * np.minimum(hops_between, steps)
        hops_inside, sent = steps - hops_between, n * share
    else:
        hops_inside, hops_between = 2 * (p / nodes - 1), 2 * np.log2(nodes)

    def ring(protocol):
        start = protocol.start + several * protocol.enter_network
        bandwidth = np.where(several, protocol.bandwidth_between, protocol.bandwidth_inside)
        return start + hops_inside * protocol.hop_inside + hops_between * protocol.hop_between + sent / bandwidth

    def tree(protocol):
        start = protocol.start + several * protocol.enter_network
        bandwidth = np.where(several, protocol.bandwidth_between, protocol.bandwidth_inside)
        path = hops_inside * protocol.hop_inside + hops_between * protocol.hop_between
        moved = 2 * n / bandwidth
        in_one_piece = path + (hops_inside + hops_between) * n / bandwidth
        in_chunks = path + moved + 2 * protocol.pipelining * np.sqrt(path * moved / 2)
        return start + np.minimum(in_one_piece, in_chunks)

    return ring if algorithm == "ring" else tree


@dataclass(frozen=True)
class Model:
    """A machine as its software uses it: protocols, of which every call takes the fastest.

    ranks_per_node: where given, `nodes` may be left out of the calls below. gap: seconds between two messages at a port, of
    what is simulated; left out, those of `theory.wires`. The closed forms need none: their steps wait for arrivals. error: of a
    fitted model, the median part by which it misses the measured times.
    """

    protocols: tuple[Protocol, ...]
    ranks_per_node: int | None = None
    gap: float | None = None
    error: float | None = None

    def __post_init__(self):
        for name in ("gap", "error"):
            require("Model", name, getattr(self, name), optional(number()))
        require("Model", "protocols", self.protocols, several("a tuple of Protocols"))
        require("Model", "ranks_per_node", self.ranks_per_node, optional(whole(1)))
        if not self.protocols:
            raise UsageError("Model got no protocols: give at least one Protocol")

    def time(self, collective, sizes, ranks: int, nodes: int | None = None, **options) -> np.ndarray:
        """Seconds of a collective, or of any rank program, for each size.

        collective: one of COLLECTIVES (closed form, the faster of ring and tree); "all_to_all", "scatter",
        "gather" or "barrier"; or a rank program that takes one flat tensor first, as those of
        `ringtree.algorithms` do. Programs, and these four as `ringtree.collectives` names them, are simulated
        with each protocol and size, and the protocol's start is added. sizes: bytes of the full vector, one or
        many, multiples of 4 where something is simulated. ranks: how many; nodes: how many, by default as
        `ranks_per_node` says, or one. options: arguments of the program behind its tensor and `dist`, such as
        root=0.
        """
        sizes = _sizes(sizes)
        nodes = self.nodes(ranks, nodes)
        collective = collectives.spelling(collective)
        if callable(collective) or collective in SIMULATED:
            return self._simulated(collective, sizes, ranks, nodes, options)
        if collective not in COLLECTIVES:
            known = ", ".join(COLLECTIVES + SIMULATED)
            raise UsageError(f"Model.time got {collective!r}: give one of {known}, or a rank program")
        if options:
            raise UsageError(f"Model.time got {', '.join(options)} for {collective}: only a rank program takes options")
        return self._all(collective, sizes, ranks, nodes)[1].min(axis=0)

    def choice(self, collective: str, sizes, ranks: int, nodes: int | None = None) -> list[tuple[str, int]]:
        """For each size, the fastest: ("ring" or "tree", which protocol, from 0)."""
        names, times = self._all(collective, _sizes(sizes), ranks, self.nodes(ranks, nodes))
        return [names[i] for i in times.argmin(axis=0)]

    def _all(self, collective, sizes, ranks, nodes):
        names, times = [], []
        for i, protocol in enumerate(self.protocols):
            for algorithm in ("ring", "tree") if collectives.spelling(collective) == "all_reduce" else ("ring",):
                names.append((algorithm, i))
                times.append(closed_form(collective, algorithm, protocol, sizes, ranks, nodes))
        return names, np.array(times)

    def _simulated(self, program, sizes, ranks, nodes, options) -> np.ndarray:
        # Here, since they load torch, which a closed form does without.
        from ringtree.simulated.sketch import Sketch
        from ringtree.simulated.sweep import sweep

        for size in sizes:
            if size % 4:
                raise UsageError(f"Model.time got {size:g} bytes for a simulated program: give a multiple of 4, one float32")

        def run(tensor, dist):
            (program if callable(program) else _default(program))(tensor, dist, **options)

        starts = np.array([each.start + (each.enter_network if nodes > 1 else 0) for each in self.protocols])
        machines = [self.machine(each, ranks // nodes if nodes > 1 else None) for each in self.protocols]
        cases = [(int(size) // 4, machine, 0.0) for size in sizes for machine in machines]
        times = np.array([each.makespan for each in sweep(run, lambda count: [Sketch(count)] * ranks, cases)])
        return (starts + times.reshape(-1, len(machines))).min(axis=1)

    def machine(self, protocol: Protocol, ranks_per_node: int | None = None) -> Machine:
        """The α-β `Machine` of one of its protocols, with the model's gap and its error of fit."""
        return protocol.machine(ranks_per_node, self.gap, self.error)

    def nodes(self, ranks: int, nodes: int | None = None) -> int:
        """Return how many nodes so many ranks have here. Raises UsageError where they do not share out evenly."""
        if not _whole(ranks) or ranks < 1:
            raise UsageError(f"Model got ranks={ranks!r}: give a whole number of ranks, 1 or more")
        if nodes is None:
            nodes = -(-ranks // self.ranks_per_node) if self.ranks_per_node else 1
        if not _whole(nodes) or nodes < 1 or ranks % nodes:
            raise UsageError(f"Model got {ranks} ranks on {nodes!r} nodes: give as many ranks on every node")
        return int(nodes)

    def __str__(self) -> str:
        return "\n".join(f"protocol {i}: {each}" for i, each in enumerate(self.protocols))


def _default(collective: str):
    """A collective of SIMULATED as a program that takes one flat tensor."""
    from ringtree import algorithms
    from ringtree.theory.costs import blocks

    row = collectives.find(collective)
    assert row.algorithm, f"{collective} has no algorithm"
    program = getattr(algorithms, row.algorithm)
    if row.before == "nothing":
        return lambda tensor, dist: program(tensor[:0], dist)
    if row.before == "blocks":
        return lambda tensor, dist: program(*blocks(tensor, dist.get_rank(), dist.get_world_size()), dist)
    return program


def _whole(value) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _sizes(sizes) -> np.ndarray:
    sizes = np.atleast_1d(np.asarray(sizes, dtype=float))
    if not np.isfinite(sizes).all() or (sizes < 0).any():
        raise UsageError("Model got a size that is negative or not a finite number: give bytes, 0 or more")
    return sizes
