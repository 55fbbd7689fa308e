"""What communication costs: exactly, at least, as fitted to measurements, and as NCCL itself expects.

cost_of(ring_all_reduce, 8, 1 << 20, link)     # exact, for every algorithm, p and n
lower_bound("all_reduce", 8)                   # what no algorithm can beat
fit_machine(tables).model.time("all_reduce", 1 << 20, ranks=64)
nccl.choice("all_reduce", 1 << 20, platform)   # NCCL's own cost model
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["nccl"],
    submod_attrs={
        "lines": ["fastest", "fit_line", "fit_lines", "misses"],
        "machines": ["HELD", "NAMES", "Fitted", "fit_machine", "held_out"],
        "table": ["ALGORITHMS", "Algorithm", "find"],
        "model": ["COLLECTIVES", "Model", "Protocol", "closed_form", "ring_share"],
        "comparing": ["cost_table"],
        "costs": ["Bound", "Cost", "cost_of", "lower_bound", "textbook_time"],
    },
)
