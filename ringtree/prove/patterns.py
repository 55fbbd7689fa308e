"""Say how a tensor differs from that of one process, by a pattern that holds on every mesh where it is wrong."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import torch

from ringtree.prove.joining import Held
from ringtree.prove.look import cosine, difference, highest, holders, lowest, near, parts, right_places, rows
from ringtree.prove.ratios import alike_numbers, factor, grown, is_noise, ratio, same_rows, short_type


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
        return _apart(looks, right)
    return _alike(looks, right)


def of_first_weights(looks, right) -> Pattern:
    """The pattern of a weight that differs before the first step."""
    differ = looks[0].copies_differ()
    if not differ and all(same_rows(look) for look in looks):
        return Pattern(
            "has the rows of one process in another order before the first step",
            "the layout puts the parts together in another way than the step cut them",
            exact=True,
        )
    if differ:
        axes = " and ".join(_varying(looks))
        which = " and ".join(right_places(looks))
        text = f"has copies along {axes} that differ before the first step" + (f"; right on {which} only" if which else "")
        return Pattern(
            text,
            f"each copy along {axes} is drawn by its own seed, or is never broadcast; or these are parts, which need an entry in the "
            "layout. The gradients follow, and no call between gradients is at fault",
            exact=True,
        )
    some = parts(looks)
    return Pattern(
        "is wrong before the first step" + (f"; {some}" if some else ""),
        "parts are drawn by seeds of their own, or the layout puts them together in another way than the step cut them",
        exact=True,
    )


def of_update(looks, before, frozen, right) -> Pattern:
    """The pattern of a weight that differs after a step whose gradients and loss were right."""
    if any(not torch.isfinite(copy).all() for look in looks for copy in look.held.copies.values()):
        return Pattern("is not finite after the optimizer's step", exact=True)
    if looks[0].copies_differ():
        axes = " and ".join(_varying(looks))
        which = " and ".join(right_places(looks))
        return Pattern(
            f"has copies along {axes} that drift apart in the optimizer's step" + (f"; right on {which} only" if which else ""),
            f"the gradients are right, so ranks along {axes} step with something of their own: a norm to clip by, a state, a "
            "random number",
            exact=True,
        )
    moved = [look.one - old.one for look, old in zip(looks, before)]
    if frozen:
        if any(float(move.abs().max()) > look.floor for move, look in zip(moved, looks)):  # decayed in one process, not here
            return Pattern("has no gradient, and moves otherwise than in one process", "weight decay or momentum", exact=True)
        ratios = [ratio(look.first, look.one) for look in looks]
        shrunk = f": it is {ratios[0]:.6g} of what it was" if alike_numbers(ratios) else ""
        return Pattern(
            f"has no gradient and does not move in one process, but moves here{shrunk}",
            "the optimizer takes it with a gradient of zero, so that weight decay or momentum moves it: leave it out",
            exact=True,
        )
    ours = [look.first - old.first for look, old in zip(looks, before)]
    if all(float(move.abs().max()) <= look.floor for move, look in zip(ours, looks)):
        return Pattern(
            "is not moved by the optimizer's step",
            "the optimizer does not have it, has a copy of it, or what it made of it is not gathered",
            exact=True,
        )
    changes = [replace(look, held=Held({(0,) * len(look.axes): our}), one=move) for look, our, move in zip(looks, ours, moved)]
    if scaled := factor(changes, right):
        return Pattern(
            f"moves in the optimizer's step by a change that is {scaled[0]}",
            "the learning rate, or the gradient after clipping, is scaled",
            exact=True,
        )
    if dtype := short_type(looks):
        return Pattern(f"has only the digits of {dtype} after the optimizer's step", f"it is kept or sent in {dtype}")
    some = parts(looks)
    return Pattern(
        "is moved by the optimizer otherwise than in one process" + (f"; {some}" if some else ""),
        "the gradients are right, so look at what the optimizer does with them: clipping, its state, the order of its "
        "parameters, weight decay, what is gathered after it",
        cosine=lowest(changes, cosine),
        difference=highest(changes, difference),
    )


def _varying(looks):
    """The axes along which copies differ on some mesh, in order."""
    found = {axis for look in looks for axis in look.varies()}
    return tuple(axis for axis in looks[0].axes if axis in found)


def _apart(looks, right) -> Pattern:
    """Copies that should be equal differ."""
    axes = _varying(looks)
    said = f"has copies along {' and '.join(axes)} that differ"
    only = right_places(looks)
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
    ways = [dict(zip(axes, each)) for each in itertools.product(("sum", "mean"), repeat=len(axes))]
    for how in ways:
        if all(look.is_near(look.one, whole) for look in looks for whole in _reduced(look, how)):
            missing = " and ".join(f"{'a sum' if way == 'sum' else 'an average'} over {axis}" for axis, way in how.items())
            return Pattern(
                f"{said}{holders(looks)}; their {_told(how)} is right",
                f"{missing} is missing: an all-reduce of this gradient",
                exact=True,
                differ=True,
            )
    for how in ways:
        if found := _nearly(looks, right, how, said):
            return found
    if only:
        return Pattern(
            f"{said}: right on {' and '.join(only)} only",
            "the others lack a part, or have one too many: a sum or a broadcast is missing",
            exact=True,
            differ=True,
        )
    return Pattern(
        f"{said}; neither their sum nor their mean is right",
        differ=True,
        cosine=lowest(looks, cosine),
        difference=highest(looks, difference),
    )


def _told(how):
    return " and ".join(f"{way} over {axis}" for axis, way in how.items())


def _reduced(look, how):
    return look.reduced({axis: way for axis, way in how.items() if look.sizes[axis] > 1})


def _nearly(looks, right, how, said):
    """Copies whose sum or mean is a multiple of one process's tensor, or whose sum holds one part too often; or None."""
    wholes = [_reduced(look, how) for look in looks]
    if not all(near(some[0], each, look.allowed, look.floor) for look, some in zip(looks, wholes) for each in some):
        return None
    whole = [replace(look, held=Held({(0,) * len(look.axes): some[0]})) for look, some in zip(looks, wholes)]
    if scaled := factor(whole, right):
        return Pattern(
            f"{said}; their {_told(how)} is {scaled[0]}",
            f"a {_told(how)} is missing, and a scale is wrong besides",
            exact=True,
            differ=True,
        )
    if "mean" not in how.values() and (more := grown(whole)) and more[0] == "grows":
        return Pattern(
            f"{said}; neither their sum nor their mean is right: the sum is too large by {more[1]} − 1 times "
            "one part, the same on each mesh",
            f"one part of it is whole on each rank along {more[1]} and another is a share, so a sum over {more[1]} is missing "
            "further up, in the backward pass of what the shares come through",
            differ=True,
        )
    return None


def _alike(looks, right) -> Pattern:
    """All copies are equal, and wrong."""
    if all(float(look.first.abs().max()) <= look.floor for look in looks if look.first.numel()):
        return Pattern(
            "is zero, or None, on all ranks", "the graph is cut in front of it, or its gradient is cleared", exact=True
        )
    if all(float(look.one.abs().max()) <= look.floor for look in looks):
        return Pattern("is zero, or None, in one process and not here", exact=True)
    if scaled := factor(looks, right):
        return Pattern(f"is {scaled[0]}", scaled[1], exact=True)
    if dtype := short_type(looks):
        return Pattern(
            f"has only the digits of {dtype}",
            f"precision is lost: it is cast to {dtype} before a reduction or a copy; no call is missing and no factor is wrong",
            exact=True,
        )
    if more := grown(looks):
        way, axis = more
        if way == "grows":
            return Pattern(
                f"holds one part {axis} times: it is too large by {axis} − 1 times a part that is the same on each mesh",
                f"what every rank along {axis} has alike enters a sum over {axis}: a bias, an auxiliary loss, what is a sum already "
                "(from the micro-batch before); or a size of this rank's part is taken for that of the whole",
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
            cosine=lowest(looks, cosine),
            difference=highest(looks, difference),
        )
    if all(same_rows(look) for look in looks):
        return Pattern(
            "has the rows of one process in another order", "ranks, or parts, are put together in another order", exact=True
        )
    if is_noise(looks):
        return Pattern(
            "has equal copies and differs a little everywhere, by no ratio",
            "this looks like a loss of precision: a cast before a reduction",
            cosine=lowest(looks, cosine),
            difference=highest(looks, difference),
        )
    return Pattern(
        "has equal copies and is no multiple of the right one"
        + "".join(f"; {each}" for each in (parts(looks), rows(looks)) if each),
        cosine=lowest(looks, cosine),
        difference=highest(looks, difference),
    )
