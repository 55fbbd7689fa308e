"""One attention whose sequence is cut over ranks: messages and computing of `ringtree.parallel.context`, forward and backward."""

import math
from dataclasses import dataclass
from functools import partial

import torch

from ringtree.computing import compute
from ringtree.simulated.simulation import simulate
from ringtree.simulated.sketch import Sketch

FORWARD, BACKWARD = 4, 10  # operations for each score and number of a head's width: two products, and five


@dataclass(frozen=True)
class Attention:
    """An attention over a sequence that is cut over ring × heads ranks.

    tokens: by ring and heads number, positions of each rank. scores: by ring number, what is computed against the keys of each. rate:
    operations a second. width: of a head. wide: how the ring's gradients travel.
    """

    tokens: tuple[tuple[int, ...], ...]
    scores: tuple[tuple[int, ...], ...]
    heads: int
    key_heads: int
    width: int
    rows: int = 1
    rate: float = math.inf
    dtype: torch.dtype = torch.bfloat16

    @classmethod
    def of(cls, cut, heads, key_heads, width, blocks=False, **more):
        """Of a `parallel.context.Cut`. blocks: as for `scores_of`."""
        tokens = tuple(tuple(len(cut.held(i, j)) for j in range(cut.heads)) for i in range(cut.ring))
        return cls(tokens, scores_of(cut, blocks), heads, key_heads, width, **more)

    @property
    def wide(self):
        return torch.promote_types(self.dtype, torch.float32)

    def numbers(self, tokens, heads):
        """Numbers of a tensor (rows, heads, tokens, width)."""
        return self.rows * heads * tokens * self.width

    def kept(self, ring=0, gathered=False):
        """Bytes that a rank of this ring number keeps for the backward pass: queries, keys, values, the result and its norm."""
        shares, tokens = len(self.tokens[0]), [sum(each) for each in self.tokens]
        queries = self.numbers(tokens[ring], self.heads // shares)
        keys = 2 * self.numbers(sum(tokens) if gathered else tokens[ring], self.key_heads // shares)
        return (queries + keys) * self.dtype.itemsize + (queries + queries // self.width) * self.wide.itemsize

    def seconds(self, scores, heads, operations):
        return operations * self.rows * heads * self.width * scores / self.rate


@dataclass(frozen=True)
class Way:
    """A technique: how many ranks the ring and the heads' axis have, and whether the ring's axis gathers."""

    ring: int
    heads: int
    gathered: bool = False

    def __str__(self):
        along = f"{'gather' if self.gathered else 'ring'} {self.ring}" * (self.ring > 1)
        return " × ".join(filter(None, [f"heads {self.heads}" * (self.heads > 1), along])) or "alone"


def ways(size):
    """The table of techniques: for `size` ranks every `Way`; the ranks of a heads' group are next to each other."""
    for heads in filter(lambda each: size % each == 0, range(1, size + 1)):
        yield Way(size // heads, heads)
        if heads < size:
            yield Way(size // heads, heads, gathered=True)


def race(size, machine, cut, heads, key_heads, width, most=math.inf, backward=True, **more):
    """Simulate every technique of the table that these heads allow. cut(ring, heads): a `parallel.context.Cut`.

    most: bytes that a rank may keep for the backward pass. more: of the `Attention`. Returns the seconds by `Way`, the quickest
    first, and why the others were left out.
    """
    times, left_out = {}, {}
    for way in ways(size):
        short = [f"{count} {what}" for count, what in ((heads, "heads"), (key_heads, "key heads")) if count % way.heads]
        if short:
            left_out[way] = f"{way.heads} ranks do not divide {short[0]}"
            continue
        layer = Attention.of(cut(way.ring, way.heads), heads, key_heads, width, **more)
        if max(layer.kept(ring, way.gathered) for ring in range(way.ring)) > most:
            left_out[way] = "a rank keeps too much"
            continue
        times[way] = simulate(partial(on_axes, layer, way, backward), [()] * size, machine, trace=False).makespan
    return dict(sorted(times.items(), key=lambda each: each[1])), left_out


def on_axes(layer, way, backward, dist):
    """A `step` on all ranks, with the groups that this `Way` needs."""
    groups = {}
    grid = torch.arange(way.ring * way.heads).view(way.ring, way.heads)
    for name, sides in ("heads", grid), ("ring", grid.T):
        for side in sides.tolist() if min(grid.shape) > 1 else ():
            group = dist.new_group(side)
            if dist.get_rank() in side:
                groups[name] = group
    step(layer, dist, **groups, gathered=way.gathered, backward=backward)


def scores_of(cut, blocks=False):
    """Of a `parallel.context.Cut`: by ring number, how many scores a rank computes against the keys of each rank.

    What the mask leaves, as a kernel does that skips small tiles; blocks: whole pairs of pieces, as the hand form does.
    """

    def computed(queries, keys):
        some, every = cut.sees(queries, keys)
        if blocks or every or not some:
            return len(queries) * len(keys) * some
        length = len(cut.when)
        places = (cut.document[keys] * length + cut.when[keys]).sort().values
        first = cut.document[queries] * length  # of the query's document; it sees from there to itself
        last = torch.searchsorted(places, first + cut.when[queries], right=True)
        return int((last - torch.searchsorted(places, first)).sum())

    def between(mine, theirs):
        return sum(computed(queries, keys) for queries in mine for keys in theirs)

    return tuple(tuple(between(mine, theirs) for theirs in cut.pieces) for mine in cut.pieces)


def step(layer, dist, ring=None, heads=None, gathered=False, backward=True):
    """An attention and its backward pass on a rank. layer: an `Attention`. ring, heads: the groups of the two axes; left out,
    all ranks. gathered: all keys come at once, instead of by the ring. backward: whether there is one."""
    rings, shares = len(layer.tokens), len(layer.tokens[0])
    i = dist.get_rank(ring) if rings > 1 else 0
    trade = partial(_trade, layer, layer.tokens[i], dist, heads) if shares > 1 else lambda *_, **__: None
    around = _gathered if gathered else _ring
    mine = layer.heads // shares, layer.key_heads // shares
    sums = [sum(held) for held in layer.tokens]
    for count in layer.heads, layer.key_heads, layer.key_heads:
        trade(count)
    around(layer, sums, i, mine, dist, ring)
    trade(layer.heads, back=True)
    if backward:
        trade(layer.heads)
        around(layer, sums, i, mine, dist, ring, backward=True)
        for count in layer.key_heads, layer.key_heads, layer.heads:
            trade(count, back=True)


def _trade(layer, tokens, dist, group, heads, back=False):
    """An all-to-all: this rank's tokens of all heads for all tokens of its heads, or back."""
    place, size = dist.get_rank(group), len(tokens)
    here = [layer.numbers(tokens[place], heads // size)] * size
    there = [layer.numbers(count, heads // size) for count in tokens]
    sends, gets = (there, here) if back else (here, there)
    goes, comes = (Sketch(sum(each), layer.dtype) for each in (sends, gets))
    dist.all_to_all_single(comes, goes, gets, sends, group=group)


def _ring(layer, tokens, i, heads, dist, group, backward=False):
    size = len(tokens)

    def both(step, dtype=layer.dtype):
        """Keys and values that are on this rank at this step, or their gradients."""
        return Sketch(2 * layer.numbers(tokens[(i - step) % size], heads[1]), dtype)

    def move(pairs):
        batch = []
        for goes, comes in pairs:
            batch.append(dist.P2POp(dist.isend, goes, group=group, group_peer=(i + 1) % size))
            batch.append(dist.P2POp(dist.irecv, comes, group=group, group_peer=(i - 1) % size))
        return dist.batch_isend_irecv(batch) if batch else []

    for step in range(size):
        works = move(
            [(both(step), both(step + 1))] * (step + 1 < size)
            + [(both(step - 1, layer.wide), both(step, layer.wide))] * (backward and step > 0)
        )
        scores = layer.scores[i][(i - step) % size]
        if scores:
            compute(layer.seconds(scores, heads[0], BACKWARD if backward else FORWARD), "attention")
        for work in works:
            work.wait()
    if backward and size > 1:
        for work in move([(both(size - 1, layer.wide), both(0, layer.wide))]):
            work.wait()


def _gathered(layer, tokens, i, heads, dist, group, backward=False):
    most = 2 * layer.numbers(max(tokens), heads[1])
    mine, everything = Sketch(most, layer.dtype), Sketch(len(tokens) * most, layer.dtype)
    if not backward:
        dist.all_gather_single(everything, mine, group=group)
    compute(layer.seconds(sum(layer.scores[i]), heads[0], BACKWARD if backward else FORWARD), "attention")
    if backward:
        dist.reduce_scatter_single(mine, everything, group=group)
