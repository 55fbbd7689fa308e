"""A sum over the keys and values of all ranks, and the gradients that come home; of the lab "Context parallel"."""

import torch

from ringtree.labs.harnesses.returned import differentiable

NAMES = "q", "k", "v"


def there_and_back(function, q, k, v, ends, dist):
    """y = function(q, k, v, dist), and the gradients of the sum over ranks of (y · ends).sum(). All are (positions, width)."""
    leaves = [each.clone().requires_grad_() for each in (q, k, v)]
    y = differentiable(function(*(1 * each for each in leaves), dist), ends.shape)
    (y * ends).sum().backward()
    return {"result": y.detach()} | {
        f"gradient of {name}": torch.zeros_like(each) if each.grad is None else each.grad for name, each in zip(NAMES, leaves)
    }


def alone(given):
    """What `there_and_back` finds, by rank: one process that has all positions."""
    size = len(given)
    leaves = [torch.cat(parts).requires_grad_() for parts in list(zip(*given))[:3]]
    q, k, v = leaves
    y = (q @ k.T).relu() @ v
    (y * torch.cat([entry[-1] for entry in given])).sum().backward()
    found = {"result": y.detach()} | {f"gradient of {name}": each.grad for name, each in zip(NAMES, leaves)}
    return [{name: each.chunk(size)[rank] for name, each in found.items()} for rank in range(size)]
