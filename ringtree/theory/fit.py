"""Fit α and β, or a whole machine, to measured times, so that small and large messages weigh alike.

    fit_line(sizes, times)                      # one link: α + n·β
    fit_lines(sizes, times)                     # the smaller of several lines, as many as predict best
    fitted = fit_machine(samples)               # hops inside and between nodes, bandwidths, protocols
    fitted.model.time("all_reduce", 1 << 20, ranks=16, nodes=4)
    held_out(samples, by="ranks")               # each world size predicted from the others

Method of `fit_machine`: maximum a posteriori. What is made small is the sum of squared logarithmic misses, in
units of 10 % and large ones counted less than squared (soft L1), plus the squared distance of every
parameter's logarithm from where it started, in units of the doubt about it. A parameter that the data do
not touch keeps its start and its doubt, and the fit says so; one that they determine forgets both.
Intervals come from the curvature at the optimum (Laplace's approximation).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import combinations

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from ringtree.cost import Link
from ringtree.theory import nccl
from ringtree.theory.model import COLLECTIVES, Model, Protocol, closed_form, ring_share

__all__ = ["Fitted", "fit_line", "fit_lines", "fit_machine", "held_out", "misses", "predict"]

def fit_line(sizes, times) -> Link:
    """The link whose α + n·β comes closest to the measured times, each miss counted in per cent.

    sizes: bytes; times: seconds, one for each size. What is made small is the sum of the squared
    *relative* misses, (predicted − measured)/measured: being 10 % off counts the same at 8 bytes
    and at 64 MB. Ordinary least squares on the seconds would look at the few largest messages only,
    and α could come out as anything.

    Method: divided by the measured time, each message says α·(1/t) + β·(n/t) = 1, which is linear
    in α and β: two equations in two unknowns. Neither may be negative; where the best line had one
    below zero, the best line without it is taken.

    Raises ValueError if there are fewer than two different sizes, if the lengths differ, or if a
    value is not finite, a time not positive or a size negative.
    """
    sizes, times = _checked(sizes, times, lines=1)
    return _line(sizes, times)


def fit_lines(sizes, times, count: int | None = 2) -> tuple[Link, ...]:
    """Several links of which each message takes the fastest, fitted together: smallest α first.

    That is what communication software does: it keeps one protocol for small messages and others
    for large ones, and picks. The sizes, in order, are cut into `count` runs in every possible way,
    each run gets its own `fit_line`, and the cut whose *smallest line* comes closest to all the
    measured times wins. A line that is the fastest at none of the sizes is left out, so there may
    be fewer than `count`.

    sizes, times and errors as in `fit_line`; `count` lines need at least 2·count different sizes. With
    count=None, cross-validation chooses: every fourth size is left out in turn and predicted by 1 to 4 lines
    fitted to the rest, and the fewest lines are taken that predict as well as the best, within its standard error.
    """
    if count is None:
        count = _best_number_of_lines(*_checked(sizes, times, lines=1))
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ValueError(f"fit_lines got count={count!r}; give the number of lines, 1 or more, or None.")
    sizes, times = _checked(sizes, times, lines=count)
    different = np.unique(sizes)

    pieces: dict[tuple[int, int], Link] = {}

    def piece(start: int, stop: int) -> Link:
        if (start, stop) not in pieces:
            inside = (sizes >= different[start]) & (sizes <= different[stop - 1])
            pieces[start, stop] = _line(sizes[inside], times[inside])
        return pieces[start, stop]

    best, best_error = None, np.inf
    for cuts in combinations(range(2, len(different) - 1), count - 1):
        edges = (0, *cuts, len(different))
        if min(b - a for a, b in zip(edges, edges[1:])) < 2:
            continue
        links = [piece(a, b) for a, b in zip(edges, edges[1:])]
        error = float(np.sum((predict(links, sizes) / times - 1) ** 2))
        # A gain in the last digits is rounding: take the earlier cut, on every machine.
        if error < best_error * (1 - 1e-9):
            best, best_error = links, error
    used = np.unique(np.argmin([link.time(sizes) for link in best], axis=0))
    return tuple(sorted((best[i] for i in used), key=lambda link: (link.alpha, link.beta)))


def _best_number_of_lines(sizes, times, most: int = 4, folds: int = 4) -> int:
    different, place = np.unique(sizes, return_inverse=True)
    left_in_a_fold = len(different) - -(-len(different) // folds)
    if left_in_a_fold < 2:
        return 1
    errors = {}
    for count in range(1, min(most, left_in_a_fold // 2) + 1):
        off = np.empty(len(sizes))
        for fold in range(folds):
            out = place % folds == fold
            off[out] = predict(fit_lines(sizes[~out], times[~out], count), sizes[out]) / times[out] - 1
        errors[count] = off
    return _fewest(errors)


def _fewest(errors: dict[int, np.ndarray]) -> int:
    """The smallest key whose mean miss is within one standard error of the best one's."""
    means = {count: (np.abs(off).mean(), np.abs(off).std() / np.sqrt(len(off))) for count, off in errors.items()}
    least, spread = min(means.values())
    return next(count for count in sorted(means) if means[count][0] <= least + spread)


def predict(links: Link | Sequence[Link], sizes) -> np.ndarray:
    """Seconds for each size in bytes: of one link, or of the fastest of several."""
    links = [links] if isinstance(links, Link) else list(links)
    if not links:
        raise ValueError("predict got no link; give one Link or a sequence of them.")
    sizes = np.asarray(sizes, dtype=float)
    return np.min([link.time(sizes) for link in links], axis=0)


def misses(links: Link | Sequence[Link], sizes, times) -> np.ndarray:
    """How far the prediction is from each measured time: 0.2 for 20 % too long, -0.2 for 20 % too short."""
    sizes, times = _checked(sizes, times, lines=0)
    return predict(links, sizes) / times - 1


def _line(sizes: np.ndarray, times: np.ndarray) -> Link:
    # Sizes in units of the largest, so that the two columns are of one magnitude.
    unit = sizes.max()
    a, b = 1 / times, sizes / unit / times
    a, b, scale = a / a.max(), b / a.max(), a.max()
    aa, ab, bb, a1, b1 = a @ a, a @ b, b @ b, a.sum(), b.sum()
    determinant = aa * bb - ab * ab
    alpha, beta = (a1 * bb - b1 * ab) / determinant, (b1 * aa - a1 * ab) / determinant
    if beta < 0:
        alpha, beta = a1 / aa, 0.0
    elif alpha < 0:
        alpha, beta = 0.0, b1 / bb
    return Link(float(alpha / scale), float(beta / scale / unit))


def _checked(sizes, times, lines: int) -> tuple[np.ndarray, np.ndarray]:
    sizes, times = np.asarray(sizes, dtype=float).ravel(), np.asarray(times, dtype=float).ravel()
    if len(sizes) != len(times):
        raise ValueError(f"got {len(sizes)} sizes and {len(times)} times; give one time for each size.")
    if not (np.isfinite(sizes).all() and np.isfinite(times).all()):
        raise ValueError("a size or a time is not a finite number; leave out what was not measured.")
    if (times <= 0).any():
        raise ValueError(f"the time at {sizes[times <= 0][0]:g} bytes is {times[times <= 0][0]:g} s; times must be greater than 0.")
    if (sizes < 0).any():
        raise ValueError(f"a size is {sizes[sizes < 0][0]:g} bytes; sizes must be 0 or more.")
    if len(np.unique(sizes)) < 2 * lines:
        what = "a line needs" if lines == 1 else f"{lines} lines need"
        raise ValueError(f"got {len(np.unique(sizes))} different sizes; {what} at least {2 * lines}.")
    return sizes, times


# ---------------------------------------------------------------- a machine

NAMES = tuple(field.name for field in fields(Protocol))
UNITS = ("s", "s", "s", "s", "B/s", "B/s", "")

# Where a fit starts: NCCL's own latencies for its protocols LL, LL128 and Simple, ring and tree averaged, all of them
# multiplied by one factor, so that the shortest messages come out right. Entering the network costs NCCL nothing; that
# it costs something is seen in the published runs. Bandwidths are parts of the fastest that was measured.
_LEVELS = {"start": "base", "hop_inside": "NVLink", "hop_between": "network"}
_LATENCIES = nccl.latencies("2.28")
_STARTS = [
    {
        **{name: sum(_LATENCIES[level, way, each] for way in ("ring", "tree")) / 2 for name, level in _LEVELS.items()},
        "enter_network": 1.5e-6,
        "pipelining": 0.7,
    }
    for each in nccl.PROTOCOLS
]
_BANDWIDTHS = {1: (1.0,), 2: (0.2, 1.0), 3: (0.1, 0.6, 1.0)}
# One standard deviation of the doubt about each, as a natural logarithm: 0.7 is a factor of two either way.
_DOUBT = dict(zip(NAMES, (0.5, 1.0, 0.3, 0.5, 1.5, 1.5, 0.5)))
_ORDINARY_MISS = 0.1
_RESTARTS = 4


@dataclass(frozen=True)
class Fitted:
    """A fitted machine.

    model: the `Model` to predict with. parameters: one row for each protocol and number: protocol,
    parameter, value, low, high (90 % interval), unit, determined (whether the data have at least halved the doubt
    about it). misses: the samples, with predicted and miss (0.2 for 20 % too long). ordinary_miss: how far a
    prediction is off as a rule (1.48 times the median miss, held out by world size where there are three or more,
    else by size).
    """

    model: Model
    parameters: pd.DataFrame
    misses: pd.DataFrame
    ordinary_miss: float
    _logs: np.ndarray
    _covariance: np.ndarray

    def interval(self, collective, sizes, ranks, nodes=None, *, level=0.9, draws=400):
        """(low, high) seconds between which a measurement is expected, for each size, in closed form.

        Parameters are drawn from what the fit says of them, and `ordinary_miss` is added. It knows nothing of
        what neither the model nor the samples know: another algorithm, a busy network, a slow rank.
        Raises ValueError for a collective that is predicted by simulation only.
        """
        if collective not in COLLECTIVES:
            raise ValueError(f"interval got {collective!r}: an interval comes from a closed form; give one of {', '.join(COLLECTIVES)}")
        random = np.random.default_rng(0)
        logs = random.multivariate_normal(self._logs, self._covariance, size=draws)
        sizes = np.atleast_1d(sizes)
        rows = {"collective": collective, "size": sizes, "ranks": ranks, "nodes": self.model.nodes(ranks, nodes)}
        groups = _groups(pd.DataFrame(rows).assign(algorithm=""))
        times = _times(logs, len(self.model.protocols), groups)
        times = times * np.exp(random.normal(0, self.ordinary_miss, times.shape))
        return tuple(np.quantile(times, [(1 - level) / 2, (1 + level) / 2], axis=0))

    def __str__(self) -> str:
        off = np.median(np.abs(self.misses.miss))
        return f"{self.model}\nmedian miss {100 * off:.1f} % over {len(self.misses)} measurements"


def fit_machine(samples, protocols: int | None = None) -> Fitted:
    """Fit a machine to measured times.

    samples: a DataFrame, or a list of dicts, with the columns collective (one of `predict.COLLECTIVES`), size
    (bytes of the full vector), time (seconds) and ranks; nodes where there are several; algorithm where one was forced
    ("ring" or "tree"); run where one world size was measured more than once. `measure.measure`, `logs.read` and
    `data.samples` give such tables. protocols: 1, 2 or 3; left out, the number that predicts every second
    size best from the others is taken, the smaller one if it is as good within its standard error.

    Raises ValueError, in one sentence, for missing columns, times or sizes that are not finite or not positive,
    sizes out of order within a run, fewer than 4 different sizes, a collective without a closed form.
    """
    samples = checked(samples)
    if protocols is None:
        protocols = _best_count(samples)
    worlds = len(samples.groupby(["ranks", "nodes"]))
    unseen = held_out(samples, by="ranks" if worlds > 2 else "size", protocols=protocols)
    return _fit_machine(samples, protocols, ordinary_miss=_spread(unseen.miss))


def held_out(samples, by: str = "ranks", protocols: int | None = None) -> pd.DataFrame:
    """Predict every measurement by a fit to measurements that leave it out.

    by: "ranks" leaves out one world size (ranks and nodes) at a time; "size" leaves out every second size
    of each run, then the others. samples, protocols and errors as in `fit_machine`.

    Returns the samples with the columns predicted (s), miss (0.2 for 20 % too long) and between: whether the
    world size (or the size) lies between others that the fit has seen.
    """
    samples = checked(samples)
    if protocols not in (None, *_BANDWIDTHS):
        raise ValueError(f"a fit of a machine got protocols={protocols!r}; give 1, 2 or 3, or leave it out.")
    if by not in ("ranks", "size"):
        raise ValueError(f"held_out got by={by!r}; give 'ranks' or 'size'.")
    if by == "ranks":
        key = samples.ranks * 10**6 + samples.nodes
        if key.nunique() < 2:
            raise ValueError(f"held_out got one world size, {samples.ranks.iloc[0]} ranks; give at least two, or by='size'.")
    else:
        key = samples.groupby(_RUN, sort=False).cumcount() % 2
    parts = []
    for value in key.unique():
        rest, left = samples[key != value], samples[key == value]
        part = _with_misses(left, _fit_machine(rest, protocols or _best_count(rest)).model)
        seen = rest.ranks if by == "ranks" else rest.groupby(_RUN)["size"]
        value = left.ranks if by == "ranks" else left["size"]
        low, high = (seen.min(), seen.max()) if by == "ranks" else (_of(left, seen.min()), _of(left, seen.max()))
        parts.append(part.assign(between=(value > low) & (value < high)))
    return pd.concat(parts).sort_index(kind="stable")


# ---------------------------------------------------------------- the fit


def _fit_machine(samples: pd.DataFrame, count: int, ordinary_miss: float | None = None) -> Fitted:
    first = _first_logs(samples, count)
    doubt = np.tile([_DOUBT[name] for name in NAMES], count)
    measured = np.log(samples.time.to_numpy())
    groups = _groups(samples)

    def off(logs):
        return (np.log(_times(logs, count, groups)) - measured) / _ORDINARY_MISS

    def residuals(logs):
        miss = off(logs)
        softened = np.sign(miss) * np.sqrt(2 * (np.sqrt(1 + miss * miss) - 1))
        return np.concatenate([softened, (logs - first) / doubt], axis=-1)

    def slopes(logs):
        step = 1e-6 * np.eye(len(logs))
        return ((residuals(logs + step) - residuals(logs - step)) / 2e-6).T

    random, best = np.random.default_rng(0), None
    for attempt in range(_RESTARTS):
        found = least_squares(residuals, first + (attempt > 0) * random.normal(0, 0.4, first.shape), slopes, max_nfev=200)
        if best is None or found.cost < best.cost * (1 - 1e-9):
            best = found
    model = _model(best.x, count)
    fitted = _with_misses(samples, model)
    noise = _spread(fitted.miss)
    data, prior = best.jac[: len(samples)], np.diag(doubt**-2.0)
    covariance = np.linalg.inv(data.T @ data * min(1, (_ORDINARY_MISS / noise) ** 2) + prior)
    parameters = _parameters(best.x, covariance, doubt, count)
    return Fitted(model, parameters, fitted, ordinary_miss or noise, best.x, covariance)


def _spread(miss) -> float:
    """The standard deviation of logarithmic misses, from their median, which outliers do not move."""
    return max(1e-3, 1.4826 * float(np.median(np.abs(np.log1p(miss)))))


def _first_logs(samples, count) -> np.ndarray:
    """Where the fit starts: NCCL's constants in this machine's measure, bandwidths from the fastest measured."""
    several = (samples.nodes > 1).to_numpy()
    speed = samples["size"] * [ring_share(c, p, n) for c, p, n in zip(samples.collective, samples.ranks, samples.nodes)]
    speed = (speed / samples.time).to_numpy()
    inside = speed[~several].max(initial=0) or speed.max()
    between = speed[several].max(initial=0) or speed.max()
    protocols = [
        Protocol(**_STARTS[i], bandwidth_inside=part * inside, bandwidth_between=part * between)
        for i, part in enumerate(_BANDWIDTHS[count])
    ]
    logs = np.log([[getattr(each, name) for name in NAMES] for each in protocols])
    shortest = samples.loc[samples.groupby(_RUN, sort=False)["size"].idxmin()]
    factor = np.median(np.log(shortest.time.to_numpy() / _times(logs.ravel(), count, _groups(shortest))))
    logs[:, [NAMES.index(name) for name in ("start", "enter_network", "hop_inside", "hop_between")]] += factor
    return logs.ravel()


def _model(logs, count) -> Model:
    return Model(tuple(Protocol(*map(float, np.exp(each))) for each in logs.reshape(count, -1)))


def _groups(samples):
    """The samples in groups that one call of closed_form serves: (places, collective, algorithms, sizes, ranks, nodes)."""
    groups = []
    for (collective, forced), places in samples.groupby(["collective", "algorithm"], sort=False).indices.items():
        some = samples.iloc[places]
        both = ("ring", "tree") if collective == "all_reduce" else ("ring",)
        columns = (some[name].to_numpy(dtype=float) for name in ("size", "ranks", "nodes"))
        groups.append((places, collective, (forced,) if forced else both, *columns))
    return groups


def _times(logs, count, groups) -> np.ndarray:
    """Seconds of every sample, the fastest way counting. logs: (…, count·7); returns (…, samples)."""
    values = np.exp(logs).reshape(*np.shape(logs)[:-1], count, len(NAMES), 1)
    protocols = Protocol(*np.moveaxis(values, -2, 0))
    times = np.empty((*np.shape(logs)[:-1], sum(len(places) for places, *_ in groups)))
    for places, collective, algorithms, *shape in groups:
        ways = [closed_form(collective, algorithm, protocols, *shape).min(axis=-2) for algorithm in algorithms]
        times[..., places] = np.min(ways, axis=0)
    return times


def _with_misses(samples, model) -> pd.DataFrame:
    logs = np.log([[getattr(each, name) for name in NAMES] for each in model.protocols])
    predicted = _times(logs.ravel(), len(model.protocols), _groups(samples))
    return samples.assign(predicted=predicted, miss=predicted / samples.time - 1)


def _best_count(samples) -> int:
    """The number of protocols that predicts every second size best from the others; fewer if as good."""
    return _fewest({count: np.log1p(held_out(samples, by="size", protocols=count).miss) for count in _BANDWIDTHS})


def _parameters(logs, covariance, doubt, count) -> pd.DataFrame:
    sure = np.sqrt(np.diag(covariance))
    value, factor = np.exp(logs), np.exp(1.645 * sure)
    return pd.DataFrame(
        {
            "protocol": np.repeat(np.arange(count), len(NAMES)),
            "parameter": NAMES * count,
            "value": value,
            "low": value / factor,
            "high": value * factor,
            "unit": UNITS * count,
            "determined": sure < doubt / 2,
        }
    )


# ---------------------------------------------------------------- samples

_RUN = ["run", "collective", "algorithm", "in_place", "ranks", "nodes"]
_LEFT_OUT = {"run": "", "algorithm": "", "in_place": False, "nodes": 1}
# torch.distributed has several functions for one collective.
_SAME = {
    "all_gather_single": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
}


def checked(samples) -> pd.DataFrame:
    """The samples as a table with all columns, numbered from 0, or a ValueError that says what is wrong."""
    samples = pd.DataFrame(samples).reset_index(drop=True)
    if samples.empty:
        raise ValueError("there are no samples; give one row for each measurement.")
    lacking = [name for name in ("collective", "size", "time", "ranks") if name not in samples]
    if lacking:
        raise ValueError(f"the samples have no column {', '.join(lacking)}; give collective, size, time and ranks.")
    samples = samples.assign(**{name: usual for name, usual in _LEFT_OUT.items() if name not in samples})
    samples = samples.fillna(_LEFT_OUT).replace({"collective": _SAME})
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
    falling = samples.groupby(_RUN, sort=False)["size"].diff() <= 0
    if falling.any():
        at = samples[falling].iloc[0]
        raise ValueError(
            f"sizes out of order: {at['size']} bytes comes after a size as long or longer, on {at['ranks']} ranks; "
            "sort each run by size, and tell runs apart by a column 'run'."
        )
    if samples["size"].nunique() < 4:
        raise ValueError(f"got {samples['size'].nunique()} different sizes; fitting a machine needs at least 4.")
    return samples


def _of(samples, by_run) -> np.ndarray:
    """A value of each sample's run."""
    return by_run.reindex(pd.MultiIndex.from_frame(samples[_RUN])).to_numpy()
