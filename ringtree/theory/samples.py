"""Measurements of collectives as one table: what a fit of a machine takes."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ringtree.collectives import spelling
from ringtree.theory.model import COLLECTIVES

__all__ = ["RUN", "of_run", "tidy"]

RUN = ["run", "collective", "algorithm", "in_place", "ranks", "nodes"]
_LEFT_OUT = {"run": "", "algorithm": "", "in_place": False, "nodes": 1}


def tidy(samples) -> pd.DataFrame:
    """The samples as a table with all columns, numbered from 0, or a ValueError that says what is wrong."""
    samples = pd.DataFrame(samples).reset_index(drop=True)
    if samples.empty:
        raise ValueError("there are no samples; give one row for each measurement.")
    lacking = [name for name in ("collective", "size", "time", "ranks") if name not in samples]
    if lacking:
        raise ValueError(f"the samples have no column {', '.join(lacking)}; give collective, size, time and ranks.")
    samples = samples.assign(**{name: usual for name, usual in _LEFT_OUT.items() if name not in samples})
    samples = samples.fillna(_LEFT_OUT)
    samples["collective"] = samples["collective"].map(spelling)
    for name in ("size", "time", "ranks", "nodes"):
        column = pd.to_numeric(samples[name], errors="coerce").astype(float)
        wrong = ~(np.isfinite(column) & (column > 0))
        if wrong.any():
            given = samples[name][wrong].iloc[0]
            raise ValueError(f"a sample's {name} is {given!r}; give finite numbers above 0, and leave out what was not measured.")
        samples[name] = column if name == "time" else column.astype(np.int64)
    for name, known in (("collective", COLLECTIVES), ("algorithm", ("", "ring", "tree"))):
        wrong = ~samples[name].isin(known)
        if wrong.any():
            raise ValueError(f"a sample's {name} is {samples[name][wrong].iloc[0]!r}; give one of {', '.join(filter(None, known))}.")
    if (samples.ranks < 2).any():
        raise ValueError("a sample has 1 rank, which has nobody to talk to; give samples of 2 ranks or more.")
    if (samples.ranks % samples.nodes).any():
        raise ValueError("a sample's ranks are not a multiple of its nodes; the model needs as many ranks on every node.")
    falling = samples.groupby(RUN, sort=False)["size"].diff() <= 0
    if falling.any():
        at = samples[falling].iloc[0]
        raise ValueError(
            f"sizes out of order: {at['size']} bytes comes after a size as long or longer, on {at['ranks']} ranks; "
            "sort each run by size, and tell runs apart by a column 'run'."
        )
    if samples["size"].nunique() < 4:
        raise ValueError(f"got {samples['size'].nunique()} different sizes; fitting a machine needs at least 4.")
    return samples


def of_run(samples, by_run) -> np.ndarray:
    """A value of each sample's run."""
    return by_run.reindex(pd.MultiIndex.from_frame(samples[RUN])).to_numpy()
