"""ZeRO-1: the optimizer's state is sharded; gradients and parameters are whole on every rank."""

import torch

from .flat import flats_of


class ZeRO1:
    """Every rank keeps its shard of the optimizer's state; gradients and parameters are whole.

    sharded = ZeRO1(units, dist, partial(torch.optim.AdamW, lr=3e-3))
    loss.backward()         # as often as you like
    sharded.step()          # and the gradients are zero again
    """

    def __init__(self, units, dist, optimizer, group=None):
        self.dist, self.group, self.final = dist, group, False
        self.flats = flats_of([sum(units, [])], dist, group)
        (flat,) = self.flats
        self.vector = torch.zeros_like(flat.whole)
        for parameter, place in zip(flat.parameters, flat.places(self.vector)):
            parameter.grad = place
            parameter.register_post_accumulate_grad_hook(self._more)
        self.optimizer = optimizer(flat.pieces)

    def _more(self, parameter):
        self.final = False

    def finish(self):
        """After the last backward pass of a step: the shard's gradient is final, to be clipped for example."""
        (flat,) = self.flats
        flat.check()
        for parameter, place in zip(flat.parameters, flat.places(self.vector)):
            if parameter.grad is None:  # forgotten by zero_grad(), and not used since
                place.zero_()
            elif parameter.grad.data_ptr() != place.data_ptr():  # forgotten, and made anew
                place.copy_(parameter.grad)
            parameter.grad = place
        part = torch.empty_like(flat.shard)
        self.dist.reduce_scatter_single(part, self.vector, group=self.group)
        flat.take(part.div_(self.dist.get_world_size(self.group)))
        self.vector.zero_()
        self.final = True

    def step(self):
        """Step with the shard, after `finish` where nobody called it; then every rank has all parameters."""
        (flat,) = self.flats
        if not self.final:
            self.finish()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.dist.all_gather_single(flat.whole, flat.shard, group=self.group)
        self.final = False
