"""Bytes and seconds in words, in the unit that suits them; and counts of things."""

from __future__ import annotations

import math

from ringtree.given import any_number, takes


@takes(nbytes=any_number)
def bytes_text(nbytes: float) -> str:
    """A number of bytes in powers of ten, short: 512 B, 64 KB, 1.5 MB."""
    return _scaled(nbytes, (("B", 1.0), ("KB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12)))


@takes(nbytes=any_number)
def binary_text(nbytes: float) -> str:
    """A number of bytes in powers of two, short: 512 B, 64 KiB, 1 MiB."""
    return _scaled(nbytes, (("B", 1.0), ("KiB", 2.0**10), ("MiB", 2.0**20), ("GiB", 2.0**30)))


def size_text(nbytes: int) -> str:
    """A number of bytes to the letter, in the largest unit that it is a multiple of: 8 B, 4 KiB, 1 MiB, 1000000 B."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if nbytes >= 1 << power and nbytes % (1 << power) == 0:
            return f"{nbytes >> power} {unit}"
    return f"{nbytes} B"


def percent_text(part: float) -> str:
    """A part of 1 as percent: 4.2 %, 95 %."""
    return f"{100 * part:.1f} %" if 0 < part < 0.095 else f"{100 * part:.0f} %"


@takes(seconds=any_number)
def seconds_text(seconds: float) -> str:
    """A time in the unit that suits it, short: 1.1 ns, 24 µs, 3 ms, 2 s."""
    return _scaled(seconds, (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)))


def count_text(number: int, noun: str) -> str:
    """1 message, 2 messages."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _scaled(value: float, units) -> str:
    name, size = units[0]
    for unit, unit_size in units:
        # Just below a whole unit the rounded number would read "1000" of the smaller one.
        if abs(value) >= 0.9995 * unit_size:
            name, size = unit, unit_size
    number = value / size
    if not math.isfinite(number):
        return f"{number} {name}"
    if number and abs(number) < 0.95:
        return f"{number:.2g} {name}"
    return f"{number:.{0 if abs(number) >= 99.95 else 1}f}".removesuffix(".0") + f" {name}"
