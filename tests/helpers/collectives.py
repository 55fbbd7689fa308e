"""A program that calls every collective, and what each rank then holds."""

import torch


def collectives(dist):
    """The examples of the chapters, every collective of torch.distributed once."""
    rank, size, op = dist.get_rank(), dist.get_world_size(), dist.ReduceOp
    mine = torch.tensor([float(rank)])
    results = {}

    def shards():
        return [torch.zeros(1) for _ in range(size)]

    x = torch.arange(1.0, 6.0) if rank == 0 else torch.zeros(5)
    dist.broadcast(x, src=0)
    results["broadcast"] = x.tolist()
    for name, value in (("sum", op.SUM), ("product", op.PRODUCT), ("max", op.MAX), ("mean", op.AVG)):
        x = mine + 1
        dist.all_reduce(x, op=value)
        results[name] = x.item()
    x = mine.clone()
    dist.reduce(x, dst=2, op=op.SUM)
    results["reduce"] = x.item() if rank == 2 else None
    gathered = shards() if rank == 0 else None
    dist.gather(mine, gathered, dst=0)
    results["gather"] = gathered and torch.cat(gathered).tolist()
    everywhere, joined = shards(), torch.zeros(size)
    dist.all_gather(everywhere, mine)
    dist.all_gather_single(joined, mine)
    assert torch.cat(everywhere).equal(joined)
    results["all_gather"] = joined.tolist()
    x = torch.zeros(1)
    dist.scatter(x, [torch.tensor([10.0 * r]) for r in range(size)] if rank == 1 else None, src=1)
    results["scatter"] = x.item()
    x, y = torch.zeros(1), torch.zeros(1)
    dist.reduce_scatter(x, [mine.clone() for _ in range(size)])
    dist.reduce_scatter_single(y, mine.repeat(size), op=op.AVG)
    results["reduce_scatter"] = x.item(), y.item()
    x, blocks = torch.zeros(size), shards()
    dist.all_to_all_single(x, torch.arange(4.0) + 4 * rank)
    dist.all_to_all(blocks, list((torch.arange(4.0) + 4 * rank).tensor_split(size)))
    assert torch.cat(blocks).equal(x)
    results["all_to_all"] = x.tolist()
    dist.barrier()
    scalar = torch.tensor(float(rank))
    dist.all_reduce(scalar)
    results["scalar"] = scalar.item()
    return results


def expected_of(rank):
    """What `collectives` returns on a rank."""
    return {
        "broadcast": [1, 2, 3, 4, 5],
        "sum": 10,
        "product": 24,
        "max": 4,
        "mean": 2.5,
        "reduce": 6 if rank == 2 else None,
        "gather": [0, 1, 2, 3] if rank == 0 else None,
        "all_gather": [0, 1, 2, 3],
        "scatter": 10 * rank,
        "reduce_scatter": (6, 1.5),
        "all_to_all": [rank, 4 + rank, 8 + rank, 12 + rank],
        "scalar": 6,
    }
