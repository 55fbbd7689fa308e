"""A unit's parameters as one vector, of which each rank has a shard."""

import torch


class Flat:
    """Parameters one after another in a vector, padded so that `size` ranks share it evenly.

    named: (name, parameter) each. whole: the vector, of which the parameters become views.
    shard: part `rank` of it. pieces: what the shard has of each parameter, for an optimizer.
    """

    def __init__(self, named, rank, size):
        self.names, self.parameters = zip(*named)
        dtypes = sorted({str(each.dtype) for each in self.parameters})
        if len(dtypes) > 1:
            raise ValueError(
                f"{self.names[0]} shares its unit with other dtypes ({', '.join(dtypes)}): "
                "a unit travels as one vector, so give each dtype a unit of its own"
            )
        self.lengths = [each.numel() for each in self.parameters]
        padded = -(-sum(self.lengths) // size) * size
        self.whole = self.parameters[0].detach().new_zeros(padded)
        for parameter, place in zip(self.parameters, self.places(self.whole)):
            parameter.data = place.copy_(parameter.detach())
        self.rank, self.size = rank, size
        self.keep(self.whole.chunk(size)[rank])

    def places(self, vector):
        """The view of such a vector that belongs to each parameter."""
        parts = vector[: sum(self.lengths)].split(self.lengths)
        return [part.view_as(parameter) for part, parameter in zip(parts, self.parameters)]

    def keep(self, shard):
        """Make this vector the shard."""
        self.shard, self.pieces = shard, []
        for parameter, part in self.cut(shard):
            self.pieces.append(torch.nn.Parameter(part))
            self.pieces[-1].of = parameter

    def cut(self, shard):
        """(parameter, view) for each parameter of which such a shard has something."""
        start, found = -self.rank * len(shard), []
        for parameter, length in zip(self.parameters, self.lengths):
            first, end = max(start, 0), min(start + length, len(shard))
            if first < end:
                found.append((parameter, shard[first:end]))
            start += length
        return found

    def take(self, gradient):
        """Make this vector the gradient of the shard, or add it to what is there."""
        parts = [part for _, part in self.cut(gradient)]
        for piece, part in zip(self.pieces, parts):
            piece.grad = part if piece.grad is None else piece.grad.add_(part)

    def check(self):
        """Raises RuntimeError where a parameter was frozen since."""
        for name, parameter in zip(self.names, self.parameters):
            if not parameter.requires_grad:
                raise RuntimeError(
                    f"{name} was frozen after it was sharded: freeze it before, or make the shards anew"
                )


def flats_of(units, dist, group=None):
    """A `Flat` for each unit that has something to train. Raises ValueError where two units share a parameter."""
    flats, seen = [], {}
    for number, unit in enumerate(units):
        named = {}
        for place, module in enumerate(unit):
            for name, parameter in module.named_parameters():
                if parameter.requires_grad:
                    named.setdefault(parameter, f"{name} of module {place} in unit {number}")
        for parameter, name in named.items():
            if parameter in seen:
                raise ValueError(
                    f"{name} is also {seen[parameter]}: modules that share a parameter go into one unit"
                )
        seen |= named
        if named:
            pairs = [(name, parameter) for parameter, name in named.items()]
            flats.append(Flat(pairs, dist.get_rank(group), dist.get_world_size(group)))
        else:
            flats.append(None)
    return flats
