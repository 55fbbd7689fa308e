"""Whatever speaks like torch.distributed takes the same calls, gives the same answers and refuses the same mistakes."""

import pytest
import torch
from helpers.processes import shared

from ringtree.algorithms.all_reduce_over_nodes import Among as AmongOfAlgorithms
from ringtree.cost import Link
from ringtree.live.link.emulated import emulate
from ringtree.live.link.tracing import traced
from ringtree.simulated import simulate
from ringtree.speaks import Among

LINK = Link(1e-3, 0.0)


@pytest.fixture(scope="module")
def ranks():
    return shared(4)


def among(dist):
    return Among(range(4), dist.get_rank(), None, dist._begin)


def among_of_algorithms(dist):
    return AmongOfAlgorithms(dist, range(4))


LIVE = {
    "torch": lambda dist: dist,
    "emulated": lambda dist: emulate(dist, LINK),
    "traced": traced,
    "emulated and traced": lambda dist: traced(emulate(dist, LINK)),
    "some of the emulated": lambda dist: among(emulate(dist, LINK)),
    "an algorithm's some": among_of_algorithms,
}
SIMULATED = {
    "simulated": ("gloo", lambda dist: dist),
    "by NCCL's rules": ("nccl", lambda dist: dist),
    "some of the simulated": ("gloo", among),
    "an algorithm's some of the simulated": ("gloo", among_of_algorithms),
}
SPEAKERS = *LIVE, *SIMULATED
AMONG = {"some of the emulated", "some of the simulated"}  # which take neither groups nor tags
COPIED = {"an algorithm's some", "an algorithm's some of the simulated"}  # which take no groups, and check nothing


def answers(ranks, speaker, program, *given):
    """What program(dist, *given) returns on each rank that speaks through `speaker`."""
    if speaker in LIVE:
        return ranks.call(on_a_rank, speaker, program, *given)
    rules, made = SIMULATED[speaker]
    return simulate(lambda dist: program(made(dist), *given), [()] * 4, LINK, rules=rules).outputs


def on_a_rank(dist, speaker, program, *given):
    return program(LIVE[speaker](dist), *given)


def messages(dist):
    rank, x, got, told = dist.get_rank(), torch.full((2,), dist.get_rank() + 1.0), torch.zeros(2), []
    peer = rank ^ 1
    if rank < peer:
        dist.send(x, peer)
        told.append(dist.recv(got, peer))
    else:
        told.append(dist.recv(got, peer))
        dist.send(x, peer)
    told += got.tolist()
    left, right = (rank - 1) % 4, (rank + 1) % 4
    operations = [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, got, left)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    told += got.tolist()
    if rank % 2:
        works = [dist.irecv(got, left), dist.isend(x, left)]
    else:
        works = [dist.isend(x, right), dist.irecv(got, right)]
    for work in works:
        work.wait()
    return told + got.tolist()


def in_a_group(dist):
    pair, x, got, told = dist.new_group([1, 3]), torch.full((1,), dist.get_rank() + 1.0), torch.zeros(1), []
    if dist.get_rank() == 1:
        dist.send(x, 3, pair)
        dist.send(x, group=pair, group_dst=1)
        operations = [dist.P2POp(dist.isend, x, group=pair, group_peer=1), dist.P2POp(dist.irecv, got, 3, pair)]
    if dist.get_rank() == 3:
        told += [dist.recv(got, group=pair, group_src=0), dist.recv(got, 1, pair)]
        told += [dist.get_global_rank(pair, 0), dist.get_group_rank(pair, 3), *dist.get_process_group_ranks(pair)]
        operations = [dist.P2POp(dist.isend, x, 1, pair), dist.P2POp(dist.irecv, got, group=pair, group_peer=0)]
    if dist.get_rank() % 2:
        for work in dist.batch_isend_irecv(operations):
            work.wait()
    return told + got.tolist()


def with_tags(dist):
    rank, x, got = dist.get_rank(), torch.full((1,), 1.0), torch.zeros(2, 1)
    if rank == 0:
        works = [dist.isend(x, 1, tag=7), dist.isend(x + 1, 1, tag=8)]
    elif rank == 1:
        works = [dist.irecv(got[0], 0, tag=8), dist.irecv(got[1], 0, tag=7)]
    else:
        works = []
    for work in works:
        work.wait()
    return got.flatten().tolist()


@pytest.mark.parametrize("speaker", SPEAKERS)
def test_the_same_messages_arrive(ranks, speaker):
    assert answers(ranks, speaker, messages) == [
        [1, 2, 2, 4, 4, 2, 2],
        [0, 1, 1, 1, 1, 1, 1],
        [3, 4, 4, 2, 2, 4, 4],
        [2, 3, 3, 3, 3, 3, 3],
    ]


@pytest.mark.parametrize("speaker", [each for each in SPEAKERS if each not in AMONG | COPIED])
def test_ranks_of_a_group_are_named_in_the_same_ways(ranks, speaker):
    assert answers(ranks, speaker, in_a_group) == [[0], [4], [0], [1, 1, 1, 1, 1, 3, 2]]


@pytest.mark.parametrize("speaker", [each for each in SPEAKERS if each not in AMONG | {"by NCCL's rules"}])
def test_messages_meet_by_their_tags(ranks, speaker):
    assert answers(ranks, speaker, with_tags) == [[0, 0], [2, 1], [0, 0], [0, 0]]


REFUSED = {
    "itself": (lambda dist, x: dist.send(x, 2), "rank 2 wants to send to itself: give another rank, from 0 to 3"),
    "a stranger": (lambda dist, x: dist.isend(x, 4), "rank 2 wants to send to rank 4: give another rank, from 0 to 3"),
    "anyone": (lambda dist, x: dist.recv(x), "rank 2 wants to receive from rank None: give another rank, from 0 to 3"),
    "a rank below 0": (
        lambda dist, x: dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, -1)]),
        "rank 2 wants to receive from rank -1: give another rank, from 0 to 3",
    ),
    "no operation": (
        lambda dist, x: dist.P2POp(dist.send, x, 1),
        "rank 2 gives P2POp send: give it isend or irecv of the object that it belongs to, as in dist.P2POp(dist.isend, "
        "tensor, peer)",
    ),
    "torch's operation": (
        lambda dist, x: dist.P2POp(torch.distributed.isend, x, 1),
        "rank 2 gives P2POp another object's isend: give it isend or irecv of the object that it belongs to, as in "
        "dist.P2POp(dist.isend, tensor, peer)",
    ),
    "an empty batch": (
        lambda dist, x: dist.batch_isend_irecv([]),
        "rank 2 gives batch_isend_irecv an empty list: give it a list of one or more dist.P2POp",
    ),
    "a batch that is a tuple": (
        lambda dist, x: dist.batch_isend_irecv((dist.P2POp(dist.isend, x, 1),)),
        "rank 2 gives batch_isend_irecv a tuple: give it a list of one or more dist.P2POp",
    ),
    "a batch of functions": (
        lambda dist, x: dist.batch_isend_irecv([dist.isend]),
        "rank 2 gives batch_isend_irecv a list with a method: give it a list of dist.P2POp",
    ),
}
REFUSED_WITH_GROUPS = {
    "two names for a peer": (
        lambda dist, x, pair: dist.send(x, 0, pair, group_dst=0),
        "a message was given rank 0 and group rank 0: give one of them",
    ),
    "a rank outside the group": (
        lambda dist, x, pair: dist.isend(x, 1, pair),
        "rank 1 was given, which is not in the group of ranks [0, 2]: give one of them",
    ),
    "no rank of the group": (
        lambda dist, x, pair: dist.P2POp(dist.irecv, x, group=pair, group_peer=2),
        "group rank 2 was given: give 0 to 1",
    ),
    "a group rank below 0": (
        lambda dist, x, pair: dist.get_global_rank(pair, -1),
        "group rank -1 was given: give 0 to 1",
    ),
    "a tag below 0": (
        lambda dist, x, pair: dist.isend(x, 1, tag=-1),
        "a message was given tag=-1: give a whole number, 0 or more",
    ),
    "several groups": (
        lambda dist, x, pair: dist.batch_isend_irecv([
            dist.P2POp(dist.isend, x, 0, pair),
            dist.P2POp(dist.isend, x, 0),
        ]),
        "rank 2 gives batch_isend_irecv messages of several groups: give one batch for each group",
    ),
}


def refusals(dist, with_groups):
    """What rank 2 is told, by the mistake's name. Live or simulated, no message has left when it is told."""
    pair = (dist.new_group([0, 2]),) if with_groups else ()
    told = {}
    for name, (call, _) in (REFUSED | (REFUSED_WITH_GROUPS if with_groups else {})).items():
        if dist.get_rank() == 2:
            try:
                call(dist, torch.zeros(1), *(pair if name in REFUSED_WITH_GROUPS else ()))
            except Exception as problem:
                told[name] = str(problem).partition("  [")[0]  # the simulator adds the line
    return told


@pytest.mark.parametrize("speaker", [each for each in SPEAKERS if each not in COPIED | {"torch"}])
def test_the_same_mistakes_are_refused_in_the_same_words(ranks, speaker):
    with_groups = speaker not in AMONG
    expected = {name: text for name, (_, text) in (REFUSED | (REFUSED_WITH_GROUPS if with_groups else {})).items()}
    assert answers(ranks, speaker, refusals, with_groups)[2] == expected
