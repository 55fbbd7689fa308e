"""What is read: logs, tables and published runs, each as sweeps of one collective over sizes on one number of ranks."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from ringtree import data
from ringtree.collectives import find
from ringtree.errors import UsageError
from ringtree.measure import logs
from ringtree.theory.samples import runs_ahead
from ringtree.units import binary_text, count_text

__all__ = ["Given", "Sweep", "Unread", "read"]


@dataclass(frozen=True)
class Given:
    """What the reader says of the logs where they do not: one number for all of them, or one for each, in their order."""

    ranks: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    gpus_per_node: int | None = None
    collective: str | None = None

    def of(self, what: str, index: int, count: int) -> int | None:
        """The number that belongs to log `index` of `count`."""
        numbers = getattr(self, what)
        if not numbers:
            return None
        if len(numbers) not in (1, count):
            raise UsageError(
                f"--{what} gives {len(numbers)} numbers for {count_text(count, 'log')}: "
                "give one for all, or one for each in their order"
            )
        return numbers[index % len(numbers)]


@dataclass(frozen=True, eq=False)
class Sweep:
    """One collective over sizes on one number of ranks: sizes in bytes, rising, and seconds.

    name: the log. kind: its type, operation and root, where a log has several. algorithm: "ring" or "tree" where one was
    forced. gpu, tool, version, nccl: as far as the log says them. log: its text, for what NCCL itself printed there. run: the
    published run that it is, of that source.
    remarks: sentences on what a reader of the numbers should know.
    """

    name: str
    collective: str
    ranks: int
    nodes: int
    sizes: np.ndarray
    times: np.ndarray
    algorithm: str = ""
    kind: str = ""
    gpu: str | None = None
    tool: str | None = None
    version: str | None = None
    nccl: str | None = None
    log: str = field(default="", repr=False)
    run: str | None = None
    source: str | None = None
    remarks: tuple[str, ...] = ()

    @property
    def world(self) -> str:
        return f"{self.ranks} ranks on {count_text(self.nodes, 'node')}"

    @property
    def cards(self) -> int:
        """Ranks on a node."""
        return self.ranks // self.nodes

    @property
    def busbw(self) -> np.ndarray:
        """Bytes per second on every link of a ring."""
        return self.sizes / self.times * find(self.collective, send_recv=True).bus_factor(self.ranks)

    @property
    def no_latency(self) -> bool:
        """Return whether its calls were timed back to back although the root of them runs ahead."""
        return runs_ahead(self.collective, self.tool)


@dataclass(frozen=True)
class Unread:
    """A log, or a table of it, that could not be used, and why in one sentence."""

    name: str
    why: str


def read(sources, given: Given = Given()) -> tuple[list[Sweep], list[Unread]]:
    """All sweeps in the sources, and what could not be read.

    sources: paths of logs, names of published runs (`data.runs()`), or tables of `ringtree.measure`. Nothing is lost by
    one bad log: it is named among the unread. Raises UsageError for what is given wrongly for all of them.
    """
    sweeps, unread = [], []
    for index, source in enumerate(sources):
        ranks, nodes = (given.of(what, index, len(sources)) for what in ("ranks", "nodes"))
        name = source if isinstance(source, str) else getattr(source, "name", None) or f"table {index + 1}"
        try:
            if isinstance(source, str) and source in data.runs() and not Path(source).exists():
                sweeps.append(_published(source))
                continue
            tables, text = _tables(source, ranks, given.collective)
        except UsageError as error:
            unread.append(Unread(Path(name).name, str(error)))
            continue
        for number, table in enumerate(tables):
            label = Path(name).name + (f" (table {number + 1})" if len(tables) > 1 else "")
            try:
                sweeps += _sweeps(table, label, ranks, nodes, given, text)
            except UsageError as error:
                unread.append(Unread(label, str(error)))
    return _with_names_of_their_own(sweeps), unread


def _with_names_of_their_own(sweeps) -> list[Sweep]:
    """Logs of one name from several folders are numbered, since a report tells sweeps apart by their names."""
    seen = Counter()
    for i, sweep in enumerate(sweeps):
        seen[sweep.name] += 1
        if seen[sweep.name] > 1:
            sweeps[i] = replace(sweep, name=f"{sweep.name} [{seen[sweep.name]}]")
    return sweeps


def _tables(source, ranks, collective):
    if isinstance(source, pd.DataFrame):
        return [source], ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tables carry their warnings, and the report shows them
        tables = logs.read_all(source, ranks=ranks, collective=collective)
    return tables, Path(source).read_text(encoding="utf-8", errors="replace")


def _published(name: str) -> Sweep:
    run, (sizes, times) = data.run(name), data.sweep(name)
    sizes, times = sizes[sizes > 0], times[sizes > 0]
    forced = run.algorithm.removesuffix(" (forced)") if "forced" in run.algorithm else ""
    return Sweep(
        name,
        run.operation.split()[0],
        run.ranks,
        run.nodes,
        sizes,
        times,
        forced,
        gpu=run.gpu,
        tool=run.tool.split()[0].strip(","),
        nccl=run.nccl or None,
        run=name,
        source=run.source,
        remarks=(run.note,) if run.note else (),
    )


def _sweeps(table, name, ranks, nodes, given, text):
    """A sweep for each collective, type and operation of a table: out of place where there is both."""
    keys = [key for key in ("collective", "type", "redop", "root") if key in table and table[key].notna().any()]
    if "collective" not in keys and given.collective is None:
        raise UsageError(f"{name} does not say which collective it timed: give --collective, such as --collective all_reduce")
    parts = [part for _, part in table.groupby(keys, sort=False, dropna=False)] if keys else [table]
    found = []
    for part in parts:
        kind = (
            ""
            if len(parts) == 1
            else " ".join(str(part[key].iloc[0]) for key in keys if part[key].nunique() < table[key].nunique())
        )
        sweep = _sweep(part, name, table.attrs, ranks, nodes, given, text)
        found.append(replace(sweep, name=f"{name} {kind}".strip(), kind=kind))
    return found


def _sweep(part, name, attrs, ranks, nodes, given, text) -> Sweep:
    first = part.iloc[0]
    collective = find(first.get("collective") if pd.notna(first.get("collective")) else given.collective, send_recv=True).name
    ranks = ranks or (int(first["ranks"]) if pd.notna(first.get("ranks")) else attrs.get("ranks"))
    if str(attrs.get("clock", "")).startswith("cputime"):
        raise UsageError(f"{name} has the CPU's time to launch (cputime), not the collective's: run nccl-tests without -C")
    if not ranks:
        raise UsageError(f"{name} does not say how many ranks ran: give --ranks, such as --ranks 8")
    if ranks < 2:
        raise UsageError(f"{name} comes from a single rank, which has no other rank to talk to: give logs of 2 ranks or more")
    nodes = _nodes(name, ranks, nodes, attrs, given)
    rows, remarks = _rows(part)
    remarks = [*attrs.get("warnings", []), *remarks]
    if attrs.get("backend") == "gloo" or attrs.get("link"):
        remarks.append("these are times of processes on CPUs, which say nothing about a GPU or its network")
    devices = attrs.get("devices") or [None]
    nccl = attrs.get("nccl") if attrs.get("backend") in (None, "nccl") else None
    return Sweep(
        name,
        collective,
        ranks,
        nodes,
        rows["size"].to_numpy(dtype=float),
        rows["time"].to_numpy(dtype=float),
        gpu=devices[0],
        tool=attrs.get("tool"),
        version=attrs.get("version"),
        nccl=nccl,
        log=text,
        algorithm=_forced(text),
        remarks=tuple(remarks),
    )


def _forced(text) -> str:
    """The algorithm that NCCL_ALGO forced, where NCCL says so in the log and it is one of the model's."""
    said = re.search(r"NCCL_ALGO set (?:by environment )?to (?:allreduce:)?(ring|tree)\s*$", text, re.IGNORECASE | re.MULTILINE)
    return said[1].lower() if said else ""


def _nodes(name, ranks, nodes, attrs, given) -> int:
    if given.gpus_per_node and not nodes:
        nodes = -(-ranks // given.gpus_per_node)
    nodes = nodes or attrs.get("nodes") or attrs.get("hosts")
    if not nodes:
        raise UsageError(f"{name} does not say on how many nodes its {ranks} ranks ran: give --nodes or --gpus-per-node")
    if ranks % nodes:
        raise UsageError(
            f"{name} has {ranks} ranks on {count_text(nodes, 'node')}: the model needs as many ranks on every node"
        )
    return int(nodes)


def _rows(part):
    """The rows to use, by size, and sentences on those that are not."""
    remarks = []
    out_of_place = part[~part["in_place"].fillna(False).astype(bool)] if "in_place" in part else part
    if len(out_of_place) < len(part):
        if out_of_place.empty:
            out_of_place = part
            remarks.append("its times are in place")
    wrong = out_of_place["wrong"].fillna(0) > 0 if "wrong" in part else pd.Series(False, out_of_place.index)
    if wrong.any():
        sizes = ", ".join(map(binary_text, out_of_place["size"][wrong].head(5)))
        remarks.append(f"the results had wrong elements at {sizes}: those times are left out")
    empty = (out_of_place["size"] <= 0) | (out_of_place["time"] <= 0)
    if empty.any():
        remarks.append(f"{count_text(int(empty.sum()), 'row')} of 0 bytes or 0 seconds left out")
    rows = out_of_place[~wrong & ~empty]
    if rows.empty:
        raise UsageError("no row is left: every one has 0 bytes, 0 seconds or wrong elements")
    return rows.groupby("size", as_index=False)["time"].median(), remarks
