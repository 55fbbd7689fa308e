"""Published measurements of real machines, each with its source.

Other people made them; only their numbers are quoted here, as facts, in tables of our own. `runs()` says
which there are, `sweep(name)` gives one of them, `samples(*names)` several in one table. Where a source gives a
single size, `runs(1)` names it too. The tables are `tables/runs.csv` and `tables/times.csv`.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
import pandas as pd

from ringtree.errors import UsageError
from ringtree.given import takes, whole


@dataclass(frozen=True)
class Run:
    """One published run: what was timed, on which machine, with which tool, and who published it.

    `note` says what a careful reader should know before using the numbers; most runs need none.
    """

    name: str
    operation: str
    gpu: str
    ranks: int
    nodes: int
    intra_node: str
    inter_node: str
    algorithm: str
    nccl: str
    tool: str
    source: str
    note: str

    @property
    def label(self) -> str:
        """A short name for a table or a figure: `8 × H200`, `16 × H100, 2 nodes`, `one message, V100 nodes`."""
        kind, _, memory = self.gpu.partition(", ")
        if self.operation.startswith("send_recv"):
            return f"one message, {kind}s, {memory}"
        where = f", {self.nodes} nodes" if self.nodes > 1 else ""
        forced = f", {self.algorithm.removesuffix(' (forced)')}" if "forced" in self.algorithm else ""
        return f"{self.ranks} × {'CPU' if memory else kind.split('-')[0]}{where}{forced}"


@cache
def _tables() -> tuple[dict[str, Run], pd.DataFrame]:
    """The runs by name, and a row a point: run (as index), bytes, seconds, smallest message first."""
    folder = resources.files(__package__) / "tables"
    with (folder / "runs.csv").open(encoding="utf-8") as runs_file, (folder / "times.csv").open(encoding="utf-8") as times_file:
        table = pd.read_csv(runs_file, dtype={"nccl": object}, keep_default_na=False)
        points = pd.read_csv(times_file, index_col="run")
    published = {row["run"]: Run(row.pop("run"), **row) for row in table.to_dict("records")}
    points["seconds"] = points.pop("time_us") * 1e-6
    return published, points.sort_values("bytes", kind="stable")


@takes(sizes=whole(0))
def runs(sizes: int = 2) -> dict[str, Run]:
    """The published runs that give at least so many sizes, by name, in the table's order.

    Of a single size there is no line to fit and no curve to draw, so only `runs(1)` gives these as well.
    """
    published, points = _tables()
    counts = points.index.value_counts()
    return {name: one for name, one in published.items() if counts[name] >= sizes}


def run(name: str) -> Run:
    """The run of that name: machine, tool, source. Raises UsageError, with the nearest names, if there is none."""
    published = _tables()[0]
    if name not in published:
        near = difflib.get_close_matches(str(name), published, n=3)
        hint = f"the nearest are {', '.join(near)}" if near else f"the first are {', '.join(list(published)[:3])}"
        raise UsageError(f"no published run is called {name!r}: {hint}; data.runs(1) lists all {len(published)}")
    return published[name]


def samples(*names: str) -> pd.DataFrame:
    """Published runs as one table, as `fit.fit_machine` takes it: run, collective, algorithm, ranks, nodes, size, time.

    names: of runs; without any, all that `runs()` gives. size is in bytes, time in seconds; algorithm is "ring", "tree" or
    what else the run was forced to, else "". Raises UsageError, with the nearest names, if there is no such run.
    """
    parts = []
    for one in map(run, names or runs()):
        sizes, times = sweep(one.name)
        forced = one.algorithm.removesuffix(" (forced)") if "forced" in one.algorithm else ""
        what = {"run": one.name, "collective": one.operation.split()[0], "algorithm": forced}
        parts.append(pd.DataFrame({**what, "ranks": one.ranks, "nodes": one.nodes, "size": sizes, "time": times}))
    return pd.concat(parts, ignore_index=True)


def sweep(name: str) -> tuple[np.ndarray, np.ndarray]:
    """One run's message sizes in bytes and times in seconds, smallest message first.

    For a collective the size is that of the full vector, as nccl-tests counts it. Raises UsageError,
    with the nearest names, if there is no such run.
    """
    run(name)
    points = _tables()[1].loc[[name]]
    return points["bytes"].to_numpy(copy=True), points["seconds"].to_numpy(copy=True)
