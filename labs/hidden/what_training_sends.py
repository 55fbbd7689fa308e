"""More models, logs, backward passes and sums for the lab "What training sends"."""

import torch

from ringtree.cost import Link
from ringtree.labs.exercise import Question
from ringtree.labs.exercises import what_training_sends as lab

MODEL = lab.Model(24, 2048, 1_310_720_000)
STEPS = [
    (lab.Layout(2, 16, 3, 4096), False, (288, 16_777_216), (50, 1_310_720_000)),
    (lab.Layout(4, 1, 2, 1000), False, (192, 4_096_000), (0, 0)),
    (lab.Layout(1, 4, 2, 64), True, (0, 0), (0, 0)),
    (lab.Layout(2, 2, 5, 64), True, (240, 262_144), (0, 0)),
]
LOGS = [  # layout, bytes of a bucket, whether tensor groups are neighbors in number, the rank
    (lab.Layout(1, 4, 1, 4096), 2**24, True, 2),
    (lab.Layout(4, 1, 2, 4096), lab.BUCKET, True, 2),
    (lab.Layout(2, 8, 4, 64), 2**22, False, 11),
    (lab.Layout(8, 2, 1, 6400), lab.BUCKET, False, 6),
]


def sends():
    for layout, serving, tensor, data in STEPS:
        yield Question(
            (MODEL, layout, serving),
            lambda answer, wanted=(tensor, data), layout=layout: lab._wrong_step(answer, wanted, layout),
            f"{'serving' if serving else 'training'}, {layout}",
        )


def split_of():
    for number, (layout, *more) in enumerate(LOGS, 1):
        calls = lab.log_of(MODEL, layout, *more)
        yield Question(
            (MODEL, calls),
            lambda answer, layout=layout, calls=calls: lab._wrong_split(answer, layout, calls),
            f"another log, {number}",
        )


def _least(gradients, ranks, link):
    """The least that can be left over: the earliest second at which the first j gradients can have gone, for every j."""
    sizes, gone = [0], [0.0]
    for nbytes, ready in gradients:
        sizes.append(sizes[-1] + nbytes)
        takes = [2 * (ranks - 1) * link.time((sizes[-1] - size) / ranks) for size in sizes[:-1]]
        gone.append(min(max(before, ready) + each for before, each in zip(gone, takes)))
    return gone[-1] - gradients[-1][1]


def buckets():
    uneven = [(2**20 * (1 + 7 * i % 11), 1 + 5 * i % 7) for i in range(30)]
    tasks = [
        (lab.backward(uneven, 4e-3), 8, Link.of(30e-6, bandwidth=20e9)),
        (lab.backward(uneven[::-1], 20e-3), 32, Link.of(8e-6, bandwidth=12e9)),
        ([(2**24, 0.0)], 4, Link.of(8e-6, bandwidth=12e9)),
    ]
    for level, within in enumerate((None, 1.25, 1.001)):
        for number, task in enumerate(tasks, 1):
            told = *task, within and within * _least(*task)
            says = f"another backward pass, {number}"
            yield Question(task, lambda answer, told=told: lab._wrong_buckets(answer, *told), says, level)


def add_in_32():
    shapes = [(3, 8, torch.float16), (5, 31, torch.bfloat16), (9, 20, torch.bfloat16), (2, 1, torch.float16)]
    return [lab._sum_case(lab._sixteen_bits(*shape)) for shape in shapes]


EXTRA = {"sends": sends, "split_of": split_of, "buckets": buckets, "add_in_32": add_in_32}
