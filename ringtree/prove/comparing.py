"""Compare each mesh with one process, up to its first wrong step, and give the patterns to the report."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ringtree.errors import UsageError
from ringtree.prove import numbers, patterns
from ringtree.prove.findings import finding_of
from ringtree.prove.joining import Held
from ringtree.prove.look import SURE, Look
from ringtree.prove.patterns import Pattern
from ringtree.prove.ratios import alike_numbers, ratio
from ringtree.prove.report import Report, Row

# By type: a part of a tensor's largest entry that rounding may make.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
COARSE = 5e-2  # for shorter types
LATER = 10  # times as much in later steps, where rounding has gone through the optimizer


@dataclass
class Differs:
    """What differs on one mesh at the first step at which something does."""

    step: int
    parameters: list[str] = field(default_factory=list)
    gradients: list[str] = field(default_factory=list)
    loss: bool = False
    norm: bool = False


class Compared:
    """All records of a proof, with the tolerances that belong to them."""

    def __init__(self, plan, found, failed):
        self.plan, self.found, self.failed = plan, found, failed
        self.one = found[0]["steps"]
        self.sizes = {number: dict(zip(plan.axes, sizes)) for number, sizes in enumerate(plan.meshes)}
        self.tolerance = max(TOLERANCE.get(dtype, COARSE) for dtype in self.types())
        self.scale = [
            {kind: max((float(whole(held).abs().max()) for held in step[kind].values() if whole(held).numel()), default=0.0)
             for kind in ("parameters", "gradients")}
            for step in self.one
        ]  # fmt: skip
        self.differs = {number: self.first(number) for number in sorted(found) if number}

    def types(self):
        step = self.one[0]
        return {whole(held).dtype for held in step["parameters"].values() if whole(held).is_floating_point()} or {torch.float64}

    def allowed(self, step):
        return self.tolerance * (LATER if step else 1)

    def floor(self, kind, step):
        """An absolute difference that is rounding: a weight whose gradient is rounding may wander by the optimizer."""
        return self.allowed(step) * self.scale[step][kind] * (1e-3 if kind == "gradients" else 1) + numbers.NOTHING

    def look(self, number, step, kind, name) -> Look:
        """A tensor on one mesh beside that of one process. A gradient that is missing is zero."""
        like = self.one[step]["parameters"].get(name) or self.one[step]["gradients"][name]
        one = self.one[step][kind].get(name)
        held = self.found[number]["steps"][step][kind].get(name)
        zero = torch.zeros_like(whole(like))
        if held is None:
            held = Held({(0,) * len(self.plan.axes): zero})
        return Look(
            number=number,
            sizes=self.sizes[number],
            axes=self.plan.axes,
            held=held,
            one=whole(one) if one is not None else zero,
            allowed=self.allowed(step),
            floor=self.floor(kind, step),
            step=step,
        )

    def names(self, number, step, kind):
        return [*dict.fromkeys([*self.one[step][kind], *self.found[number]["steps"][step][kind]])]

    def first(self, number):
        """The first step of a mesh at which something differs, and what; None if all is equal."""
        self.same_names(number)
        for step in range(len(self.one)):
            if names := self.wrong(number, step, "parameters"):
                return Differs(step, parameters=names)  # the rest follows from it
            found = Differs(
                step,
                gradients=self.wrong(number, step, "gradients"),
                loss=numbers.loss_differs(self, number, step),
                norm=numbers.norm_differs(self, number, step),
            )
            if found.gradients or found.loss or found.norm:
                return found
        return None

    def wrong(self, number, step, kind):
        looks = {name: self.look(number, step, kind, name) for name in self.names(number, step, kind)}
        return [name for name, look in looks.items() if not look.is_right()]

    def same_names(self, number):
        """Refuse names that one process and the ranks do not share."""
        for step, one in zip(self.found[number]["steps"], self.one):
            here, there = step["parameters"], one["parameters"]
            if extra := [name for name in here if name not in there]:
                raise UsageError(
                    f"parameter {extra[0]} is on {self.plan.says(number)} and not in one process: give a parameter the same name "
                    "on every mesh"
                )
            if missing := [name for name in there if name not in here]:
                raise UsageError(
                    f"parameter {missing[0]} of one process is on no rank of {self.plan.says(number)}: give a parameter the same "
                    "name on every mesh"
                )


def whole(held) -> torch.Tensor:
    """The one copy of a tensor of one process."""
    return next(iter(held.copies.values()))


def compare(plan, found, failed) -> Report:
    """Return the report on what was found on each mesh. failed: {number: why a mesh has no result}."""
    for step in found[0]["steps"]:
        for kind in ("parameters", "gradients"):
            for name, held in step[kind].items():
                if not torch.isfinite(whole(held)).all():
                    raise UsageError(f"{kind[:-1]} {name} is not finite in one process: train where neither inf nor nan occurs")
    failed, seen = dict(failed), Compared(plan, {0: found[0]}, {})
    for number in sorted(set(found) - {0}):
        seen.found[number] = found[number]
        try:
            seen.differs[number] = seen.first(number)
        except UsageError as error:
            failed[number] = str(error)
            del seen.found[number]
    seen.failed = failed
    findings = [*_of_weights(seen), *numbers.of_losses(seen), *_of_gradients(seen), *numbers.of_norms(seen)]
    findings.sort(key=lambda each: each.step)
    rows = [_row(seen, number) for number in range(1, len(plan.meshes))]
    return Report(plan, rows, findings, {plan.says(number): why for number, why in failed.items()}, _notes(seen), len(seen.one))


def _notes(seen):
    for step in seen.one:
        squares = sum(float(whole(held).double().square().sum()) for held in step["gradients"].values())
        if step["norm"][0] is not None and not numbers.close(step["norm"][0], squares**0.5, 1e3 * seen.allowed(1)):
            yield (
                f"the norm of one process is {step['norm'][0]:.6g}, and that of the gradients it yields is {squares**0.5:.6g}: it is "
                "taken of other gradients, or is another norm than the root of the sum of squares."
            )
            break
    if seen.tolerance > TOLERANCE[torch.float64]:
        yield (
            f"the weights are not float64: a difference below {seen.tolerance:g} of a tensor's largest entry is taken for rounding. "
            "Build the model with .double() to see smaller ones."
        )
    if len(seen.one) < 2:
        yield "the step yields once: faults of the optimizer show at the second step, so yield two batches or more."


def _row(seen, number):
    differs = seen.differs.get(number)
    if number in seen.failed:
        return Row(seen.plan.says(number), None, {})
    if differs is None:
        return Row(seen.plan.says(number), "right", dict.fromkeys(("weights", "loss", "gradients", "norm"), "right"))
    step = seen.one[differs.step]
    if differs.parameters:
        cells = {"weights": f"{len(differs.parameters)} of {len(step['parameters'])}"} | dict.fromkeys(
            ("loss", "gradients", "norm"), "–"
        )
    else:
        cells = {
            "weights": "right",
            "loss": numbers.cell(seen, number, "loss") if differs.loss else "right",
            "gradients": f"{len(differs.gradients)} of {len(step['parameters'])}" if differs.gradients else "right",
            "norm": numbers.cell(seen, number, "norm") if differs.norm else "right",
        }
    return Row(seen.plan.says(number), "WRONG", cells, differs.step)


def _grouped(seen, kind, numbers_, tell):
    """Findings of one kind: names whose pattern is the same go together. tell(looks, right) gives the pattern."""
    named: dict = {}
    for number in numbers_:
        for name in getattr(seen.differs[number], kind):
            named.setdefault(name, []).append(number)
    groups: dict = {}
    for name, wrong in named.items():
        right = [number for number in seen.differs if number not in wrong and not _unknown(seen, number, kind)]
        looks = [seen.look(number, seen.differs[number].step, kind, name) for number in wrong]
        for split in (False, True):  # copies that differ tell more than copies that do not
            some = [look for look in looks if look.copies_differ() == split]
            if some:
                pattern = tell(name, some, [seen.sizes[number] for number in right])
                key = pattern.key, tuple(look.number for look in some)
                groups.setdefault(key, []).append((name, pattern))
    for key, wrong in sorted(groups, key=lambda each: -len(each[1])):
        if (key, wrong) not in groups:
            continue  # told with those that are wrong on these meshes and on others
        found = [
            each for other in list(groups) if other[0] == key and set(other[1]) <= set(wrong) for each in groups.pop(other)
        ]
        right = [number for number in seen.differs if number not in wrong and not _unknown(seen, number, kind)]
        yield found, wrong, right


def _unknown(seen, number, kind):
    """Whether a mesh went wrong in another way before this kind could be judged."""
    differs = seen.differs[number]
    return differs is not None and bool(differs.parameters) and kind != "parameters"


def _of_weights(seen):
    """Weights that differ before the first step, and weights that differ after a step whose gradients were right."""
    wrong = [number for number, differs in seen.differs.items() if differs and differs.parameters]
    for first in (True, False):
        some = [number for number in wrong if (seen.differs[number].step == 0) == first]

        def tell(name, looks, right, first=first):
            if first:
                return patterns.of_first_weights(looks, right)
            before = [seen.look(look.number, look.step - 1, "parameters", name) for look in looks]
            frozen = [
                name not in seen.one[look.step - 1]["gradients"]
                or not bool(whole(seen.one[look.step - 1]["gradients"][name]).any())
                for look in looks
            ]
            return patterns.of_update(looks, before, all(frozen), right)

        for found, numbers_, right in _grouped(seen, "parameters", some, tell):
            yield finding_of(seen, "weights", found, numbers_, right)


def _of_gradients(seen):
    wrong = [number for number, differs in seen.differs.items() if differs and differs.gradients]

    def tell(name, looks, right):
        pattern = patterns.of_gradient(looks, right)
        if not pattern.exact:
            pattern = _of_other_step(seen, name, looks) or pattern
        lost = {
            rank
            for look in looks
            for rank, none in enumerate(seen.found[look.number]["steps"][look.step]["none"])
            if name in none
        }
        if lost and name in seen.one[0]["gradients"] and float(looks[0].one.abs().max()) > looks[0].floor:
            pattern = pattern.also(f"none on rank {', '.join(map(str, sorted(lost)))}")
        return pattern

    groups = list(_grouped(seen, "gradients", wrong, tell))
    behind = _all_before(seen, groups)
    for found, numbers_, right in groups:
        cause = behind or found[0][1].inferred
        if cause is None and all(seen.differs[number].loss for number in numbers_):
            cause = "it follows from the loss, which is wrong already"
        elif cause is None and not found[0][1].exact:
            cause = (
                "the loss is right, so the backward pass takes a wrong operand, a reduction is another than a sum, or a share of the "
                "batch or of a sum is missing"
            )
        yield finding_of(seen, "gradients", found, numbers_, right, cause)


def _all_before(seen, groups):
    """What it means that all wrong gradients stand before some parameter, if the loss is right and copies differ by no one rule."""
    wrong = {name for found, _, _ in groups for name, _ in found}
    order = [name for name, held in seen.one[0]["gradients"].items() if whole(held).any()]
    mixed = any(found[0][1].differ and not found[0][1].exact for found, _, _ in groups)
    losses = any(seen.differs[number].loss for _, numbers_, _ in groups for number in numbers_)
    if not mixed or losses or not wrong or len(wrong) == len(order) or set(order[: len(wrong)]) != wrong:
        return None
    return (
        f"all that is wrong stands before {order[len(wrong)]} in the order of the parameters, so the gradient that comes back from "
        "there is only a part on each rank: its sum over the ranks belongs at that place, not at the parameters"
    )


def _of_other_step(seen, name, looks):
    """A gradient that is another step's, or holds that of the step before too."""
    if any(look.step == 0 or look.copies_differ() for look in looks):
        return None
    ones = [whole(step["gradients"][name]) if name in step["gradients"] else None for step in seen.one]
    if all(ones[look.step - 1] is not None for look in looks):
        shares = [ratio(look.first - look.one, ones[look.step - 1]) for look in looks]
        if alike_numbers(shares) and all(
            look.is_near(look.one + share * ones[look.step - 1]) for look, share in zip(looks, shares)
        ):
            told = "" if abs(shares[0] - 1) < SURE else f"{shares[0]:.4g} times "
            text = f"is right but for {told}the gradient of the step before, which is added"
            return Pattern(text, "gradients are not set to zero between steps", exact=True)
    for other, one in enumerate(ones):
        if one is not None and all(other != look.step and look.is_near(one) for look in looks):
            return Pattern(f"is the gradient of step {other + 1}", "a batch is taken twice, or in another order", exact=True)
    return None
