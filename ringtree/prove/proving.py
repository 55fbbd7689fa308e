"""Run a step in one process and on every mesh, and say whether it is the same step."""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import math
import os
import tempfile

import torch

from ringtree.errors import UsageError, a_kind
from ringtree.prove import running
from ringtree.prove.comparing import compare
from ringtree.prove.rank import Plan
from ringtree.prove.report import NotEqualToOne, Report

MOST = 64  # meshes that one proof runs


def prove(step, axes="data", ranks=4, reference=None, steps=3, timeout=60.0, meshes=None) -> Report:
    """Return the `Report` of a training step, run in one process and on every factorization of the ranks over the axes.

    step: "train.py:step", "package.module:step", or a function at the top of a file. It takes a `DeviceMesh` and yields a
    `Step` for each batch. axes: names, as "data,tensor" or a list. ranks: N for N−1 and N ranks, or a list of world sizes.
    reference: another such function for the one process; it may take no argument. steps: how many batches, 2 or more, since
    faults of the optimizer show in the second. timeout: seconds for each mesh. meshes: only these, each as
    "data=2,tensor=2"; then ranks is not used.

    A mesh on which a rank raises, dies or does not finish is in the report's `failed`, and its ranks are ended. Raises
    UsageError for an argument that cannot work, and where the step does not run in one process.
    """
    axes = _axes(axes)
    asked = _meshes(meshes, axes) if meshes else _factorizations(_worlds(ranks), len(axes))
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise UsageError(f"steps is {steps!r}: give a whole number, 2 or more")
    if not isinstance(timeout, int | float) or not 0 < timeout < 86400:
        raise UsageError(f"timeout is {timeout!r}: give seconds, more than 0 and less than a day")
    if len(asked) > MOST:
        raise UsageError(f"these are {len(asked)} meshes, and {MOST} are the most: give fewer ranks or axes, or name meshes")
    step = _place(step, "step")
    with tempfile.TemporaryDirectory(prefix="ringtree-prove-") as folder:
        plan = Plan(
            step=step,
            reference=step if reference is None else _place(reference, "reference"),
            axes=axes,
            meshes=((1,) * len(axes), *asked),
            steps=steps,
            timeout=float(timeout),
            folder=folder,
        )
        failed = running.run(plan, [0])
        if failed:
            raise UsageError(f"{plan.reference[1]} does not run in one process: {failed[0]}")
        for _, numbers in itertools.groupby(range(1, len(plan.meshes)), lambda number: math.prod(plan.meshes[number])):
            failed |= running.run(plan, list(numbers))
        found = {
            number: torch.load(plan.file(number, "joined"), weights_only=False)
            for number in range(len(plan.meshes))
            if number not in failed
        }
    return compare(plan, found, failed)


def assert_equal_to_one(step, axes="data", **options) -> Report:
    """Assert that a step on several ranks is the step of one process; return the report.

    Takes what `prove` takes. Raises AssertionError with the report where a mesh is wrong or could not be judged.
    """
    report = prove(step, axes, **options)
    if report.status:
        raise NotEqualToOne(f"\n{report}")
    return report


def _axes(given):
    found = tuple(part.strip() for part in given.split(",")) if isinstance(given, str) else tuple(given)
    for name in found:
        if not isinstance(name, str) or not name.isidentifier():
            raise UsageError(f"axes has {name!r}: give names such as data,tensor")
    if not found or len(set(found)) < len(found):
        raise UsageError(f"axes is {given!r}: give each axis once, such as data,tensor")
    return found


def _worlds(ranks):
    if isinstance(ranks, str):
        try:
            ranks = [int(part) for part in ranks.split(",")]
        except ValueError as error:
            raise UsageError(f"ranks is {ranks!r}: give a number such as 4, or several such as 2,3,4") from error
    elif not isinstance(ranks, int):
        ranks = list(ranks)
    numbers = [ranks] if isinstance(ranks, int) else ranks
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or not 2 <= number <= 32:
            raise UsageError(f"ranks is {number!r}: give a whole number from 2 to 32")
    if len(numbers) == 1:
        numbers = [number for number in (numbers[0] - 1, numbers[0]) if number > 1]
    return sorted(set(numbers))


def _factorizations(worlds, count):
    """Every way to write each world size as a product of `count` sizes, in order of the world sizes."""
    return [
        sizes
        for world in worlds
        for sizes in itertools.product([n for n in range(1, world + 1) if world % n == 0], repeat=count)
        if math.prod(sizes) == world
    ]


def _meshes(given, axes):
    found = []
    for text in [given] if isinstance(given, str) else given:
        sizes = dict.fromkeys(axes, 1)
        for part in str(text).replace(" ", ",").split(","):
            axis, _, size = part.partition("=")
            if axis not in axes or not size.isdecimal() or int(size) < 1:
                raise UsageError(f"mesh {text!r}: give sizes of {', '.join(axes)}, such as {','.join(f'{a}=2' for a in axes)}")
            sizes[axis] = int(size)
        if not 2 <= math.prod(sizes.values()) <= 32:
            raise UsageError(f"mesh {text!r} has {math.prod(sizes.values())} ranks: give 2 to 32")
        found.append(tuple(sizes.values()))
    return sorted(set(found), key=lambda sizes: (math.prod(sizes), sizes))


def _place(given, what):
    """(file or module, name of the function, folder of its files) of what the user gives."""
    if callable(given):
        source, name = inspect.getsourcefile(given), given.__qualname__
        if source is None or not os.path.exists(source) or "<" in name:
            raise UsageError(
                f"{what} is {name}, which ranks cannot import: write it at the top of a file, or give 'train.py:step'"
            )
        return os.path.abspath(source), name, os.path.dirname(os.path.abspath(source))
    if not isinstance(given, str):
        raise UsageError(f"{what} is {a_kind(given)}: give a file and a function in it, such as 'train.py:step'")
    source, colon, name = given.rpartition(":")
    if not (source and colon and name):
        raise UsageError(f"{what} is {given!r}: give a file and a function in it, such as train.py:step")
    if source.endswith(".py"):
        if not os.path.isfile(source):
            raise UsageError(f"{what} is {given!r}, and there is no file {source!r} here: give its path")
        return os.path.abspath(source), name, os.path.dirname(os.path.abspath(source))
    try:
        spec = importlib.util.find_spec(source)
    except ModuleNotFoundError:
        spec = None
    if spec is None or not spec.origin:
        raise UsageError(f"{what} is {given!r}, and there is no module {source!r} here: give the path of a file, or a module")
    return source, name, os.path.dirname(os.path.abspath(spec.origin))
