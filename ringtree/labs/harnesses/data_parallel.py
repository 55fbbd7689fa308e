"""Training steps of the lab "Data parallel"."""

import torch

from ringtree.labs.exercise import complain
from ringtree.labs.harnesses.nets import lasting, layers

STEPS, RATE = 2, 0.1


def forward(net, rows, turned=False, pairs=False):
    """The loss of each row. pairs: two layers at a time stand side by side; turned: the second of them is computed first."""
    x = rows
    for first in range(0, len(net), 2 if pairs else 1):
        beside = list(enumerate(net[first : first + 2 if pairs else first + 1], 1))
        x = sum(weight * layer(x) for weight, layer in (reversed(beside) if turned else beside)).tanh()
    return x.square().sum(1)


def own_gradients(weights, rows, parts, turned, pairs):
    """The gradients that a rank has by itself after the backward passes of the first step, by the number of the layer."""
    net = layers(weights)
    for part in rows.chunk(parts):
        (forward(net, part, turned, pairs).mean() / parts).backward()
    return [parameter.grad for parameter in net.parameters()]


def overlapped(function, weights, rows, parts, nbytes, seconds, pairs, dist):
    """Two steps by averaging = function(parameters, nbytes, parts, dist), which returns what ends it.

    weights: of the layers, the first in front. rows: (a number that `parts` divides, width) of this rank. parts: backward
    passes of a step. seconds: of the backward pass of a layer. pairs: whether two layers at a time stand side by side; then
    odd ranks compute the second one first. Returns the gradients of each step, by the number of the layer.
    """
    net = layers(weights)
    for layer in net:
        lasting(layer, backward=seconds)
    parameters, found = list(net.parameters()), {}
    finish = function(list(parameters), nbytes, parts, dist)
    if not callable(finish):
        complain(f"it returned {type(finish).__name__}: return a function without arguments, the one that waits")
    for step in range(1, STEPS + 1):
        for part in rows.chunk(parts):
            (forward(net, part, dist.get_rank() % 2 == 1, pairs).mean() / parts).backward()
        finish()
        for number, parameter in enumerate(parameters):
            if parameter.grad is None:
                complain(f"the parameter of layer {number} has no gradient any more after step {step}")
            found[f"gradient of layer {number} in step {step}"] = parameter.grad.clone()
        with torch.no_grad():
            for parameter in parameters:
                parameter -= RATE * parameter.grad
                parameter.grad.zero_()
    return found


def trained_alone(weights, rows, pairs):
    """Return what `overlapped` finds on each rank, by one process with all rows."""
    net, found = layers(weights), {}
    for step in range(1, STEPS + 1):
        gradients = torch.autograd.grad(forward(net, rows, pairs=pairs).mean(), list(net.parameters()))
        with torch.no_grad():
            for number, (parameter, gradient) in enumerate(zip(net.parameters(), gradients)):
                found[f"gradient of layer {number} in step {step}"] = gradient
                parameter -= RATE * gradient
    return found


def weighted(function, weight, rows, dist):
    """One backward pass of loss = function(losses, dist), and the means of the ranks' gradients and losses.

    weight: of one layer. rows: (any number, width) of this rank; losses: one a row.
    """
    net = layers([weight])
    loss = function(forward(net, rows), dist)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        complain(f"it returned {type(loss).__name__}: return the loss, a tensor with one number")
    if not loss.requires_grad:
        complain(
            "no gradient flows from what it returned to the losses: compute it from `losses`, not from numbers read from it"
        )
    loss.backward()
    mean = loss.detach().to(weight.dtype, copy=True).reshape(())
    gradient = torch.zeros_like(weight) if net[0].weight.grad is None else net[0].weight.grad
    for each in gradient, mean:
        dist.all_reduce(each)
        each /= dist.get_world_size()
    return {"gradient": gradient, "loss": mean}
