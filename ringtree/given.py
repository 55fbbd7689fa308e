"""What an argument must be, and the one sentence for one that is not.

    @takes(size=whole(1), machine=a(Link, Machine, words="a Link or a Machine"))
    def cost_of(program, size, nbytes, machine): …

`cost_of(program, "four", 8, link)` then raises UsageError: cost_of got size='four': give a whole number, 1 or more.
"""

from __future__ import annotations

import functools
import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ringtree.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Kind:
    """What some arguments are: in words that follow "give", and as a test."""

    words: str
    holds: Callable[[Any], bool]


# -- numbers -----------------------------------------------------------------------


def whole(least: int = 0) -> Kind:
    return Kind(f"a whole number, {least} or more", lambda value: _is(numbers.Integral, value) and value >= least)


def number(least: float = 0, above: bool = False) -> Kind:
    """A finite number from `least` on. above: not `least` itself."""
    return Kind(
        f"a finite number {f'above {least}' if above else f'of {least} or more'}",
        lambda value: _is(numbers.Real, value) and math.isfinite(value) and (value > least if above else value >= least),
    )


def _is(kind: type, value: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _numeric(value: Any) -> bool:
    import numpy  # not at the top: the doctor runs without it

    try:
        return not _is(numbers.Real, value) and numpy.asarray(value).dtype.kind in "iuf"
    except ValueError:  # rows of several lengths
        return False


any_number = Kind("a number", lambda value: _is(numbers.Real, value))
some_numbers = Kind("numbers, in a list or an array", _numeric)


# -- texts, functions, things -------------------------------------------------------


def _one_line(value: Any) -> bool:
    return isinstance(value, str) and len(value.strip().splitlines()) == 1


text = Kind("a text", lambda value: isinstance(value, str))
one_line = Kind("one line that says what the figure shows", _one_line)


def one_of(*known: Any) -> Kind:
    return Kind(f"one of {', '.join(map(repr, known))}", lambda value: isinstance(value, str) and value in known)


def function(words: str) -> Kind:
    return Kind(words, callable)


def a(*classes: type, words: str) -> Kind:
    return Kind(words, lambda value: isinstance(value, classes))


def several(words: str, of: Callable[[Any], bool] = lambda each: True) -> Kind:
    """Entries with a length, and neither a text nor a dict. of: holds for each of them."""

    def holds(value: Any) -> bool:
        listed = isinstance(value, Iterable) and hasattr(value, "__len__") and not isinstance(value, str | bytes | Mapping)
        return listed and all(map(of, value))

    return Kind(words, holds)


def mapping(words: str) -> Kind:
    return Kind(words, lambda value: isinstance(value, Mapping))


def optional(kind: Kind) -> Kind:
    return Kind(f"{kind.words}, or None", lambda value: value is None or kind.holds(value))


def either(*kinds: Kind) -> Kind:
    """One of several kinds, in the words of the first."""
    return Kind(kinds[0].words, lambda value: any(kind.holds(value) for kind in kinds))


# -- holding a function to them -------------------------------------------------------


def takes(**kinds: Kind) -> Callable[[Function], Function]:
    """Hold the arguments of a function to these kinds. Python itself says which argument is missing or too many."""

    def hold(held: Function) -> Function:
        signature = inspect.signature(held)
        assert kinds.keys() <= signature.parameters.keys(), (held, kinds)

        @functools.wraps(held)
        def call(*arguments: Any, **named: Any) -> Any:
            try:
                bound = signature.bind(*arguments, **named).arguments
            except TypeError:
                return held(*arguments, **named)
            for name, value in bound.items():
                if name in kinds:
                    require(held.__name__, name, value, kinds[name])
            return held(*arguments, **named)

        return call  # type: ignore[return-value]

    return hold


def require(where: str, name: str, value: Any, kind: Kind) -> None:
    """Raise a UsageError unless an argument of `where` is of its kind."""
    if not kind.holds(value):
        raise UsageError(f"{where} got {name}={shown(value)}: give {kind.words}")


def shown(value: Any) -> str:
    """A value in one line of a sentence."""
    line = " ".join(repr(value).split())
    return line if len(line) <= 60 else f"{line[:59]}…"
