"""Compare the loss and the norm, which each rank has as one number."""

from __future__ import annotations

import itertools
import math

from ringtree.prove import ratios
from ringtree.prove.findings import finding_of
from ringtree.prove.patterns import Pattern, span
from ringtree.prove.step import how_losses_meet

NOTHING = 1e-15  # rounding, where one process has zero


def close(a, b, allowed) -> bool:
    return math.isfinite(a) and abs(a - b) <= allowed * abs(b) + NOTHING


def losses_of(seen, number, step):
    """The loss of the global batch, as `loss_is` says, once for each place along the other axes."""
    record = seen.found[number]["steps"][step]
    how = how_losses_meet(record["loss_is"], seen.plan.axes)
    groups: dict = {}
    for at, loss in zip(seen.found[number]["coordinates"], record["loss"]):
        if loss is not None:
            key = tuple(0 if axis in how else place for axis, place in zip(seen.plan.axes, at))
            groups.setdefault(key, []).append(loss)
    found = []
    for losses in groups.values():
        share = math.prod(seen.sizes[number][axis] for axis, way in how.items() if way == "mean")
        complete = len(losses) == math.prod(seen.sizes[number][axis] for axis in how)
        found.append(sum(losses) / (share if complete else len(losses) if share > 1 else 1))
    return found


def one_of(seen, step, what):
    return seen.one[step][what][0]


def loss_differs(seen, number, step) -> bool:
    one = one_of(seen, step, "loss")
    found = losses_of(seen, number, step)
    return one is not None and (not found or not all(_near_loss(seen, each, one, step) for each in found))


def _near_loss(seen, loss, one, step):
    return math.isfinite(loss) and abs(loss - one) <= seen.allowed(step) * max(abs(one), 1e-3)


def norm_differs(seen, number, step) -> bool:
    one = one_of(seen, step, "norm")
    norms = [each for each in seen.found[number]["steps"][step]["norm"] if each is not None]
    return one is not None and not all(close(each, one, 10 * seen.allowed(step)) for each in norms)


def cell(seen, number, what) -> str:
    """What the table says: the ratio to one process."""
    step = seen.differs[number].step
    one = one_of(seen, step, what)
    if what == "loss":
        values = losses_of(seen, number, step)
    else:
        values = [each for each in seen.found[number]["steps"][step]["norm"] if each is not None]
    if not values:
        return "none"
    told = [f"×{value / one:.6g}" if one else f"{value:.3g} for 0" for value in (min(values), max(values))]
    return told[0] if told[0] == told[1] else " to ".join(told)


def of_losses(seen):
    """Findings about the loss."""
    wrong = [number for number, differs in seen.differs.items() if differs and differs.loss]
    if not wrong:
        return
    right = [number for number in seen.differs if number not in wrong and not _after(seen, number)]
    yield finding_of(seen, "loss", [("", _loss_pattern(seen, wrong, right))], wrong, right)


def _after(seen, number):
    differs = seen.differs[number]
    return differs is not None and bool(differs.parameters)


def _loss_pattern(seen, wrong, right) -> Pattern:
    steps = {number: seen.differs[number].step for number in wrong}
    every = {number: losses_of(seen, number, steps[number]) for number in wrong}
    ones = {number: one_of(seen, steps[number], "loss") for number in wrong}
    if not all(every.values()):
        return Pattern("is on no rank")
    if any(not math.isfinite(each) for losses in every.values() for each in losses):
        return Pattern("is not finite")
    says = seen.found[wrong[0]]["steps"][0]["loss_is"]
    apart = [
        number for number in wrong if not all(close(each, every[number][0], 10 * seen.allowed(1)) for each in every[number])
    ]
    if apart:
        axes = _axes_apart(seen, apart, steps)
        for way in ("mean", "sum"):
            values = {number: sum(every[number]) / (len(every[number]) if way == "mean" else 1) for number in apart}
            if all(_near_loss(seen, values[number], ones[number], 1) for number in apart):
                return Pattern(
                    f"differs along {axes}, where loss_is ({says}) has it equal; the {way} over {axes} is right",
                    f"each rank along {axes} computes its loss from its own part, and a reduction over {axes} in it is missing; or "
                    f"loss_is should say '{way} over {axes}'",
                )
        return Pattern(
            f"differs along {axes}, where loss_is ({says}) has it equal",
            f"ranks along {axes} compute different things where they should agree",
        )
    sizes = [seen.sizes[number] for number in wrong]
    times = [every[number][0] / ones[number] if ones[number] else math.nan for number in wrong]
    if powers := ratios.powers_of(times, sizes, [seen.sizes[number] for number in right], 1e-8):
        return Pattern(
            f"is {ratios.in_words(powers, times, sizes)}",
            f"{ratios.why_powers(powers[0])}; or loss_is ({says}) does not say what the step yields",
        )
    if found := _affine(seen, wrong, every, ones) or _whole(times):
        return found
    if _between(seen, wrong, steps, ones):
        return Pattern(
            f"is wrong ({_span(times)}), and the right one lies between the ranks' own",
            "each rank divides by a count of its own (of tokens, of rows) and then all count alike: divide by the count of all "
            "ranks. If the counts are equal, the forward pass computes something else",
        )
    return Pattern(
        f"is wrong ({_span(times)})",
        "the forward pass computes something else: a cut of the weights or of the input, a bias or a term that each rank adds, "
        "random numbers",
    )


def _span(times):
    return f"×{span(times, '{:.6g}')} of one process"


def _axes_apart(seen, numbers, steps):
    found: dict = {}
    for number in numbers:
        losses = dict(zip(seen.found[number]["coordinates"], seen.found[number]["steps"][steps[number]]["loss"]))
        how = how_losses_meet(seen.found[number]["steps"][0]["loss_is"], seen.plan.axes)
        for i, axis in enumerate(seen.plan.axes):
            for (at, a), (to, b) in itertools.combinations(losses.items(), 2):
                line = at[:i] + at[i + 1 :] == to[:i] + to[i + 1 :]
                if axis not in how and line and None not in (a, b) and not close(a, b, 10 * seen.allowed(1)):
                    found[axis] = True
    return " and ".join(found) or "the mesh"


def _whole(times):
    """The pattern of a loss that is as many times too large, or too small, on each mesh."""
    for ratio, form in ((times[0], "{} times"), (1 / times[0] if times[0] else math.inf, "1/{} of")):
        if len(times) > 1 and ratio < 65 and round(ratio) > 1 and all(abs(each / times[0] - 1) < 1e-8 for each in times):
            if abs(ratio - round(ratio)) < 1e-7:
                return Pattern(
                    f"is {form.format(round(ratio))} the right one on each of these meshes, whatever their sizes",
                    "a number of micro-batches is not divided by, or is divided by twice",
                )
    return None


def _affine(seen, wrong, every, ones):
    """The pattern of a loss of which one part is counted as often as an axis is long, or divided by that."""
    if len({seen.differs[number].step for number in wrong}) > 1:
        return None
    for axis in seen.plan.axes:
        sizes = [seen.sizes[number][axis] for number in wrong]
        if min(sizes) < 2 or len(set(sizes)) < 2:
            continue
        extra = [every[number][0] - ones[number] for number in wrong]
        for times, text, why in (
            (
                lambda n: n - 1,
                f"holds one part {axis} times",
                f"what every rank along {axis} computes alike enters a sum over {axis}",
            ),
            (
                lambda n: 1 / n - 1,
                f"holds only 1/{axis} of one part",
                f"a part is divided by the size of {axis} once too often",
            ),
        ):
            parts = [each / times(size) for each, size in zip(extra, sizes)]
            if all(abs(part - parts[0]) <= 1e-6 * abs(parts[0]) for part in parts):
                return Pattern(f"{text}, which is the same on each mesh", why)
    return None


def _between(seen, wrong, steps, ones):
    """Whether the loss of one process lies between those of ranks that are averaged, on each mesh."""
    for number in wrong:
        how = how_losses_meet(seen.found[number]["steps"][0]["loss_is"], seen.plan.axes)
        averaged = [axis for axis, way in how.items() if way == "mean" and seen.sizes[number][axis] > 1]
        losses = [each for each in seen.found[number]["steps"][steps[number]]["loss"] if each is not None]
        if not averaged or any(seen.sizes[number][axis] > 1 for axis in seen.plan.axes if axis not in averaged):
            return False
        if not min(losses) < ones[number] < max(losses):
            return False
    return True


def of_norms(seen):
    """Findings about the norm, where it is not simply that of gradients that are wrong."""
    wrong = [number for number, differs in seen.differs.items() if differs and differs.norm and not differs.gradients]
    if not wrong:
        return
    right = [number for number in seen.differs if number not in wrong and not _after(seen, number)]
    yield finding_of(seen, "norm", [("", _norm_pattern(seen, wrong, right))], wrong, right)


def _norm_pattern(seen, wrong, right) -> Pattern:
    steps = {number: seen.differs[number].step for number in wrong}
    norms = {number: seen.found[number]["steps"][steps[number]]["norm"] for number in wrong}
    ones = {number: one_of(seen, steps[number], "norm") for number in wrong}
    if any(each is None for number in wrong for each in norms[number]):
        return Pattern("is None on some ranks", "give the norm on every rank")

    def fits(value_of):
        """Whether each rank's norm is this function's, on every mesh: of (mesh, step, rank)."""
        return all(
            close(norm, value, 1e-8) for number in wrong for norm, value in zip(norms[number], value_of(number, steps[number]))
        )

    for axes in _subsets(seen.plan.axes):
        if fits(lambda number, step: _squares_over(seen, number, step, axes)):
            return _counted(seen, axes, wrong)
    for axes in _subsets(seen.plan.axes):
        if fits(lambda number, step: _squares_over(seen, number, step, axes, once=True)):
            lacks = [
                axis for axis in seen.plan.axes if axis not in axes and any(seen.sizes[number][axis] > 1 for number in wrong)
            ]
            return Pattern(
                f"lacks the parts that lie on other ranks along {' and '.join(lacks) or 'the mesh'}",
                "squares are added up on too few ranks",
            )
    if fits(lambda number, step: [math.sqrt(_square(seen, number, step, sharded=True))] * len(norms[number])):
        return Pattern("is that of the sharded gradients alone", "gradients that all ranks have are left out")
    if fits(lambda number, step: [math.sqrt(_square(seen, number, step, sharded=False))] * len(norms[number])):
        return Pattern("is that of the gradients alone that all ranks have", "sharded gradients are left out")
    for axes in _subsets(seen.plan.axes)[1:]:
        for way in ("sum", "mean"):
            if fits(lambda number, step: _norms_over(seen, number, step, axes, way)):
                return Pattern(
                    f"is the {way} over {' and '.join(axes)} of the ranks' own norms",
                    "norms are put together where their squares belong: add the squares, and take the root of the sum",
                )
    if name := _one_too_many(seen, fits):
        return Pattern(*name)
    sizes = [seen.sizes[number] for number in wrong]
    times = [norms[number][0] / ones[number] if ones[number] else math.nan for number in wrong]
    alike = all(close(norm, norms[number][0], 1e-9) for number in wrong for norm in norms[number])
    for power, form in ((1, "is {}"), (2, "has a square that is {}")):
        powers = ratios.powers_of([ratio**power for ratio in times], sizes, [seen.sizes[number] for number in right])
        if alike and powers:
            return Pattern(
                form.format(ratios.in_words(powers, [ratio**power for ratio in times], sizes)),
                ratios.why_powers(powers[0]),
            )
    return Pattern(
        f"is wrong ({_span(times)})" + ("" if alike else ", and differs between ranks"),
        "the gradients are right, so its own sum over ranks is wrong",
    )


def _subsets(axes):
    return [some for count in range(len(axes) + 1) for some in itertools.combinations(axes, count)]


def _counted(seen, axes, wrong):
    """Squares of all local gradients were added over these axes."""
    real = [axis for axis in axes if any(seen.sizes[number][axis] > 1 for number in wrong)]
    lacks = [
        axis
        for axis in seen.plan.axes
        if axis not in real
        and any(
            axis in held.sharded
            for number in wrong
            for held in seen.found[number]["steps"][seen.differs[number].step]["gradients"].values()
        )
    ]
    if not real:
        return Pattern(
            "is on each rank that of its own part of the gradients",
            f"the squares of sharded gradients are not added up over {' and '.join(lacks) or 'the ranks'}",
        )
    over = " and ".join(real)
    return Pattern(
        f"counts a gradient that ranks along {over} have copies of once for each copy: its square is the sum over {over} of all local "
        "squares",
        f"the squares of gradients that are not sharded over {over} belong into the sum once, not once for each rank",
    )


def _squares_over(seen, number, step, axes, once=False):
    """For each rank, the root of the sum of squares of local gradients over these axes; once: copies count once."""
    record, places = seen.found[number]["steps"][step], seen.found[number]["coordinates"]
    found = []
    for at in places:
        total = 0.0
        for to, squares in zip(places, record["squares"]):
            if all(a == b for a, b, axis in zip(at, to, seen.plan.axes) if axis not in axes):
                for name, square in squares.items():
                    sharded = record["gradients"][name].sharded
                    own = all(a == b for a, b, axis in zip(at, to, seen.plan.axes) if axis not in sharded)
                    total += square if own or not once else 0.0
        found.append(math.sqrt(total))
    return found


def _square(seen, number, step, sharded):
    """The sum of squares of the gradients that some mesh cuts, or of those that none cuts."""
    cut = {
        name
        for other, found in seen.found.items()
        if other
        for name, held in found["steps"][step]["gradients"].items()
        if held.sharded
    }
    return sum(
        float(seen.look(number, step, "gradients", name).one.square().sum())
        for name in seen.one[step]["gradients"]
        if (name in cut) == sharded
    )


def _norms_over(seen, number, step, axes, way):
    """For each rank, the sum or mean over axes of the ranks' norms of what they hold."""
    record, places = seen.found[number]["steps"][step], seen.found[number]["coordinates"]
    roots = [math.sqrt(sum(squares.values())) for squares in record["squares"]]
    found = []
    for at in places:
        line = [
            root
            for to, root in zip(places, roots)
            if all(a == b for a, b, axis in zip(at, to, seen.plan.axes) if axis not in axes)
        ]
        found.append(sum(line) / (len(line) if way == "mean" else 1))
    return found


def _one_too_many(seen, fits):
    """A gradient that is counted twice, or not at all."""
    for name in seen.one[0]["parameters"]:
        for times, told in ((1, "counts the gradient of {} twice"), (-1, "leaves out the gradient of {}")):

            def value(number, step, name=name, times=times):
                one = seen.one[step]["gradients"]
                total = sum(float(held.copies[min(held.copies)].square().sum()) for held in one.values())
                own = float(seen.look(number, step, "gradients", name).one.square().sum())
                return [math.sqrt(max(total + times * own, 0.0))] * len(seen.found[number]["coordinates"])

            if float(seen.look(0, 0, "gradients", name).one.abs().max()) > 0 and fits(value):
                why = "it lies on two places and counts at both" if times > 0 else "its square is not added on any rank"
                return told.format(name), why
    return None
