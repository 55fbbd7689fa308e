"""Sharded data-parallel steps: what `ringtree.parallel.sharded` gathers and reduces, and when; the optimizer takes no time.

Each `Layer` is a unit: its parameters are gathered together, and its gradients reduced together.
"""

from ringtree.computing import compute
from ringtree.simulated.sketch import Sketch
from ringtree.simulated.sketches.layers import Layer


def layers_of(units) -> list[Layer]:
    """A `Layer` for each unit, a list of torch modules; they compute in no time."""
    parameters = [[each for module in unit for each in module.parameters()] for unit in units]
    return [
        Layer(f"unit {number}", tuple(each.numel() for each in unit), 0.0, 0.0, unit[0].dtype)
        for number, unit in enumerate(parameters)
    ]


def zero1(layers, dist):
    """The optimizer's state is sharded: one reduce-scatter and one all-gather, after the backward pass."""
    for layer in layers:
        compute(layer.forward, layer.name)
    for layer in reversed(layers):
        compute(layer.backward, layer.name)
    whole, shard = _whole_and_shard(layers, dist)
    dist.reduce_scatter_single(shard, whole)
    dist.all_gather_single(whole, shard)


def zero2(layers, dist):
    """Gradients too: a unit's are reduced when they are ready; parameters are gathered after the step."""
    for layer in layers:
        compute(layer.forward, layer.name)
    gradients = _Gradients(dist)
    for layer in reversed(layers):
        compute(layer.backward, layer.name)
        gradients.ready(layer)
    gradients.finish()
    for layer in layers:
        dist.all_gather_single(*_whole_and_shard([layer], dist))


def zero3(layers, dist, ahead=1, reshard=True, shards=None):
    """Parameters too: gathered before use, forward and backward.

    ahead, reshard: as in the hand form. shards: how many ranks share a unit, those next to each other; left out, all.
    """
    group, replicas = groups(dist, shards)
    gathers, gradients = {}, _Gradients(dist, group, replicas)

    def use(place, direction):
        for number in range(len(layers))[place::direction][: 1 + ahead]:
            if number not in gathers:
                whole, shard = _whole_and_shard([layers[number]], dist, group)
                gathers[number] = dist.all_gather_single(whole, shard, group=group, async_op=True)
        work, gathers[place] = gathers[place], None
        if work:
            work.wait()

    for place, layer in enumerate(layers):
        use(place, 1)
        compute(layer.forward, layer.name)
        if reshard:
            del gathers[place]
    for place, layer in reversed([*enumerate(layers)]):
        use(place, -1)
        compute(layer.backward, layer.name)
        gradients.ready(layer)
    gradients.finish()


def groups(dist, shards):
    """Of a rank, the group that shares units and the group that has the same shards; (None, None) where all share."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if shards is None:
        return None, None
    sharing = [dist.new_group(range(first, first + shards)) for first in range(0, size, shards)]
    replicas = [dist.new_group(range(first, size, shards)) for first in range(shards)]
    return sharing[rank // shards], replicas[rank % shards]


class _Gradients:
    """One reduce-scatter under way at a time, each followed by the all-reduce of the replicas, if there are any."""

    def __init__(self, dist, group=None, replicas=None):
        self.dist, self.group, self.replicas = dist, group, replicas
        self.under_way, self.averaging = None, []

    def ready(self, layer):
        self._settle()
        whole, shard = _whole_and_shard([layer], self.dist, self.group)
        self.under_way = shard, self.dist.reduce_scatter_single(shard, whole, group=self.group, async_op=True)

    def _settle(self):
        if self.under_way:
            shard, work = self.under_way
            work.wait()
            if self.replicas is not None:
                self.averaging.append(self.dist.all_reduce(shard, group=self.replicas, async_op=True))

    def finish(self):
        self._settle()
        for work in self.averaging:
            work.wait()


def _whole_and_shard(layers, dist, group=None):
    count, size = sum(sum(layer.counts) for layer in layers), dist.get_world_size(group)
    part = -(-count // size)
    return Sketch(part * size, layers[0].dtype), Sketch(part, layers[0].dtype)
