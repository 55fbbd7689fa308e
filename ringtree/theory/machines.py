"""Fit a whole machine to measured times of collectives, so that small and large messages weigh alike.

    fitted = fit_machine(samples)               # hops inside and between nodes, bandwidths, protocols
    fitted.model.time("all_reduce", 1 << 20, ranks=16, nodes=4)
    held_out(samples, by="ranks")               # each world size predicted from the others

Method of `fit_machine`: maximum a posteriori. What is made small is the sum of squared logarithmic misses, in
units of 10 % and large ones counted less than squared (soft L1), plus the squared distance of every
parameter's logarithm from where it started, in units of the doubt about it. A parameter that the data do
not touch keeps its start and its doubt, and the fit says so; one that they determine forgets both.
Intervals of parameters come from the curvature at the optimum (Laplace's approximation). A prediction's interval adds
the misses that the same fit makes where it predicts what was hidden from it (cross-validation, as in the jackknife+ of
Barber et al. 2021), in their own shape: a library that takes a slow way, or another draw of the network, is in them as
often and as far as it happened.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from ringtree.collectives import spelling
from ringtree.errors import UsageError
from ringtree.given import a, number, optional, takes
from ringtree.theory import nccl
from ringtree.theory.lines import fewest
from ringtree.theory.model import COLLECTIVES, Model, Protocol, ring_share, seconds_of_calls
from ringtree.theory.samples import RUN, of_run, tidy

__all__ = ["HELD", "NAMES", "Fitted", "fit_machine", "held_out"]

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


# How far a whole world is missed, as a logarithm, by fits to one or two others, which cannot try themselves on a third.
_ANOTHER_WORLD = 0.3
# What part of the times of published worlds lay in the 90 % interval of a fit that had not seen the world, counted in
# tests/theory/test_intervals.py: fitted to three worlds or more (V100, A100, GH200, CPUs), the worst of these worlds, fitted to
# two worlds, and fitted to one world of the other kind (one node for several, or several for one: B200).
HELD = {"three or more": 0.94, "the worst": 0.75, "two": 0.90, "one": 0.58}


@dataclass(frozen=True)
class Fitted:
    """A fitted machine.

    model: the `Model` to predict with. parameters: one row for each protocol and number: protocol,
    parameter, value, low, high (90 % interval), unit, determined (whether the data have at least halved the doubt
    about it). misses: the samples, with predicted and miss (0.2 for 20 % too long). unseen: the same, each predicted by
    a fit that had not seen it: hidden by world size where there are three or more, else every second size. worlds: how
    many world sizes (ranks and nodes) were fitted.
    """

    model: Model
    parameters: pd.DataFrame
    misses: pd.DataFrame
    unseen: pd.DataFrame
    worlds: int
    _logs: np.ndarray
    _covariance: np.ndarray

    def draws(self, count: int = 400) -> tuple[np.ndarray, np.ndarray]:
        """Return what the fit holds possible: so many machines, and for each by what factor a measurement is longer than it says.

        Returns the logarithms of the parameters, (count, protocols · 7) in the order of NAMES, and the factors, (count,):
        the misses of `unseen` in their own shape, with a factor for a whole world besides where fewer than three were
        fitted. The same on every call.
        """
        random = np.random.default_rng(0)
        logs = random.multivariate_normal(self._logs, self._covariance, size=count)
        evenly = (np.arange(count) + 0.5) / count
        longer = random.permutation(np.quantile(-np.log1p(self.unseen.miss.to_numpy()), evenly))
        if self.worlds < 3:
            longer = longer + random.normal(0, _ANOTHER_WORLD, count)
        return logs, np.exp(longer)

    def interval(self, collective, sizes, ranks, nodes=None, *, level=0.9, draws=400):
        """(low, high) seconds between which a measurement is expected, for each size, in closed form.

        Quantiles over `draws`: machines that the fit holds possible, times the misses that it makes unseen. How many
        times of hidden worlds of the published clusters it held, HELD says. Raises UsageError for a collective that is
        predicted by simulation only.
        """
        collective = spelling(collective)
        if collective not in COLLECTIVES:
            known = ", ".join(COLLECTIVES)
            raise UsageError(f"interval got {collective!r}, which has no closed form: give one of {known}")
        logs, longer = self.draws(draws)
        sizes = np.atleast_1d(sizes)
        rows = {"collective": collective, "size": sizes, "ranks": ranks, "nodes": self.model.nodes(ranks, nodes)}
        groups = _groups(pd.DataFrame(rows).assign(algorithm=""))
        times = _times(logs, len(self.model.protocols), groups) * longer[:, None]
        return tuple(np.quantile(times, [(1 - level) / 2, (1 + level) / 2], axis=0))

    def __str__(self) -> str:
        off = np.median(np.abs(self.misses.miss))
        return f"{self.model}\nmedian miss {100 * off:.1f} % over {len(self.misses)} measurements"


@takes(samples=a(pd.DataFrame, list, tuple, words="a DataFrame or a list of dicts"), gap=optional(number()))
def fit_machine(samples, protocols: int | None = None, gap: float | None = None) -> Fitted:
    """Fit a machine to measured times.

    samples: a DataFrame, or a list of dicts, with the columns collective (one of `theory.COLLECTIVES`), size
    (bytes of the full vector), time (seconds) and ranks; nodes where there are several; algorithm where one was forced
    ("ring" or "tree"); run where one world size was measured more than once; back_to_back for broadcasts and reduces
    (whether calls followed each other with no barrier between), unless `.attrs` name the tool. `measure.measure`,
    `logs.read` and `data.samples` give such tables. protocols: 1, 2 or 3; left out, the number that predicts every second
    size best from the others is taken, the smaller one if it is as good within its standard error. gap: seconds between two
    messages at a port, for what the model simulates; left out, the described wires'. It is given and not fitted, since in
    rings and trees every step waits for an arrival; `fit_gap` finds it in all-to-alls and scatters.

    Raises UsageError, in one sentence, for missing columns, times or sizes that are not finite or not positive,
    sizes out of order within a run, fewer than 4 different sizes, a collective without a closed form, and broadcasts and
    reduces that were timed back to back, which hold no latency.
    """
    samples = tidy(samples)
    if protocols is None:
        protocols = _best_count(samples)
    worlds = samples.groupby(["ranks", "nodes"]).ngroups
    unseen = held_out(samples, by="ranks" if worlds > 2 else "size", protocols=protocols)
    logs, covariance, doubt = _most_probable(samples, protocols)
    misses = _with_misses(samples, _model(logs, protocols))
    model = replace(_model(logs, protocols), gap=gap, error=float(misses.miss.abs().median()))
    parameters = _parameters(logs, covariance, doubt, protocols)
    return Fitted(model, parameters, misses, unseen, worlds, logs, covariance)


@takes(samples=a(pd.DataFrame, list, tuple, words="a DataFrame or a list of dicts"))
def held_out(samples, by: str = "ranks", protocols: int | None = None) -> pd.DataFrame:
    """Predict every measurement by a fit to measurements that leave it out.

    by: "ranks" leaves out one world size (ranks and nodes) at a time; "size" leaves out every second size
    of each run, then the others. samples, protocols and errors as in `fit_machine`.

    Returns the samples with the columns predicted (s), miss (0.2 for 20 % too long) and between: whether the
    world size (or the size) lies between others that the fit has seen.
    """
    samples = tidy(samples)
    if protocols not in (None, *_BANDWIDTHS):
        raise UsageError(f"a fit of a machine got protocols={protocols!r}: give 1, 2 or 3, or leave it out")
    if by not in ("ranks", "size"):
        raise UsageError(f"held_out got by={by!r}: give 'ranks' or 'size'")
    if by == "ranks":
        key = samples.ranks * 10**6 + samples.nodes
        if key.nunique() < 2:
            raise UsageError(f"held_out got one world size, {samples.ranks.iloc[0]} ranks: give at least two, or by='size'")
    else:
        key = samples.groupby(RUN, sort=False).cumcount() % 2
    parts = []
    for value in key.unique():
        rest, left = samples[key != value], samples[key == value]
        count = protocols or _best_count(rest)
        part = _with_misses(left, _model(_most_probable(rest, count)[0], count))
        seen = rest.ranks if by == "ranks" else rest.groupby(RUN)["size"]
        value = left.ranks if by == "ranks" else left["size"]
        low, high = (seen.min(), seen.max()) if by == "ranks" else (of_run(left, seen.min()), of_run(left, seen.max()))
        parts.append(part.assign(between=(value > low) & (value < high)))
    return pd.concat(parts).sort_index(kind="stable")


# ---------------------------------------------------------------- the fit


_found: dict[tuple[str, int], tuple[np.ndarray, np.ndarray, np.ndarray]] = {}


def _most_probable(samples: pd.DataFrame, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The logarithms of the parameters, their covariance, and the doubt about each that the fit began with.

    Worlds left out two at a time are left out in both orders, and one that is left out for a forecast was so for
    `held_out`: what was fitted once is kept.
    """
    told = samples[[*RUN, "size", "time"]].to_csv(index=False)
    key = hashlib.sha256(told.encode()).hexdigest(), count
    if key not in _found:
        _found[key] = _search(samples, count)
    return _found[key]


def _search(samples, count):
    """`_most_probable`, from several starts."""
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
    noise = _spread(_with_misses(samples, _model(best.x, count)).miss)
    data, prior = best.jac[: len(samples)], np.diag(doubt**-2.0)
    covariance = np.linalg.inv(data.T @ data * min(1, (_ORDINARY_MISS / noise) ** 2) + prior)
    found = best.x, covariance, doubt
    for each in found:
        each.flags.writeable = False
    return found


def _spread(miss) -> float:
    """The standard deviation of logarithmic misses, from their median, which outliers do not move."""
    return max(1e-3, 1.4826 * float(np.median(np.abs(np.log1p(miss)))))


def _first_logs(samples, count) -> np.ndarray:
    """Return where the fit starts: NCCL's constants in this machine's measure, bandwidths from the fastest measured."""
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
    shortest = samples.loc[samples.groupby(RUN, sort=False)["size"].idxmin()]
    factor = np.median(np.log(shortest.time.to_numpy() / _times(logs.ravel(), count, _groups(shortest))))
    logs[:, [NAMES.index(name) for name in ("start", "enter_network", "hop_inside", "hop_between")]] += factor
    return logs.ravel()


def _model(logs, count) -> Model:
    return Model(tuple(Protocol(*map(float, np.exp(each))) for each in logs.reshape(count, -1)))


def _groups(samples):
    """The samples in groups of one collective: (places, for each algorithm that counts a function of the protocol)."""
    groups = []
    for (collective, forced), places in samples.groupby(["collective", "algorithm"], sort=False).indices.items():
        some = samples.iloc[places]
        both = ("ring", "tree") if collective == "all_reduce" else ("ring",)
        shape = [some[name].to_numpy(dtype=float) for name in ("size", "ranks", "nodes")]
        groups.append((
            places,
            [seconds_of_calls(collective, algorithm, *shape) for algorithm in ((forced,) if forced else both)],
        ))
    return groups


def _times(logs, count, groups) -> np.ndarray:
    """Seconds of every sample, the fastest way counting. logs: (…, count·7); returns (…, samples)."""
    values = np.exp(logs).reshape(*np.shape(logs)[:-1], count, len(NAMES), 1)
    protocols = SimpleNamespace(**dict(zip(NAMES, np.moveaxis(values, -2, 0))))
    times = np.empty((*np.shape(logs)[:-1], sum(len(places) for places, _ in groups)))
    for places, ways in groups:
        times[..., places] = np.min([seconds(protocols).min(axis=-2) for seconds in ways], axis=0)
    return times


def _with_misses(samples, model) -> pd.DataFrame:
    logs = np.log([[getattr(each, name) for name in NAMES] for each in model.protocols])
    predicted = _times(logs.ravel(), len(model.protocols), _groups(samples))
    return samples.assign(predicted=predicted, miss=predicted / samples.time - 1)


def _best_count(samples) -> int:
    """The number of protocols that predicts every second size best from the others; fewer if as good."""
    return fewest({count: np.log1p(held_out(samples, by="size", protocols=count).miss) for count in _BANDWIDTHS})


def _parameters(logs, covariance, doubt, count) -> pd.DataFrame:
    sure = np.sqrt(np.diag(covariance))
    value, factor = np.exp(logs), np.exp(1.645 * sure)
    return pd.DataFrame({
        "protocol": np.repeat(np.arange(count), len(NAMES)),
        "parameter": NAMES * count,
        "value": value,
        "low": value / factor,
        "high": value * factor,
        "unit": UNITS * count,
        "determined": sure < doubt / 2,
    })
