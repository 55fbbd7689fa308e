"""Read the files that nccl-tests and rccl-tests write beside what they print: JSON and CSV, a record a measurement."""

from __future__ import annotations

import csv
import io
import re

from ringtree.measure.logs.nccl_rows import Table, found_of, row_of
from ringtree.measure.logs.nccl_tests import PROGRAM, Run, version_of
from ringtree.measure.logs.rounded import number, whole

CSV_HEAD = re.compile(r"numCycle,collective,", re.I)


def tables_of_json(found, name):
    """The table of what nccl-tests writes with -J, a dict, as `Found`."""
    config, results = _dict(found.get("config")), found.get("results")
    arguments = [str(each) for each in _list(found.get("args"))]
    program = PROGRAM.search(" ".join(arguments[:1]))
    devices = [_dict(each) for each in _list(config.get("devices"))]
    run = Run(command=program and program[1])
    run.devices = {
        rank: (str(each.get("group", 0)), each.get("hostname"), str(each.get("device_info", "")))
        for rank, each in enumerate(devices)
    }
    version, average = whole(found.get("nccl_version")), number(_dict(found.get("average_bus_bandwidth")).get("bandwidth"))
    run.attrs = {
        "date": found.get("start_time"),
        "settings": " ".join(arguments),
        "nccl": version_of(version) if version else None,
        "avg_busbw": None if average is None else 1e9 * average,
    }
    table = Table(1, None, run)
    rows, broken = [], []
    for at, result in enumerate(map(_dict, _list(results)), 1):
        halves = [(False, _dict(result.get("out_of_place"))), (True, _dict(result.get("in_place")))]
        found_here = [
            row
            for in_place, half in halves
            if half and (row := _row(_words_of_json(half), result, in_place, at, name)) is not None
        ]
        rows += found_here
        broken += [] if found_here else [at]
    return [found_of(table, rows, broken, [])]


def _words_of_json(half):
    names = {"time": half.get("time", half.get("cpu_time")), "algbw": half.get("alg_bw"), "busbw": half.get("bus_bw")}
    return {name: str(value) for name, value in (names | {"wrong": half.get("nwrong")}).items()}


def tables_of_records(records, name):
    """The tables of what rccl-tests writes with -x, one for each collective and number of ranks, as `Found`."""
    groups = {}
    for line, record in enumerate(map(_dict, records), 1):
        record = {str(key).lower().lstrip("#"): value for key, value in record.items()}
        program = str(record.get("collective", record.get("name", "")))
        per_rank = whole(record.get("gpusperrank")) or 1
        ranks = whole(record.get("gpus")) or (whole(record.get("ranks")) or 0) * per_rank
        half = {each: str(record.get(each)) for each in ("time", "algbw", "busbw", "wrong")}
        row = _row(half, record, str(record.get("inplace")) in ("1", "True", "true"), line, name)
        groups.setdefault((program, ranks), []).append((line, row))
    found = []
    for (program, ranks), members in groups.items():
        run = Run(tool="rccl-tests", official=program or None, told=ranks or None)
        rows = [row for _, row in members if row is not None]
        found.append(found_of(Table(members[0][0], None, run), rows, [line for line, row in members if row is None], []))
    return found


def records_of_csv(text):
    """The records of a CSV file, as dicts; a line with too few cells lacks the last."""
    return list(csv.DictReader(io.StringIO(text.lstrip())))


def _row(half, record, in_place, line, name):
    size, count = whole(record.get("size")), whole(record.get("count"))
    if size is None or size < 0 or half["time"] in ("None", "N/A"):
        return None
    row = row_of(half, half["time"], in_place, line, name)
    kind, redop = (str(record.get(each, "")).strip() or None for each in ("type", "redop"))
    return row | {"size": size, "count": count, "type": kind, "redop": redop, "root": whole(str(record.get("root")).strip())}


def _dict(value):
    return value if isinstance(value, dict) else {}


def _list(value):
    return value if isinstance(value, list) else []
