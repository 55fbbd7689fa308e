"""What a running NCCL prints of its model, with NCCL_DEBUG=INFO: its table, its choice for each call, the machine that it found."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from ringtree.errors import UsageError, a_kind
from ringtree.theory.nccl.tuning import ALGORITHMS, COLLECTIVES, PROTOCOLS, Choice, Graph, Platform, fastest, times, whole_bytes

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
    found, header = Tuning(), []
    size: tuple = (None, None)
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
        found.communicators = [replace(one, version=nearest_model(found.version)) for one in found.communicators]
    return found


def nearest_model(version: str) -> str:
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
    """Return what NCCL itself takes for a call, computed from the table it printed, and the seconds it expects.

    known: ranks, nodes, channels, capability or version, where the log does not say them: the corrections of all_reduce
    need them (capability only between nodes on V100, and for NVLSTree on Blackwell). nbytes as for `model`. Since NCCL
    prints one decimal, two cells that are closer than that may come out the other way round.

    Raises UsageError if the log has no such table, or if something needed is not known.
    """
    nbytes = whole_bytes(collective, nbytes)
    if not isinstance(tuning, Tuning):
        raise UsageError(f"predict_from_table got {a_kind(tuning)}: give what read_tuning found in a log")
    if not 0 <= communicator < len(tuning.communicators):
        raise UsageError(f"communicator={communicator!r}: the log has the tables of {len(tuning.communicators)} communicators")
    if strange := set(known) - set(Communicator.__dataclass_fields__):
        raise UsageError(f"predict_from_table got {min(strange)}: it knows {', '.join(Communicator.__dataclass_fields__)}")
    about = replace(tuning.communicators[communicator], **known)
    missing = [what for what in ("nodes", "ranks", "channels") if getattr(about, what) is None]
    if collective == "all_reduce" and missing and about.nodes != 1:
        raise UsageError(f"the log does not say {' and '.join(missing)} of the communicator: give {missing[0]}=…")
    rows = [row for row in tuning.table if (row["communicator"], row["collective"]) == (communicator, collective)]
    if not rows:
        raise UsageError(f"the table of communicator {communicator} has no row of {collective}: the log is incomplete")
    return fastest(times(rows, nbytes, about), collective)


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
        **{kind: Graph.of(int(m["channels"]), float(m["intra"]), float(m["inter"])) for kind, m in graphs.items()},
        "intra": ring["type_intra"],
        "inter": ring["type_inter"],
        "same_channels": ring["same"] == "1",
        "plain_tree": "tree" in graphs and graphs["tree"]["pattern"] == "3",
        "source": "NCCL's log",
    }
    return Platform(**{**told, "capability": capability, **more})
