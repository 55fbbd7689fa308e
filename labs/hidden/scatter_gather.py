"""More speeds and lengths for the lab "Scatter and gather"."""

import torch

from ringtree.labs.exercise import Case, Question
from ringtree.labs.exercises import scatter_gather as lab
from ringtree.labs.inputs import drawn, whole_numbers


def collect():
    for size, root, length in ((6, 2, 3), (7, 6, 1), (9, 0, 2)):
        yield lab.collect_case(size, root, length)


def shares():
    for samples, seconds in [(40, (3.0, 1.0, 2.0)), (77, (1.0, 4.0, 2.0, 2.0, 1.5))]:
        counts = [0] * len(seconds)
        for _ in range(samples):
            counts[min(range(len(seconds)), key=lambda rank: (counts[rank] + 1) * seconds[rank])] += 1
        least = max(count * each for count, each in zip(counts, seconds))
        yield Question((samples, list(seconds)), lab._too_long(samples, seconds, least, 1.1), f"{samples} samples")


def _lists(filled):
    for lengths, root in [((3, 0, 2, 5, 1), 1), ((2, 4, 1, 1, 3, 2, 2, 1, 5), 8)]:
        size = len(lengths)
        whole = [row[:length] for row, length in zip(drawn(size, max(lengths)), lengths)]
        room = [torch.tensor(whole_numbers(length, 900, 999), dtype=torch.float32) for length in lengths]
        given = [[(whole if filled(rank, each, root) else room)[each] for each in range(size)] for rank in range(size)]
        yield tuple((each,) for each in given), whole, root


def scatter_list():
    for given, whole, root in _lists(lambda rank, shard, root: rank == root):
        yield Case(given, lambda given, whole=whole: whole, {"root": root})


def gather_list():
    for given, whole, root in _lists(lambda rank, shard, root: rank == shard):
        wanted = [whole if rank == root else None for rank in range(len(given))]
        yield Case(given, lambda given, wanted=wanted: wanted, {"root": root})


EXTRA = {"collect": collect, "shares": shares, "scatter_list": scatter_list, "gather_list": gather_list}
