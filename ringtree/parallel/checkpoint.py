"""A checkpoint by hand: what a training needs to go on from a step as if nothing had happened.

For replicas, as in data parallel: one rank of each disk writes, every rank reads. Two checkpoints are
kept, so that ranks whose disks differ by one still have a step in common. `dist` is
torch.distributed, or anything that speaks like it. Runs on torch 2.1 and later.
"""

import os

import torch


def save(path, step, net, optimizer, **others):
    """Write the checkpoint of `step`, and keep the one before. Call it on one rank of each disk.

    others: what else goes on, such as a schedule: anything with `state_dict` and `load_state_dict`.
    Weights, optimizer, random state and these are in it; the position in the data is the step. A
    process that is killed in here, at whichever line, leaves a whole checkpoint. Where a machine
    loses its power, what was synced is on the disk as far as the disk itself tells the truth.
    """
    held = {
        "step": step,
        "net": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "random": random_state(),
    }
    held["others"] = {name: each.state_dict() for name, each in others.items()}
    with open(f"{path}.new", "wb") as file:
        torch.save(held, file)
        file.flush()
        os.fsync(file.fileno())
    if os.path.exists(path):
        os.replace(path, f"{path}.before")
    os.replace(f"{path}.new", path)
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def resume(path, net, optimizer, dist=None, **others):
    """Take over the newest checkpoint that all ranks have at `path`. Call it on every rank; `dist` left out: one process.

    Returns the step after which it was saved, 0 where no rank has any. Raises RuntimeError where
    some have checkpoints, but no step is common to all.
    """
    found = whole_ones(path)
    step = max(found, default=0) if dist is None else agreed(found, net, dist)
    if step:
        held = found[step]
        net.load_state_dict(held["net"])
        optimizer.load_state_dict(held["optimizer"])
        set_random_state(held["random"])
        for name, each in others.items():
            each.load_state_dict(held["others"][name])
    return step


def whole_ones(path):
    """{step: what is held} of all whole checkpoints here; what a kill has left half written is passed over."""
    found = {}
    for name in path, f"{path}.before", f"{path}.new":
        try:
            held = torch.load(name, map_location="cpu", weights_only=True)
            found[held["step"]] = held
        except (OSError, RuntimeError, EOFError, ValueError, KeyError):
            continue
    return found


def agreed(found, net, dist):
    """The newest step that every rank has found."""
    mine = torch.zeros(3, dtype=torch.long, device=next(net.parameters()).device)
    mine[: len(found)] = torch.tensor(sorted(found), device=mine.device)
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, mine)
    steps = [{step for step in each.tolist() if step} for each in everyones]
    common = set.intersection(*steps)
    if not common and any(steps):
        have = "; ".join(
            f"rank {rank}: {sorted(each) or 'none'}" for rank, each in enumerate(steps)
        )
        raise RuntimeError(
            f"no checkpoint is on all ranks ({have}): copy one to all of them, or remove all to begin anew"
        )
    return max(common, default=0)


def random_state():
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def set_random_state(state):
    torch.set_rng_state(state["cpu"])
    for device, each in enumerate(state["cuda"]):
        torch.cuda.set_rng_state(each, device)
