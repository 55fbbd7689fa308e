"""Barrier: no rank leaves before every rank has come.

The function is a whole rank program. `dist` is `torch.distributed`, or anything that speaks like
it.
"""

import torch


def dissemination_barrier(token, dist):
    """In each round a rank hears from 1, 2, 4, … ranks to its left that so many have come.

    token: any small tensor on the rank's device; what it holds does not matter.
    Cost: ⌈lg p⌉(α + nβ), where n is the bytes of the token. Source: Hensgen, Finkel, Manber 1988.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    heard = torch.empty_like(token)
    distance = 1
    while distance < size:
        for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, token, (rank + distance) % size),
            dist.P2POp(dist.irecv, heard, (rank - distance) % size),
        ]):
            work.wait()
        distance *= 2
