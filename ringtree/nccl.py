"""NCCL's own cost model: how long it believes a collective takes, and which algorithm and protocol it therefore picks.

When a communicator is made, NCCL gives every algorithm × protocol a latency and a bandwidth for each collective; at
each call it computes

    seconds = latency + bytes / bandwidth

for all of them, with two corrections, and takes the smallest. `table(platform)` makes that table from the description
of a machine, `model` and `choice` use it; `read_tuning` reads the table and the choices that a running NCCL prints, and
`predict_from_table` computes from that table what NCCL computes.

The formulas and constants are those of NVIDIA/nccl, `src/graph/tuning.cc` (the table, the corrections), `src/enqueue.cc`
(the smallest wins; no size switches a protocol off, a slow one merely loses), `src/graph/search.cc` and `topo.h` (speeds),
at three versions that differ:

    "2.8"   v2.8.4     what the published V100 and A100 runs used
    "2.28"  v2.28.9    also right for 2.29 on everything older than Blackwell
    "2.30"  v2.30.4    "2.28" with two Blackwell limits changed, and a correction of NVLSTree there

Included: Ring, Tree; NVLS (switch reduction, one node), NVLSTree (several nodes) and PAT (one GPU a node) from 2.28 on.
Left out: CollNet (needs a network that reduces, and its plugin's word for it), NVLS across nodes (needs CollNet), POWER
CPUs, nodes that differ, calls that NCCL puts together in one launch, and the loss of LL128 for two Hoppers under CUDA 11.8.
A tuner plugin may overrule all of it.
"""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import NamedTuple

from . import figures
from .errors import UsageError

# All in the order in which NCCL goes through them: of two equal times the first wins.
COLLECTIVES = ("broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce")
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("LL", "LL128", "Simple")

# How two devices reach each other, nearest first, as NCCL's log spells it: NVL is NVLink, NVB NVLink through another GPU,
# PIX one PCIe switch, PXB several, PXN a NIC beside another GPU, PHB through the CPU, SYS from socket to socket.
PATHS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET")
GENERATIONS = ("Volta", "Ampere", "Hopper", "Blackwell")

# Latencies are µs for (LL, LL128, Simple). Caps are GB/s, a row for each of GENERATIONS, for (1, 2, more than 2) nodes.
_V2_28 = {
    "base": {"tree": (6.8, 14, 8.4), "ring": (6.6, 14, 8.4), "nvls": (0, 0, 0), "nvls_tree": (0, 0, 0), "pat": (8, 8, 8)},
    "NVLink": {"tree": (0.6, 1.25, 4), "ring": (0.6, 1.9, 3.4), "nvls": (0, 0, 25), "nvls_tree": (0, 0, 25), "pat": (0, 0, 4)},
    "PCIe": {"tree": (1, 1.9, 4), "ring": (1, 2.5, 5.7), "nvls": (0, 0, 0), "nvls_tree": (0, 0, 0), "pat": (0, 0, 4)},
    "network": {
        "tree": (5, 8.5, 14), "ring": (2.7, 4, 14), "nvls": (0, 0, 18), "nvls_tree": (0, 0, 20.9), "pat": (0, 0, 14),
    },
    "ll_cap": ((39, 39, 20.4), (87.7, 22.5, 19), (141, 45, 35), (282, 90, 70)),  # between nodes: row 0, or 1 with AMD CPUs
    "ring_ll128_cap": ((20, 20, 20), (20, 20, 20), (36.7, 36.7, 36.7), (73.4, 34.6, 73.4)),  # a channel, as the next three
    "tree_ll128_cap": ((20, 20, 20), (20, 20, 20), (36.7, 36.7, 29), (55.6, 31.67, 20)),
    "tree_cap": ((26.5, 18.5, 10), (24, 23.6, 17.8), (38.7, 41.4, 36), (70, 42.8, 24)),
    "nvls_tree_cap": ((26.5, 18.5, 10), (24, 23.6, 17.8), (0, 57.7, 45.5), (0, 96, 43.8)),
    "nvls_efficiency": (0, 0, 0.85, 0.74),
    "tree_correction": {  # at 64 B, 128 B, … 256 MiB
        "LL": (1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1),
        "LL128": (1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1),
        "Simple": (.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9),
    },
}
_V2_8 = {
    "base": {"tree": (4.4, 4.4, 0), "ring": (3.6, 10, 8.4)},
    "NVLink": {"tree": (0.52, 1.25, 28), "ring": (0.47, 1.9, 3.4)},
    "PCIe": {"tree": (1, 1.9, 28), "ring": (1, 2.5, 5.7)},
    "network": {"tree": (5, 8.5, 28), "ring": (2.7, 4, 9.6)},
    "ll_cap": ((39, 39, 20.4), (87.7, 22.5, 19)),
    "ll128_cap": {"broadcast": 18.8, "reduce": 12, "all_gather": 18.3, "reduce_scatter": 15.2, "all_reduce": 16.9},  # a channel
    "tree_cap": ((26.5, 18.5, 10), (24, 22.5, 16)),
    "a100_cap": 235,
    "tree_correction": {
        **_V2_28["tree_correction"],
        "LL128": (1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .5, .6, .6, .7, .7, .8, .9, .9, .92, .92),
    },
}
CONSTANTS = {
    "2.8": _V2_8,
    "2.28": _V2_28,
    "2.30": {
        **_V2_28,
        "ring_ll128_cap": (*_V2_28["ring_ll128_cap"][:3], (40, 40, 40)),
        "nvls_tree_cap": (*_V2_28["nvls_tree_cap"][:3], (0, 96, 80)),
    },
}


def latencies(version: str = "2.28") -> dict[tuple[str, str, str], float]:
    """The latencies that NCCL counts with, in seconds, by (level, algorithm, protocol).

    level is "base" (once a call), or "NVLink", "PCIe", "network" (once a step over such a link).
    """
    constants = _constants(version)
    return {
        (level, algorithm, protocol): constants[level][algorithm][i] * 1e-6
        for level in ("base", "NVLink", "PCIe", "network")
        for algorithm in constants[level]
        for i, protocol in enumerate(PROTOCOLS)
        if not (algorithm in ("nvls", "nvls_tree", "pat") and protocol != "Simple")
    }


def _constants(version: str) -> dict:
    if version not in CONSTANTS:
        raise UsageError(f"version={version!r}: the constants are known for {', '.join(CONSTANTS)}; give the nearest of them")
    return CONSTANTS[version]


# --- machines ---


@dataclass(frozen=True)
class Graph:
    """What NCCL's search of the machine found for one kind of pattern: so many channels, each so fast.

    channels: how many rings (trees, …) run side by side; intra, inter: bytes per second that one of them gets inside a
    node and between nodes. NCCL prints these, in GB/s, as "nChannels 12, bw 20.0/20.0"; the CUDA blocks are twice as many.
    """

    channels: int
    intra: float
    inter: float

    def __post_init__(self):
        if not isinstance(self.channels, int) or self.channels < 1 or not (self.intra > 0 and self.inter > 0):
            raise UsageError(
                f"Graph({self.channels!r}, {self.intra!r}, {self.inter!r}): give 1 or more channels, and the bytes per second "
                "of one channel inside a node and between nodes, both more than 0"
            )


@dataclass(frozen=True)
class Platform:
    """A machine and a communicator on it, as NCCL's model sees them.

    The reader has to supply: `capability` (70 V100, 80 A100, 89 L40S, 90 H100 and H200, 100 B200), `nodes`,
    `ranks_per_node`, and the speeds, `ring` and where it differs `tree`. Those come best from NCCL itself
    (`read_platform`); `published` has them for known machines.

    nvls: the graph of switch reduction, None without (before Hopper, without NVSwitch, or switched off);
    intra: the farthest path between two GPUs of a node; inter: from GPU to NIC; both words of PATHS;
    cpu: "Intel", "AMD" or "other"; network_latency: seconds that the network plugin declares (InfiniBand: 0);
    same_channels: False where a node's rings differ, which only broadcast and reduce feel;
    plain_tree: the search had to put all of a node's network traffic on one GPU (pattern 3 in the log), None: where a
    node has one; ll128: True or False overrules NCCL's own decision on LL128; version: a key of CONSTANTS; source: where
    the speeds come from.
    """

    name: str
    capability: int
    nodes: int
    ranks_per_node: int
    ring: Graph
    tree: Graph | None = None
    nvls: Graph | None = None
    intra: str = "NVL"
    inter: str = "PIX"
    cpu: str = "Intel"
    network_latency: float = 0.0
    same_channels: bool = True
    plain_tree: bool | None = None
    ll128: bool | None = None
    version: str = "2.28"
    source: str = ""

    def __post_init__(self):
        _constants(self.version)
        for what in ("nodes", "ranks_per_node"):
            if not isinstance(getattr(self, what), int) or getattr(self, what) < 1:
                raise UsageError(f"{what}={getattr(self, what)!r}: give a whole number, 1 or more")
        if self.ranks < 2:
            raise UsageError("a platform of one rank: NCCL has nothing to choose there; give 2 ranks or more")
        for what in ("intra", "inter"):
            if getattr(self, what) not in PATHS:
                raise UsageError(f"{what}={getattr(self, what)!r}: give how NCCL calls that path, one of {', '.join(PATHS)}")
        if self.cpu not in ("Intel", "AMD", "other"):
            raise UsageError(f"cpu={self.cpu!r}: give 'Intel', 'AMD' or 'other'")
        if not 60 <= self.capability < 200:
            raise UsageError(f"capability={self.capability!r}: give ten times the compute capability, 80 for 8.0")

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def generation(self) -> str:
        """Whose row of the constants NCCL takes: one of GENERATIONS, the newest that is not newer than the GPU."""
        return GENERATIONS[sum(self.capability >= first for first in (80, 90, 100))]

    @property
    def channels(self) -> int:
        """The channels (CUDA blocks) that the communicator ends up with: every ring and tree is used twice."""
        doubled = 2 * self._lanes
        if self.version == "2.8":
            return min(32, doubled)
        if self.capability >= 90 and self.nodes > 1 and self.ring.intra > 45e9 and doubled < 16:
            doubled *= 2
        return min(64, doubled)

    @property
    def _lanes(self) -> int:
        return min(self.ring.channels, (self.tree or self.ring).channels)


# --- the table ---


def table(platform: Platform) -> list[dict]:
    """Latency and bandwidth of every collective × algorithm × protocol, as NCCL works them out when it starts.

    Each row: collective, algorithm, protocol, latency (seconds), bandwidth (bytes of the vector per second; 0 where NCCL
    has switched that protocol off). Combinations that NCCL does not have are left out.
    """
    return [row for collective in COLLECTIVES for row in _rows(collective, platform)]


def _rows(collective: str, platform: Platform) -> list[dict]:
    return [
        {
            "collective": collective,
            "algorithm": algorithm,
            "protocol": protocol,
            "latency": _latency(collective, algorithm, protocol, platform) * 1e-6,
            "bandwidth": _bandwidth(collective, algorithm, protocol, platform) * 1e9,
        }
        for algorithm in _algorithms(collective, platform)
        for protocol in (PROTOCOLS if algorithm in ("tree", "ring") else PROTOCOLS[2:])
    ]


def _algorithms(collective: str, platform: Platform) -> list[str]:
    """The algorithms that NCCL has for this collective on this machine."""
    found = ["ring"]
    if collective == "all_reduce":
        found.insert(0, "tree")
    if collective in ("all_gather", "reduce_scatter", "all_reduce") and platform.version != "2.8":
        if platform.nvls and platform.nvls.channels > 1 and platform.capability >= 90:
            if platform.nodes == 1:
                found.append("nvls")
            elif collective == "all_reduce":
                found.append("nvls_tree")
        if collective != "all_reduce" and platform.ranks_per_node == 1:
            found.append("pat")
    return found


def _ring_steps(collective: str, ranks: int) -> int:
    return {"all_reduce": 2 * (ranks - 1), "all_gather": ranks - 1, "reduce_scatter": ranks - 1}.get(collective, ranks)


def _log2(n: int) -> int:
    """NCCL's logarithm: of whole numbers, rounded down."""
    return n.bit_length() - 1


def _latency(collective: str, algorithm: str, protocol: str, platform: Platform) -> float:
    """µs that a call takes however short the message."""
    p, nodes = platform, platform.nodes
    lookup = _constants(p.version)
    i = PROTOCOLS.index(protocol)
    level = "NVLink" if p.intra == "NVL" else "PCIe"
    base, intra = lookup["base"][algorithm][i], lookup[level][algorithm][i]
    inter = _network_step(algorithm, protocol, p)
    if p.version == "2.8" and nodes > 1 and protocol == "LL":
        intra *= 1.8

    if algorithm == "tree":
        return base + 2 * ((p.ranks_per_node - 1) * intra + _log2(nodes) * inter)
    if algorithm == "nvls":
        return intra
    if algorithm == "nvls_tree":
        return base + intra + 2 * _log2(nodes) * inter
    if algorithm == "pat":
        return base + _log2(nodes) * inter / 3.5 + 2.8 * p.ranks
    if collective in ("broadcast", "reduce"):
        return base + _pipeline_latency(protocol, level, p)
    across = (2 if collective == "all_reduce" else 1) * (nodes - 1)
    if p.version != "2.8" and nodes > 1:
        intra = max(intra, (2.0 if p.cpu == "AMD" else 1.0) * (3 if protocol == "Simple" else 1))  # posting to the network
    return base + (_ring_steps(collective, p.ranks) - across) * intra + across * inter


def _network_step(algorithm: str, protocol: str, platform: Platform) -> float:
    """µs of one step between nodes. With one rank a node nothing hides it, and NCCL takes the tree's for all algorithms."""
    network, i = _constants(platform.version)["network"], PROTOCOLS.index(protocol)
    if platform.version == "2.8":
        return network[algorithm][i]
    declared = platform.network_latency * 1e6 * (2 if protocol == "Simple" else 1)  # Simple also waits for a flush
    return network["tree" if platform.ranks_per_node == 1 else algorithm][i] + declared


def _pipeline_latency(protocol: str, level: str, platform: Platform) -> float:
    """µs of the ring pipeline that broadcast and reduce run: one step where all rings are alike, else one for each rank."""
    steps = _constants(platform.version)[level if platform.nodes == 1 else "network"]
    i = PROTOCOLS.index(protocol)
    if platform.same_channels:
        return steps["ring"][i]
    return platform.ranks * steps["tree" if protocol == "Simple" else "ring"][i]


def _bandwidth(collective: str, algorithm: str, protocol: str, platform: Platform) -> float:
    """GB/s of the vector: what the links carry ("busbw"), times the vector's share in it; 0 where switched off."""
    if protocol == "LL128" and not (_ll128_by_default(platform) if platform.ll128 is None else platform.ll128):
        return 0.0
    bus = (_bus_2_8 if platform.version == "2.8" else _bus)(collective, algorithm, protocol, platform)
    if algorithm in ("ring", "nvls", "nvls_tree") and (algorithm == "ring" or collective == "all_reduce"):
        return bus * platform.ranks / _ring_steps(collective, platform.ranks)
    return bus / 2 if algorithm == "tree" else bus


def _ll128_by_default(platform: Platform) -> bool:
    """LL128 needs stores of 128 bytes to arrive whole, so NCCL trusts it on near paths between equal GPUs only."""
    intra, inter = PATHS.index(platform.intra), PATHS.index(platform.inter)
    if platform.version == "2.8":
        return intra <= PATHS.index("NVL") and inter <= PATHS.index("PXB") and platform.capability in (70, 80)
    farthest = "PXN" if platform.capability >= 90 else "PXB"
    return intra <= PATHS.index("NVB") and inter <= PATHS.index(farthest) and platform.capability >= 70


def _bus(collective: str, algorithm: str, protocol: str, platform: Platform) -> float:
    """GB/s on the links, from 2.28 on: the graph's speed, less what the protocol wastes, at most what a GPU can drive."""
    p, lanes, limits = platform, platform._lanes, _constants(platform.version)
    where, row = min(p.nodes, 3) - 1, GENERATIONS.index(p.generation)
    ll_cap = limits["ll_cap"][row if p.nodes == 1 else int(p.cpu == "AMD")][where]
    if algorithm in ("nvls", "nvls_tree"):
        return _nvls_bus(collective, algorithm, platform)
    graph = p.ring if algorithm == "ring" else (p.tree or p.ring)
    bus = lanes * (graph.intra if p.nodes <= 2 else graph.inter) / 1e9
    if algorithm == "ring":
        if protocol == "LL":
            return min(ll_cap, bus / 2)
        return min(bus * 0.92, lanes * limits["ring_ll128_cap"][row][where]) if protocol == "LL128" else bus
    if algorithm == "pat":
        return bus * 0.75
    bus = min(bus * 0.92, lanes * limits["tree_cap"][row][where])
    if protocol == "LL":
        bus = min(bus / 3.8, ll_cap)
    elif protocol == "LL128":
        bus = min(bus * (7 / 9 if p.nodes == 1 else 120 / 128), lanes * limits["tree_ll128_cap"][row][where])
    plain = p.ranks_per_node == 1 if p.plain_tree is None else p.plain_tree
    return bus * 0.85 if plain else bus


def _nvls_bus(collective: str, algorithm: str, platform: Platform) -> float:
    """GB/s where the NVLink switch adds up. Each head pulls a share through it; all-reduce has two in flight at once."""
    p, heads, limits = platform, platform.nvls.channels, _constants(platform.version)
    row = GENERATIONS.index(p.generation)
    intra = p.nvls.intra / 1e9 * limits["nvls_efficiency"][row] * (heads - 1) / heads
    intra *= 2 if collective == "all_reduce" else (p.ranks_per_node - 1) / p.ranks_per_node
    inter = p.nvls.inter / 1e9
    if algorithm == "nvls":
        return heads * min(intra, inter)
    cap = limits["nvls_tree_cap"][row][min(p.nodes, 3) - 1]
    return heads * min(intra, inter * (2 if p.nodes == 2 else 1), cap)


def _bus_2_8(collective: str, algorithm: str, protocol: str, platform: Platform) -> float:
    """GB/s on the links in 2.8: other caps, and LL128 limited by the collective instead of the GPU."""
    p, lanes, limits = platform, platform._lanes, _constants("2.8")
    where, a100 = min(p.nodes, 3) - 1, int(p.capability == 80)
    ll_cap = limits["ll_cap"][a100 if p.nodes == 1 else int(p.cpu == "AMD")][where]
    ll128_cap = lanes * limits["ll128_cap"][collective]
    graph = p.ring if algorithm == "ring" else (p.tree or p.ring)
    bus = lanes * (graph.intra if p.nodes <= 2 else graph.inter) / 1e9
    if a100:
        bus = min(bus, limits["a100_cap"])
    if algorithm == "ring":
        if protocol == "LL":
            return min(ll_cap, bus / (4 if p.nodes > 1 or collective in ("all_reduce", "reduce") else 3))
        return min(bus * (0.7 if p.ranks_per_node == 1 else 0.92), ll128_cap) if protocol == "LL128" else bus
    bus = min(bus * 0.92, lanes * limits["tree_cap"][a100][where])
    if protocol == "LL":
        return min(bus / 3.8, ll_cap)
    return min(bus * (7 / 9 if p.nodes == 1 else 0.915), ll128_cap) if protocol == "LL128" else bus


# --- the time of one call, and the choice ---


class Choice(NamedTuple):
    """What NCCL takes for a call, and the seconds it expects."""

    algorithm: str
    protocol: str
    seconds: float


def model(collective: str, nbytes: int, platform: Platform, *, algorithms=None, protocols=None) -> dict:
    """Seconds that NCCL expects of each (algorithm, protocol), in its own order; None where it is switched off.

    nbytes: of the full vector (for all_gather and reduce_scatter all ranks' shards together), as nccl-tests counts.
    algorithms, protocols: only these, like NCCL_ALGO and NCCL_PROTO; LL128 asked for by name is used where NCCL would
    not trust it, as NCCL itself does.
    """
    nbytes = _checked(collective, nbytes)
    wanted = _named(algorithms, ALGORITHMS, "algorithms"), _named(protocols, PROTOCOLS, "protocols")
    if protocols is not None and "LL128" in wanted[1]:
        platform = replace(platform, ll128=True)
    rows = _rows(collective, platform)
    return _times([row for row in rows if row["algorithm"] in wanted[0] and row["protocol"] in wanted[1]], nbytes, platform)


def choice(collective: str, nbytes: int, platform: Platform, *, algorithms=None, protocols=None) -> Choice:
    """The fastest of `model`: what NCCL takes for this call, and the seconds it expects. Arguments as for `model`."""
    return _fastest(model(collective, nbytes, platform, algorithms=algorithms, protocols=protocols), collective)


def _times(rows: list[dict], nbytes: int, communicator) -> dict:
    """`communicator` says nodes, ranks, channels, capability and version: a Platform does, and so does what a log told."""
    return {(row["algorithm"], row["protocol"]): _seconds(row, nbytes, communicator) for row in rows}


def _seconds(row: dict, nbytes: int, communicator) -> float | None:
    """One cell's latency + bytes / bandwidth, with the corrections that NCCL makes at the call; None if switched off."""
    if not row["bandwidth"]:
        return None
    latency, bandwidth = row["latency"], row["bandwidth"]
    if row["collective"] == "all_reduce":
        bandwidth *= _tree_correction(row["algorithm"], row["protocol"], nbytes, communicator)
        if (row["algorithm"], row["protocol"]) == ("ring", "Simple"):
            latency *= _plateau(nbytes, communicator)
    return latency + nbytes / bandwidth


def _tree_correction(algorithm: str, protocol: str, nbytes: int, communicator) -> float:
    """Trees fall short of the formula at middle sizes; NCCL keeps a factor for each power of two."""
    c = communicator
    blackwell_too = algorithm == "nvls_tree" and c.version == "2.30" and c.capability >= 100
    if algorithm != "tree" and not blackwell_too:
        return 1.0
    factors = _constants(c.version)["tree_correction"][protocol]
    power = _log2(nbytes >> 6)
    if power < 0:
        return factors[0] if c.version == "2.8" else 1.0
    if power >= len(factors):
        return factors[-1] if blackwell_too and power == len(factors) else 1.0
    return factors[power]


def _plateau(nbytes: int, communicator) -> float:
    """Between nodes a ring of the Simple protocol has a longer latency once its chunks are worth pipelining."""
    c = communicator
    if c.nodes == 1:
        return 1.0
    if c.version == "2.8":
        return 1.9 if nbytes >= c.ranks * 4096 else 1.0
    return (1.9 if c.capability < 80 else 1.4) if nbytes // (c.channels * c.ranks) >= 64 else 1.0


def _fastest(times: dict, collective: str) -> Choice:
    possible = [Choice(*key, seconds) for key, seconds in times.items() if seconds is not None]
    if not possible:
        raise UsageError(f"no algorithm and protocol is left for {collective}: allow more algorithms or protocols")
    return min(possible, key=lambda one: one.seconds)


def _checked(collective: str, nbytes) -> int:
    if collective not in COLLECTIVES:
        raise UsageError(f"collective={collective!r}: give one of {', '.join(COLLECTIVES)}")
    if isinstance(nbytes, bool) or not isinstance(nbytes, Integral) or nbytes < 0:
        raise UsageError(f"nbytes={nbytes!r}: give the bytes of the vector, a whole number, 0 or more")
    return int(nbytes)


def _named(given, known: tuple[str, ...], what: str) -> tuple[str, ...]:
    names = known if given is None else (given,) if isinstance(given, str) else tuple(given)
    if strange := [name for name in names if name not in known]:
        raise UsageError(f"{what}: {strange[0]!r} is unknown; give some of {', '.join(known)}")
    return names


# --- what a running NCCL prints ---

DEBUG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH,TUNING"}  # what to set for all that is read below


@dataclass(frozen=True)
class Communicator:
    """A communicator whose table was found in a log; None is what the log does not say.

    channels: CUDA blocks that a collective may use; version: whose corrections apply, a key of CONSTANTS; capability: as in
    Platform, not in the lines that are read, so an A100 until `predict_from_table` is told otherwise.
    """

    ranks: int | None = None
    nodes: int | None = None
    channels: int | None = None
    capability: int = 80
    version: str = "2.28"


@dataclass
class Tuning:
    """What `read_tuning` found. All rows are plain dicts, ready for `pandas.DataFrame(rows)`.

    table: communicator (0, 1, … in the log's order), collective, algorithm, protocol, latency (seconds), bandwidth (bytes
    of the vector per second, 0 where NCCL switched it off), both rounded by NCCL to 0.1 µs and 0.1 GB/s.

    calls: collective (None in 2.20 to 2.22), bytes (as printed: for all_gather and reduce_scatter the whole vector up to
    2.23, one rank's shard from 2.24 on), algorithm, protocol, seconds (NCCL's expectation; None from 2.24 on), channels
    (how many the call used; None before 2.24). A call that went past the table has algorithm "symmetric", "copy_engine"
    or "hierarchical_ce", and as protocol the rest of its line.

    communicators: one Communicator for each table; version: such as "2.28.9", None if the log does not say.
    """

    table: list[dict] = field(default_factory=list)
    calls: list[dict] = field(default_factory=list)
    communicators: list[Communicator] = field(default_factory=list)
    version: str | None = None


_COLLECTIVE_OF = {"".join(part.capitalize() for part in name.split("_")): name for name in COLLECTIVES}
_ALGORITHM_OF = {name.replace("_", ""): name for name in ALGORITHMS}
_PROTOCOL_OF = {name.upper(): name for name in PROTOCOLS}

_CALL = re.compile(
    r"(?:(?P<collective>\w+): )?(?P<bytes>\d+) Bytes -> Algo (?P<algorithm>\w+) proto (?P<protocol>\w+)"
    r"(?: time (?P<us>[\d.]+))?(?: channel\{Lo\.\.Hi\}=\{(?P<low>\d+)\.\.(?P<high>\d+)\})?"
)
_OTHER_CALL = re.compile(r"(?P<collective>\w+) \[(?P<way>[\w ]+)\]: (?P<bytes>\d+) Bytes -> (?P<rest>.*)")
_CELL = re.compile(r"(-?[\d.]+)/\s*(-?[\d.]+)")
_RANK = re.compile(r"comm \w+ rank \d+ nRanks (\d+) nNodes (\d+)")
_CHANNELS = re.compile(r"(\d+) coll channels")
_VERSION = re.compile(r"NCCL version (\d+\.\d+(?:\.\d+)?)")


def read_tuning(text: str) -> Tuning:
    """The tables and the choices in a log of NCCL 2.8 to 2.30, made with the settings of DEBUG.

    text: the whole log; lines of other programs and of other parts of NCCL in between do no harm. Only rank 0 of a
    communicator prints its table and, from 2.20 on, a line a call.

    Raises UsageError if there is neither a table nor a call in it, or if a row of a table is cut off.
    """
    found, header, size = Tuning(), [], (None, None)
    for line in text.splitlines():
        line = line.rpartition("NCCL INFO ")[2].strip()
        if match := _VERSION.search(line):
            found.version = match[1]
        elif match := _RANK.search(line):
            size = int(match[1]), int(match[2])
        elif match := _CHANNELS.search(line):
            _note_channels(found.communicators, int(match[1]))
        elif re.match(r"(Algorithm +|Latency/AlgBw )\|", line):
            header = _read_header(line)
            if header[:1] == [("tree", "LL")]:
                found.communicators.append(Communicator(*size))
            elif not found.communicators:
                raise UsageError("the log begins in the middle of NCCL's table: give it from its first line on")
        elif header and (match := re.match(r"(\w+) \|", line)) and match[1] in _COLLECTIVE_OF:
            found.table += _read_row(line, _COLLECTIVE_OF[match[1]], header, len(found.communicators) - 1)
        elif call := _read_call(line):
            found.calls.append(call)
    if not found.table and not found.calls:
        raise UsageError(
            "read_tuning found neither NCCL's table nor a choice in the log: set "
            + " ".join(f"{name}={value}" for name, value in DEBUG.items())
            + " before the ranks start, and give what rank 0 wrote"
        )
    if found.version:
        found.communicators = [replace(one, version=_nearest_model(found.version)) for one in found.communicators]
    return found


def _nearest_model(version: str) -> str:
    """Whose corrections a version makes at the call: those of 2.8 held on for a while, those of 2.30 came with 2.29."""
    number = tuple(int(part) for part in version.split(".")[:2])
    return "2.8" if number < (2, 12) else "2.28" if number < (2, 29) else "2.30"


def _note_channels(communicators: list[Communicator], channels: int) -> None:
    if communicators and communicators[-1].channels is None:
        communicators[-1] = replace(communicators[-1], channels=channels)


def _read_header(line: str) -> list[tuple[str, str]]:
    """(algorithm, protocol) of each column. Up to 2.17 one line names both; later the line of algorithms says enough."""
    cells = [cell.strip() for cell in line.split("|")[1:] if cell.strip()]
    if line.startswith("Latency/AlgBw"):
        pairs = [cell.split("/") for cell in cells]
        return [(_algorithm(a), _protocol(p)) for a, p in pairs]
    return [(_algorithm(a), p) for a in cells for p in PROTOCOLS]


def _read_row(line: str, collective: str, header: list[tuple[str, str]], communicator: int) -> list[dict]:
    cells = _CELL.findall(line)
    if len(cells) != len(header):
        raise UsageError(
            f"the table's row of {collective} has {len(cells)} cells under {len(header)} headings: "
            "the log is cut off or mixed up; let each rank write a file of its own (NCCL_DEBUG_FILE=nccl.%h.%p)"
        )
    return [
        {
            "communicator": communicator,
            "collective": collective,
            "algorithm": algorithm,
            "protocol": protocol,
            "latency": float(latency) * 1e-6,
            "bandwidth": float(bandwidth) * 1e9,
        }
        for (algorithm, protocol), (latency, bandwidth) in zip(header, cells)
    ]


def _read_call(line: str) -> dict | None:
    if match := _CALL.search(line):
        low, high = match["low"], match["high"]
        return {
            "collective": _COLLECTIVE_OF.get(match["collective"]),
            "bytes": int(match["bytes"]),
            "algorithm": _algorithm(match["algorithm"]),
            "protocol": _protocol(match["protocol"]),
            "seconds": float(match["us"]) * 1e-6 if match["us"] else None,
            "channels": int(high) - int(low) + 1 if high else None,
        }
    if match := _OTHER_CALL.match(line):
        return {
            "collective": _COLLECTIVE_OF.get(match["collective"]),
            "bytes": int(match["bytes"]),
            "algorithm": match["way"].lower().replace(" ", "_"),
            "protocol": match["rest"],
            "seconds": None,
            "channels": None,
        }
    return None


def _algorithm(word: str) -> str:
    """Our name of `NVLSTree` (the table), `NVLS_TREE` (calls from 2.24 on) or `5` (calls before)."""
    if word.isdigit():
        return ALGORITHMS[int(word)]
    plain = word.strip().lower().replace("_", "")
    return _ALGORITHM_OF.get(plain, plain)


def _protocol(word: str) -> str:
    return PROTOCOLS[int(word)] if word.isdigit() else _PROTOCOL_OF.get(word.strip().upper(), word)


def predict_from_table(tuning: Tuning, collective: str, nbytes: int, *, communicator: int = 0, **known) -> Choice:
    """What NCCL itself takes for a call, computed from the table it printed, and the seconds it expects.

    known: ranks, nodes, channels, capability or version, where the log does not say them: the corrections of all_reduce
    need them (capability only between nodes on V100, and for NVLSTree on Blackwell). nbytes as for `model`. Since NCCL
    prints one decimal, two cells that are closer than that may come out the other way round.

    Raises UsageError if the log has no such table, or if something needed is not known.
    """
    nbytes = _checked(collective, nbytes)
    if not 0 <= communicator < len(tuning.communicators):
        raise UsageError(f"communicator={communicator!r}: the log has the tables of {len(tuning.communicators)} communicators")
    if strange := set(known) - set(Communicator.__dataclass_fields__):
        raise UsageError(f"predict_from_table got {min(strange)}; it knows {', '.join(Communicator.__dataclass_fields__)}")
    about = replace(tuning.communicators[communicator], **known)
    missing = [what for what in ("nodes", "ranks", "channels") if getattr(about, what) is None]
    if collective == "all_reduce" and missing and about.nodes != 1:
        raise UsageError(f"the log does not say {' and '.join(missing)} of the communicator: give {missing[0]}=…")
    rows = [row for row in tuning.table if (row["communicator"], row["collective"]) == (communicator, collective)]
    if not rows:
        raise UsageError(f"the table of communicator {communicator} has no row of {collective}: the log is not whole")
    return _fastest(_times(rows, nbytes, about), collective)


_PATTERN = re.compile(
    r"Pattern (?P<pattern>\d+), crossNic \d+, nChannels (?P<channels>\d+), (?:bw|speed) (?P<intra>[\d.]+)/(?P<inter>[\d.]+), "
    r"type (?P<type_intra>\w+)/(?P<type_inter>\w+), sameChannels (?P<same>\d)"
)


def read_platform(text: str, *, capability: int, **more) -> Platform:
    """The machine as NCCL's search found it, from the lines "Pattern 4, … nChannels 12, bw 20.0/20.0" of a log.

    text: the log of one rank, made with the settings of DEBUG. capability: as in Platform; more: any other field of
    Platform, for what the log does not tell (cpu, version, network_latency) or tells wrong. Slower nodes elsewhere, to
    which NCCL would adapt, are not seen.

    Raises UsageError without such lines.
    """
    size = _RANK.search(text)
    graphs = {}
    for match in _PATTERN.finditer(text):
        kind = {"4": "ring", "5": "nvls"}.get(match["pattern"], "tree" if match["pattern"] in "123" else None)
        if kind and int(match["channels"]):
            graphs.setdefault(kind, match)
    if not size or "ring" not in graphs:
        raise UsageError(
            "read_platform found no ring of NCCL's search, or no number of ranks and nodes: set "
            + " ".join(f"{name}={value}" for name, value in DEBUG.items())
            + " before the ranks start, and give what rank 0 wrote"
        )
    ranks, nodes, ring = int(size[1]), int(size[2]), graphs["ring"]
    told = {
        "name": f"{ranks} ranks on {nodes} {'node' if nodes == 1 else 'nodes'}",
        "nodes": nodes,
        "ranks_per_node": ranks // nodes,
        **{kind: _graph(int(m["channels"]), float(m["intra"]), float(m["inter"])) for kind, m in graphs.items()},
        "intra": ring["type_intra"],
        "inter": ring["type_inter"],
        "same_channels": ring["same"] == "1",
        "plain_tree": "tree" in graphs and graphs["tree"]["pattern"] == "3",
        "source": "NCCL's log",
    }
    return Platform(**{**told, "capability": capability, **more})


# --- published runs ---


def _graph(channels: int, intra: float, inter: float | None = None) -> Graph:
    return Graph(channels, intra * 1e9, (intra if inter is None else inter) * 1e9)


_WORKED_OUT = "worked out from the link speeds in topo.h and the speeds that search.cc tries"
_V100 = Platform("4 × V100 (NVLink 2)", 70, 1, 4, _graph(6, 21), version="2.8", source=_WORKED_OUT)
_V100_NODES = replace(_V100, name="V100 nodes (2 × EDR)", nodes=2, ring=_graph(2, 12), tree=_graph(2, 24, 12))
_A100 = Platform(
    "A100 (NVSwitch)", 80, 1, 8, _graph(12, 21), version="2.8",
    source=f"{_WORKED_OUT}; the links' 252 GB/s stand in a log, NVIDIA/nccl-tests issue 100",
)
_A100_NODES = replace(_A100, name="A100 nodes (4 × HDR)", nodes=2, ring=_graph(4, 24), tree=_graph(4, 42, 24))
_H200 = Platform(
    "8 × H200 (NVSwitch)", 90, 1, 8, _graph(12, 30), nvls=_graph(8, 40, 60),
    source=f"{_WORKED_OUT}; gives to the last digit the table that NCCL 2.30.4 printed on such a machine "
    "(C-TC/multi-gpu-programming-models, repro/thesis_microbench/README.md, commit 19e8fbf3bd)",
)
_H100_AWS = replace(
    _H200, name="2 × 8 × H100, EFA", nodes=2, ring=_graph(8, 48), nvls=_graph(8, 40, 48), network_latency=75e-6,
    source=f"{_WORKED_OUT}; 75 µs is what aws-ofi-nccl declares for p5 (platform-aws.cpp, commit 2daf7d30); its own tuner, "
    "which may overrule NCCL, is left out, and which NCCL it was is not published",
)
_B200 = Platform("8 × B200 (NVSwitch)", 100, 1, 8, _graph(16, 45), nvls=_graph(8, 80, 90), source=_WORKED_OUT)
_B200_NODES = replace(
    _B200, name="4 × 8 × B200, EFA", nodes=4, ring=_graph(8, 48), nvls=_graph(8, 48), network_latency=35e-6,
    source=f"{_WORKED_OUT}; 35 µs is what aws-ofi-nccl declares for p6-b200 (platform-aws.cpp, commit 2daf7d30), whose own "
    "tuner is left out",
)
_L40S = Platform(
    "4 × L40S (PCIe 4)", 89, 1, 4, _graph(1, 20), intra="PHB",
    source=f"{_WORKED_OUT}: one channel of 20 GB/s, as NCCL found in a log of two RTX 4090 over PCIe 4; how this machine's "
    "four slots hang together is not published",
)
_PUBLISHED = {
    "v100_n1_p4": _V100,
    **{f"v100_n{n}_p{4 * n}": replace(_V100_NODES, nodes=n) for n in (2, 4, 8, 16)},
    "a100_n1_p4": replace(_A100, ranks_per_node=4),
    "a100_n1_p8": _A100,
    **{f"a100_n{n}_p{8 * n}": replace(_A100_NODES, nodes=n) for n in (2, 8)},
    "h100_aws_n2_p16": _H100_AWS,
    "l40s_p4_ring": _L40S,
    "l40s_p4_tree": _L40S,
    "h200_p8": _H200,
    "b200_n1_p8": _B200,
    "b200_n4_p32": _B200_NODES,
}


def published(run: str) -> Platform:
    """The machine of a published NCCL run (`figures.runs()`), with the speeds that NCCL's search gives it, or should.

    Runs of 2.27 are given the model of 2.28; what else is assumed stands in `source`. For another number of nodes use
    `dataclasses.replace(published("v100_n2_p8"), nodes=32)`: the speeds hold from 2 nodes up. Raises UsageError for a run
    that NCCL did not make, and KeyError for one that does not exist.
    """
    figures.run(run)
    if run not in _PUBLISHED:
        raise UsageError(f"{run!r} was not made with NCCL; give one of {', '.join(_PUBLISHED)}")
    return _PUBLISHED[run]


def judge(*runs: str) -> list[dict]:
    """How far NCCL's expectation is from what was measured, nothing fitted: a row for each published run.

    runs: names of `figures.runs()`; none: all that NCCL made. A run with a forced algorithm is predicted with it forced.
    Each row: run, label, version (of the model), sizes (how many), miss (the median of |predicted − measured| / measured),
    worst (the largest), small and large (medians of predicted / measured up to 1 KiB and from 16 MiB on; None where the
    run has no such sizes), picks (what the model takes, from the smallest size to the largest, without repetition).
    """
    return [_judge_one(run) for run in runs or _PUBLISHED]


def _judge_one(name: str) -> dict:
    run, platform = figures.run(name), published(name)
    forced = [run.algorithm.removesuffix(" (forced)")] if "forced" in run.algorithm else None
    sizes, measured = figures.sweep(name)
    guesses = [choice(run.operation, int(n), platform, algorithms=forced) for n in sizes]
    ratios = [guess.seconds / seconds for guess, seconds in zip(guesses, measured)]
    picks = [f"{guess.algorithm}/{guess.protocol}" for guess in guesses]
    misses = [abs(ratio - 1) for ratio in ratios]
    small = [ratio for ratio, n in zip(ratios, sizes) if n <= 1024]
    large = [ratio for ratio, n in zip(ratios, sizes) if n >= 2**24]
    return {
        "run": name,
        "label": run.label,
        "version": platform.version,
        "sizes": len(sizes),
        "miss": statistics.median(misses),
        "worst": max(misses),
        "small": statistics.median(small) if small else None,
        "large": statistics.median(large) if large else None,
        "picks": [pick for i, pick in enumerate(picks) if i == 0 or pick != picks[i - 1]],
    }
