"""Experts: many feed-forwards shared out over the ranks, of which a router picks a few for a token.

`Experts` stands in the place of a feed-forward. In one process it has all its experts;
after `share_out` each rank has some of them, and tokens travel to their experts (dispatch)
and back (combine). Methods: Shazeer et al. 2017 (the layer), Lepikhin et al. 2020 (experts
on many ranks, capacity), Fedus et al. 2022 (the balance loss).

Over the ranks that share out the experts, an expert's parameters are varying, all others invariant.
Gradients are final after `average_gradients`, which each step calls once: of the mean loss over all
ranks that see different rows.

`dist` is torch.distributed, or anything that speaks like it. Runs on torch 2.1 and later.
"""

import math

import torch


class Exchange(torch.autograd.Function):
    """Rows to other ranks; in the backward pass their gradients go back the way they came.

    rows: (rows, width), those for rank 0 first. gets, sends: how many from, to each rank.
    """

    @staticmethod
    def forward(ctx, rows, gets, sends, dist, group):
        ctx.way_back = sends, gets, dist, group
        arrived = rows.new_empty(sum(gets), rows.shape[1])
        dist.all_to_all_single(arrived, rows.contiguous(), gets, sends, group=group)
        return arrived

    @staticmethod
    def backward(ctx, gradient):
        return Exchange.apply(gradient, *ctx.way_back), None, None, None, None


def choose(scores, best):
    """Each token's `best` experts, from a router's scores (tokens, experts).

    Returns all probabilities (tokens, experts), and weights and numbers of the chosen
    (tokens, best). One expert has its probability for a weight; of several they sum to one.
    """
    probabilities = scores.softmax(-1)
    weights, chosen = probabilities.topk(best)
    if best > 1:
        weights = weights / weights.sum(-1, keepdim=True)
    return probabilities, weights, chosen


def within(chosen, count, factor):
    """Which choices (tokens, best) are kept: each expert takes `factor` times an even share.

    In order: all first choices, from the first token on, then all second ones.
    """
    capacity = math.ceil(factor * chosen.numel() / count)
    wanted = torch.nn.functional.one_hot(chosen.T.flatten(), count)
    place = (wanted.cumsum(0) * wanted).sum(-1)  # 1 for the first that comes to an expert
    return (place <= capacity).view(chosen.T.shape).T


class Experts(torch.nn.Module):
    """A router and `count` experts, each make(width), of which each token goes to `best`.

    factor: of the capacity; left out, no token is dropped. groups: in how many equal parts
    the tokens count against it: as many as ranks, where one process is to drop what they do.
    After a forward pass: probabilities (tokens, count), chosen and kept (tokens, best), and
    `counts`, how many rows each expert gets from this rank.
    """

    def __init__(self, width, count, best, make, factor=math.inf):
        super().__init__()
        self.count, self.best, self.factor, self.groups = count, best, factor, 1
        self.router = torch.nn.Linear(width, count, bias=False)
        self.experts = torch.nn.ModuleList(make(width) for _ in range(count))
        self.dist = None

    def forward(self, x):
        tokens = x.flatten(0, -2)
        self.probabilities, weights, self.chosen = choose(self.router(tokens), self.best)
        self.kept = torch.ones_like(self.chosen, dtype=torch.bool)
        if self.factor < math.inf:
            groups = self.chosen.chunk(self.groups)
            self.kept = torch.cat([within(each, self.count, self.factor) for each in groups])
        token, choice = self.kept.nonzero(as_tuple=True)
        order = self.chosen[token, choice].argsort(stable=True)
        token, choice = token[order], choice[order]
        self.counts = torch.bincount(self.chosen[token, choice], minlength=self.count)
        rows = tokens[token]
        done = self.on_ranks(rows) if self.dist else self.by_experts(rows, self.counts)
        done = done * weights[token, choice].unsqueeze(1)
        return torch.zeros_like(tokens).index_add(0, token, done).view_as(x)

    def by_experts(self, rows, counts):
        """What the experts here make of rows, those for the first expert first."""
        parts = rows.split(counts.tolist())
        return torch.cat([expert(part) for expert, part in zip(self.experts, parts)])

    def on_ranks(self, rows):
        """The same by the experts of all ranks: dispatch, compute, combine."""
        here = len(self.experts)
        arriving = torch.empty_like(self.counts)  # from each rank, for each expert here
        self.dist.all_to_all_single(arriving, self.counts, group=self.group)
        sends, gets = (each.view(-1, here).sum(1).tolist() for each in (self.counts, arriving))
        arrived = self.exchange(rows, gets, sends, self.dist, self.group)
        expert = torch.arange(len(arriving), device=rows.device) % here
        order = expert.repeat_interleave(arriving).argsort(stable=True)  # they came by rank
        done = self.by_experts(arrived[order], arriving.view(-1, here).sum(0))
        return self.exchange(done[order.argsort()], sends, gets, self.dist, self.group)


def layers_of(model):
    return [each for each in model.modules() if isinstance(each, Experts)]


def share_out(model, dist, group=None, exchange=Exchange.apply):
    """Each rank of the group keeps its part of every layer's experts, rank 0 the first.

    All ranks must have made the same model. exchange: to be called in place of ours.
    Raises ValueError where the ranks do not divide the experts.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    for layer in layers_of(model):
        if layer.count % size:
            raise ValueError(f"{layer.count} experts for {size} ranks: give a multiple of {size}")
    for layer in layers_of(model):
        here = layer.count // size
        layer.experts = layer.experts[rank * here : (rank + 1) * here]
        layer.dist, layer.group, layer.exchange = dist, group, exchange
    model.averaged = Once()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(model.averaged.look)


def own(model):
    """The parameters of the experts that this rank has."""
    return [each for layer in layers_of(model) for each in layer.experts.parameters()]


def average_gradients(model, dist, same_experts=None, data=None):
    """Once, after a step's last backward pass: gradients of the mean of all ranks' losses.

    What every rank has is added up, in one all-reduce. An expert's gradient is a sum already,
    since the exchange has brought it from all tokens: it is only divided. same_experts: where
    experts are shared out within groups, the group of the ranks that have the same ones as
    this rank; among these they are added up too. data: the ranks that see different rows; left
    out, all. Where no token came, and no gradient is, it counts as zeros.
    """
    trained = [each for each in model.parameters() if each.requires_grad]
    model.averaged.begin(trained)
    for each in trained:
        each.grad = torch.zeros_like(each) if each.grad is None else each.grad
    experts = {each for each in own(model)}
    add_up([each.grad for each in trained if each not in experts], dist, data)
    if same_experts is not None:
        add_up([each.grad for each in trained if each in experts], dist, same_experts)
    for each in trained:
        each.grad /= dist.get_world_size(data)
        model.averaged.done(each)


def add_up(gradients, dist, group):
    flat = torch.cat([each.flatten() for each in gradients])
    dist.all_reduce(flat, group=group)
    for each, part in zip(gradients, flat.split([each.numel() for each in gradients])):
        each.copy_(part.view_as(each))


class Once:
    """Notices a backward pass that adds to gradients which have been averaged already."""

    def __init__(self):
        self.averaged = {}

    def begin(self, parameters):
        for parameter in parameters:
            gradient, version = self.averaged.get(parameter, (None, 0))
            if gradient is not None and gradient is parameter.grad and gradient._version == version:
                raise RuntimeError(
                    "these gradients were averaged over ranks already: do that once a step"
                )

    def done(self, parameter):
        self.averaged[parameter] = parameter.grad, parameter.grad._version

    def look(self, parameter):
        gradient, version = self.averaged.pop(parameter, (None, 0))
        # Between the two a zero_grad() has made a gradient anew, or written zeros to this one.
        if gradient is parameter.grad and gradient._version == version + 1:
            raise RuntimeError(
                "a backward pass adds to gradients that were averaged over ranks: "
                "do that once, after the last backward pass of a step, and zero them after the step"
            )


def balance_loss(model, dist=None):
    """After a forward pass: experts · Σ f·P, the mean of all layers; 1 where all is even.

    f: the share of choices that an expert got, on all ranks where `dist` is given; P: its
    mean probability for this rank's tokens, through which the gradient goes. The mean of
    the ranks' losses is then the loss of the whole batch.
    """
    layers = layers_of(model)
    counts = torch.stack([
        torch.bincount(layer.chosen.flatten(), minlength=layer.count) for layer in layers
    ])
    if dist is not None:
        dist.all_reduce(counts)
    shares = counts / counts.sum(1, keepdim=True)
    mean = torch.stack([layer.probabilities.mean(0) for layer in layers])
    return (len(mean[0]) * shares * mean).sum(1).mean()
