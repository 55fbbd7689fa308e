"""Measurements of collectives as one table: what a fit of a machine takes."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ringtree.collectives import TABLE, spelling
from ringtree.errors import UsageError
from ringtree.theory.model import COLLECTIVES

__all__ = ["NO_LATENCY", "RUN", "of_run", "runs_ahead", "tidy"]

RUN = ["run", "collective", "algorithm", "in_place", "ranks", "nodes"]
_LEFT_OUT = {"run": "", "algorithm": "", "in_place": False, "nodes": 1}
_ROOTED = tuple(row.name for row in TABLE if row.root)
# Of the tools whose tables are read, those that time calls back to back, with no barrier between them.
_BACK_TO_BACK = ("nccl-tests", "rccl-tests")

NO_LATENCY = (
    "in calls back to back the root runs ahead, and a call seems to take only the time that the root needs to hand it over, "
    "on any number of ranks, so their times hold no latency"
)


def runs_ahead(collective: str, tool: str | None) -> bool:
    """Return whether a tool times this collective back to back although one rank of it need not wait for the others."""
    return spelling(collective) in _ROOTED and tool in _BACK_TO_BACK


def tidy(samples) -> pd.DataFrame:
    """The samples as a table with all columns, numbered from 0, or a UsageError that says what is wrong."""
    tool = getattr(samples, "attrs", {}).get("tool")
    samples = pd.DataFrame(samples).reset_index(drop=True)
    if samples.empty:
        raise UsageError("there are no samples: give one row for each measurement")
    lacking = [name for name in ("collective", "size", "time", "ranks") if name not in samples]
    if lacking:
        raise UsageError(f"the samples have no column {', '.join(lacking)}: give collective, size, time and ranks")
    samples = samples[pd.to_numeric(samples["size"], errors="coerce") != 0].reset_index(drop=True)  # OSU's begin with 0 bytes
    if samples.empty:
        raise UsageError("all samples have 0 bytes: give some of 1 byte or more")
    samples = samples.assign(**{name: usual for name, usual in _LEFT_OUT.items() if name not in samples})
    samples = samples.fillna(_LEFT_OUT)
    samples["collective"] = samples["collective"].map(spelling)
    for name in ("size", "time", "ranks", "nodes"):
        column = pd.to_numeric(samples[name], errors="coerce").astype(float)
        wrong = ~(np.isfinite(column) & (column > 0))
        if wrong.any():
            given = samples[name][wrong].tolist()[0]
            raise UsageError(
                f"a sample's {name} is {given!r}: give finite numbers above 0, and leave out what was not measured"
            )
        samples[name] = column if name == "time" else column.astype(np.int64)
    for name, known in (("collective", COLLECTIVES), ("algorithm", ("", "ring", "tree"))):
        wrong = ~samples[name].isin(known)
        if wrong.any():
            raise UsageError(
                f"a sample's {name} is {samples[name][wrong].iloc[0]!r}: give one of {', '.join(filter(None, known))}"
            )
    if (samples.ranks < 2).any():
        raise UsageError("a sample has 1 rank, which has no other rank to talk to: give samples of 2 ranks or more")
    if (samples.ranks % samples.nodes).any():
        raise UsageError("a sample's ranks are not a multiple of its nodes: the model needs as many ranks on every node")
    samples = _with_timing(samples, tool)
    falling = samples.groupby(RUN, sort=False)["size"].diff() <= 0
    if falling.any():
        at = samples[falling].iloc[0]
        raise UsageError(
            f"sizes out of order: {at['size']} bytes comes after a size as long or longer, on {at['ranks']} ranks; "
            "sort each run by size, and tell runs apart by a column 'run'"
        )
    if samples["size"].nunique() < 4:
        raise UsageError(f"a fit of a machine was given {samples['size'].nunique()} different sizes: give at least 4")
    return samples


def _with_timing(samples, tool) -> pd.DataFrame:
    """The samples with a column back_to_back; UsageError for broadcasts and reduces of which it is true, or not known."""
    if "back_to_back" not in samples:
        samples = samples.assign(back_to_back=None if tool is None else [runs_ahead(each, tool) for each in samples.collective])
    rooted = samples[samples.collective.isin(_ROOTED)]
    if rooted.back_to_back.isna().any():
        raise UsageError(
            f"the samples of {rooted.collective.iloc[0]} do not say how they were timed; give a column back_to_back, and leave "
            f"out those where it is True: {NO_LATENCY}"
        )
    if rooted.back_to_back.astype(bool).any():
        raise UsageError(f"the samples of {rooted.collective.iloc[0]} were timed back to back, so leave them out: {NO_LATENCY}")
    return samples


def of_run(samples, by_run) -> np.ndarray:
    """A value of each sample's run."""
    return by_run.reindex(pd.MultiIndex.from_frame(samples[RUN])).to_numpy()
