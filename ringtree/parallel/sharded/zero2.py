"""ZeRO-2: a unit's gradients are reduced and dropped as soon as the backward pass has them all."""

from collections import Counter
from functools import partial

import torch

from .flat import flats_of


class ShardedGradients:
    """When the backward pass has all gradients of a unit: reduce-scatter them, keep the shard, drop the rest.

    Units are sent in one order on every rank, the last first, once a backward pass; `finish` sends
    what is left. then: called with the unit's `Flat` before it is sent. replicas: ranks of other
    groups with the same shard, which average it.
    """

    def __init__(self, flats, dist, group=None, replicas=None, then=None):
        self.dist, self.group, self.replicas, self.then = dist, group, replicas, then
        self.order = [flat for flat in reversed(flats) if flat]
        self.copies = dist.get_world_size(group)
        self.copies *= dist.get_world_size(replicas) if replicas is not None else 1
        self.whole = {}  # by unit: the vector of its gradients, and the parameters that are in it
        self.seen, self.passes, self.sent = Counter(), 0, 0
        self.final = (
            False  # whether all gradients since the last step are in the shards, of all ranks
        )
        self.under_way, self.averaging = None, None
        for flat in self.order:
            for number, parameter in enumerate(flat.parameters):
                parameter.register_post_accumulate_grad_hook(partial(self._ready, flat, number))

    def _ready(self, flat, number, parameter):
        self.final = False
        vector, there = self._vector(flat)
        flat.places(vector)[number].add_(parameter.grad)
        parameter.grad = None
        there.add(number)
        self.seen[parameter] += 1
        while self.sent < self._due() and self._full(self._next()):
            self._send()

    def _vector(self, flat):
        if flat not in self.whole:
            self.whole[flat] = flat.shard.new_zeros(flat.size * len(flat.shard)), set()
        return self.whole[flat]

    def _full(self, flat):
        return flat in self.whole and len(self.whole[flat][1]) == len(flat.parameters)

    def _due(self):
        """How many units are to be sent: all, for each backward pass so far."""
        return len(self.order) * max(self.passes, *self.seen.values(), 1)

    def _next(self):
        return self.order[self.sent % len(self.order)]

    def _send(self):
        flat = self._next()
        vector, _ = self._vector(flat)
        if self.then:
            self.then(flat)
        self._settle()
        part = torch.empty_like(flat.shard)
        work = self.dist.reduce_scatter_single(part, vector, group=self.group, async_op=True)
        self.under_way = flat, vector, part, work
        del self.whole[flat]  # what comes now is of the next backward pass
        self.sent += 1

    def before(self, flat):
        """Where the backward pass comes to this unit: send all behind it, full or not, before anything else is called."""
        while self.order.index(flat) > self.sent % len(self.order) and self.sent < self._due():
            self._send()

    def _settle(self):
        """Wait for the reduce-scatter under way, so that the gradients of two units are whole at most."""
        if self.under_way:
            flat, _, part, work = self.under_way
            work.wait()
            self.under_way = None
            part /= self.copies
            self._average()
            work = None
            if self.replicas is not None:
                work = self.dist.all_reduce(part, group=self.replicas, async_op=True)
            self.averaging = flat, part, work

    def _average(self):
        """Wait for the replicas' all-reduce under way, and add it to its shard's gradient."""
        if self.averaging:
            flat, part, work = self.averaging
            if work:
                work.wait()
            flat.take(part)
            self.averaging = None

    def finish(self):
        """After the last backward pass of a step: send what is left; the shards' gradients are final."""
        for flat in self.order:
            flat.check()
        while self.sent < self._due():
            self._send()
        self._settle()
        self._average()
        for flat, (_, there) in self.whole.items():
            raise RuntimeError(
                f"{flat.names[min(there)]} received a gradient after its unit was sent: "
                "list the units in the order in which the forward pass uses them"
            )
        self.seen, self.passes, self.sent, self.final = Counter(), 0, 0, True

    def held(self):
        """All gradients that it has at this moment."""
        vectors = [vector for vector, _ in self.whole.values()]
        moving = [*(self.under_way or ())[1:3], *(self.averaging or ())[1:2]]
        return vectors + moving + [piece.grad for flat in self.order for piece in flat.pieces]


class ZeRO2:
    """Every rank keeps its shard of the gradients too; parameters are whole.

    group, replicas: as in `ShardedGradients`.
    """

    def __init__(self, units, dist, optimizer, group=None, replicas=None):
        self.dist, self.group = dist, group
        self.flats = [flat for flat in flats_of(units, dist, group) if flat]
        self.gradients = ShardedGradients(self.flats, dist, group, replicas)
        self.optimizer = optimizer([piece for flat in self.flats for piece in flat.pieces])

    def finish(self):
        """After the last backward pass of a step: the shards' gradients are final, to be clipped for example."""
        self.gradients.finish()

    def step(self):
        """Step with the shards, after `finish` where nobody called it; then every rank has all parameters."""
        if not self.gradients.final:
            self.finish()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.gradients.final = False
        for flat in self.flats:
            self.dist.all_gather_single(flat.whole, flat.shard, group=self.group)
