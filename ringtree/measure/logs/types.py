"""What logs call the types of elements, and how long each is."""

from __future__ import annotations

from ringtree.operations import ITEMSIZE, TYPE_ROWS

OF_TODAY = {other: row.name for row in TYPE_ROWS for other in row.others}
NAMES = (*ITEMSIZE, *OF_TODAY)


def type_of(word):
    """Return the name that nccl-tests prints today; another word stays as it is."""
    return OF_TODAY.get(word, word)


def itemsize_of(name):
    """Return the bytes of an element, or None for a name that is not a type's."""
    return ITEMSIZE.get(name)
