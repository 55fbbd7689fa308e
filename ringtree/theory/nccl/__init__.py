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

from ringtree.theory.nccl.clusters import judge, published
from ringtree.theory.nccl.constants import ALGORITHMS, COLLECTIVES, CONSTANTS, GENERATIONS, PATHS, PROTOCOLS
from ringtree.theory.nccl.printed import (
    DEBUG,
    Communicator,
    Tuning,
    nearest_model,
    predict_from_table,
    read_platform,
    read_tuning,
)
from ringtree.theory.nccl.tuning import Choice, Graph, Platform, choice, latencies, model, table

__all__ = [
    "ALGORITHMS",
    "COLLECTIVES",
    "CONSTANTS",
    "DEBUG",
    "GENERATIONS",
    "PATHS",
    "PROTOCOLS",
    "Choice",
    "Communicator",
    "Graph",
    "Platform",
    "Tuning",
    "choice",
    "judge",
    "latencies",
    "model",
    "nearest_model",
    "predict_from_table",
    "published",
    "read_platform",
    "read_tuning",
    "table",
]
