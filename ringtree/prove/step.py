"""What a step yields: gradients and parameters by name, loss and norm, and how they lie on the ranks.

This file needs the standard library alone, so that a training script can import `Step` at no cost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ringtree.errors import UsageError, a_kind

SAME = "same on every rank"
WORDS = f"give 'mean over data', 'sum over tensor', both with a semicolon between, or {SAME!r}"


class Flat:
    """A placement: along this axis each rank has a stretch of the flattened tensor, as ZeRO's flat buffers cut it."""

    def __repr__(self):
        return "Flat()"


@dataclass
class Step:
    """One batch of a training step on one rank, at the moment at which its gradients are final.

    gradients, parameters: {name: tensor}, or pairs such as `model.named_parameters()`. A name means the same parameter on
    every rank; a rank that does not hold a parameter leaves it out. A tensor is a DTensor, the whole, or this rank's part.
    A gradient may be None. They are copied at once, so the step may change them afterwards.
    loss: this rank's loss, a number or a tensor of one element; None on a rank that has none.
    norm: the norm of all gradients before clipping, the same on every rank; None if the step has none.
    loss_is: how the ranks' losses make the loss of the global batch: "mean over data", "sum over tensor", both as
    "mean over data; sum over tensor", or "same on every rank". Along an axis that is not named, losses are equal.
    layout: {pattern of names: {axis: placement}} for tensors that are parts and not DTensors. A placement is
    `Shard(dim)`, `Replicate()`, `Flat()`, or a function that makes the whole of the axis's parts, in order. Patterns are
    those of fnmatch, and the last that fits holds. A tensor without an entry is the whole, on each rank that has it.
    gradient_layout: the same for gradients alone, where they are cut differently from the parameters (ZeRO-2); an entry
    here holds instead of those in `layout`.
    """

    gradients: Mapping | Iterable
    parameters: Mapping | Iterable
    loss: Any
    norm: Any = None
    loss_is: str = SAME
    layout: Mapping | None = None
    gradient_layout: Mapping | None = None


def flat_shards(tensors, shard, rank: int, size: int) -> dict:
    """Return this rank's stretch of each tensor, by name, from its shard of a flat buffer.

    tensors: {name: tensor}, or pairs, in the order in which they lie in the buffer; only their sizes are read.
    shard: the tensor of one dimension that this rank holds; all `size` shards are equally long, and the last may end in
    padding. Give the result to `Step` with a layout such as {"*": {"data": Flat()}}. A tensor that does not lie on this rank
    has an empty stretch. Raises UsageError where the shards are too short for the tensors.
    """
    length = len(shard)
    total = sum(tensor.numel() for _, tensor in _pairs(tensors))
    if length * size < total:
        raise UsageError(
            f"flat_shards: {size} shards of {length} numbers cannot hold {total}: give this rank's shard of the buffer in "
            "which all these tensors lie"
        )
    found, at = {}, -rank * length
    for name, tensor in _pairs(tensors):
        found[name] = shard[min(max(at, 0), length) : min(max(at + tensor.numel(), 0), length)]
        at += tensor.numel()
    return found


def _pairs(tensors):
    return list(tensors.items() if hasattr(tensors, "items") else tensors)


def named(given, what: str) -> dict:
    """Return {name: tensor} of what a step yields as its gradients or parameters, without those that are None."""
    try:
        pairs = _pairs(given)
        found = {_short(name): tensor for name, tensor in pairs if tensor is not None}
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the step yields {a_kind(given)} as its {what}: give {{name: tensor}}, or pairs such as model.named_parameters()"
        ) from error
    for name, _ in pairs:
        if not isinstance(name, str):
            raise UsageError(
                f"the step yields {what} whose names are {a_kind(name)}: give {{name: tensor}}, with names as text"
            )
    for name, tensor in found.items():
        if not hasattr(tensor, "detach"):
            raise UsageError(f"the step yields {a_kind(tensor)} as {what[:-1]} {name!r}: give a tensor, or None")
    return found


def _short(name: str) -> str:
    """A parameter's name without what wrappers put into it."""
    return re.sub(r"^module\.|\b_orig_mod\.|\b_checkpoint_wrapped_module\.", "", str(name))


def how_losses_meet(words: str, axes) -> dict[str, str]:
    """Return {axis: "mean" or "sum"} for what `loss_is` says; an axis that is not in it has equal losses."""
    found: dict[str, str] = {}
    if not isinstance(words, str):
        raise UsageError(f"loss_is is {words!r}: {WORDS}")
    if words.strip() == SAME:
        return found
    for part in words.split(";"):
        read = re.fullmatch(r"\s*(mean|sum) over (\w+(?:\s*,\s*\w+)*)\s*", part)
        if not read:
            raise UsageError(f"loss_is is {words!r}: {WORDS}")
        for axis in re.split(r"\s*,\s*", read[2]):
            if axis not in axes:
                raise UsageError(f"loss_is is {words!r}, and there is no axis {axis!r}: name one of {', '.join(axes)}")
            if axis in found:
                raise UsageError(f"loss_is is {words!r}, which names {axis!r} twice: name each axis once")
            found[axis] = read[1]
    return found
