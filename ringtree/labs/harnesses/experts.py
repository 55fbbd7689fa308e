"""A pass through experts and back, of the lab "Experts"."""

import torch

from ringtree.labs.harnesses.nets import layers
from ringtree.labs.harnesses.returned import differentiable

ROWS, TABLES = ("rows", "width"), ("rows", "tokens", "width")  # shapes; whether the sizes are right is compared


def there_and_back(function, rows, gets, sends, factors, ends, dist):
    """Rows to other ranks and back, and the gradient of what came: twice arrived = function(rows, gets, sends, dist).

    rows: of this rank, (sum of sends, tokens, width). factors: (sum of gets, tokens, width), what the ranks that get rows
    multiply them by. ends: (tokens, width), what the loss multiplies all that come back by.
    """
    mine = rows.clone().requires_grad_()
    arrived = differentiable(function(2 * mine, list(gets), list(sends), dist), TABLES)
    if arrived.shape != factors.shape:
        return {"rows that came": arrived.detach()}
    back = differentiable(function(arrived * factors, list(sends), list(gets), dist), TABLES)
    found = {"rows that came": arrived.detach(), "rows that are back": back.detach()}
    if back.shape == rows.shape:
        (back.sum(0) * ends).sum().backward()
        found["gradient of the rows"] = mine.grad
    return found


def there_and_back_alone(given):
    """Return what `there_and_back` finds, by rank."""
    size = len(given)

    def exchanged(blocks):
        return [torch.cat([blocks[source][rank] for source in range(size)]) for rank in range(size)]

    arrived = exchanged([(2 * rows).split(sends) for rows, _, sends, *_ in given])
    factors = exchanged([factors.split(gets) for _, gets, _, factors, _ in given])
    # the loss of rank r has only rows of rank r
    return [
        {"rows that came": came, "rows that are back": 2 * rows * factor, "gradient of the rows": 2 * factor * ends}
        for (rows, *_, ends), came, factor in zip(given, arrived, factors)
    ]


def through_experts(function, tokens, chosen, weights, kept, matrix, ends, dist):
    """A forward and a backward pass of function(tokens, chosen, weights, kept, expert, dist), which returns (tokens, width).

    matrix: of this rank's expert, (width, width). ends: (tokens, width), what the loss multiplies the results by. The
    gradient of the expert is that of the sum of all ranks' losses. Also returned: how many rows the expert was given.
    """
    (layer,), came = layers([matrix]), []

    def expert(rows):
        came.append(len(rows))
        return layer(rows).tanh()

    tokens, weights = (each.clone().requires_grad_() for each in (tokens, weights))
    result = differentiable(function(2 * tokens, chosen, 2 * weights, kept, expert, dist), ROWS)
    if result.shape != tokens.shape:
        return {"results": result.detach()}
    (result * ends).sum().backward()
    return {"results": result.detach(), "rows for the expert here": sum(came)} | {
        f"gradient of {name}": torch.zeros_like(each) if each.grad is None else each.grad
        for name, each in {"the tokens": tokens, "the weights": weights, "the expert": layer.weight}.items()
    }


def through_experts_alone(given):
    """Return what `through_experts` finds, by rank: one process that has all experts."""
    layers_of_all = layers([matrix for *_, matrix, _ in given])
    leaves = [[each.clone().requires_grad_() for each in (tokens, weights)] for tokens, _, weights, *_ in given]
    results, counts = [], [0] * len(given)
    for (tokens, weights), (_, chosen, _, kept, *_) in zip(leaves, given):
        result = torch.zeros_like(tokens)
        for expert, layer in enumerate(layers_of_all):
            wanted = (chosen == expert) & kept
            counts[expert] += int(wanted.sum())
            result = result + (2 * weights * wanted).sum(1, keepdim=True) * layer(2 * tokens).tanh()
        results.append(result)
    sum((result * ends).sum() for result, (*_, ends) in zip(results, given)).backward()
    return [
        {
            "results": result.detach(),
            "rows for the expert here": count,
            "gradient of the tokens": tokens.grad,
            "gradient of the weights": weights.grad,
            "gradient of the expert": layer.weight.grad,
        }
        for result, count, (tokens, weights), layer in zip(results, counts, leaves, layers_of_all)
    ]
