"""More ranks, shapes and vocabularies for the lab "Tensor parallel"."""

from ringtree.labs.exercises import tensor_parallel as lab


def feed_forward():
    yield from lab.whole_cases([(6, 3, 2, 3), (9, 1, 4, 1)])


def by_positions():
    yield from lab.positions_cases([(6, 2, 3, 2), (9, 1, 2, 1)])


def loss_of():
    yield lab.loss_case([2, 1, 3, 2, 1, 2], tokens=5, steep=True)
    yield lab.loss_case([1] * 9, tokens=4)


def linear():
    return lab.linear_cases([(2, 3, [1, 2, 3, 1, 2, 3]), (1, 4, [2] * 9)])


EXTRA = {"linear": linear, "feed_forward": feed_forward, "by_positions": by_positions, "loss_of": loss_of}
