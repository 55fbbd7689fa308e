"""Every collective as short rank programs: one collective a file (the all-reduce has two), and
each file can be read, or copied into a training script, alone.

    from ringtree.algorithms import ring_all_reduce
    ring_all_reduce(tensor, dist)       # dist: torch.distributed, or what speaks like it

All of them work for any number of ranks, any root and any length. Where a tensor is shorter
than there are ranks, some chunks are empty; an empty chunk is a message like any other, here
and on live ranks, and costs its α.
"""

import importlib
import pkgutil

__all__ = []
# Every public function of these files: a new one is written in one place.
for _file in pkgutil.iter_modules(__path__, prefix=f"{__name__}."):
    for _name, _value in vars(importlib.import_module(_file.name)).items():
        if not _name.startswith("_") and getattr(_value, "__module__", None) == _file.name:
            globals()[_name] = _value
            __all__.append(_name)
