"""What a function returned, beside what it should have returned: the difference, in words."""

import math
import numbers

import torch

from ringtree.labs.exercise import tensors

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
    differ = ~torch.isclose(answer, wanted, rtol=1e-5, atol=1e-6).view(-1)
    if not differ.any():
        return None
    first = int(differ.nonzero()[0])
    return f"returned {show(answer, first)} and should return {show(wanted, first)}", (0, first)


def short(value) -> str:
    """A value as a message shows it: its text, or what it is where that is long."""
    text = repr(value)
    return text if len(text) < 100 else f"a {type(value).__name__} that begins {text[:60]}"


def is_number(value) -> bool:
    """Whether an answer is a finite number: no text, no bool, no tensor."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def kind(value):
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)} tensors"
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
        if has < should or has != has:  # nan: nothing has come
            missing.append(giver)
        elif has > should > 0:
            often.append(f"rank {giver}'s counts {has:g} times")
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
