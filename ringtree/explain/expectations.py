"""NCCL's own model of the machine that a log is from: from what NCCL printed, or from a published machine with the same GPU."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

from ringtree.collectives import find
from ringtree.errors import UsageError
from ringtree.theory import nccl

__all__ = ["Expectation", "capability_of", "choices_in", "expectation"]

# Published machines with that GPU, on one node and on several, whose link speeds NCCL's search gave or should give.
_MACHINES = {
    "V100": ("v100_n1_p4", "v100_n2_p8"),
    "A100": ("a100_n1_p8", "a100_n2_p16"),
    "H100": ("h200_p8", "h100_aws_n2_p16"),
    "H200": ("h200_p8", "h100_aws_n2_p16"),
    "B200": ("b200_n1_p8", "b200_n4_p32"),
    "L40S": ("l40s_p4_ring", None),
}
_CAPABILITIES = {
    "V100": 70,
    "T4": 75,
    "A100": 80,
    "A800": 80,
    "A40": 86,
    "A10": 86,
    "L40": 89,
    "L4": 89,
    "RTX 4090": 89,
    "GH200": 90,
    "H100": 90,
    "H200": 90,
    "H800": 90,
    "H20": 90,
    "GB200": 100,
    "B200": 100,
    "B300": 103,
}


@dataclass(frozen=True)
class Expectation:
    """What NCCL expects of a sweep: a Choice (algorithm, protocol, seconds) for each of its sizes, or none and why.

    basis: where the machine's description comes from, as a clause; or why there is none, as a sentence.
    """

    choices: tuple = ()
    basis: str = ""


def capability_of(gpu: str | None) -> int | None:
    """Ten times the compute capability of a GPU by its name; None where it is not known."""
    named = [name for name in _CAPABILITIES if gpu and name in gpu]
    return _CAPABILITIES[max(named, key=len)] if named else None


def expectation(sweep, nccl_log: str = "") -> Expectation:
    """NCCL's own expectation of each size of a sweep, from the best description of the machine that there is.

    nccl_log: what NCCL printed in another run of the same world. A table that NCCL printed counts first, then what its
    search found, then a published machine with the same GPU.
    """
    if sweep.collective not in nccl.COLLECTIVES:
        return Expectation(basis=f"NCCL's model has no {sweep.collective}.")
    if sweep.no_latency:
        return Expectation(basis=f"NCCL expects what one {sweep.collective} takes, and these were timed back to back.")
    if not _by_nccl(sweep):
        return Expectation(basis=f"These times are not NCCL's ({sweep.tool or 'of an unknown tool'}).")
    forced = [sweep.algorithm] if sweep.algorithm else None
    sizes = [int(size) for size in sweep.sizes]
    for text in filter(None, (sweep.log, nccl_log)):
        if choices := _from_printed_table(text, sweep, sizes):
            return Expectation(choices, "the table that NCCL printed into the log")
    platform, basis = _platform(sweep, nccl_log)
    if platform is None:
        return Expectation(basis=basis)
    return Expectation(tuple(nccl.choice(sweep.collective, size, platform, algorithms=forced) for size in sizes), basis)


def check(nccl_log: str) -> None:
    """UsageError where a log that was given for NCCL's own lines has neither its table nor what its search found."""
    for read in (nccl.read_tuning, lambda text: nccl.read_platform(text, capability=80)):
        with contextlib.suppress(UsageError):
            read(nccl_log)
            return
    raise UsageError(
        "nccl_log has neither NCCL's table nor what its search found: make it with NCCL_DEBUG=INFO "
        "NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING, and give what rank 0 wrote"
    )


def choices_in(text: str, sweep) -> dict[float, tuple[str, str]]:
    """Return what NCCL says that it took for each size, where its lines are in the log: size to (algorithm, protocol)."""
    try:
        tuning = nccl.read_tuning(text)
    except UsageError:
        return {}
    shards = find(sweep.collective, send_recv=True).sharded and tuple(map(int, (tuning.version or "2.28").split(".")[:2])) >= (
        2,
        24,
    )
    return {
        call["bytes"] * (sweep.ranks if shards else 1): (call["algorithm"], call["protocol"])
        for call in tuning.calls
        if call["collective"] == sweep.collective
    }


def _by_nccl(sweep) -> bool:
    return sweep.tool == "nccl-tests" or bool(sweep.nccl) and sweep.tool != "rccl-tests"


def _from_printed_table(text, sweep, sizes) -> tuple:
    try:
        tuning = nccl.read_tuning(text)
        fitting = [
            i
            for i, one in enumerate(tuning.communicators)
            if (one.ranks, one.nodes) in ((sweep.ranks, sweep.nodes), (sweep.ranks, None))
        ]
        if not fitting:
            return ()
        known = {"nodes": sweep.nodes}
        if capability := capability_of(sweep.gpu):
            known["capability"] = capability
        return tuple(
            nccl.predict_from_table(tuning, sweep.collective, size, communicator=fitting[-1], **known) for size in sizes
        )
    except UsageError:
        return ()


def _platform(sweep, nccl_log):
    """(Platform, where it comes from), or (None, why there is none)."""
    capability = capability_of(sweep.gpu)
    version = nccl.nearest_model(sweep.nccl) if sweep.nccl else "2.28"
    for text in filter(None, (sweep.log, nccl_log)):
        try:
            platform = nccl.read_platform(text, capability=capability or 80, version=version)
        except UsageError:
            continue
        if (platform.ranks, platform.nodes) == (sweep.ranks, sweep.nodes):
            taken_for = "" if capability else ", for an A100, since the GPU is not known"
            return platform, f"the links that NCCL's search found, in the log{taken_for}"
    if sweep.run:
        try:
            platform = nccl.published(sweep.run)
        except UsageError:
            return (
                None,
                "The link speeds of this machine are not known: NCCL prints them with NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING.",
            )
        return platform, platform.source or "the published machine"
    return _like_a_published_one(sweep, version)


def _like_a_published_one(sweep, version):
    gpu = next((name for name in sorted(_MACHINES, key=len, reverse=True) if sweep.gpu and name in sweep.gpu), None)
    run = _MACHINES[gpu][sweep.nodes > 1] if gpu and "GH200" not in sweep.gpu and "GB200" not in sweep.gpu else None
    if run is None:
        return None, (
            f"The link speeds of {sweep.gpu or 'this machine'} are not known: run once with NCCL_DEBUG=INFO "
            "NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING, and give that log with --nccl-log."
        )
    like = nccl.published(run)
    platform = replace(like, nodes=sweep.nodes, ranks_per_node=sweep.cards, version=version)
    basis = f"assumed: links like those of {like.name}, constants of NCCL {version}"
    if like.network_latency and not any(word in sweep.log for word in ("Libfabric", "NET/OFI", "EFA")):
        return replace(platform, network_latency=0.0), f"{basis}, a network plugin that declares no latency"
    return platform, basis
