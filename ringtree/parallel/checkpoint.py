"""A checkpoint by hand: what a training needs to go on from a step as if nothing had happened.

For replicas, as in data parallel: rank 0 writes, every rank reads.
"""

import os

import torch


def save(path, step, net, optimizer):
    """Call it on one rank, after `step`. There is always a whole checkpoint at `path`, the old one or the new."""
    held = {"step": step, "net": net.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(held, f"{path}.new")
    # At once: a process that is killed while it writes has not touched the old file.
    os.replace(f"{path}.new", path)


def resume(path, net, optimizer):
    """Take over what is at `path`, on every rank. Returns the step after which it was saved, 0 where there is none."""
    if not os.path.exists(path):
        return 0
    found = torch.load(path, map_location=next(net.parameters()).device, weights_only=True)
    net.load_state_dict(found["net"])
    optimizer.load_state_dict(found["optimizer"])
    return found["step"]
