"""ZeRO-3: parameters are sharded too; a unit's are gathered before it computes, and dropped after it."""

from contextlib import contextmanager
from functools import partial

import torch

from .flat import flats_of
from .zero2 import ShardedGradients


class ZeRO3:
    """Every rank keeps its shard of the parameters too: a unit's are gathered before use, and dropped after it.

    ahead: how many units are gathered beyond the one that computes. reshard: whether the forward
    pass drops parameters, so that the backward pass gathers them again. group, replicas: as in
    `ShardedGradients`. Every unit is used in each step, on every rank, in the same order.
    """

    def __init__(self, units, dist, optimizer, ahead=1, reshard=True, group=None, replicas=None):
        self.dist, self.ahead, self.reshard, self.group = dist, ahead, reshard, group
        pairs = [pair for pair in zip(units, flats_of(units, dist, group)) if pair[1]]
        self.flats = [flat for _, flat in pairs]
        self.gathers = {}  # by unit: the work that brings its parameters; None once they are here
        self.used, self.forward, self.back, self.opened = set(), set(), set(), False
        self.at = None  # the unit whose modules were used last
        for place, (unit, flat) in enumerate(pairs):
            flat.keep(flat.shard.detach().clone())
            self._drop(flat)
            for module in unit:
                module.register_forward_pre_hook(partial(self._use, place, 1))
                module.register_forward_hook(partial(self._used, place, module is unit[-1]))
                module.register_state_dict_pre_hook(self._must_be_open)
                module.register_load_state_dict_pre_hook(self._must_be_open)
        self.gradients = ShardedGradients(self.flats, dist, group, replicas, then=self._drop)
        self.optimizer = optimizer([piece for flat in self.flats for piece in flat.pieces])

    def _use(self, place, direction, *_):
        """Before a unit computes: have its parameters, and begin to gather those ahead."""
        if torch.is_grad_enabled():
            self.used.add(place)
        if direction == -1:
            self._comes_back_to(place)
        elif not in_backward():
            self.back = set()
            self._comes_to(place)
        # Activations that are computed again, in the backward pass, come from behind: nothing lies ahead of them.
        ahead = 0 if direction == 1 and in_backward() else self.ahead
        for flat in self.flats[place::direction][: 1 + ahead]:
            self._gather(flat)
        self._wait(self.flats[place])

    def _comes_to(self, place):
        """Gathers are in one order on all ranks only if none leaves out a unit."""
        if len(self.forward) == len(self.flats) and place != self.at:
            self.forward = set()  # the pass before is complete
        for skipped in range(place):
            if skipped not in self.forward:
                raise RuntimeError(self.left_out(skipped))
        self.forward.add(place)
        self.at = place

    def left_out(self, place):
        return (
            f"{self.flats[place].names[0]} and its unit were left out of a forward pass on this rank: its gathers "
            "would meet other ranks' of other units, so use every unit in each pass, in the order of the list"
        )

    def _comes_back_to(self, place):
        """Gathers and reduce-scatters keep one order on all ranks, also where a parameter has no gradient on one."""
        if not self.back:
            self.gradients.passes += 1
        self.back.add(place)
        if self.back.issuperset(range(place + 1, len(self.flats))):
            self.gradients.before(self.flats[place])

    def _used(self, place, last, module, inputs, output):
        """After the forward pass of a unit's module; the backward pass comes by the module's outputs."""
        if not in_backward():
            if self.reshard and last:
                self._drop(self.flats[place])
            for tensor in tensors_of(output):
                if tensor.requires_grad:
                    tensor.register_hook(partial(self._use, place, -1))

    def _gather(self, flat):
        if flat not in self.gathers:
            flat.whole.untyped_storage().resize_(flat.whole.nbytes)
            self.gathers[flat] = self.dist.all_gather_single(
                flat.whole, flat.shard, group=self.group, async_op=True
            )

    def _wait(self, flat):
        work, self.gathers[flat] = self.gathers[flat], None
        if work:
            work.wait()

    def _drop(self, flat):
        if flat in self.gathers:
            self._wait(flat)  # memory that is still written to must not be given back
            del self.gathers[flat]
        flat.whole.untyped_storage().resize_(0)

    def finish(self):
        """After the last backward pass of a step: the shards' gradients are final, to be clipped for example."""
        for place in range(len(self.flats)):
            if place not in self.used:
                raise RuntimeError(self.left_out(place))
        self.gradients.finish()

    def step(self):
        """Step with the shards, after `finish` where nobody called it."""
        if not self.gradients.final:
            self.finish()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.used, self.gradients.final = set(), False
        # What a forward pass without a backward pass has left is old now.
        for flat in [*self.gathers]:
            self._drop(flat)

    @contextmanager
    def whole(self):
        """Within it parameters are whole on every rank, to save, load or change; afterwards shards are as they are then."""
        for flat in self.flats:
            self._gather(flat)
            self._wait(flat)
        self.opened = True
        try:
            yield
        finally:
            self.opened = False
            for flat in self.flats:
                flat.shard.copy_(flat.whole.chunk(flat.size)[flat.rank])
                self._drop(flat)

    def _must_be_open(self, module, *_):
        if not self.opened:
            raise RuntimeError(
                f"the parameters of this {type(module).__name__} are sharded by ZeRO-3, and not here: "
                "save and load on every rank within `with sharded.whole():`"
            )


def in_backward():
    """Whether a backward pass runs now, as for activations that are computed again."""
    return torch._C._current_graph_task_id() != -1


def tensors_of(output):
    """All tensors in what a module returned: one, or any tuple, list or dict of them."""
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, dict):
        output = output.values()
    elif not isinstance(output, (tuple, list)):
        return []
    return [tensor for each in output for tensor in tensors_of(each)]
