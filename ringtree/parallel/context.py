"""Context parallel: the sequence is cut over the ranks, and attention brings the pieces together.

All layers but attention work on a rank's own positions. In attention, keys and values go round a
ring, and each rank adds up what its queries see by the online softmax (Milakov, Gimelshein 2018;
Liu et al. 2023). In the backward pass their gradients go round with them. Positions are cut
in one of three ways, of which two share a causal mask out evenly (Brandon et al. 2023).

`dist` is torch.distributed, or anything that speaks like it. Written for torch 2.13.
"""

import math

import torch


class Cut:
    """Which positions each of ring × heads ranks holds, and which position may see which.

    way: contiguous; zigzag: of 2·ring parts the i-th and the i-th from the end; striped: every
    ring-th. documents: [length] a number for each position: it sees only those with the same.
    """

    def __init__(self, length, ring, heads=1, way="zigzag", causal=True, documents=None):
        if length < ring * heads:
            raise ValueError(f"{length} positions for {ring * heads} ranks: give each rank one")
        if documents is None:
            documents = torch.zeros(length)
        if len(documents) != length:
            raise ValueError(f"{len(documents)} documents: give one for each of {length} positions")
        places = torch.arange(length)
        if way == "contiguous":
            pieces = [[part] for part in places.tensor_split(ring)]
        elif way == "zigzag":
            parts = places.tensor_split(2 * ring)
            pieces = [[parts[i], parts[-1 - i]] for i in range(ring)]
        elif way == "striped":
            pieces = [[places[i::ring]] for i in range(ring)]
        else:
            raise ValueError(f"no way {way!r} to cut: give contiguous, zigzag or striped")
        self.pieces = [[piece for piece in held if len(piece)] for held in pieces]
        self.ring, self.heads = ring, heads
        self.when = places if causal else torch.zeros_like(places)
        self.document = torch.as_tensor(documents).cpu().unique(return_inverse=True)[1]

    def held(self, ring=0, heads=0):
        """Return the positions of the rank with these numbers on the two axes. [tokens]"""
        return torch.cat(self.pieces[ring]).tensor_split(self.heads)[heads]

    def mask(self, queries, keys, device="cpu"):
        """Return which of these keys each of these queries sees. [queries, keys]"""
        when, document = self.when.to(device), self.document.to(device)
        before = when[queries, None] >= when[keys]
        return before & (document[queries, None] == document[keys])

    def sees(self, queries, keys):
        """Return whether any of these queries sees any of these keys, and whether all see all."""
        when, document = self.when[queries], self.document[queries]
        then, other = self.when[keys], self.document[keys]
        count = self.document.max().item() + 1
        last = torch.full((count,), -1).scatter_reduce(0, document, when, "amax")
        first = torch.full((count,), len(self.when)).scatter_reduce(0, other, then, "amin")
        alone = document.min() == document.max() == other.min() == other.max()
        return bool((first <= last).any()), bool(alone and then.max() <= when.min())

    def blocks(self, mine, theirs, device="cpu"):
        """Yield what the mask leaves of queries × keys: slices of both, and a mask, or None.

        mine, theirs: lists of pieces. Two pieces between which nothing is seen are skipped.
        """
        for rows, queries in slices(mine):
            for columns, keys in slices(theirs):
                some, every = self.sees(queries, keys)
                if some:
                    yield rows, columns, None if every else self.mask(queries, keys, device)


def slices(pieces):
    """Yield each piece with its place on its rank."""
    end = 0
    for piece in pieces:
        end += len(piece)
        yield slice(end - len(piece), end), piece


def take_in(so_far, queries, keys, values, mask=None):
    """Return what queries have seen, with these keys and values in addition: the online softmax.

    so_far: Σ exp(score − top) · value [..., tokens, width], Σ exp(score − top) and top
    [..., tokens, 1]. Returns the same three. The highest score, top, may grow.
    """
    total, weight, top = so_far
    scores = queries @ keys.mT
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    now = torch.maximum(top, scores.amax(-1, keepdim=True))
    before, powers = (top - now).exp(), (scores - now).exp()
    return total * before + powers @ values, weight * before + powers.sum(-1, keepdim=True), now


def give_back(queries, keys, values, gradient, norm, common, mask=None):
    """Return the gradients of a block's queries, keys and values.

    gradient: of the result [..., tokens, width]; norm: log Σ exp(score), over all keys, and
    common: gradient · result, summed over the width [..., tokens, 1].
    """
    parts = (queries @ keys.mT - norm).exp()
    if mask is not None:
        parts = parts.masked_fill(~mask, 0)
    scores = parts * (gradient @ values.mT - common)
    to_keys, to_values = (of.mT @ to for of, to in ((scores, queries), (parts, gradient)))
    return scores @ keys, to_keys.sum(2, keepdim=True), to_values.sum(2, keepdim=True)


class Attend(torch.autograd.Function):
    """This rank's queries, and keys and values that come round: their gradients travel with them.

    mine: pieces of the queries. stops: pieces of the keys that are here, at each step of the ring.
    """

    @staticmethod
    def forward(ctx, queries, both, cut, mine, stops, move):
        # queries [batch, key heads, group, tokens, width], both [2, batch, key heads, 1, keys, width]
        wide = torch.promote_types(queries.dtype, torch.float32)
        scaled = queries.to(wide) / math.sqrt(queries.shape[-1])
        total, weight = torch.zeros_like(scaled), torch.zeros_like(scaled[..., :1])
        top, here = torch.full_like(weight, torch.finfo(wide).min), both.contiguous()
        for theirs, following in zip(stops, [*stops[1:], []]):
            coming = room(here, following)
            arrive = move([(here, coming)] if following else [])
            for rows, columns, mask in cut.blocks(mine, theirs, here.device):
                seen = [each[..., rows, :] for each in (total, weight, top)]
                keys, values = here[..., columns, :].to(wide)
                for each, now in zip(seen, take_in(seen, scaled[..., rows, :], keys, values, mask)):
                    each.copy_(now)
            arrive()
            here = coming
        out, norm = total / weight, top + weight.log()
        ctx.save_for_backward(queries, both, out, norm)
        ctx.round = cut, mine, stops, move
        return out.to(queries.dtype)

    @staticmethod
    def backward(ctx, gradient):
        (queries, both, out, norm), (cut, mine, stops, move) = ctx.saved_tensors, ctx.round
        scale, gradient = 1 / math.sqrt(queries.shape[-1]), gradient.to(out.dtype)
        scaled, common = queries.to(out.dtype) * scale, (gradient * out).sum(-1, keepdim=True)
        to_queries, here, owed = torch.zeros_like(scaled), both.contiguous(), None
        for theirs, following in zip(stops, [*stops[1:], []]):
            coming, came = room(here, following), torch.zeros_like(here, dtype=out.dtype)
            sums = [] if owed is None else [(owed, came)]  # for the keys that are here now
            arrive = move(([(here, coming)] if following else []) + sums)
            mine_to_these = torch.zeros_like(came)
            for rows, columns, mask in cut.blocks(mine, theirs, here.device):
                asked = [each[..., rows, :] for each in (scaled, gradient, norm, common)]
                keys, values = here[..., columns, :].to(out.dtype)
                to_rows, *to_columns = give_back(asked[0], keys, values, *asked[1:], mask)
                to_queries[..., rows, :] += to_rows
                mine_to_these[..., columns, :] += torch.stack(to_columns)
            arrive()
            here, owed = coming, came + mine_to_these
        if len(stops) > 1:  # one hop more, and the sums are with those whose keys they are
            goes, owed = owed, room(owed, stops[0])
            move([(goes, owed)])()
        return (to_queries * scale).to(queries.dtype), owed.to(both.dtype), None, None, None, None


def room(like, pieces):
    """Return an empty tensor like this one, for the positions of these pieces. [..., tokens, width]"""
    return like.new_empty(*like.shape[:-2], sum(map(len, pieces)), like.shape[-1])


def attend(q, k, v, cut, mine, stops, move):
    """Return the attention of q [batch, heads, tokens, width] to k, v [batch, key heads, keys, width]."""
    groups, both = q.unflatten(1, (k.shape[1], -1)), torch.stack([k, v]).unsqueeze(3)
    return Attend.apply(groups, both, cut, mine, stops, move).flatten(1, 2)


def attention(q, k, v, cut, dist, group=None):
    """Return the attention of this rank's queries to the keys of all ranks, by a ring.

    q [batch, heads, tokens, width], k, v [batch, key heads, tokens, width], and the result: at the
    positions cut.held(rank). Gradients are whole: a key's has come home, in 32 bits at least.
    """
    rank, size = (dist.get_rank(group), dist.get_world_size(group)) if cut.ring > 1 else (0, 1)
    if size != cut.ring:
        raise ValueError(f"a Cut for {cut.ring} ranks on a ring of {size}: give a Cut for {size}")

    def move(pairs):
        """Send each first tensor right, receive each second from the left; return what waits."""
        batch = []
        for goes, comes in pairs:
            batch.append(dist.P2POp(dist.isend, goes, group=group, group_peer=(rank + 1) % size))
            batch.append(dist.P2POp(dist.irecv, comes, group=group, group_peer=(rank - 1) % size))
        works = dist.batch_isend_irecv(batch) if batch else []
        return lambda: [work.wait() for work in works]

    stops = [cut.pieces[(rank - step) % size] for step in range(size)]
    return attend(q, k, v, cut, stops[0], stops, move)
