"""A text to train a small model on: this book's own prose, frozen."""

from functools import cache
from importlib import resources


@cache
def prose() -> str:
    """Return about 200,000 characters of 74 kinds: an earlier text of the chapters, without formulas and tables.

    It stays as it is, whatever becomes of the chapters: every loss that a page shows depends on it.
    """
    return resources.files(__package__).joinpath("prose.txt").read_text(encoding="ascii")
