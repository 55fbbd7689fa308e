"""The norm of all gradients, where ranks have different parts of them, and clipping by it.

Method: as `torch.nn.utils.clip_grad_norm_`, in 32 bits at least. `dist` is torch.distributed, or
anything that speaks like it. Runs on torch 2.1 and later.
"""

import math

import torch


def clip(parts, max_norm, dist):
    """Scale all gradients so that their norm is at most `max_norm`. Returns the norm before, the same on every rank.

    parts: (gradients, groups) each: tensors that are cut over these groups, whose squares are summed
    over each in turn; no groups for what every rank has whole, which counts once; None in their place
    for copies that are counted by another rank, and only scaled here. A gradient that is None is left out. max_norm: math.inf to measure alone. Call it once gradients are final.
    """
    parts = [
        ([each for each in gradients if each is not None], groups) for gradients, groups in parts
    ]
    devices = [each.device for gradients, _ in parts for each in gradients]
    total = torch.zeros((), device=devices[0] if devices else None, dtype=torch.float32)
    for gradients, groups in parts:
        if groups is None:
            continue
        squares = torch.zeros_like(total)
        for each in gradients:
            exact = each if each.dtype == torch.float64 else each.float()
            squares = squares + exact.square().sum()
        for group in groups:
            squares = squares.double() if squares.device.type == "cpu" else squares
            dist.all_reduce(squares, group=group)
        total = total + squares
    norm = total.sqrt()
    if max_norm < math.inf:
        factor = (max_norm / (norm + 1e-6)).clamp(max=1)
        for gradients, _ in parts:
            for each in gradients:
                each.mul_(factor.to(each.dtype))
    return norm
