"""A feed-forward on ranks that share its matrices, and a loss on ranks that share its symbols; of the lab "Tensor parallel"."""

import torch
from torch.nn import functional as F

from ringtree.labs.harnesses.returned import differentiable

NAMES = "x", "the scale", "the shift", "up", "the bias of up", "down", "the bias of down"
PLAIN = NAMES[:1] + NAMES[3:]


def whole(function, x, up, up_bias, down, bias, ends, dist):
    """y = function(x, up, up_bias, down, bias, dist), and the gradients of (y · ends).sum().

    x, ends: (positions, width); bias: (width,): the same on all ranks. up: (hidden / p, width), up_bias: (hidden / p,),
    down: (width, hidden / p): this rank's.
    """
    return _there_and_back(function, PLAIN, (x, up, up_bias, down, bias), ends, dist)


def by_positions(function, x, scale, shift, up, up_bias, down, bias, ends, dist):
    """The same of a layer norm and a feed-forward, function(x, scale, shift, up, up_bias, down, bias, dist).

    x, ends: (positions / p, width): this rank's. scale, shift: (width,): the same on all ranks.
    """
    return _there_and_back(function, NAMES, (x, scale, shift, up, up_bias, down, bias), ends, dist)


def _there_and_back(function, names, given, ends, dist):
    leaves = [each.clone().requires_grad_() for each in given]
    y = differentiable(function(*(1 * each for each in leaves), dist), ends.shape)
    (y * ends).sum().backward()
    return {"result": y.detach()} | {
        f"gradient of {name}": torch.zeros_like(each) if each.grad is None else each.grad for name, each in zip(names, leaves)
    }


def alone(given):
    """Return what `whole` finds, by rank: one process that has the whole matrices."""
    x, *_, bias, ends = given[0]
    return _alone([entry[1:4] for entry in given], x, (), bias, ends)


def positions_alone(given):
    """Return what `by_positions` finds, by rank."""
    _, scale, shift, *_, bias, _ = given[0]
    x, ends = (torch.cat([entry[place] for entry in given]) for place in (0, -1))
    found = _alone([entry[3:6] for entry in given], x, (scale, shift), bias, ends)
    for rank, mine in enumerate(found):
        mine.update({name: mine[name].chunk(len(given))[rank] for name in ("result", "gradient of x")})
    return found


def _alone(shares, x, norm, bias, ends):
    """shares: by rank, of up, its bias and down. norm: scale and shift, where there is one."""
    leaves = {"x": x, **dict(zip(NAMES[1:3], norm)), "the bias of down": bias}
    leaves = {name: each.clone().requires_grad_() for name, each in leaves.items()}
    shares = [[each.clone().requires_grad_() for each in share] for share in shares]
    up, up_bias, down = (torch.cat(parts, axis) for parts, axis in zip(zip(*shares), (0, 0, 1)))
    rest = F.layer_norm(leaves["x"], x.shape[1:], *list(leaves.values())[1:3]) if norm else leaves["x"]
    y = F.linear(F.gelu(F.linear(rest, up, up_bias)), down, leaves["the bias of down"])
    (y * ends).sum().backward()
    return [
        {"result": y.detach()} | {f"gradient of {name}": each.grad for name, each in [*leaves.items(), *zip(NAMES[3:6], share)]}
        for share in shares
    ]


def scored(function, scores, first, targets, dist):
    """loss = function(scores, first, targets, dist), and the gradient of the scores.

    scores: (tokens, symbols of this rank), of the symbols from `first` on. targets: (tokens,).
    """
    leaf = scores.clone().requires_grad_()
    loss = differentiable(function(1 * leaf, first, targets, dist), ())
    loss.backward()
    return {"loss": loss.detach(), "gradient of the scores": leaf.grad}


def scored_alone(given):
    """Return what `scored` finds, by rank."""
    leaves = [scores.clone().requires_grad_() for scores, *_ in given]
    loss = F.cross_entropy(torch.cat(leaves, 1), given[0][2])
    loss.backward()
    return [{"loss": loss.detach(), "gradient of the scores": each.grad} for each in leaves]
