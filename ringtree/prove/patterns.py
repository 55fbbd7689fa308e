"""Say how a tensor differs from that of one process, by a pattern that holds on every mesh where it is wrong.

A constant ratio is called a factor only if it is a product of powers of the axes' sizes on every mesh: constants occur by chance.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import torch

from ringtree.prove.joining import Held

SURE = 1e-7  # a ratio is this near to a number
POWERS = (1, -1, 2, -2)
SHORT = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}


def near(a, b, allowed, floor=0.0) -> bool:
    """Whether no entry differs by more than `allowed` of the largest entry of b, and `floor`."""
    if a.shape != b.shape:
        return False
    return not a.numel() or bool(float((a - b).abs().max()) <= allowed * float(b.abs().max()) + floor)


@dataclass
class Look:
    """One tensor on one mesh, beside that of one process (`one`)."""

    number: int
    sizes: dict[str, int]
    axes: tuple[str, ...]
    held: Held
    one: torch.Tensor
    allowed: float
    floor: float
    step: int

    def is_near(self, to, of=None):
        """Whether a tensor (left out: the first copy) is that tensor, but for rounding."""
        return near(self.first if of is None else of, to, self.allowed, self.floor)

    @property
    def first(self):
        return self.held.copies[min(self.held.copies)]

    def is_right(self):
        return all(self.is_near(self.one, copy) for copy in self.held.copies.values())

    def copies_differ(self):
        return not all(self.is_near(self.first, copy) for copy in self.held.copies.values())

    def varies(self):
        """The axes along which copies differ."""
        found = []
        for i, axis in enumerate(self.axes):
            for at, copy in self.held.copies.items():
                line = [c for place, c in self.held.copies.items() if place[:i] + place[i + 1 :] == at[:i] + at[i + 1 :]]
                if not all(self.is_near(copy, each) for each in line):
                    found.append(axis)
                    break
        return tuple(found)

    def reduced(self, how):
        """Copies put together along axes: {axis: "sum" or "mean"}; what stays apart as a list."""
        groups: dict = {}
        for at, copy in sorted(self.held.copies.items()):
            key = tuple(0 if axis in how else place for axis, place in zip(self.axes, at))
            groups.setdefault(key, []).append(copy)
        share = math.prod(self.sizes[axis] for axis, each in how.items() if each == "mean")
        return [sum(copies) / share for copies in groups.values()]

    def noise(self, tensor):
        """How sure a ratio of this tensor can be: its rounding beside its size."""
        return max(SURE, 10 * self.allowed, 10 * self.floor / max(float(self.one.abs().max()), 1e-300))


@dataclass(frozen=True)
class Pattern:
    """What is seen (`text`, a predicate), and what it lets one infer. exact: it holds to rounding on each mesh."""

    text: str
    inferred: str | None = None
    exact: bool = False
    differ: bool = False
    cosine: float | None = None
    difference: float | None = None
    key_extra: str = ""

    @property
    def key(self):
        return self.text, self.inferred, self.key_extra

    def also(self, what):
        return replace(self, text=f"{self.text}; {what}")


def together(patterns) -> str:
    """The sentence of patterns with one key, with the range of their numbers."""
    first = patterns[0]
    if first.cosine is None:
        return first.text
    cosines, differences = ([getattr(each, name) for each in patterns] for name in ("cosine", "difference"))
    return f"{first.text} (cosine {span(cosines, '{:.4f}')}, relative difference {span(differences, '{:.2g}')})"


def span(values, form):
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"


def of_gradient(looks, right) -> Pattern:
    """The pattern of a gradient. looks: on the meshes where it is wrong, all with copies that differ, or all without."""
    if any(not torch.isfinite(copy).all() for look in looks for copy in look.held.copies.values()):
        return Pattern("is not finite", exact=True)
    if looks[0].copies_differ():
        return _apart(looks, right, "all-reduce")
    return _alike(looks, right)


def of_first_weights(looks, right) -> Pattern:
    """The pattern of a weight that differs before the first step."""
    differ = looks[0].copies_differ()
    rows = [_same_rows(look) for look in looks]
    if not differ and all(rows):
        return Pattern(
            "has the rows of one process in another order before the first step",
            "the layout puts the parts together in another way than the step cut them",
            exact=True,
        )
    if differ:
        axes = ", ".join(dict.fromkeys(axis for look in looks for axis in look.varies()))
        which = " and ".join(_right_places(looks)) or "none"
        text = f"has copies along {axes} that differ before the first step; that of one process: {which}"
        return Pattern(
            text,
            f"each copy along {axes} is drawn by its own seed, or is never broadcast; or these are parts, which need an entry in the "
            "layout. The gradients follow, and no call between gradients is at fault",
            exact=True,
        )
    parts = _parts(looks)
    return Pattern(
        "differs from that of one process before the first step" + (f"; {parts}" if parts else ""),
        "parts are drawn by seeds of their own, or the layout puts them together in another way than the step cut them",
        exact=True,
    )


def of_update(looks, before, frozen, right) -> Pattern:
    """The pattern of a weight that differs after a step whose gradients and loss were right."""
    if any(not torch.isfinite(copy).all() for look in looks for copy in look.held.copies.values()):
        return Pattern("is not finite after the optimizer's step", exact=True)
    if looks[0].copies_differ():
        axes = ", ".join(dict.fromkeys(axis for look in looks for axis in look.varies()))
        which = " and ".join(_right_places(looks))
        return Pattern(
            f"has copies along {axes} that drift apart in the optimizer's step"
            + (f"; that of one process: {which}" if which else ""),
            f"the gradients are right, so ranks along {axes} step with something of their own: a norm to clip by, a state, a "
            "random number",
            exact=True,
        )
    moved = [look.one - old.one for look, old in zip(looks, before)]
    if frozen:
        if any(float(move.abs().max()) > look.floor for move, look in zip(moved, looks)):  # decayed in one process, not here
            return Pattern("has no gradient, and moves otherwise than in one process", "weight decay or momentum", exact=True)
        ratios = [_ratio(look.first, look.one) for look in looks]
        shrunk = f": it is {ratios[0]:.6g} of what it was" if _alike_numbers(ratios) else ""
        return Pattern(
            f"has no gradient and does not move in one process, but moves here{shrunk}",
            "the optimizer takes it with a gradient of zero, so that weight decay or momentum moves it: leave it out",
            exact=True,
        )
    ours = [look.first - old.first for look, old in zip(looks, before)]
    if all(float(move.abs().max()) <= look.floor for move, look in zip(ours, looks)):
        return Pattern(
            "is not moved by the optimizer's step", "the optimizer does not have it, or has a copy of it", exact=True
        )
    changes = [replace(look, held=Held({(0,) * len(look.axes): our}), one=move) for look, our, move in zip(looks, ours, moved)]
    factor = _factor(changes, right)
    if factor:
        return Pattern(
            f"is moved by the optimizer {factor}", "the learning rate, or the gradient after clipping, is scaled", exact=True
        )
    if dtype := _short_type(looks):
        return Pattern(f"has only the digits of {dtype} after the optimizer's step", f"it is kept or sent in {dtype}")
    parts = _parts(looks)
    return Pattern(
        "is moved by the optimizer otherwise than in one process" + (f"; {parts}" if parts else ""),
        "the gradients are right, so look at what the optimizer does with them: clipping, its state, the order of its "
        "parameters, weight decay, what is gathered after it",
        cosine=_lowest(changes, _cosine),
        difference=_highest(changes, _difference),
    )


def _apart(looks, right, call) -> Pattern:
    """Copies that should be equal differ."""
    axes = tuple(dict.fromkeys(axis for look in looks for axis in look.varies()))
    said = f"has copies along {' and '.join(axes)} that differ"
    only = _right_places(looks)
    zeros = all(
        any(look.is_near(look.one, copy) for copy in look.held.copies.values())
        and all(look.is_near(look.one, copy) or float(copy.abs().max()) <= look.floor for copy in look.held.copies.values())
        for look in looks
    )
    if zeros and only:
        return Pattern(
            f"{said}: right on {' and '.join(only)} only, and zero on the others",
            f"a sum over {' and '.join(axes)} is missing",
            exact=True,
            differ=True,
        )
    for ways in itertools.product(("sum", "mean"), repeat=len(axes)):
        how = dict(zip(axes, ways))
        told = " and ".join(f"{way} over {axis}" for axis, way in how.items())
        wholes = [look.reduced({axis: way for axis, way in how.items() if look.sizes[axis] > 1}) for look in looks]
        if all(look.is_near(look.one, each) for look, some in zip(looks, wholes) for each in some):
            holders = _holders(looks)
            missing = " and ".join(f"{'a sum' if way == 'sum' else 'an average'} over {axis}" for axis, way in how.items())
            return Pattern(
                f"{said}{holders}; their {told} is that of one process",
                f"{missing} is missing: an {call} of this gradient",
                exact=True,
                differ=True,
            )
        whole = [replace(look, held=Held({(0,) * len(look.axes): some[0]})) for look, some in zip(looks, wholes)]
        if all(near(some[0], each, look.allowed, look.floor) for look, some in zip(looks, wholes) for each in some):
            if factor := _factor(whole, right):
                return Pattern(
                    f"{said}; their {told} is {factor}",
                    f"{told} is missing, and a scale is wrong besides",
                    exact=True,
                    differ=True,
                )
            if "mean" not in ways and (grown := _grown(whole)) and grown[0] == "grows":
                return Pattern(
                    f"{said}; neither their sum nor their mean is that of one process: the sum is too large by {grown[1]} − 1 times "
                    "one part, the same on each mesh",
                    f"one part of it is whole on each rank along {grown[1]} and another is a share, so a sum over {grown[1]} is missing "
                    "further up, in the backward pass of what the shares come through",
                    differ=True,
                )
    if only:
        return Pattern(
            f"{said}: right on {' and '.join(only)} only",
            "the others lack a part, or have one too many: a sum or a broadcast is missing",
            exact=True,
            differ=True,
        )
    return Pattern(
        f"{said}; neither their sum nor their mean is that of one process",
        differ=True,
        cosine=_lowest(looks, _cosine),
        difference=_highest(looks, _difference),
    )


def _alike(looks, right) -> Pattern:
    """All copies are equal, and wrong."""
    if all(float(look.first.abs().max()) <= look.floor for look in looks if look.first.numel()):
        return Pattern(
            "is zero, or None, on all ranks", "the graph is cut in front of it, or its gradient is cleared", exact=True
        )
    if all(float(look.one.abs().max()) <= look.floor for look in looks):
        return Pattern("is zero, or None, in one process and not here", exact=True)
    if found := _factor(looks, right, explain=True):
        return Pattern(*found, exact=True)
    if dtype := _short_type(looks):
        return Pattern(
            f"has only the digits of {dtype}",
            f"precision is lost: it is cast to {dtype} before a reduction or a copy; no call is missing and no factor is wrong",
            exact=True,
        )
    if grown := _grown(looks):
        way, axis = grown
        if way == "grows":
            return Pattern(
                f"holds one part {axis} times: it is too large by {axis} − 1 times a part that is the same on each mesh",
                f"what every rank along {axis} computes alike (a bias, an auxiliary loss, a residual) enters a sum over {axis}",
                exact=True,
            )
        if way == "shrinks":
            return Pattern(
                f"holds only 1/{axis} of one part, which is the same on each mesh",
                f"a part that is not shared out is divided by {axis}, or is added on one rank before an average over {axis}",
                exact=True,
            )
        return Pattern(
            f"has the same wrong value at every size of {axis} above one",
            f"something is left out or taken twice as soon as {axis} > 1, whatever its size: a micro-batch, a term of the loss",
            cosine=_lowest(looks, _cosine),
            difference=_highest(looks, _difference),
        )
    parts, rows = _parts(looks), _rows(looks)
    if all(_same_rows(look) for look in looks):
        return Pattern(
            "has the rows of one process in another order", "ranks, or parts, are put together in another order", exact=True
        )
    if _is_noise(looks):
        return Pattern(
            "has equal copies and differs a little everywhere, by no ratio",
            "this looks like a loss of precision: a cast before a reduction",
            cosine=_lowest(looks, _cosine),
            difference=_highest(looks, _difference),
        )
    return Pattern(
        "has equal copies and is no multiple of that of one process" + "".join(f"; {each}" for each in (parts, rows) if each),
        cosine=_lowest(looks, _cosine),
        difference=_highest(looks, _difference),
    )


def _ratio(a, b):
    """The number c for which c·b is nearest to a; nan where b is zero."""
    square = float((b.double() * b.double()).sum())
    return float((a.double() * b.double()).sum()) / square if square else math.nan


def _alike_numbers(values):
    return all(math.isfinite(each) and abs(each - values[0]) <= SURE * abs(values[0]) for each in values)


def _factor(looks, right, explain=False):
    """The ratio of all looks in words, if it is a product of powers of sizes; else a whole number, the same on each mesh.

    With explain: (words, what it lets one infer). None where there is no such ratio.
    """
    ratios = []
    for look in looks:
        ratio = _ratio(look.first, look.one)
        if not math.isfinite(ratio) or not near(look.first, ratio * look.one, max(1e-8, look.allowed * 10), look.floor * 10):
            return None
        ratios.append(ratio)
    sure = max(look.noise(look.one) for look in looks)
    powers = powers_of(ratios, [look.sizes for look in looks], right, sure)
    if powers:
        words = in_words(powers, ratios, [look.sizes for look in looks])
        return (words, why_powers(powers[0])) if explain else words
    ratio = ratios[0]
    if len({tuple(look.sizes.items()) for look in looks}) < 2 or not all(
        abs(each - ratio) <= sure * abs(ratio) for each in ratios
    ):
        return None
    for whole in range(1, 65):
        for value, words in ((whole, f"{whole} times"), (1 / whole, f"1/{whole} of")):
            for sign in (1, -1):
                if abs(ratio - sign * value) <= sure * value and sign * value != 1:
                    words = (
                        "minus that of one process"
                        if sign * value == -1
                        else f"{'minus ' if sign < 0 else ''}{words} that of one process"
                    )
                    words = (
                        f"is {words} on each of these meshes, whatever their sizes"
                        if explain
                        else f"{words}, whatever the sizes"
                    )
                    told = "a gradient is added again, or a number of micro-batches is not divided by, or is divided by twice"
                    return (words, told if sign > 0 else "a sign is wrong") if explain else words
    return None


def powers_of(ratios, sizes, right, sure=SURE) -> list[dict[str, int]]:
    """The simplest powers of the axes' sizes that are these ratios on all meshes, and one on the right ones.

    One mesh alone may leave several: all of them are returned, up to three.
    """
    axes, found = list(sizes[0]), []
    choices = sorted(itertools.product((0, *POWERS), repeat=len(axes)), key=lambda each: sum(map(abs, each)))
    for chosen in choices:
        powers = {axis: power for axis, power in zip(axes, chosen) if power}
        if not powers or (found and sum(map(abs, chosen)) > sum(map(abs, found[0].values()))):
            continue

        def value(one, powers=powers):
            return math.prod(one[axis] ** power for axis, power in powers.items())

        if all(abs(ratio - value(one)) <= sure * value(one) for ratio, one in zip(ratios, sizes)) and all(
            value(one) == 1 for one in right
        ):
            found.append(powers)
    return found[:3]


def in_words(powers, ratios, sizes) -> str:
    """`tensor` times too large (3 on tensor=3, 4 on tensor=4)."""
    told = " or ".join(_product(each) for each in powers)
    seen: dict = {}
    for ratio, one in zip(ratios, sizes):
        mesh = " ".join(f"{axis}={size}" for axis, size in one.items() if size > 1)
        seen.setdefault(f"×{ratio:.6g}", mesh)
    return f"{told} ({', '.join(f'{ratio} on {mesh}' for ratio, mesh in list(seen.items())[:4])})"


def _product(powers):
    up = " · ".join(f"{axis}{'²' if power == 2 else ''}" for axis, power in powers.items() if power > 0)
    down = " · ".join(f"{axis}{'²' if power == -2 else ''}" for axis, power in powers.items() if power < 0)
    if up and down:
        return f"{up} ÷ {down} times that of one process"
    return f"{up} times too large" if up else f"{down} times too small"


def why_powers(powers):
    told = []
    for axis, power in powers.items():
        if power > 0:
            told.append(f"a sum over {axis} is taken twice, or a sum stands where the mean over {axis} is meant")
        else:
            told.append(f"the size of {axis} is divided by once too often: averaged twice, or a mean where the sum is meant")
    if len(told) > 1 and len({power > 0 for power in powers.values()}) > 1:
        told = ["a scale takes the size of one axis, or of the world, in place of another"]
    return "; ".join(told)


def _grown(looks):
    """("grows" | "shrinks" | "same", axis) if what is too much is, over all sizes, n − 1 times, 1/n − 1 times or once one part."""
    for axis in looks[0].axes:
        sizes = [look.sizes[axis] for look in looks]
        if min(sizes) < 2 or len(set(sizes)) < 2:
            continue
        extra = [look.first - look.one for look in looks]
        largest = max(float(each.abs().max()) for each in extra)
        for way, times in (("grows", lambda n: n - 1), ("shrinks", lambda n: 1 / n - 1), ("same", lambda n: 1)):
            parts = [each / times(n) for each, n in zip(extra, sizes)]
            rounding = max(1e-6 * largest, 100 * max(look.allowed * float(look.one.abs().max()) + look.floor for look in looks))
            if rounding < largest and all(float((part - parts[0]).abs().max()) <= rounding for part in parts):
                return way, axis
    return None


def _short_type(looks):
    """The shorter type whose digits are all that a tensor has, perhaps after a division by some size."""
    for dtype, name in SHORT.items():
        if all(_has_digits_of(look, dtype) for look in looks):
            return name
    return None


def _has_digits_of(look, dtype):
    ours, one = look.first, look.one
    if ours.dtype != torch.float64 or ours.numel() < 4 or not ours.any():
        return False
    scales = {1, *look.sizes.values(), math.prod(look.sizes.values())}

    def fits(tensor, times):
        scaled = tensor * times
        return near(scaled.to(dtype).double(), scaled, 1e-14)

    alike = near(ours, one, 64 * torch.finfo(dtype).eps)
    return alike and not fits(one, 1) and any(fits(ours, times) for times in scales)


def _is_noise(looks):
    """Whether each entry is off by about as much as the digits of bfloat16 or float16 allow, and never by much more."""
    for look in looks:
        ours, one = look.first.flatten(), look.one.flatten()
        large = one.abs() > 0.05 * one.abs().max()
        off = ((ours - one)[large] / one[large]).abs()
        if int(large.sum()) < 8 or not 2e-5 < float(off.median()) < 6e-3 or float(off.max()) > 0.03:
            return False
        signs = (ours - one)[large] * one[large]
        if not 0.15 < float((signs > 0).double().mean()) < 0.85:
            return False
    return True


def _same_rows(look):
    """Whether the rows are those of one process in another order."""
    ours, one = look.first, look.one
    if one.dim() == 0 or len(one) < 2 or look.is_near(one):
        return False
    ours, one = ours.reshape(len(ours), -1), one.reshape(len(one), -1)
    ours, one = (each[torch.argsort(each.sum(1))] for each in (ours, one))
    return near(ours, one, look.allowed, look.floor)


def _right_places(looks):
    """The coordinates along the axes that differ, at which a copy is right, if they are the same on each mesh."""
    found = []
    for look in looks:
        axes = look.varies()
        right = [at for at, copy in look.held.copies.items() if look.is_near(look.one, copy)]
        found.append({
            " ".join(f"{axis}={place}" for axis, place in zip(look.axes, at) if axis in axes) for at in sorted(right)
        })
    same = set.intersection(*found) if found else set()
    return sorted(same) if all(each == same for each in found) else []


def _holders(looks):
    """For a tensor that some ranks do not have: who has it."""
    told = []
    for look in looks:
        whole = math.prod(size for axis, size in look.sizes.items() if axis not in look.held.sharded)
        if len(look.held.copies) < whole:
            axes = look.varies()
            told += [
                " ".join(f"{axis}={place}" for axis, place in zip(look.axes, at) if axis in axes) for at in look.held.copies
            ]
    return f" (held by {', '.join(dict.fromkeys(told))})" if told else ""


def _parts(looks):
    """Which parts of a sharded tensor are right and which wrong, if this is the same on each mesh."""
    told = set()
    for look in looks:
        right = []
        for place, (dim, first, behind) in look.held.parts.items():
            part, one = (each.narrow(dim, first, behind - first) for each in (look.first, look.one))
            if near(part, one, look.allowed, look.floor):
                right.append(place)
        axis = look.held.sharded[0] if look.held.parts else ""
        told.add(f"the part on {axis} {', '.join(map(str, right))} is right" if right else "")
    return told.pop() if len(told) == 1 else ""


def _rows(looks):
    """How many rows are right, if some are."""
    look = looks[0]
    if look.one.dim() < 2 or not len(look.one):
        return ""
    off = (look.first - look.one).abs().flatten(1).amax(1)
    right = int((off <= look.allowed * float(look.one.abs().max()) + look.floor).sum())
    return f"{right} of {len(look.one)} rows are right" if right else ""


def _cosine(a, b):
    a, b = a.double().flatten(), b.double().flatten()
    return float((a @ b) / (a.norm() * b.norm()).clamp(min=1e-300))


def _difference(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-300))


def _lowest(looks, measure):
    return min(measure(copy, look.one) for look in looks for copy in look.held.copies.values())


def _highest(looks, measure):
    return max(measure(copy, look.one) for look in looks for copy in look.held.copies.values())
