"""Count the collectives and messages of a step by the axes of the mesh that they go along."""

from __future__ import annotations

import itertools
from collections import Counter

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.utils._python_dispatch import TorchDispatchMode

ENDINGS = "_base", "_into_tensor", "_tensor", "_coalesced", "_out"
NAMES = {"allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all", "recv_any_source": "recv"}


class Calls(TorchDispatchMode):
    """While it is open, counts what this rank asks of torch.distributed, also through DDP, FSDP2 and DTensor.

    counts: {(axes, operation, "forward" or "backward"): calls}. axes: "data", "data × tensor", "ranks 0, 3" where the group
    lies along no axes of the mesh, "one rank" where it has one member. "forward" is everything outside a backward pass.
    """

    def __init__(self, mesh):
        super().__init__()
        self.counts, self._along = Counter(), axes_of_groups(mesh)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if any(hasattr(each, "to_local") for each in types):
            return NotImplemented  # a DTensor: it first calls its collectives
        given = {argument.name: value for argument, value in zip(function._schema.arguments, args)}
        if function.namespace in ("c10d", "_c10d_functional") and (group := _group(given)) is not None:
            passing = "forward" if torch._C._current_graph_task_id() == -1 else "backward"
            self.counts[self._axes(group), operation_of(function), passing] += 1
        return function(*args, **(kwargs or {}))

    def _axes(self, group):
        ranks = tuple(sorted(dist.get_process_group_ranks(group)))
        if len(ranks) == 1:
            return "one rank"
        return self._along.get(ranks) or f"ranks {', '.join(map(str, ranks))}"


def _group(given):
    """The process group among a call's arguments, or None."""
    if "process_group" in given:
        return ProcessGroup.unbox(given["process_group"])
    name = given.get("group_name")
    return _resolve_process_group(name) if isinstance(name, str) else None


def operation_of(function) -> str:
    name = function.overloadpacket.__name__.strip("_")
    for ending in ENDINGS:
        name = name.removesuffix(ending)
    return NAMES.get(name, name)


def axes_of_groups(mesh) -> dict[tuple[int, ...], str]:
    """Return {ranks: "data × tensor"} for each group of this rank along one or several axes that are longer than one."""
    names = [name for name in mesh.mesh_dim_names if mesh[name].size() > 1]
    here = dict(zip(mesh.mesh_dim_names, mesh.get_coordinate()))
    found = {}
    for count in range(len(names), 0, -1):
        for some in itertools.combinations(names, count):
            place = tuple(slice(None) if name in some else here[name] for name in mesh.mesh_dim_names)
            found[tuple(sorted(mesh.mesh[place].flatten().tolist()))] = " × ".join(some)
    return found
