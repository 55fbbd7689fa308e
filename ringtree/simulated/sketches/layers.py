"""What a sketch of a training step knows of a model: its tensors, and how long each part computes."""

from dataclasses import dataclass

import torch

from ringtree.simulated.sketch import Sketch


@dataclass(frozen=True)
class Layer:
    """A part of a model whose gradients are ready together.

    counts: numbers of elements of its tensors, in the model's order. forward, backward: seconds that it computes.
    """

    name: str
    counts: tuple[int, ...]
    forward: float
    backward: float
    dtype: torch.dtype = torch.float32

    @property
    def sketches(self):
        return [Sketch(count, self.dtype) for count in self.counts]

    @property
    def nbytes(self) -> int:
        return sum(self.counts) * self.dtype.itemsize


def layers_of(model, forward=0.0, backward=0.0) -> list[Layer]:
    """One `Layer` for each tensor of a torch model, in its order: what the calls of a step depend on.

    forward, backward: seconds of the whole pass, shared out by the tensors' sizes.
    """
    counts = {name: parameter.numel() for name, parameter in model.named_parameters()}
    dtype = next(model.parameters()).dtype
    whole = sum(counts.values())
    return [Layer(name, (count,), forward * count / whole, backward * count / whole, dtype) for name, count in counts.items()]


def transformer(layers, width, tokens, rate, vocabulary=50_257, context=1024, dtype=torch.bfloat16) -> list[Layer]:
    """The tensors of `parallel.model.GPT`: an embedding, one `Layer` a block, and a head.

    tokens: that one rank computes on at a time. rate: operations a second of its matrix products, such as
    `theory.PRODUCT_RATE["H100"]`; a rate that whole trainings reach has their messages in it, and a sketch adds its own. A
    parameter takes 2 operations a token forward and 4 backward (Kaplan et al. 2020, without the attention's own part); the
    embedding is a look-up.
    """
    norm, feed_forward = (width, width), (4 * width**2, 4 * width, 4 * width**2, width)
    block = (*norm, 3 * width**2, width**2, *norm, *feed_forward)

    def layer(name, counts, computes=True):
        seconds = 2 * sum(counts) * tokens / rate if computes else 0.0
        return Layer(name, counts, seconds, 2 * seconds, dtype)

    return [
        layer("embedding", (vocabulary * width, context * width), computes=False),
        *(layer(f"block {i}", block) for i in range(layers)),
        layer("head", (*norm, vocabulary * width)),
    ]
