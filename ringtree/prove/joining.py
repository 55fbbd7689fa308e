"""Put together what the ranks of one mesh hold: parts to wholes by their layout, and copies beside each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch

from ringtree.errors import UsageError
from ringtree.prove.step import Flat

HIDDEN = "a function"  # what a file has in a function's place


@dataclass
class Held:
    """One tensor of the model as the ranks hold it.

    copies: {coordinate: the whole}; along a sharded axis the coordinate is 0. sharded: axes that cut it. parts: {coordinate:
    rows or columns (dim, first, behind) that this coordinate's part has in the whole}, where one axis cuts it by Shard.
    """

    copies: dict
    sharded: tuple[str, ...] = ()
    parts: dict = field(default_factory=dict)


def without_functions(layout):
    """The same layout, with a mark where it has a function, which cannot be written to a file."""
    return {
        kind: {
            glob: {axis: HIDDEN if _is_function(placement) else placement for axis, placement in _entry(glob, places).items()}
            for glob, places in one.items()
        }
        for kind, one in layout.items()
    }


def _entry(glob, places):
    if not hasattr(places, "items"):
        raise UsageError(f"layout[{glob!r}] is {places!r}: give {{axis: placement}}, such as {{'tensor': Shard(0)}}")
    return places


def _is_function(placement):
    return callable(placement) and not hasattr(placement, "dim")


def joined(raw, layouts, axes, sizes, one):
    """Return one record for each step: gradients and parameters as `Held` by name, losses, norms and calls by rank.

    raw: what each rank left. layouts: rank 0's own, for each step. one: the record of one process, for the shapes; None if
    this is it.
    """
    counts = sorted({len(each["steps"]) for each in raw})
    if one is not None:
        counts = sorted({*counts, len(one["steps"])})
    if len(counts) > 1:
        told = ", ".join(f"rank {rank}: {len(each['steps'])}" for rank, each in enumerate(raw))
        told += f", one process: {len(one['steps'])}" if one is not None else ""
        raise UsageError(f"the step does not yield equally often ({told}): let each rank yield once for each batch")
    steps = []
    for number in range(counts[0]):
        ranks = [each["steps"][number] for each in raw]
        steps.append({
            **{name: [each[name] for each in ranks] for name in ("loss", "norm", "calls", "none")},
            "loss_is": ranks[0]["loss_is"],
            "squares": [{name: square for name, (_, _, square) in each["gradients"].items()} for each in ranks],
        })
        for kind in ("gradients", "parameters"):
            like = one["steps"][number][kind] if one is not None else {}
            if kind == "gradients" and one is not None:  # a gradient may be None in one process and zero here
                like = one["steps"][number]["parameters"] | like
            layout = _merged([each["layouts"][number][kind] for each in raw], layouts[number][kind], axes, ranks)
            steps[-1][kind] = {
                name: _held(kind[:-1], name, raw, [each[kind] for each in ranks], layout, axes, sizes, like)
                for name in dict.fromkeys(name for each in ranks for name in each[kind])
            }
    if not any(step["parameters"] for step in steps):
        raise UsageError("the step yields no parameters: give named_parameters() of the model on each rank")
    return {"steps": steps, "coordinates": [each["coordinate"] for each in raw]}


def _merged(told, own, axes, ranks):
    """The layouts of all ranks as one, with rank 0's functions."""
    found = dict(own)
    for layout in told:
        for glob, places in layout.items():
            if glob not in found:
                if HIDDEN in places.values():
                    raise UsageError(
                        f"layout[{glob!r}] has a function and is not on rank 0: yield the same layout on every rank"
                    )
                found[glob] = places
    names = {name for each in ranks for name in (*each["parameters"], *each["gradients"])}
    for glob, places in found.items():
        if not any(fnmatchcase(name, glob) for name in names):
            raise UsageError(f"layout[{glob!r}] fits no parameter: write a pattern of names such as {min(names)!r}")
        for axis in places:
            if axis not in axes:
                raise UsageError(f"layout[{glob!r}] names an axis {axis!r}: the axes are {', '.join(axes)}")
    return found


def _placements(name, layout):
    """{axis: placement} of a name, by the last pattern that fits."""
    found = {}
    for glob, places in layout.items():
        if fnmatchcase(name, glob):
            found = places
    for axis, placement in found.items():
        known = isinstance(placement, Flat) or _is_function(placement) or hasattr(placement, "dim")
        if not known and not getattr(placement, "is_replicate", lambda: False)():
            raise UsageError(
                f"layout of {name}: {placement!r} along {axis}: give Shard(dim), Replicate(), Flat() or a function of the parts"
            )
    return {
        axis: placement
        for axis, placement in found.items()
        if not hasattr(placement, "is_replicate") or hasattr(placement, "dim")
    }


def _held(kind, name, raw, given, layout, axes, sizes, like):
    held = {each["coordinate"]: tensors[name] for each, tensors in zip(raw, given) if name in tensors}
    wanted = next(iter(like[name].copies.values())).shape if name in like else None
    if any(sharded is not None for _, sharded, _ in held.values()):
        found = _of_dtensors(held, axes)
    else:
        places = {
            axis: place
            for axis, place in _placements(name, layout).items()
            if sizes[axes.index(axis)] > 1 or isinstance(place, Flat)
        }
        found = _of_parts(kind, name, {at: tensor for at, (tensor, _, _) in held.items()}, places, axes, wanted)
    for tensor in found.copies.values():
        if wanted is not None and tensor.shape != wanted:
            raise UsageError(_shape_sentence(kind, name, tensor.shape, wanted, found.sharded, axes, sizes))
    return found


def _of_dtensors(held, axes):
    """Each rank has the whole already, made of the parts of its own group along the sharded axes."""
    sharded = next(sharded for _, sharded, _ in held.values() if sharded is not None)
    copies = {}
    for at, (tensor, _, _) in held.items():
        copies.setdefault(tuple(0 if axis in sharded else place for axis, place in zip(axes, at)), tensor)
    return Held(copies, sharded)


def _of_parts(kind, name, copies, places, axes, wanted):
    parts, flat = {}, any(isinstance(place, Flat) for place in places.values())
    for i in reversed(range(len(axes))):
        if (place := places.get(axes[i])) is None:
            continue
        groups: dict = {}
        for at in sorted(copies):
            groups.setdefault((*at[:i], 0, *at[i + 1 :]), []).append(copies[at])
        if len(places) == 1 and hasattr(place, "dim"):
            parts = _stretches(next(iter(groups.values())), place.dim)
        copies = {at: _together(kind, name, tensors, place, axes[i]) for at, tensors in groups.items()}
    if flat and wanted is not None:
        for at, tensor in copies.items():
            if tensor.numel() != wanted.numel():
                raise UsageError(
                    f"{kind} {name}: its flat parts are {tensor.numel()} numbers and one process has {wanted.numel()}: give each "
                    "rank's own stretch, without padding (flat_shards does it)"
                )
            copies[at] = tensor.view(wanted)
    return Held(copies, tuple(places), parts)


def _stretches(tensors, dim):
    found, at = {}, 0
    for place, tensor in enumerate(tensors):
        length = tensor.shape[dim] if tensor.dim() > dim else 0
        found[place] = dim, at, at + length
        at += length
    return found


def _together(kind, name, tensors, place, axis):
    """The whole of an axis's parts, in order."""
    try:
        if isinstance(place, Flat):
            return torch.cat([tensor.flatten() for tensor in tensors])
        return torch.cat(tensors, place.dim) if hasattr(place, "dim") else place(tensors)
    except Exception as error:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise UsageError(
            f"{kind} {name}: its parts along {axis} are {shapes}, which {place!r} does not put together "
            f"({type(error).__name__}): correct its layout"
        ) from error


def _shape_sentence(kind, name, shape, wanted, sharded, axes, sizes):
    """Why a shape cannot be judged, and the entry that would fit."""
    told = (
        f"{kind} {name} is {tuple(shape)} {'when put together' if sharded else 'on a rank'}, and {tuple(wanted)} in one process"
    )
    if sharded:
        return f"{told}: correct its layout"
    for axis, size in zip(axes, sizes):
        for dim, (part, whole) in enumerate(zip(shape, wanted)):
            others = [*shape[:dim], *shape[dim + 1 :]] == [*wanted[:dim], *wanted[dim + 1 :]]
            if size > 1 and len(shape) == len(wanted) and others and part == -(-whole // size):
                return f"{told}: say how it is cut, perhaps layout={{{name!r}: {{{axis!r}: Shard({dim})}}}}"
    return f"{told}: say in the layout how it is cut"
