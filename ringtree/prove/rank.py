"""One rank of a proof: runs the step on one mesh after another, and leaves what it yielded in files.

Rank 0 also puts together what the ranks hold, because a layout may have functions in it, which no file can carry.
"""

from __future__ import annotations

import datetime
import faulthandler
import importlib.util
import inspect
import os
import signal
import sys
import threading
import traceback
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from multiprocessing import connection, parent_process

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from ringtree.errors import UsageError, a_kind
from ringtree.prove import joining
from ringtree.prove.calls import Calls, axes_of_groups
from ringtree.prove.step import SAME, how_losses_meet, named

KINDS = "gradients", "parameters"


@dataclass(frozen=True)
class Plan:
    """What all ranks of a proof know: where the step is, and on which meshes it runs.

    step, reference: (file or module, function, folder of its files). meshes: sizes by axis, for each mesh; number 0 is one process.
    """

    step: tuple[str, str, str]
    reference: tuple[str, str, str]
    axes: tuple[str, ...]
    meshes: tuple[tuple[int, ...], ...]
    steps: int
    timeout: float
    folder: str

    def file(self, number, what):
        """The file of a mesh that holds "joined", or what a rank left: "raw0", "error0", "done0"."""
        return os.path.join(self.folder, f"{number}.{what}.pt")

    def says(self, number):
        """The name of a mesh: data=2 tensor=2."""
        return " ".join(f"{axis}={size}" for axis, size in zip(self.axes, self.meshes[number]))


def work(rank: int, plan: Plan, numbers) -> None:
    """Be one rank on each of these meshes, which all have the same number of ranks."""
    _settle(rank, plan)
    for number in numbers:
        try:
            _on_mesh(rank, plan, number)
        except BaseException as error:
            _leave(plan, number, f"error{rank}", _sentence(error, plan))
            raise
    sys.stdout.flush()
    os._exit(0)  # at once: threads of a backend may still wait for each other


def _settle(rank, plan):
    """One thread, prints into a file, a place for the stack of a rank that hangs, and an end with the parent."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    out = os.open(os.path.join(plan.folder, f"out.{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1), os.dup2(out, 2)
    if hasattr(faulthandler, "register"):
        stack = open(os.path.join(plan.folder, f"stack.{rank}"), "w")
        faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent():
    connection.wait([parent_process().sentinel])
    os._exit(1)


def _leave(plan, number, what, found):
    """Write a file so that a reader sees all of it or nothing."""
    path = plan.file(number, what)
    torch.save(found, path + ".part")
    os.replace(path + ".part", path)


def _sentence(error, plan):
    """An error in one line, with the place in the user's file."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, UsageError):
        return text
    if len(text) > 300:
        text = text[:300] + " …"
    frames = traceback.extract_tb(error.__traceback__)
    ours = os.path.dirname(os.path.abspath(__file__)) + os.sep
    theirs = [each for each in frames if not each.filename.startswith((ours, "<frozen"))]
    known = [each for each in theirs if os.path.dirname(each.filename) in (plan.step[2], plan.reference[2])] or theirs[:1]
    place = f" ({os.path.basename(known[-1].filename)}, line {known[-1].lineno})" if known else ""
    return f"{type(error).__name__}: {text}{place}"


def function_of(place):
    """Import the user's file or module, afresh, and return the function."""
    source, name, folder = place
    if source.endswith(".py"):
        sys.path.insert(0, folder)
        own = f"ringtree_proves_{os.path.basename(source)[:-3]}"  # not the name of a module that others import
        spec = importlib.util.spec_from_file_location(own, source)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(source)
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{os.path.basename(source)} has no {name!r}: name a function in it, as in train.py:step")
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"{name!r} in {os.path.basename(source)} is {a_kind(found)}: name a function that takes the mesh")
    return found


def _on_mesh(rank, plan, number):
    sizes = plan.meshes[number]
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(os.path.join(plan.folder, f"store.{number}"), torch.Size(sizes).numel()),
        rank=rank,
        world_size=torch.Size(sizes).numel(),
        timeout=datetime.timedelta(seconds=plan.timeout + 60),  # the deadline of the proof comes first
    )
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=plan.axes)
    torch.manual_seed(1000 + rank)  # a step that does not seed shows it
    steps, layouts = [], []
    for step, calls in yielded(plan, number, mesh):
        record, layout = noted(step, plan, mesh)
        steps.append(record | {"calls": dict(calls)})
        layouts.append(layout)
    raw = {
        "coordinate": tuple(mesh.get_coordinate()),
        "steps": steps,
        "layouts": [joining.without_functions(each) for each in layouts],
    }
    torch.save(raw, plan.file(number, f"raw{rank}"))
    dist.barrier()
    if rank == 0:
        raw = [torch.load(plan.file(number, f"raw{each}"), weights_only=False) for each in range(dist.get_world_size())]
        one = torch.load(plan.file(0, "joined"), weights_only=False) if number else None
        _leave(plan, number, "joined", joining.joined(raw, layouts, plan.axes, sizes, one))
    dist.barrier()  # nobody leaves while rank 0 may still refuse
    _leave(plan, number, f"done{rank}", None)
    with suppress(Exception):
        dist.destroy_process_group()


def yielded(plan, number, mesh):
    """Yield what the user's generator yields, and the calls that each step made: at most `steps` times."""
    function = function_of(plan.step if number else plan.reference)
    generator = function(mesh) if inspect.signature(function).parameters else function()
    name = (plan.step if number else plan.reference)[1]
    if not hasattr(generator, "__next__"):
        raise UsageError(f"{name} returns {a_kind(generator)}: write a generator, which yields a Step for each batch")
    for count in range(plan.steps):
        with Calls(mesh) if number else nullcontext() as calls:
            step = next(generator, None)
        if step is None:
            if count == 0:
                raise UsageError(f"{name} yields nothing: yield a Step for each batch")
            break
        yield step, calls.counts if number else {}
    with suppress(Exception):
        generator.close()


def noted(step, plan, mesh):
    """Copy what a step yields: {gradients, parameters, loss, norm, …}, and its two layouts, which stay on the rank."""
    missing = [each for each in ("gradients", "parameters", "loss") if not hasattr(step, each)]
    if missing:
        raise UsageError(f"the step yields {a_kind(step)} without {missing[0]!r}: yield a ringtree.prove.Step")
    along = axes_of_groups(mesh)
    record = {"loss_is": getattr(step, "loss_is", None) or SAME}
    how_losses_meet(record["loss_is"], plan.axes)
    held = {kind: named(getattr(step, kind), kind) for kind in KINDS}
    given = getattr(step, "gradient_layout", None) or {}
    if stray := [name for name in held["gradients"] if name not in held["parameters"]]:
        raise UsageError(f"gradient {stray[0]} belongs to no parameter of this rank: name both as named_parameters() does")
    record["none"] = [name for name in held["parameters"] if name not in held["gradients"]]
    if not given:  # a parameter without a gradient has one of zeros, on a rank that holds it
        held["gradients"] |= {name: torch.zeros_like(held["parameters"][name]) for name in record["none"]}
    for kind in KINDS:
        record[kind] = {name: _copied(tensor, along) for name, tensor in held[kind].items()}
    for number in ("loss", "norm"):
        record[number] = _number(getattr(step, number, None), number)
    layout = dict(getattr(step, "layout", None) or {})
    return record, {"parameters": layout, "gradients": layout | dict(given)}


def _copied(tensor, along):
    """Return (copy on the CPU, axes it was sharded along or None where only the layout knows, sum of squares of the part)."""
    if isinstance(tensor, DTensor):
        mesh, axes = tensor.device_mesh, set()
        for dim, placement in enumerate(tensor.placements):
            if placement.is_shard() and mesh.size(dim) > 1:
                ranks = tuple(sorted(dist.get_process_group_ranks(mesh.get_group(dim))))
                axes.update(along.get(ranks, "").split(" × "))
        # What is Replicate stays this rank's own, so that copies that differ are seen. A Partial is added up.
        whole, part = _plain(tensor.detach().full_tensor()), _plain(tensor.detach().to_local())
        return whole, tuple(sorted(axes - {""})), float(part.double().square().sum())
    part = _plain(tensor.detach())
    return part, None, float(part.double().square().sum())


def _plain(tensor):
    if isinstance(tensor, AsyncCollectiveTensor):
        tensor = tensor.wait()
    return tensor.to("cpu", copy=True)


def _number(given, what):
    if given is None:
        return None
    if isinstance(given, DTensor):
        given = given.full_tensor()
    try:
        found = float(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"the step yields {a_kind(given)} as its {what}: give a number, or a tensor of one element") from error
    return found
