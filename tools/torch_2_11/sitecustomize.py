"""Give PyTorch 2.11 two names that PyTorch 2.13 has: put this folder on PYTHONPATH of a machine that has only 2.11.

`all_gather_single` and `reduce_scatter_single` are the newer names of `all_gather_into_tensor` and
`reduce_scatter_tensor`, with the same arguments. `make gpu-record` says in its recordings where this was used.
"""

import importlib.abc
import importlib.machinery
import sys

MODULE = "torch.distributed.distributed_c10d"
NEWER = {"all_gather_single": "all_gather_into_tensor", "reduce_scatter_single": "reduce_scatter_tensor"}


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None:
            run = spec.loader.exec_module

            def run_and_name(module):
                run(module)
                for newer, older in NEWER.items():
                    if not hasattr(module, newer):
                        setattr(module, newer, getattr(module, older))
                        module.__all__.append(newer)

            spec.loader.exec_module = run_and_name
        return spec


sys.meta_path.insert(0, Finder())
