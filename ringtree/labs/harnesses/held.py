"""How much memory a rank has made at once: what operations on tensors have made and nobody has let go."""

import contextlib

from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ringtree.simulated.torch_modes import is_within_torch


@contextlib.contextmanager
def noted():
    """While this is open, `most` of what it gives is the most bytes that this rank has made and held at the same time.

        with noted() as memory:
            function(...)
        return {"held": memory.most}

    What was there before does not count, nor what a collective makes for itself. Kept by thread: for harnesses alone.
    """
    with _Made() as made:
        yield made


class _Made(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.most = 0
        self._alive = {}  # by address: (a reference that keeps nothing alive, bytes)
        self._known = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = {_address(each) for each in tree_leaves((args, kwargs)) if _has_storage(each)}
        result = function(*args, **(kwargs or {}))
        for each in () if is_within_torch() else tree_leaves(result):
            if _has_storage(each) and _address(each) not in given:
                storage = each.untyped_storage()
                self._alive[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()
        self._alive = {address: each for address, each in self._alive.items() if not each[0].expired()}
        self.most = max(self.most, sum(nbytes for _, nbytes in self._alive.values()))
        return result


def _has_storage(value):
    return hasattr(value, "untyped_storage") and value.untyped_storage().nbytes() > 0


def _address(tensor):
    return tensor.untyped_storage().data_ptr()
