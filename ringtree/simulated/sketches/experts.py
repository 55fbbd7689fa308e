"""A training step with experts: dispatch and combine in both passes; as `ringtree.parallel.experts` does it."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from ringtree.computing import compute
from ringtree.simulated.sketch import Sketch


@dataclass(frozen=True, eq=False)
class Mixture:
    """A layer of experts, shared out over ranks.

    sent: (ranks, experts), how many rows each rank sends to each expert. width: elements of a row. row: seconds that an
    expert computes for a row in the forward pass; backward it takes twice that. count: parameters of one expert.
    """

    name: str
    sent: np.ndarray
    width: int
    row: float = 0.0
    count: int = 0
    dtype: torch.dtype = torch.float32

    @cached_property
    def between(self) -> np.ndarray:
        """(ranks, ranks): how many rows each rank sends to each; on the diagonal those that stay."""
        ranks = len(self.sent)
        return self.sent.reshape(ranks, ranks, -1).sum(2)


def step(layers, dist, group=None, same_experts=None, balanced=False):
    """One step of a rank. layers: from the first, `Layer`s, which every rank has, and `Mixture`s.

    group: the ranks over which experts are shared out; left out, all. same_experts: those that have the same ones as this
    rank; left out, nobody else. balanced: whether counts are added up for the balance loss.
    """
    mixtures = [each for each in layers if isinstance(each, Mixture)]
    for layer in layers:
        if layer in mixtures:
            to_experts_and_back(layer, dist, group)
        else:
            compute(layer.forward, layer.name)
    if balanced:
        dist.all_reduce(Sketch(sum(each.sent.shape[1] for each in mixtures), torch.int64))
    for layer in reversed(layers):
        if layer in mixtures:
            to_experts_and_back(layer, dist, group, backward=True)
        else:
            compute(layer.backward, layer.name)
    dist.all_reduce(Sketch(sum(sum(each.counts) for each in layers if each not in mixtures), layers[0].dtype))
    if same_experts is not None:
        here = sum(each.count * each.sent.shape[1] // len(each.sent) for each in mixtures)
        dist.all_reduce(Sketch(here, layers[0].dtype), group=same_experts)


def to_experts_and_back(mixture, dist, group=None, backward=False):
    """Dispatch, compute, combine; in the forward pass the counts go first. backward: the same with the rows' gradients."""
    rank = dist.get_rank(group)
    sends, gets = mixture.between[rank], mixture.between[:, rank]
    if not backward:
        counts = Sketch(mixture.sent.shape[1], torch.int64)
        dist.all_to_all_single(counts.clone(), counts, group=group)
    _exchange(mixture, gets, sends, dist, group)
    compute(int(gets.sum()) * mixture.row * (2 if backward else 1), mixture.name)
    _exchange(mixture, sends, gets, dist, group)


def _exchange(mixture, gets, sends, dist, group):
    gets, sends = ((rows * mixture.width).tolist() for rows in (gets, sends))
    arrived, rows = (Sketch(sum(each), mixture.dtype) for each in (gets, sends))
    dist.all_to_all_single(arrived, rows, gets, sends, group=group)


def routed(ranks, experts, rows, share=None) -> np.ndarray:
    """Return what `Mixture` calls sent: each rank has `rows`, of which `share` goes to expert 0 and the rest evenly to the others.

    share: left out, all get as much.
    """
    share = 1 / experts if share is None else share
    ends = np.concatenate([[0], np.linspace(share * rows, rows, experts)]).round().astype(int)
    return np.tile(np.diff(ends), (ranks, 1))


def capped(sent, factor) -> np.ndarray:
    """Of what ranks send to experts, what is kept where each takes `factor` times an even share of each rank's rows."""
    capacity = np.ceil(factor * sent.sum(1, keepdims=True) / sent.shape[1]).astype(int)
    return np.minimum(sent, capacity)
