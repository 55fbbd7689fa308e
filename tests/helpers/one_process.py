"""Training in one process, on whole batches, and what the ways to split it over ranks are held against it with."""

import torch

from ringtree.command.parallel import Settings
from ringtree.command.parallel import train as train_by
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


def losses_of_the_script(dist, technique, steps):
    """What a rank of `python -m ringtree.parallel` has as losses, without the launcher."""
    return [*train_by(Settings(technique, steps), torch.device("cpu"))]
