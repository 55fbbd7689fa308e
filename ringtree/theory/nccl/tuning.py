"""The formulas of NCCL's `src/graph/tuning.cc`: its table, and what it picks for a call."""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral
from typing import NamedTuple

from ringtree import collectives
from ringtree.errors import UsageError
from ringtree.theory.nccl.constants import ALGORITHMS, COLLECTIVES, CONSTANTS, GENERATIONS, PATHS, PROTOCOLS


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
    """What NCCL's search of the machine found for one kind of pattern: how many channels, and how fast each is.

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

    @classmethod
    def of(cls, channels: int, intra: float, inter: float | None = None) -> Graph:
        """As NCCL prints it, with speeds in GB/s; between nodes the same as inside where nothing else is given."""
        return cls(channels, intra * 1e9, (intra if inter is None else inter) * 1e9)


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
                raise UsageError(f"{what}={getattr(self, what)!r}: give NCCL's name for that path, one of {', '.join(PATHS)}")
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
    if collectives.find(collective).root is None and platform.version != "2.8":
        if platform.nvls and platform.nvls.channels > 1 and platform.capability >= 90:
            if platform.nodes == 1:
                found.append("nvls")
            elif collective == "all_reduce":
                found.append("nvls_tree")
        if collective != "all_reduce" and platform.ranks_per_node == 1:
            found.append("pat")
    return found


def _ring_steps(collective: str, ranks: int) -> int:
    row = collectives.find(collective)
    return ranks if row.root else row.laps * (ranks - 1)


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
    p, nvls, limits = platform, platform.nvls, _constants(platform.version)
    assert nvls is not None, "only a platform with NVLS has these algorithms"
    heads = nvls.channels
    row = GENERATIONS.index(p.generation)
    intra = nvls.intra / 1e9 * limits["nvls_efficiency"][row] * (heads - 1) / heads
    intra *= 2 if collective == "all_reduce" else (p.ranks_per_node - 1) / p.ranks_per_node
    inter = nvls.inter / 1e9
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
    nbytes = whole_bytes(collective, nbytes)
    wanted = _named(algorithms, ALGORITHMS, "algorithms"), _named(protocols, PROTOCOLS, "protocols")
    if protocols is not None and "LL128" in wanted[1]:
        platform = replace(platform, ll128=True)
    rows = _rows(collective, platform)
    return times([row for row in rows if row["algorithm"] in wanted[0] and row["protocol"] in wanted[1]], nbytes, platform)


def choice(collective: str, nbytes: int, platform: Platform, *, algorithms=None, protocols=None) -> Choice:
    """The fastest of `model`: what NCCL takes for this call, and the seconds it expects. Arguments as for `model`."""
    return fastest(model(collective, nbytes, platform, algorithms=algorithms, protocols=protocols), collective)


def times(rows: list[dict], nbytes: int, communicator) -> dict:
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


def fastest(times: dict[tuple[str, str], float | None], collective: str) -> Choice:
    possible = [Choice(*key, seconds) for key, seconds in times.items() if seconds is not None]
    if not possible:
        raise UsageError(f"no algorithm and protocol is left for {collective}: allow more algorithms or protocols")
    return min(possible, key=lambda one: one.seconds)


def whole_bytes(collective: str, nbytes) -> int:
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
