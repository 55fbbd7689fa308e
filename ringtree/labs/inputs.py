"""Numbers for the ranks of a case: every place has its own, so that a mixed-up place shows."""

import random

import torch

MOST = 2**18  # so large may a number be
_dice = random.SystemRandom()  # no seed that a learner's function sets reaches it


def easy(size: int, length: int, dtype=torch.float32) -> list[torch.Tensor]:
    """`length` numbers for each of `size` ranks, easy to recognize: 10, 11, 12 … on rank 1."""
    return [(torch.arange(length) + 10 * rank).to(dtype) for rank in range(size)]


def drawn(size: int, length: int, dtype=torch.float32) -> list[torch.Tensor]:
    """The same, drawn at random: whole numbers whose sums a float32 holds exactly; no two alike, where they are not too many.

    As int64 and float64 they have more digits than a float32, so that a way through one shows.
    """
    generator = torch.Generator().manual_seed(_dice.getrandbits(60))
    count = size * length
    if 4 * count < MOST:
        pool = torch.randperm(4 * count, generator=generator)[:count] - 2 * count
    else:
        pool = torch.randint(-MOST, MOST, (count,), generator=generator)
    digits = {torch.int64: 2**32 + 1, torch.float64: 1 + 2**-30}.get(dtype, 1)
    rows = [row.to(dtype) for row in pool.view(size, length)]
    return [row * digits for row in rows] if digits > 1 else rows


def whole_numbers(count: int, low: int, high: int) -> list[int]:
    """`count` whole numbers from low to high, drawn at random."""
    return [_dice.randint(low, high) for _ in range(count)]


def sample(numbers, count: int) -> list[int]:
    """`count` of these numbers, no two alike, drawn at random."""
    return _dice.sample(numbers, count)


def sum_of_all(given) -> list:
    """Return what every rank has after an all-reduce of the first of its arguments."""
    return [torch.stack([entry[0] for entry in given]).sum(0)] * len(given)
