"""What communication costs: exactly, at least, as fitted to measurements, and as NCCL itself expects.

cost_of(ring_all_reduce, 8, 1 << 20, link)     # exact, for every algorithm, p and n
lower_bound("all_reduce", 8)                   # what no algorithm can beat
fit_machine(tables).model.time("all_reduce", 1 << 20, ranks=64)
nccl.choice("all_reduce", 1 << 20, platform)   # NCCL's own cost model
"""

from ringtree import late

__getattr__, __dir__, __all__ = late.names(__name__)
