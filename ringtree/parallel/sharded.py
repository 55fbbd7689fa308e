"""Sharded data parallel: every rank computes on a part of the batch, and keeps a part of what training needs.

Of the optimizer's state (`ZeRO1`), of the gradients too (`ZeRO2`), of the parameters too
(`ZeRO3`). Method: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion
Parameter Models", 2020.

All ranks begin with the same weights. `units` are lists of modules, in the order of their use;
every parameter belongs to one. `optimizer` is a function from parameters to an optimizer
that treats each number alone, as Adam does: shards know no shapes. `dist` is
torch.distributed, or anything that speaks like it.
"""

from functools import partial

import torch


class Flat:
    """Parameters one after another in a vector, padded so that `size` ranks share it evenly.

    whole: the vector, of which the parameters become views. shard: part `rank` of it.
    """

    def __init__(self, parameters, rank, size):
        self.parameters = list(parameters)
        self.lengths = [each.numel() for each in self.parameters]
        padded = -(-sum(self.lengths) // size) * size
        self.whole = self.parameters[0].detach().new_zeros(padded)
        for parameter, place in zip(self.parameters, self.places(self.whole)):
            parameter.data = place.copy_(parameter.detach())
        self.shard = torch.nn.Parameter(self.whole.chunk(size)[rank])

    def places(self, vector):
        """The view of such a vector that belongs to each parameter."""
        parts = vector[: sum(self.lengths)].split(self.lengths)
        return [part.view_as(parameter) for part, parameter in zip(parts, self.parameters)]


def flats_of(units, dist, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    return [
        Flat((each for module in unit for each in module.parameters()), rank, size)
        for unit in units
    ]


class ZeRO1:
    """Every rank keeps its shard of the optimizer's state; gradients and parameters are whole.

    sharded = ZeRO1(units, dist, partial(torch.optim.AdamW, lr=3e-3))
    loss.backward()
    sharded.step()          # and the gradients are zero again
    """

    def __init__(self, units, dist, optimizer):
        self.dist, self.flats = dist, flats_of([sum(units, [])], dist)
        (flat,) = self.flats
        self.vector = torch.zeros_like(flat.whole)
        for parameter, place in zip(flat.parameters, flat.places(self.vector)):
            parameter.grad = place
        self.optimizer = optimizer([flat.shard])

    def step(self):
        (flat,) = self.flats
        flat.shard.grad = torch.empty_like(flat.shard)
        self.dist.reduce_scatter_single(flat.shard.grad, self.vector)
        flat.shard.grad /= self.dist.get_world_size()
        self.optimizer.step()
        self.dist.all_gather_single(flat.whole, flat.shard.detach())
        self.vector.zero_()


class ShardedGradients:
    """When the backward pass has all gradients of a unit: reduce-scatter them, keep the shard, drop the rest.

    then: called with the unit's `Flat` at that moment. group: the ranks that share a unit; left
    out, all. replicas: ranks of other groups with the same shard, which average it.
    """

    def __init__(self, flats, dist, group=None, replicas=None, then=None):
        self.dist, self.group, self.replicas, self.then = dist, group, replicas, then
        self.whole = {}  # by unit, the vector of its gradients, and which are missing in it
        self.under_way, self.parts = None, []
        for flat in flats:
            for number, parameter in enumerate(flat.parameters):
                parameter.register_post_accumulate_grad_hook(partial(self._ready, flat, number))

    def _ready(self, flat, number, parameter):
        if flat not in self.whole:
            self.whole[flat] = (
                parameter.new_zeros(len(flat.whole)),
                set(range(len(flat.parameters))),
            )
        vector, missing = self.whole[flat]
        flat.places(vector)[number].copy_(parameter.grad)
        parameter.grad = None
        missing.remove(number)
        if not missing:
            if self.then:
                self.then(flat)
            self._settle()
            part = torch.empty_like(flat.shard)
            work = self.dist.reduce_scatter_single(part, vector, group=self.group, async_op=True)
            self.under_way = flat, part, work

    def _settle(self):
        """Wait for the reduce-scatter under way, so that the gradients of two units are whole at most."""
        if self.under_way:
            flat, part, work = self.under_way
            work.wait()
            self.under_way = None
            del self.whole[flat]
            part /= self.dist.get_world_size()
            together = self.replicas is not None
            work = (
                self.dist.all_reduce(part, group=self.replicas, async_op=True) if together else None
            )
            self.parts.append((flat, part, work))

    def finish(self):
        """After a backward pass: wait for what is under way, and add it to the shards' gradients."""
        self._settle()
        for flat, part, work in self.parts:
            if work:
                work.wait()
            flat.shard.grad = part if flat.shard.grad is None else flat.shard.grad + part
        self.parts = []
        if self.whole:
            raise RuntimeError(
                "a parameter has received no gradient in this backward pass: its unit was never sent"
            )

    def held(self):
        """All tensors that it has at this moment."""
        sent = [*self.parts, self.under_way] if self.under_way else self.parts
        return [vector for vector, _ in self.whole.values()] + [part for _, part, _ in sent]


class ZeRO2:
    """Every rank keeps its shard of the gradients too; parameters are whole."""

    def __init__(self, units, dist, optimizer):
        self.dist, self.flats = dist, flats_of(units, dist)
        self.gradients = ShardedGradients(self.flats, dist)
        self.optimizer = optimizer([flat.shard for flat in self.flats])

    def step(self):
        self.gradients.finish()
        self.optimizer.step()
        self.optimizer.zero_grad()
        for flat in self.flats:
            self.dist.all_gather_single(flat.whole, flat.shard.detach())


class ZeRO3:
    """Every rank keeps its shard of the parameters too: a unit's are gathered before use, and dropped after it.

    ahead: how many units are gathered beyond the one that computes. reshard: whether the forward
    pass drops parameters, so that the backward pass gathers them again. group, replicas: as in
    `ShardedGradients`.
    """

    def __init__(self, units, dist, optimizer, ahead=1, reshard=True, group=None, replicas=None):
        self.dist, self.ahead, self.reshard, self.group = dist, ahead, reshard, group
        self.flats = flats_of(units, dist, group)
        self.gathers = {}  # by unit: the work that brings its parameters; None once they are here
        for place, (unit, flat) in enumerate(zip(units, self.flats)):
            flat.shard.data = flat.shard.detach().clone()
            self._drop(flat)
            for module in unit:
                module.register_forward_pre_hook(partial(self._use, place, 1))
                module.register_forward_hook(partial(self._used, place, module is unit[-1]))
        self.gradients = ShardedGradients(self.flats, dist, group, replicas, then=self._drop)
        self.optimizer = optimizer([flat.shard for flat in self.flats])

    def _use(self, place, direction, *_):
        """Before a unit computes: have its parameters, and begin to gather those ahead."""
        for flat in self.flats[place::direction][: 1 + self.ahead]:
            if flat not in self.gathers:
                flat.whole.untyped_storage().resize_(flat.whole.nbytes)
                self.gathers[flat] = self.dist.all_gather_single(
                    flat.whole, flat.shard.detach(), group=self.group, async_op=True
                )
        flat = self.flats[place]
        work, self.gathers[flat] = self.gathers[flat], None
        if work:
            work.wait()

    def _used(self, place, last, module, inputs, output):
        """After the forward pass of a unit's module; the backward pass comes by the module's output."""
        if self.reshard and last:
            self._drop(self.flats[place])
        if output.requires_grad:
            output.register_hook(partial(self._use, place, -1))

    def _drop(self, flat):
        self.gathers.pop(flat, None)
        flat.whole.untyped_storage().resize_(0)

    def step(self):
        self.gradients.finish()
        self.optimizer.step()
        self.optimizer.zero_grad()
        # What a forward pass without a backward pass has left is old now.
        for flat in [*self.gathers]:
            self._drop(flat)
