"""Training in one process, on whole batches: what every way to split it over ranks is held against."""

import torch

from ringtree.parallel import model as M


def train(net, batches, loss_of=M.loss_of):
    """The loss of each step; loss_of(net, rows)."""
    optimizer, losses = torch.optim.AdamW(net.parameters(), lr=3e-3), []
    for rows in batches:
        optimizer.zero_grad()
        loss = loss_of(net, rows)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
