"""What a function returned, beside what it should have returned: the difference, in words."""

import math
import numbers
from fractions import Fraction

import torch

from ringtree.errors import a_kind
from ringtree.units import count_text

SHOWN = 8  # numbers of a tensor that a message shows


def difference(answer, wanted, returned="returned", should="should return"):
    """(what is wrong, in words; the first place that differs: the way to the tensor, and which element), or None where they agree.

    A dict may have more in it than is wanted. returned, should: the words for it.
    """
    if isinstance(wanted, dict):
        for name, other in wanted.items():
            one = answer.get(name) if isinstance(answer, dict) else None
            if found := difference(one, other, f"has the {name}", "should have"):
                return found[0], _inside(name, found[1])
        return None
    if isinstance(wanted, list | tuple):
        if not isinstance(answer, list | tuple):
            return f"{returned} {kind(answer)} and {should} {kind(wanted)}", None
        if len(answer) != len(wanted):
            return f"{returned} {len(answer)} tensors and {should} {len(wanted)}", None
        for number, (one, other) in enumerate(zip(answer, wanted)):
            if found := difference(one, other, returned, should):
                return f"in place {number} of its list {found[0]}", _inside(number, found[1])
        return None
    if not isinstance(wanted, torch.Tensor):
        same = isinstance(answer, type(wanted) | numbers.Number) and answer == wanted
        return None if same else (f"{returned} {short(answer)} and {should} {wanted!r}", None)
    if not isinstance(answer, torch.Tensor):
        return f"{returned} {kind(answer)} and {should} {kind(wanted)}", None
    if type(answer) not in (torch.Tensor, torch.nn.Parameter):  # one that says itself what it is equal to
        return f"{returned} {a_kind(answer)} and {should} a torch.Tensor, as it was given", None
    if answer.dtype != wanted.dtype:
        return f"{returned} numbers of {answer.dtype} and was given {wanted.dtype}", None
    if answer.shape != wanted.shape:
        return f"{returned} a tensor of shape {tuple(answer.shape)} and {should} {tuple(wanted.shape)}", None
    if torch.equal(answer, wanted):  # asked first, since looking at every number takes ten times as long
        return None
    differ = _differ(answer, wanted)
    if not differ.any():
        return None
    if answer.dtype in (torch.int64, torch.float64) and _six_digits(answer.double(), wanted.double()):
        return f"{returned} numbers that are right to only six digits: were they float32 on the way?", None
    first = int(differ.nonzero()[0])
    at = f" (first at [{first // wanted.shape[1]}, {first % wanted.shape[1]}])" if wanted.dim() == 2 else ""
    digits = _digits(answer, wanted, first)
    shown = f"{returned} {show(answer, first, digits)} and {should} {show(wanted, first, digits)}"
    return f"{shown}{at}{_unwritten(answer, first)}", ((), first)


def _inside(name, place):
    """The place, seen from the list or dict that has it by this number or name."""
    return place and ((name, *place[0]), place[1])


def _unwritten(answer, place):
    value = answer.reshape(-1)[place].item()
    return (
        " (nan: that memory was never written, 0 was divided by 0, or a nan was used: nan * 0 is nan)" if value != value else ""
    )


def _differ(answer, wanted):
    """Return where two flattened tensors differ: whole numbers at all, fractions beyond what an order of adding makes."""
    if not wanted.is_floating_point():
        return (answer != wanted).view(-1)
    tolerance = 1e-12 if wanted.dtype == torch.float64 else 1e-5
    return ~torch.isclose(answer, wanted, rtol=tolerance, atol=tolerance / 10).view(-1)


def _six_digits(answer, wanted):
    """Return whether they differ as after a float32: by little, beside the largest number, since small ones are sums of large ones."""
    return torch.allclose(answer, wanted, rtol=1e-6, atol=1e-6 * wanted.abs().max().item())


def short(value) -> str:
    """A value as a message shows it: its text, or what it is where that is long."""
    text = repr(value)
    return text if len(text) < 100 else f"{a_kind(value)} that begins {text[:60]}"


def is_number(value) -> bool:
    """Return whether an answer is a finite number: no text, no bool, no tensor."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value) -> bool:
    """Return whether an answer is a whole number, Python's or NumPy's: no bool, no float, no tensor."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def kind(value):
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, list | tuple):
        kinds = sorted({"tensor" if isinstance(each, torch.Tensor) else type(each).__name__ for each in value})
        what = count_text(len(value), kinds[0]) if len(kinds) == 1 else f"{len(value)} ({', '.join(kinds)})"
        return f"{a_kind(value)} of {what}" if value else f"an empty {type(value).__name__}"
    return "nothing" if value is None else f"{a_kind(value)}"


def _digits(answer, wanted, place):
    """With how many decimals a place of two tensors looks different: 4 where they do."""
    one, other = (tensor.reshape(-1)[place].item() for tensor in (answer, wanted))
    return next((digits for digits in range(4, 16) if _number(one, digits) != _number(other, digits)), 4)


def show(tensor, at=0, digits=4):
    """The first numbers of a tensor, or those around place `at`; nan marks memory that nobody has written to."""
    flat = tensor.detach().cpu().reshape(-1)
    begin = 0 if at < SHOWN else at - 2
    texts = [_number(x, digits) for x in flat[begin : begin + SHOWN].tolist()]
    before, after = ["…"] * (begin > 0), ["…"] * (flat.numel() > begin + SHOWN)
    return f"[{', '.join(before + texts + after)}]"


def _number(value, digits):
    return f"{round(value, digits) + 0.0:.{digits + 2}g}" if isinstance(value, float) else str(value)


def parts(program, case, rank, place):
    """Whose part of an element is missing from a sum, is there too often, or is where it does not belong: in words, or None.

    Runs the program once for each rank, with ones on that rank and zeros elsewhere. place: the way to a tensor in the rank's
    answer, and which element.
    """
    missing, often, strange = [], [], []
    way, element = place
    for giver in range(case.size):
        given = tuple(_filled(entry, int(other == giver)) for other, entry in enumerate(case.given))
        outputs, wanted = program(given), case.wanted(given)
        has, should = (_element(each[rank], way, element) for each in (outputs, wanted))
        if has is None or should is None:
            return None
        if 0 < has < should or has > should > 0:
            often.append(f"rank {giver}'s part counts {has / should:g} times")
        elif has < should or has != has and should:  # nan: nothing has come
            missing.append(giver)
        elif has > should:
            strange.append(giver)
    said = [f"the part of {_ranks(missing)} is missing"] if missing else []
    said += often
    said += [f"the part of {_ranks(strange)} is there and should not be"] if strange else []
    return f"in element {element} {', '.join(said)}" if said else None


MOST_FACTOR = 64  # so large may a number be by which an answer is too large or too small


def factor(answers, wanted, size) -> Fraction | None:
    """By which one number everything that was returned differs from what was wanted; None where there is no such number.

    answers, wanted: of the ranks that count, of `size` in all. A factor is a whole number, one over it, or a fraction of numbers
    up to that of the ranks. One number alone may be so by chance: then only a factor that has to do with the ranks counts.
    """
    pairs = [pair for answer, other in zip(answers, wanted) if other is not None for pair in _pairs(answer, other)]
    if (None, None) in pairs or not pairs:
        return None
    has, should = max(pairs, key=lambda pair: abs(pair[1]))
    if not has or not should or not math.isfinite(has / should):
        return None
    found = Fraction(has / should).limit_denominator(MOST_FACTOR)
    parts = found.numerator, found.denominator
    simple = 1 in parts or max(parts) <= size
    if len({abs(should) for _, should in pairs if should}) < 2:
        simple = size > 1 and size in parts and max(parts) <= size
    near = all(math.isclose(has, found * should, rel_tol=1e-4, abs_tol=1e-6) for has, should in pairs)
    return found if near and simple and found != 1 and 0 < found <= MOST_FACTOR else None


def factor_text(found: Fraction, size: int, what="everything is") -> str:
    """The factor in words, and what it may have to do with the number of ranks."""
    if found.denominator == 1:
        times = "twice" if found == 2 else f"{found} times"
    else:
        times = "half of" if found == Fraction(1, 2) else f"{found} of"
    ranks = f"there {'is' if size == 1 else 'are'} {count_text(size, 'rank')}"
    if found.numerator == size > 1:
        ranks += ", so perhaps you multiply by their number, or do not divide by it"
    elif found.denominator == size > 1:
        ranks += ", so perhaps you divide by their number once too often"
    return f"{what} {times} what it should be; {ranks}"


def _pairs(answer, wanted):
    """(is, should be) of all numbers in the tensors of an answer; (None, None) where the two are not of one form."""
    if isinstance(wanted, dict) and isinstance(answer, dict):
        for name, other in wanted.items():
            yield from _pairs(answer.get(name), other)
    elif isinstance(wanted, list | tuple) and isinstance(answer, list | tuple) and len(answer) == len(wanted):
        for one, other in zip(answer, wanted):
            yield from _pairs(one, other)
    elif isinstance(wanted, torch.Tensor) and isinstance(answer, torch.Tensor) and answer.shape == wanted.shape:
        yield from zip(answer.detach().reshape(-1).tolist(), wanted.reshape(-1).tolist())
    else:
        yield None, None


GIVEN = 400  # characters on what the ranks were given


def given_text(given) -> str:
    """Return what each rank was given, shortened where it is long."""
    said, room = [], GIVEN
    for rank, entry in enumerate(given):
        text = f"rank {rank} {_given(entry)}"
        room -= len(text)
        if room < 0 and said:
            said.append("…")
            break
        said.append(text)
    return f"given: {', '.join(said)}"


def _given(value) -> str:
    if isinstance(value, torch.Tensor):
        return show(value) if value.dim() else f"{_number(value.item(), 4)}"
    if isinstance(value, tuple) and len(value) == 1:
        return _given(value[0])
    if isinstance(value, list | tuple):
        parts = [_given(each) for each in value[:SHOWN]] + ["…"] * (len(value) > SHOWN)
        return f"({', '.join(parts)})"
    return short(value)


def _ranks(numbers):
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _filled(value, number):
    if isinstance(value, list | tuple):
        return type(value)(_filled(each, number) for each in value)
    return torch.full_like(value, number) if isinstance(value, torch.Tensor) else value


def _element(value, way, element):
    try:
        for each in way:
            value = value[each]
        return value.reshape(-1)[element].item()
    except (LookupError, TypeError, AttributeError):  # on other numbers its answer may be of another form
        return None
