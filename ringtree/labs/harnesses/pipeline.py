"""A training step of the lab "Pipeline"."""

import torch

from ringtree.labs.exercise import complain
from ringtree.labs.harnesses.nets import lasting, layers


def step(function, weight, rows, wanted, count, forward, backward, dist):
    """One step by loss = function(stage, count, inputs, loss_of, like, dist): each rank is a stage of one layer.

    weight: of this rank's layer, (width, width). rows, wanted: (a multiple of count, width), what goes into the first stage
    and what should come out of the last. count: of micro-batches. forward, backward: seconds of the stage for one of them.
    Returns the gradient of the weight, and on the last rank the loss.
    """
    net = layers([weight])
    lasting(net[0], forward, backward)
    first, last = dist.get_rank() == 0, dist.get_rank() == dist.get_world_size() - 1
    inputs = [part.clone().requires_grad_() for part in rows.chunk(count)] if first else []
    should = wanted.chunk(count)

    def loss_of(output, i):
        return (output - should[i]).square().mean()

    loss = function(lambda x: net(x).tanh(), count, inputs, loss_of, torch.empty_like(rows.chunk(count)[0]), dist)
    found = {"gradient": torch.zeros_like(weight) if net[0].weight.grad is None else net[0].weight.grad}
    if last:
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            complain(f"it returned {type(loss).__name__} on the last rank: return the loss, a tensor with one number")
        found["loss"] = loss.detach().reshape(())
    return found


def step_alone(given):
    """Return what `step` finds, by rank: one process that has all layers, with the whole batch."""
    net = layers([weight for weight, *_ in given])
    _, rows, wanted, *_ = given[0]
    x = rows
    for layer in net:
        x = layer(x).tanh()
    loss = (x - wanted).square().mean()
    loss.backward()
    found = [{"gradient": layer.weight.grad} for layer in net]
    found[-1]["loss"] = loss.detach()
    return found
