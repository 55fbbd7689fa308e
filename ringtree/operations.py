"""The operations that ranks reduce with, and the types of elements: each in one row, with the names that others give it.

The rows hold words alone, so that logs are read without torch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["FLOATING", "FP8", "ITEMSIZE", "LACKS", "OPERATIONS", "TYPES", "TYPE_ROWS", "Operation", "Type"]


@dataclass(frozen=True)
class Operation:
    """name: in nccl-tests. reduce_op: its name in torch.distributed.ReduceOp. function: torch's, of two tensors, as a rank
    program takes it; an average divides their sum. together: Python's own."""

    name: str
    reduce_op: str
    function: str
    together: Callable

    @property
    def bitwise(self) -> bool:
        return self.function.startswith("bitwise")


OPERATIONS = {
    row.name: row
    for row in (
        Operation("sum", "SUM", "add", operator.add),
        Operation("prod", "PRODUCT", "mul", operator.mul),
        Operation("min", "MIN", "minimum", min),
        Operation("max", "MAX", "maximum", max),
        Operation("avg", "AVG", "add", operator.add),
        Operation("band", "BAND", "bitwise_and", operator.and_),
        Operation("bor", "BOR", "bitwise_or", operator.or_),
        Operation("bxor", "BXOR", "bitwise_xor", operator.xor),
    )
}
LACKS = {"nccl": tuple(row.name for row in OPERATIONS.values() if row.bitwise)}


@dataclass(frozen=True)
class Type:
    """name: NCCL's, which nccl-tests prints today. itemsize: bytes of an element. torch: its name there, None where torch does
    not reduce it. others: names that rccl-tests and older nccl-tests print. osu: the OSU benchmarks'."""

    name: str
    itemsize: int
    torch: str | None
    floating: bool = False
    others: tuple[str, ...] = ()
    osu: str | None = None


TYPE_ROWS = (
    Type("int8", 1, "int8", others=("char",), osu="MPI_CHAR"),
    Type("uint8", 1, "uint8"),
    Type("int32", 4, "int32", others=("int",), osu="MPI_INT"),
    Type("int64", 8, "int64"),
    Type("half", 2, "float16", floating=True, others=("float16",)),
    Type("bfloat16", 2, "bfloat16", floating=True, others=("bf16",)),
    Type("float", 4, "float32", floating=True, others=("float32",), osu="MPI_FLOAT"),
    Type("double", 8, "float64", floating=True, others=("float64",), osu="MPI_DOUBLE"),
    Type("f8e4m3", 1, "float8_e4m3fn", floating=True, others=("fp8_e4m3", "float8_e4m3")),
    Type("f8e5m2", 1, "float8_e5m2", floating=True, others=("fp8_e5m2", "float8_e5m2")),
    Type("uint32", 4, None),
    Type("uint64", 8, None),
)
FP8 = {row.name: row.torch for row in TYPE_ROWS if row.name.startswith("f8")}  # NCCL alone, from 2.24 and capability 9.0 on
TYPES = {row.name: row.torch for row in TYPE_ROWS if row.torch and row.name not in FP8}  # what every backend reduces
ITEMSIZE = {row.name: row.itemsize for row in TYPE_ROWS}
FLOATING = tuple(row.name for row in TYPE_ROWS if row.floating)
