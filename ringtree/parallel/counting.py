"""Count what a training step holds and calls, also where it is torch's own.

held(net.parameters())                      # bytes of memory behind these tensors
kept_for_backward(net, lambda: loss_of(net, rows))
most = watch(net, lambda: {"gradients": [each.grad for each in net.parameters()]})
with Calls() as seen:
    loss.backward()
seen.calls                                  # [("reduce_scatter", 791040, 4), …]
"""

from collections import Counter

import torch
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def held(tensors):
    """Bytes of memory behind these tensors: what several share counts once, what was emptied not at all.

    Of a DTensor, what this rank has of it.
    """
    storages = (_storage(each) for each in tensors if each is not None)
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def watch(model, parts):
    """From now on look before each module, and whenever a gradient is ready, at what is held.

    parts: a function that gives {name: tensors}. Returns {name: the most bytes so far}. Call it before anything that moves
    gradients away registers hooks of its own.
    """
    most = {}

    def look(*_):
        for name, tensors in parts().items():
            most[name] = max(most.get(name, 0), held(tensors))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(look)
    for module in model.modules():
        module.register_forward_pre_hook(look)
    return most


def kept_for_backward(model, forward):
    """Bytes that forward() keeps for the backward pass: the activations, without the model's parameters."""
    kept, own = {}, {_storage(each)._cdata for each in model.parameters()}

    def keep(tensor):
        storage = _storage(tensor)
        if storage._cdata not in own:
            kept[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _result = forward()  # held until it is counted, or memory would be used again
    return sum(kept.values())


def _storage(tensor):
    local = getattr(tensor, "to_local", None)
    return (local() if local else tensor).untyped_storage()


class Calls(TorchDispatchMode):
    """While it is open, notes the collectives of this rank, also those that DDP, FSDP2 and DTensor call.

    calls: (operation, bytes, ranks of its group), in order; bytes of the full vector, before or after. It sees the thread that
    opened it, and no other: on a CPU a backward pass is the work of the thread that began it.
    """

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if any(hasattr(each, "to_local") for each in types):
            return NotImplemented  # a DTensor: first let it call its collectives
        result = function(*args, **(kwargs or {}))
        given = {argument.name: value for argument, value in zip(function._schema.arguments, args)}
        if "process_group" in given:
            self._note(function, [*given.values()], ProcessGroup.unbox(given["process_group"]))
        elif "group_name" in given:
            self._note(
                function, [result, *given.values()], _resolve_process_group(given["group_name"])
            )
        return result

    def _note(self, function, values, group):
        name = function.overloadpacket.__name__.strip("_")
        for ending in "_base", "_into_tensor", "_tensor":
            name = name.removesuffix(ending)
        tensors = [
            [each for each in tree_leaves(value) if isinstance(each, torch.Tensor)]
            for value in values
        ]
        self.calls.append((
            name.replace("all_", "all"),
            max(sum(each.nbytes for each in one) for one in tensors),
            group.size(),
        ))


class Waits(TorchFunctionMode):
    """While it is open, counts the calls for which the host of a GPU waits until the GPU has come that far.

    found: calls by name. They are those whose answer the host needs: a number, or a shape that depends on the data.
    """

    NUMBERS = "item", "tolist", "__bool__", "__int__", "__float__", "__index__"
    SHAPES = "nonzero", "masked_select", "bincount", "unique", "argwhere"

    def __init__(self):
        super().__init__()
        self.found = Counter()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        by_mask = name == "__getitem__" and any(
            isinstance(each, torch.Tensor) and each.dtype == torch.bool
            for each in tree_leaves(args[1])
        )
        by_counts = name == "repeat_interleave" and isinstance(args[1], torch.Tensor)
        if name in self.NUMBERS + self.SHAPES or by_mask or by_counts:
            self.found[name] += 1
        return function(*args, **(kwargs or {}))
