"""Whatever is done to a log: tables come out, whose numbers were in it, or one sentence."""

from __future__ import annotations

import json
import math
import re
import warnings

from helpers.log_texts import gathered, new_log, old_log, osu, rooted_less_log
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringtree import measure
from ringtree.errors import UsageError
from ringtree.measure import logs

HALF = {"time": 10.0, "alg_bw": 0.1, "bus_bw": 0.1, "nwrong": 0.0}
RESULT = {"size": 1024, "count": 256, "type": "float", "redop": "sum", "root": "-1", "out_of_place": HALF, "in_place": HALF}
JSON = {
    "args": ["./all_reduce_perf"],
    "nccl_version": 22809,
    "config": {"devices": [{"device_info": "A"}]},
    "results": [RESULT],
}
OURS = {"ringtree.measure": 1, "attrs": {"ranks": 4}, "rows": [{"size": 8, "time": 1e-06, "by_rank": [1e-06]}]}
LOGS = {
    "new": new_log(),
    "old": old_log(),
    "without root": rooted_less_log(),
    "shards": gathered(),
    "OSU": osu(),
    "OSU's shards": osu("Allgather"),
    "prefixed": "".join("[1,0]<stdout>:" + line for line in new_log().splitlines(True)),
    "quoted": "".join("> " + line for line in new_log().splitlines(True)),
    "JSON": json.dumps(JSON, indent=1),
    "our JSON": json.dumps(OURS, indent=1),
    "our CSV": "# ringtree.measure\n# ranks: 4\nsize,time,wrong,type,by_rank\n8,1e-06,0,float,1e-06 2e-06\n"
    "16,2e-06,0,half,1e-06 2e-06\n",
    "CSV": "numCycle,collective,ranks,gpusPerRank,size,type,redop,inplace,time,algbw,busbw,#wrong\n"
    "0,AllReduce,8,1,1024,float,sum,0,50.0,0.02048,0.03584,0\n0,AllReduce,8,1,2048,float,sum,1,60.0,0.03413,0.05973,0\n",
}
WORDS = [
    "inf",
    "-1",
    "N/A",
    "9" * 400,
    "9" * 5000,
    "9223372036854775807",
    "1e-320",
    "0.0",
    "1_0",
    "１２",
    "\x00",
    "#",
    "#wrong",
    "time",
    "size",
    "",
    "é",
    "[[[[" * 3000,
    "{",
    "}",
    "]",
    ",",
    '"',
    "\r",
    "\n",
    "null",
    "true",
    "float",
    "sum",
    "\x1b[31m",
    "OSU MPI Bandwidth Test v7",
    "node1:1:2 [0] NCCL INFO x",
    "all_gather_perf",
    "#  Rank 99999999999 on h device 0 [0] X",
]
NUMBERS = ["99999999999999999999", "9223372036854775808", "nan", "1e999", "0", "0.00", "7", "123456.7"]
KINDS = ["number", "put", "spoil", "shuffle", "cut", "repeat", "drop", "mix", "words"]
EDITS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.floats(0, 1), st.floats(0, 1), st.sampled_from(WORDS)), min_size=1, max_size=6
)


def mangled(text, edits):
    for what, where, much, word in edits:
        lines = text.split("\n")
        at = int(where * (len(lines) - 1))
        some = at + 1 + int(much * 5)
        if what == "put":
            text = text[: int(where * len(text))] + word + text[int(where * len(text)) + round(much) :]
        elif what == "number" and (found := list(re.finditer(r"(?<=[ ,])\d+(?:\.\d+)?(?=[ ,\n])", text))):
            hit = found[int(where * (len(found) - 1))]
            text = text[: hit.start()] + NUMBERS[int(much * (len(NUMBERS) - 1))] + text[hit.end() :]
        elif what == "spoil" and (found := list(re.finditer(r"[^\s,]+", text))):
            hit = found[int(where * (len(found) - 1))]
            text = text[: hit.start()] + word + text[hit.end() :]
        elif what == "cut":
            text = text[int(min(where, much) * len(text)) : int(max(where, much) * len(text)) + 1]
        elif what == "words":
            lines[at] = " ".join(sorted(lines[at].split(), key=lambda each: each[::-1]))
            text = "\n".join(lines)
        else:
            text = "\n".join(
                {
                    "shuffle": lambda: lines[at:] + lines[:at],
                    "repeat": lambda: lines[:some] + lines[at:],
                    "drop": lambda: lines[:at] + lines[some:],
                    "mix": lambda: lines[:at] + list(LOGS.values())[int(much * (len(LOGS) - 1))].split("\n")[-8:] + lines[at:],
                }.get(what, lambda: lines)()
            )
    return text + "\n"


@settings(max_examples=600, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(LOGS)), EDITS, st.sampled_from([{}, {"ranks": 4}, {"collective": "all_reduce"}]))
def test_tables_or_one_sentence(name, edits, options):
    text = mangled(LOGS[name], edits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tables = logs.read_all(text, **options)
        except UsageError as error:
            assert "\n" not in str(error) and len(str(error)) > 20
            return
    assert tables
    said = {float(each) for each in re.findall(r"\d+\.?\d*(?:[eE][-+]?\d{1,3})?", text)}
    for table in tables:
        measure.table_text(table)
        json.dumps(table.attrs)
        for column in ("size", "count", "time", "algbw", "busbw", "wrong", "min", "max"):
            assert all(math.isfinite(value) for value in table[column].dropna()), column
        for size, time, ranks in zip(table["size"], table["time"], table["ranks"].fillna(1)):
            assert {float(size), size / ranks} & said, f"a size of {size}"
            assert any(math.isclose(time * unit, each, rel_tol=1e-9) for unit in (1e6, 1e3, 1) for each in said), (
                f"a time of {time}"
            )
