"""More ranks, layers and tasks for the lab "Sharded"."""

import torch

from ringtree.labs.exercises import sharded as lab


def zero1():
    yield lab.zero1_case(6, (3, 5, 2), torch.float64)
    yield lab.zero1_case(7, (2, 3, 3, 2), torch.float64, count=3)


def clip():
    yield lab.clip_case(6, 5, 0.25, torch.float64)
    yield lab.clip_case(5, 3, 1.5, torch.float32, empty=(4,))


def plan():
    yield from lab.plan_questions(((9e9, 16, 48e9, 70e9, 12), (34e9, 32, 96e9, 150e9, 10), (3e9, 4, 40e9, 36e9, 3)))


EXTRA = {"zero1": zero1, "clip": clip, "plan": plan}
