"""NCCL's names and the constants of its `src/graph/tuning.cc`, for the versions whose model differs."""

from typing import Any

from ringtree import collectives

# All in the order in which NCCL goes through them: of two equal times the first wins.
COLLECTIVES = tuple(row.name for row in collectives.TABLE if row.laps)
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("LL", "LL128", "Simple")

# How two devices reach each other, nearest first, as NCCL's log spells it: NVL is NVLink, NVB NVLink through another GPU,
# PIX one PCIe switch, PXB several, PXN a NIC beside another GPU, PHB through the CPU, SYS from socket to socket.
PATHS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET")
GENERATIONS = ("Volta", "Ampere", "Hopper", "Blackwell")

# Latencies are µs for (LL, LL128, Simple). Caps are GB/s, a row for each of GENERATIONS, for (1, 2, more than 2) nodes.
_V2_28: dict[str, Any] = {
    "base": {"tree": (6.8, 14, 8.4), "ring": (6.6, 14, 8.4), "nvls": (0, 0, 0), "nvls_tree": (0, 0, 0), "pat": (8, 8, 8)},
    "NVLink": {"tree": (0.6, 1.25, 4), "ring": (0.6, 1.9, 3.4), "nvls": (0, 0, 25), "nvls_tree": (0, 0, 25), "pat": (0, 0, 4)},
    "PCIe": {"tree": (1, 1.9, 4), "ring": (1, 2.5, 5.7), "nvls": (0, 0, 0), "nvls_tree": (0, 0, 0), "pat": (0, 0, 4)},
    "network": {
        "tree": (5, 8.5, 14),
        "ring": (2.7, 4, 14),
        "nvls": (0, 0, 18),
        "nvls_tree": (0, 0, 20.9),
        "pat": (0, 0, 14),
    },
    "ll_cap": ((39, 39, 20.4), (87.7, 22.5, 19), (141, 45, 35), (282, 90, 70)),  # between nodes: row 0, or 1 with AMD CPUs
    "ring_ll128_cap": ((20, 20, 20), (20, 20, 20), (36.7, 36.7, 36.7), (73.4, 34.6, 73.4)),  # a channel, as the next three
    "tree_ll128_cap": ((20, 20, 20), (20, 20, 20), (36.7, 36.7, 29), (55.6, 31.67, 20)),
    "tree_cap": ((26.5, 18.5, 10), (24, 23.6, 17.8), (38.7, 41.4, 36), (70, 42.8, 24)),
    "nvls_tree_cap": ((26.5, 18.5, 10), (24, 23.6, 17.8), (0, 57.7, 45.5), (0, 96, 43.8)),
    "nvls_efficiency": (0, 0, 0.85, 0.74),
    "tree_correction": {  # at 64 B, 128 B, … 256 MiB
        "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
        "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
        "Simple": (
            0.9,
            0.9,
            0.9,
            0.9,
            0.9,
            0.9,
            0.9,
            0.8,
            0.7,
            0.6,
            0.6,
            0.5,
            0.5,
            0.5,
            0.5,
            0.6,
            0.7,
            0.8,
            0.7,
            0.7,
            0.8,
            0.9,
            0.9,
        ),
    },
}
_V2_8: dict[str, Any] = {
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
        "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.5, 0.6, 0.6, 0.7, 0.7, 0.8, 0.9, 0.9, 0.92, 0.92),
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
