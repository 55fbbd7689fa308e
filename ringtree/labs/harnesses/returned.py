"""What a learner's function has returned: a tensor of the right shape, through which gradients flow."""

import torch

from ringtree.labs.exercise import complain


def differentiable(answer, shape):
    """The answer; raises CheckFailed where it is another. shape: its sizes, a word for one that may be any."""
    if not isinstance(answer, torch.Tensor):
        complain(f"it returned {type(answer).__name__}: return a tensor")
    fits = [isinstance(size, str) or size == found for size, found in zip(shape, answer.shape)]
    if answer.dim() != len(shape) or not all(fits):
        text = "(" + ", ".join(str(size) for size in shape) + (",)" if len(shape) == 1 else ")")
        complain(f"it returned a tensor of shape {tuple(answer.shape)}: return one of shape {text}")
    if not answer.requires_grad:
        complain("no gradient flows from what it returned to what it was given")
    return answer
