"""More layers, ranks and micro-batches for the lab "Pipeline"."""

import torch

from ringtree.labs.exercise import Case
from ringtree.labs.exercises import pipeline as lab
from ringtree.labs.inputs import whole_numbers


def fewest():
    return lab.bubble_questions([(6, 0.2001), (12, 0.3), (1, 0.5), (32, 0.031)])


def cut():
    yield from lab.cut_questions([([7, 1, 1, 1, 6, 1, 1, 1], 4), (whole_numbers(25, 1, 20), 7)])


def orders():
    yield from lab.order_questions([(6, 9), (7, 2)])


def pipeline():
    batches = [torch.tensor(whole_numbers(10, -9, 9), dtype=torch.float32).view(5, 2) for _ in range(5)]
    weights = [torch.tensor([2.0, -3.0]) + rank % 2 for rank in range(5)]
    yield Case(tuple(zip(batches, weights)), lab._gradients)


def train_step():
    yield from lab.step_cases([(6, 4, 2), (4, 5, 1)])


EXTRA = {"fewest": fewest, "cut": cut, "orders": orders, "pipeline": pipeline, "train_step": train_step}
