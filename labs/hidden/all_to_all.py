"""More ranks and lengths for the lab "All-to-all"."""

import torch

from ringtree.labs.exercise import Case
from ringtree.labs.exercises import all_to_all as lab
from ringtree.labs.inputs import drawn, whole_numbers


def transpose():
    return list(lab.transpose_cases([(9, 2, 1), (10, 1, 3)]))


def exchange():
    for size, most in [(9, 4), (5, 8)]:
        counts = [whole_numbers(size, 0, most) for _ in range(size)]
        rows = drawn(size, max(map(sum, counts)))
        yield Case(tuple((row[: sum(count)].clone(), count) for row, count in zip(rows, counts)), lab._arrived)


def to_experts():
    for size, most in [(6, 7), (9, 4)]:
        factors, given = drawn(1, size)[0].tolist(), []
        for rank, number in enumerate(whole_numbers(size, 1, most)):
            firsts = torch.tensor(whole_numbers(number, 0, size - 1))
            seconds = (firsts + 1 + torch.tensor(whole_numbers(number, 0, size - 2))) % size
            weights = torch.tensor(whole_numbers(number, 1, 3)).view(-1, 1) / 4
            tokens = torch.tensor(whole_numbers(number, -99, 99), dtype=torch.float32)
            given.append((tokens, torch.stack([firsts, seconds], 1), torch.cat([weights, 1 - weights], 1), factors[rank]))
        yield lab._expert_case(given)


EXTRA = {"transpose": transpose, "exchange": exchange, "to_experts": to_experts}
