"""What a function returned, beside what it should have returned: the difference, in words."""

import math
import numbers

import torch

from ringtree.labs.exercise import tensors
from ringtree.units import count_text

SHOWN = 8  # numbers of a tensor that a message shows


def difference(answer, wanted):
    """(what is wrong, in words; the first place that differs: which tensor, which element), or None where they agree."""
    if isinstance(wanted, list | tuple):
        if not isinstance(answer, list | tuple):
            return f"returned {kind(answer)} and should return {kind(wanted)}", None
        if len(answer) != len(wanted):
            return f"returned {len(answer)} tensors and should return {len(wanted)}", None
        for number, (one, other) in enumerate(zip(answer, wanted)):
            if found := difference(one, other):
                return f"in place {number} of its list {found[0]}", (number, found[1] and found[1][1])
        return None
    if not isinstance(wanted, torch.Tensor):
        same = not isinstance(answer, torch.Tensor) and answer == wanted
        return None if same else (f"returned {answer!r} and should return {wanted!r}", None)
    if not isinstance(answer, torch.Tensor):
        return f"returned {kind(answer)} and should return {kind(wanted)}", None
    if answer.dtype != wanted.dtype:
        return f"returned numbers of {answer.dtype} and was given {wanted.dtype}", None
    if answer.shape != wanted.shape:
        return f"returned a tensor of shape {tuple(answer.shape)} and should return {tuple(wanted.shape)}", None
    if torch.equal(answer, wanted):  # asked first, since looking at every number takes ten times as long
        return None
    differ = _differ(answer, wanted)
    if not differ.any():
        return None
    if answer.dtype in (torch.int64, torch.float64) and not _differ(answer.double(), wanted.double(), 1e-6).any():
        return "returned numbers that are right to six digits alone: have they been a float32 on the way?", None
    first = int(differ.nonzero()[0])
    at = f" (first at [{first // wanted.shape[1]}, {first % wanted.shape[1]}])" if wanted.dim() == 2 else ""
    return f"returned {show(answer, first)} and should return {show(wanted, first)}{at}{_unwritten(answer, first)}", (0, first)


def _unwritten(answer, place):
    value = answer.reshape(-1)[place].item()
    return " (nan: nobody has written there, or 0 was divided by 0)" if value != value else ""


def _differ(answer, wanted, tolerance=None):
    """Where two flattened tensors differ: whole numbers at all, fractions beyond what an order of adding makes."""
    if tolerance is None and not wanted.is_floating_point():
        return (answer != wanted).view(-1)
    tolerance = tolerance or (1e-12 if wanted.dtype == torch.float64 else 1e-5)
    return ~torch.isclose(answer, wanted, rtol=tolerance, atol=tolerance / 10).view(-1)


def short(value) -> str:
    """A value as a message shows it: its text, or what it is where that is long."""
    text = repr(value)
    return text if len(text) < 100 else f"a {type(value).__name__} that begins {text[:60]}"


def is_number(value) -> bool:
    """Whether an answer is a finite number: no text, no bool, no tensor."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value) -> bool:
    """Whether an answer is a whole number, Python's or NumPy's: no bool, no float, no tensor."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def kind(value):
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, list | tuple):
        kinds = sorted({"tensor" if isinstance(each, torch.Tensor) else type(each).__name__ for each in value})
        what = count_text(len(value), kinds[0]) if len(kinds) == 1 else f"{len(value)} ({', '.join(kinds)})"
        return f"a {type(value).__name__} of {what}" if value else f"an empty {type(value).__name__}"
    return "nothing" if value is None else f"a {type(value).__name__}"


def show(tensor, at=0):
    """The first numbers of a tensor, or those around place `at`; nan marks memory that nobody has written to."""
    flat = tensor.detach().cpu().reshape(-1)
    begin = 0 if at < SHOWN else at - 2
    texts = [_number(x) for x in flat[begin : begin + SHOWN].tolist()]
    before, after = ["…"] * (begin > 0), ["…"] * (flat.numel() > begin + SHOWN)
    return f"[{', '.join(before + texts + after)}]"


def _number(value):
    return f"{round(value, 4) + 0.0:g}" if isinstance(value, float) else str(value)


def parts(program, case, rank, place):
    """Whose part of an element is missing from a sum, is there too often, or is where it does not belong: in words, or None.

    Runs the program once for each rank, with ones on that rank and zeros elsewhere. place: which tensor of the rank's answer,
    and which element.
    """
    missing, often, strange = [], [], []
    number, element = place
    for giver in range(case.size):
        given = tuple(_filled(entry, int(other == giver)) for other, entry in enumerate(case.given))
        outputs, wanted = program(given), case.wanted(given)
        has, should = (_element(each[rank], number, element) for each in (outputs, wanted))
        if has is None or should is None:
            return None
        if 0 < has < should or has > should > 0:
            often.append(f"rank {giver}'s counts {has:g} times")
        elif has < should or has != has and should:  # nan: nothing has come
            missing.append(giver)
        elif has > should:
            strange.append(giver)
    said = [f"the part of {_ranks(missing)} is missing"] if missing else []
    said += often
    said += [f"the part of {_ranks(strange)} is there and should not be"] if strange else []
    return f"in element {element} {', '.join(said)}" if said and element is not None else None


def _ranks(numbers):
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _filled(value, number):
    if isinstance(value, list | tuple):
        return type(value)(_filled(each, number) for each in value)
    return torch.full_like(value, number) if isinstance(value, torch.Tensor) else value


def _element(value, number, element):
    found = list(tensors(value))
    if number >= len(found) or element is None or element >= found[number].numel():
        return None
    return found[number].reshape(-1)[element].item()
