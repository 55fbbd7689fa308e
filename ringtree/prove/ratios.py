"""Ratios and remainders that hold on every mesh: powers of the axes' sizes, a part counted too often, digits that are missing.

A constant ratio is called a factor only if it is a product of powers of the axes' sizes on every mesh: constants occur by chance.
"""

from __future__ import annotations

import itertools
import math

import torch

from ringtree.prove.look import SURE, near

POWERS = (1, -1, 2, -2)
SHORT = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}


def ratio(a, b):
    """The number c for which c·b is nearest to a; nan where b is zero."""
    square = float((b.double() * b.double()).sum())
    return float((a.double() * b.double()).sum()) / square if square else math.nan


def alike_numbers(values):
    return all(math.isfinite(each) and abs(each - values[0]) <= SURE * abs(values[0]) for each in values)


def factor(looks, right):
    """Return (words, what they let one infer) if all looks are one process's tensor times a ratio that can be explained.

    The ratio is a product of powers of the axes' sizes, or a whole number, or one by it, that is the same on each mesh.
    """
    ratios = [ratio(look.first, look.one) for look in looks]
    for each, look in zip(ratios, looks):
        if not math.isfinite(each) or not near(look.first, each * look.one, max(1e-8, look.allowed * 10), look.floor * 10):
            return None
    sure, sizes = max(look.noise() for look in looks), [look.sizes for look in looks]
    if powers := powers_of(ratios, sizes, right, sure):
        return in_words(powers, ratios, sizes), why_powers(powers[0])
    if len({tuple(each.items()) for each in sizes}) < 2 or not all(
        abs(each - ratios[0]) <= sure * abs(ratios[0]) for each in ratios
    ):
        return None
    if abs(ratios[0] + 1) <= sure:
        return "minus the right one", "a sign is wrong"
    for whole in range(2, 65):
        for value, words in ((whole, f"{whole} times"), (1 / whole, f"1/{whole} of")):
            if abs(ratios[0] - value) <= sure * value:
                return (
                    f"{words} the right one on each of these meshes, whatever their sizes",
                    "a gradient is added again; or a number of micro-batches is not divided by, or is divided by twice",
                )
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
        return f"{up} ÷ {down} times the right one"
    return f"{up} times too large" if up else f"{down} times too small"


def why_powers(powers):
    if len({power > 0 for power in powers.values()}) > 1:
        return "a scale takes the size of one axis, or of the world, in place of another"
    told = []
    for axis, power in powers.items():
        if power > 0:
            told.append(
                f"a sum over {axis} is taken twice, or stands where the mean is meant, or a scale has the size of {axis} in it"
            )
        else:
            told.append(f"the size of {axis} is divided by once too often: averaged twice, or a mean where the sum is meant")
    return "; ".join(told)


def grown(looks):
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


def short_type(looks):
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
    return alike and any(fits(ours, times) for times in scales)


def is_noise(looks):
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


def same_rows(look):
    """Whether the rows are those of one process in another order."""
    ours, one = look.first, look.one
    if one.dim() == 0 or len(one) < 2 or look.is_near(one):
        return False
    ours, one = ours.reshape(len(ours), -1), one.reshape(len(one), -1)
    ours, one = (each[torch.argsort(each.sum(1))] for each in (ours, one))
    return near(ours, one, look.allowed, look.floor)
