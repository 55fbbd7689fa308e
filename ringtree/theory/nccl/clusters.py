"""The machines of the published runs as NCCL sees them, and how far its expectation is from what was measured there."""

from __future__ import annotations

import statistics
from dataclasses import replace

from ringtree import data
from ringtree.errors import UsageError
from ringtree.theory.nccl.tuning import Graph, Platform, choice

_WORKED_OUT = "worked out from the link speeds in topo.h and the speeds that search.cc tries"
_V100 = Platform("4 × V100 (NVLink 2)", 70, 1, 4, Graph.of(6, 21), version="2.8", source=_WORKED_OUT)
_V100_NODES = replace(_V100, name="V100 nodes (2 × EDR)", nodes=2, ring=Graph.of(2, 12), tree=Graph.of(2, 24, 12))
_A100 = Platform(
    "A100 (NVSwitch)",
    80,
    1,
    8,
    Graph.of(12, 21),
    version="2.8",
    source=f"{_WORKED_OUT}; the links' 252 GB/s stand in a log, NVIDIA/nccl-tests issue 100",
)
_A100_NODES = replace(_A100, name="A100 nodes (4 × HDR)", nodes=2, ring=Graph.of(4, 24), tree=Graph.of(4, 42, 24))
_H200 = Platform(
    "8 × H200 (NVSwitch)",
    90,
    1,
    8,
    Graph.of(12, 30),
    nvls=Graph.of(8, 40, 60),
    source=f"{_WORKED_OUT}; gives to the last digit the table that NCCL 2.30.4 printed on such a machine "
    "(C-TC/multi-gpu-programming-models, repro/thesis_microbench/README.md, commit 19e8fbf3bd)",
)
_H100_AWS = replace(
    _H200,
    name="2 × 8 × H100, EFA",
    nodes=2,
    ring=Graph.of(8, 48),
    nvls=Graph.of(8, 40, 48),
    network_latency=75e-6,
    source=f"{_WORKED_OUT}; 75 µs is what aws-ofi-nccl declares for p5 (platform-aws.cpp, commit 2daf7d30); its own tuner, "
    "which may overrule NCCL, is left out, and which NCCL it was is not published",
)
_B200 = Platform("8 × B200 (NVSwitch)", 100, 1, 8, Graph.of(16, 45), nvls=Graph.of(8, 80, 90), source=_WORKED_OUT)
_B200_NODES = replace(
    _B200,
    name="4 × 8 × B200, EFA",
    nodes=4,
    ring=Graph.of(8, 48),
    nvls=Graph.of(8, 48),
    network_latency=35e-6,
    source=f"{_WORKED_OUT}; 35 µs is what aws-ofi-nccl declares for p6-b200 (platform-aws.cpp, commit 2daf7d30), whose own "
    "tuner is left out",
)
_L40S = Platform(
    "4 × L40S (PCIe 4)",
    89,
    1,
    4,
    Graph.of(1, 20),
    intra="PHB",
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
    """The machine of a published NCCL run (`data.runs()`), with the speeds that NCCL's search gives it, or should.

    Runs of 2.27 are given the model of 2.28; what else is assumed stands in `source`. For another number of nodes use
    `dataclasses.replace(published("v100_n2_p8"), nodes=32)`: the speeds hold from 2 nodes up. Raises UsageError for a run
    that NCCL did not make or whose machine's speeds could not be worked out, and KeyError for one that does not exist.
    """
    data.run(run)
    if run not in _PUBLISHED:
        raise UsageError(
            f"{run!r} was not made with NCCL, or not on a machine whose speeds are known: give one of {', '.join(_PUBLISHED)}"
        )
    return _PUBLISHED[run]


def judge(*runs: str) -> list[dict]:
    """Return how far NCCL's expectation is from what was measured, nothing fitted: a row for each published run.

    runs: names of `data.runs()`; none: all whose machine is known (see `published`). A run with a forced algorithm is predicted with it forced.
    Each row: run, label, version (of the model), sizes (how many), miss (the median of |predicted − measured| / measured),
    worst (the largest), small and large (medians of predicted / measured up to 1 KiB and from 16 MiB on; None where the
    run has no such sizes), picks (what the model takes, from the smallest size to the largest, without repetition).
    """
    return [_judge_one(run) for run in runs or _PUBLISHED]


def _judge_one(name: str) -> dict:
    run, platform = data.run(name), published(name)
    forced = [run.algorithm.removesuffix(" (forced)")] if "forced" in run.algorithm else None
    sizes, measured = data.sweep(name)
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
