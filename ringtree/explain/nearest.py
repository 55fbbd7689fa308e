"""The published machine that comes nearest to a fitted one, by the numbers that the data of both have determined."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
import pandas as pd

from ringtree import data, theory

__all__ = ["CLUSTERS", "NUMBERS", "Near", "fit_published", "near", "numbers"]

# Published machines, each by the beginning of its runs' names. Several worlds of one cluster are one machine.
CLUSTERS = {
    "V100, 2 EDR a node": "v100_n",
    "A100, 4 HDR a node": "a100_n",
    "GH200, 4 Slingshot 11 a node": "gh200_n",
    "8 H200": "h200_p8",
    "B200, 8 EFA a node": "b200_n",
    "2 × 8 H100, EFA": "h100_aws",
    "4 L40S over PCIe": "l40s_p4",
    "CPUs, OpenMPI over EDR": "osu_vnode_host",
}
# A latency is that of the quickest protocol, a bandwidth that of the widest.
NUMBERS = {
    "start": ("to start a call", min),
    "hop_inside": ("a hop inside a node", min),
    "hop_between": ("a hop between nodes", min),
    "bandwidth_inside": ("bandwidth inside a node", max),
    "bandwidth_between": ("bandwidth of a node", max),
}


@dataclass(frozen=True)
class Near:
    """A published machine, and how far it is: the typical factor between its numbers and the fitted ones.

    shared: each number that both have determined, as (fitted, published), in seconds or bytes per second.
    """

    cluster: str
    factor: float
    shared: dict[str, tuple[float, float]]
    sources: tuple[str, ...]


def numbers(fitted: theory.Fitted) -> dict[str, float]:
    """The numbers of NUMBERS that the data have determined, in seconds and bytes per second."""
    rows = fitted.parameters[fitted.parameters.determined]
    return {name: float(choose(of)) for name, (_, choose) in NUMBERS.items() if len(of := rows.value[rows.parameter == name])}


def near(fitted: theory.Fitted, without=()) -> list[Near]:
    """Published machines, nearest first; those that share one determined number alone come after those that share more.

    without: published runs that the fit itself was made from; their clusters are left out. The distance is the root mean
    square of the logarithms of the ratios, as a factor: 1.5 means half as much again or a third less, typically.
    """
    mine, found = numbers(fitted), []
    for cluster, row in _stored().iterrows():
        runs = _runs(cluster)
        shared = {name: (mine[name], float(row[name])) for name in NUMBERS if name in mine and np.isfinite(row[name])}
        if shared and not set(runs) & set(without):
            factor = float(np.exp(np.sqrt(np.mean([np.log(one / other) ** 2 for one, other in shared.values()]))))
            found.append(Near(cluster, factor, shared, tuple(dict.fromkeys(data.run(run).source for run in runs))))
    return sorted(found, key=lambda one: (len(one.shared) == 1, one.factor))


def fit_published(*clusters: str) -> pd.DataFrame:
    """The numbers of published machines, fitted anew: a row for each cluster, which `published_machines.csv` keeps.

    It is made by `fit_published().to_csv("ringtree/explain/published_machines.csv", float_format="%.4g")`.
    """
    rows = {}
    for cluster in clusters or CLUSTERS:
        fitted = theory.fit_machine(data.samples(*_runs(cluster)))
        rows[cluster] = {name: numbers(fitted).get(name, np.nan) for name in NUMBERS}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("cluster")


def _runs(cluster: str) -> list[str]:
    return [name for name in data.runs() if name.startswith(CLUSTERS[cluster])]


@cache
def _stored() -> pd.DataFrame:
    with (files(__package__) / "published_machines.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file, index_col="cluster")
