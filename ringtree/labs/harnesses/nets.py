"""Small models of plain tensors, which compute for a stated time."""

from functools import partial

from torch import nn

from ringtree.computing import compute


def layers(weights):
    """Linear layers without bias, one behind the other, each with its own copy of a weight (outputs, inputs)."""
    net = nn.Sequential()
    for weight in weights:
        layer = nn.Linear(*weight.T.shape, bias=False, device="meta", dtype=weight.dtype)
        layer.weight = nn.Parameter(weight.detach().clone())
        net.append(layer)
    return net


def lasting(module, forward=0.0, backward=0.0):
    """From now on each pass of this module lasts so many seconds (`ringtree.compute`). Returns the module.

    The time of the backward pass comes before the gradients of its parameters are there.
    """
    if forward:
        module.register_forward_pre_hook(lambda *_: compute(forward, "forward"))
    if backward:
        module.register_forward_hook(partial(_before_its_backward, backward))
    return module


def _before_its_backward(seconds, module, inputs, output):
    # a hook of the output: torch warns of a module's own backward hook where no input has a gradient
    if output.requires_grad:
        output.register_hook(lambda _: compute(seconds, "backward"))
