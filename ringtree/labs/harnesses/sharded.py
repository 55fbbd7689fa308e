"""Training steps of the lab "Sharded"."""

import torch

from ringtree.labs.exercise import complain
from ringtree.labs.harnesses.data_parallel import forward
from ringtree.labs.harnesses.nets import layers

STEPS, RATE = 3, 0.1


class Adam:
    """Keeps two numbers for each of its own, and treats each by itself; its `tensors` have their gradients in `grad`."""

    def __init__(self, tensors):
        self.tensors = list(tensors)
        self.means, self.squares = ([torch.zeros_like(each) for each in self.tensors] for _ in range(2))

    @torch.no_grad()
    def step(self):
        for tensor, mean, square in zip(self.tensors, self.means, self.squares):
            if tensor.grad is None:
                complain("optimizer.step() was called for a tensor without a gradient: put it into its `grad`")
            mean += 0.5 * (tensor.grad - mean)
            square += 0.2 * (tensor.grad.square() - square)
            # 0.1, not a billionth: where a gradient is nearly 0, an order of adding must not decide
            tensor -= RATE * mean / (square.sqrt() + 0.1)

    @property
    def nbytes(self):
        return sum(each.nbytes for each in self.means + self.squares)


def trained(function, weights, rows, dist):
    """Steps by step = function(parameters, optimizer, dist).

    weights: of the layers, the first in front. rows: (any number, width) of this rank. optimizer: from a list of tensors to
    an optimizer. Returns the weights after each step, by the number of the layer, and as "state" the bytes that the
    optimizers of this rank keep.
    """
    net, made = layers(weights), []
    parameters = list(net.parameters())

    def optimizer(tensors):
        made.append(Adam(tensors))
        return made[-1]

    step = function(list(parameters), optimizer, dist)
    if not callable(step):
        complain(f"it returned {type(step).__name__}: return a function that takes no arguments and makes one step")
    found = {}
    for number in range(1, STEPS + 1):
        forward(net, rows).mean().backward()
        step()
        with torch.no_grad():
            for place, parameter in enumerate(parameters):
                found[f"weight of layer {place} after step {number}"] = parameter.detach().clone()
                if parameter.grad is not None:
                    parameter.grad.zero_()
    return found | {"state": sum(each.nbytes for each in made)}


def trained_alone(weights, rows):
    """Return what `trained` finds on each rank, by one process with all rows."""

    def plain(parameters, optimizer, dist):
        return optimizer(parameters).step

    found = trained(plain, weights, rows, None)
    del found["state"]
    return found
