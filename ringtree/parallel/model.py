"""A small GPT over characters, and its batches: small enough that four ranks train it on two cores.

The transformer of Vaswani et al. 2017 with the layer norms before attention and feed-forward, as in GPT-2.
"""

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Every position looks at itself and at those before it, in `heads` ways at once."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(seen.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, width, heads, feed_forward=FeedForward):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2, self.feed_forward = nn.LayerNorm(width), feed_forward(width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class GPT(nn.Module):
    """From tokens (batch, length) to scores for the next one (batch, length, symbols).

    With 74 symbols, 4 layers, width 128 and a context of 32 it has about 0.8 million parameters in 45 tensors.
    feed_forward: feed_forward(width) is what each block has after its attention.
    """

    def __init__(self, symbols, layers=4, width=128, heads=4, context=32, feed_forward=FeedForward):
        super().__init__()
        self.token, self.place = nn.Embedding(symbols, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, feed_forward) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, symbols, bias=False)

    def forward(self, tokens):
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss_of(model, tokens):
    """The mean over all places of −log of the probability that `model` gives to the next token."""
    scores = model(tokens[:, :-1])
    return F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())


def seeded(make, seed=0):
    """What make() makes, with the weights that this seed gives; the generator is as it was afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def tokens_of(text):
    """The text as numbers, and its symbols in order."""
    symbols = sorted(set(text))
    number = {symbol: i for i, symbol in enumerate(symbols)}
    return torch.tensor([number[symbol] for symbol in text]), symbols


def batches(tokens, steps, batch=16, context=32, seed=1):
    """`steps` batches of (batch, context + 1) tokens, each row from a place drawn at random; the same on every rank."""
    dice = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        starts = torch.randint(len(tokens) - context, (batch,), generator=dice)
        yield torch.stack([tokens[start : start + context + 1] for start in starts])
