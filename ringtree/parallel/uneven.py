"""Data parallel where a step may leave a rank without rows: one way hangs, the other does not.

`dist` is torch.distributed, or anything that speaks like it. `parts` are this rank's rows, step by step;
`average()` makes every gradient the mean over ranks, as those of `data_parallel` do. A step is plain
gradient descent, with a rate that falls from step to step.
"""

import torch


def skipping(net, parts, loss_of, average, dist):
    """A rank without rows skips the step. Yields the losses of this rank's own rows.

    It hangs: `average` calls all-reduces, which nobody may leave out.
    """
    for step, rows in enumerate(parts, 1):
        if len(rows) == 0:
            continue
        loss = loss_of(net, rows)
        loss.backward()
        average()
        descend(net, 0.2 / step)
        yield loss.item()
    dist.barrier()


def together(net, parts, loss_of, average, dist):
    """A rank without rows brings gradients of zero. Yields losses whose mean over ranks is that of all rows.

    Each rank's part weighs as many rows as it has, so that the step is that of one process.
    """
    for step, rows in enumerate(parts, 1):
        everywhere = torch.tensor([float(len(rows))], device=next(net.parameters()).device)
        dist.all_reduce(everywhere)
        for parameter in net.parameters():
            parameter.grad = torch.zeros_like(parameter)
        loss = torch.zeros(())
        if len(rows):
            loss = loss_of(net, rows) * (len(rows) * dist.get_world_size() / everywhere.item())
            loss.backward()
        average()
        descend(net, 0.2 / step)
        yield loss.item()
    dist.barrier()


def descend(net, rate):
    """A step against the gradients, which are forgotten."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= rate * parameter.grad
            parameter.grad = None
