"""Guess before you run: `guess` takes a number and an interval, `was` says how near they came, `guesses` how often they held.

ms = labs.guess("milliseconds for 100 KB", best=30, low=20, high=60)
...
ms.was(27.4)
labs.guesses()

A guess with `...` in it is not made, and then nothing is printed: a page goes on without it.
"""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path

from ringtree.errors import UsageError

FILE = ".guesses.jsonl"  # beside the notebook, a line for each guess


def guess(what: str, best=..., low=..., high=...) -> Guess:
    """Guess a number before you run the cell that finds it.

    what: the quantity, with its unit ("steps on 8 ranks"). best: your guess. low, high: an interval that you think holds the
    number nine times out of ten. Left as `...`, nothing is guessed. Raises UsageError unless low <= best <= high.
    """
    given = {"best": best, "low": low, "high": high}
    left = [name for name, value in given.items() if value is ...]
    if left:
        if len(left) < len(given):
            are = "is" if len(left) == 1 else "are"
            print(f"{what}: {' and '.join(left)} {are} still `...`, so nothing is kept: give all three.")
        return Guess(what, None)
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise UsageError(f"guess was given {name}={value!r}: give a number, or leave all three as `...`")
    if not low <= best <= high:
        raise UsageError(f"guess was given low={low}, best={best} and high={high}: give them in this order, the smallest first")
    return Guess(what, (best, low, high))


class Guess:
    """A guess, or none; made by `guess`."""

    def __init__(self, what: str, numbers: tuple | None):
        self.what, self.numbers = what, numbers

    def was(self, found: float) -> None:
        """Say how near the guess came to `found`, and keep it for `guesses`. Prints nothing where nothing was guessed."""
        if self.numbers is None:
            return
        best, low, high = self.numbers
        holds = bool(low <= found <= high)
        print(f"{self.what}: you guessed {best:g}, between {low:g} and {high:g}; it is {found:g}{_off(best, found)}.")
        print("Your interval contains it." if holds else "Your interval does not contain it.")
        with (
            contextlib.suppress(OSError),
            open(FILE, "a", encoding="utf-8") as file,
        ):  # a folder that cannot be written to keeps none
            file.write(json.dumps({"what": self.what, "holds": holds}) + "\n")


def _off(best: float, found: float) -> str:
    if best == found:
        return ", exactly"
    if best <= 0 or found <= 0:
        return ""
    more = max(best, found) / min(best, found)
    if more < 1.05:
        return ", and you are within 5 %"
    return f", {more:.1f} times as {'much' if found > best else 'little'}"


def guesses(folder=".") -> None:
    """Print how many of your last guesses of each number were right, and how many should have been."""
    last = {}
    with contextlib.suppress(OSError):
        for line in Path(folder, FILE).read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError, TypeError, KeyError):  # a line that another hand wrote
                entry = json.loads(line)
                last[str(entry["what"])] = bool(entry["holds"])
    if last:
        held = sum(last.values())
        print(f"{held} of {len(last)} intervals contained the measured value; aim for 9 in 10.")
        if held < 0.7 * len(last):
            print("You are too sure: make your intervals wider.")
    else:
        print("You have recorded no guess yet.")
