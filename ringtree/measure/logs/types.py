"""What logs call the types of elements, and how long each is."""

from __future__ import annotations

from ringtree.measure.call import ITEMSIZE

# By the name that nccl-tests prints today; rccl-tests and older ones print others.
BYTES = ITEMSIZE | {"uint32": 4, "uint64": 8}
ALIASES = {
    "char": "int8",
    "int": "int32",
    "fp8_e4m3": "f8e4m3",
    "fp8_e5m2": "f8e5m2",
    "float8_e4m3": "f8e4m3",
    "float8_e5m2": "f8e5m2",
    "bf16": "bfloat16",
    "float16": "half",
    "float32": "float",
    "float64": "double",
}
NAMES = (*BYTES, *ALIASES)


def type_of(word):
    """The name of today; a word that is none of them stays as it is."""
    return ALIASES.get(word, word)


def itemsize_of(name):
    """Bytes of an element, or None."""
    return BYTES.get(name)
