"""NCCL's rules of pairing, strictly: the programs whose verdicts are known, and what the report says."""

import re

import pairing
import pytest
import torch

from ringtree import Deadlock, ProgramError, algorithms, compute, simulate
from ringtree.cost import Link
from ringtree.data import recording
from ringtree.errors import UsageError
from ringtree.simulated.nccl_rules import RULES
from ringtree.theory import ALGORITHMS

LINK = Link(1.0, 0.0)
TAGS, USED_BEFORE = "two tags, received in the other order", "two groups in two orders, used before"


def verdicts(program, size=4):
    """(on Gloo, by NCCL's rules): None, or the error."""
    found = []
    for rules in ("gloo", "nccl"):
        try:
            simulate(program, [()] * size, LINK, rules=rules)
            found.append(None)
        except ProgramError as error:
            found.append(error)
    return found


# What each of `pairing.PROGRAMS` is by the rules: whether it ends on Gloo, and the rules that hold it on NCCL; None: it
# hangs by itself, and is told as ever.
VERDICTS = {
    "ring: send, then recv": (False, None),
    "ring: isend, then recv, then wait": (True, {"pairs"}),
    "ring: isend and irecv, not batched": (True, {"pairs"}),
    "ring: rank 0 receives first": (True, set()),
    "ring: one batch": (True, set()),
    "swap: isend and irecv, not batched": (True, {"order", "rendezvous"}),
    "swap: in turn": (True, set()),
    TAGS: (True, {"tags"}),
    "all-reduce before a send, after its receive": (False, None),
    "two groups in two orders, blocking": (False, None),
    "two groups in two orders": (True, {"group"}),
    USED_BEFORE: (True, {"groups"}),
    "all-reduce on three of four ranks": (False, None),
    "first operation a batch of two ranks": (True, {"group"}),
    "batch meets recv": (True, {"group", "pairs", "batches"}),
    "batch meets recv, after a barrier": (True, {"pairs", "batches", "rendezvous"}),
}


@pytest.mark.parametrize("name", pairing.PROGRAMS)
def test_the_known_programs_have_their_verdicts(name):
    ends, rules = VERDICTS[name]
    gloo, nccl = verdicts(pairing.PROGRAMS[name])
    assert (gloo is None) is ends
    assert (nccl is None) is (rules == set())
    if name == TAGS:
        assert not isinstance(nccl, Deadlock) and RULES["tags"] in str(nccl)
    elif rules:
        assert isinstance(nccl, Deadlock) and set(nccl.rules) == rules
    elif not ends:
        assert str(nccl).startswith(str(gloo))


@pytest.mark.parametrize("name", [*pairing.PROGRAMS, "recv without a send, first call", "recv without a send, later"])
def test_the_verdicts_are_those_of_four_ranks_on_nccl(name):
    """Recorded: what is refused hung or failed, with communicators made when first used or at the start; else it ended."""
    recorded = recording("pairing").frame
    rows = recorded[(recorded.program == name) & recorded.way.isin(["lazy", "eager"])]
    assert set(rows.way) == {"lazy", "eager"}
    _, strict = verdicts({**pairing.PROGRAMS, **pairing.ALONE}[name])
    if name == TAGS:
        assert set(rows.verdict) == {"ends"} and all("has [[1.0], [2.0]]" in ranks for ranks in rows.ranks), "wrong data"
    elif name == USED_BEFORE:
        assert strict is not None, "NCCL's guide lets nobody rely on it"
        late = rows[rows.verdict != "ends"]
        assert len(late) < len(rows) and all("held in barrier" in ranks for ranks in late.ranks), "not in the two orders"
    else:
        assert (strict is not None) is (set(rows.verdict) != {"ends"})


def test_what_ends_once_connections_exist_is_refused_all_the_same():
    """Its buffers took a message of one number: luck, which the rules do not promise."""
    recorded = recording("pairing").frame
    connected = recorded[(recorded.way == "connected") & (recorded.numbers == 1)].set_index("program").verdict
    for name in ("ring: send, then recv", "ring: isend, then recv, then wait", "ring: isend and irecv, not batched"):
        assert connected[name] == "ends" and verdicts(pairing.PROGRAMS[name])[1] is not None


def test_tags_are_not_there():
    gloo, nccl = verdicts(pairing.tags_in_another_order)
    assert gloo is None
    assert "tag 1 meets tag 2: rank 0's isend to rank 1" in str(nccl) and "there are no tags" in str(nccl)


def test_the_report_names_ranks_lines_and_rules():
    with pytest.raises(Deadlock) as problem:
        simulate(pairing.unbatched, [()] * 4, LINK, rules="nccl")
    first, *lines = str(problem.value).split("\n  ")
    assert first == "deadlock under NCCL's rules, communicators made when first used (no device_id)."
    held = "rank 0 is held in isend to rank 1: rank 1 has not come to make the communicator of the two  [unbatched, line "
    assert lines[0].startswith(held)
    assert lines[4] == "they wait in a circle: rank 0 → rank 1 → rank 2 → rank 3 → rank 0"
    assert lines[5].startswith("rule: the first unbatched message between two ranks makes a communicator of the two")
    assert lines[6] == "give sends and receives that belong together to one batch_isend_irecv"
    assert problem.value.waits == {0: 1, 1: 2, 2: 3, 3: 0}


def test_a_half_of_a_message_that_is_there_waits_in_its_ranks_queue():
    def exchange(x, dist):
        got = torch.empty_like(x)
        work = dist.isend(x, 1 - dist.get_rank())
        dist.recv(got, 1 - dist.get_rank())
        work.wait()

    with pytest.raises(Deadlock) as problem:
        simulate(exchange, [torch.ones(1)] * 2, LINK, rules="nccl")
    lines = str(problem.value).split("\n  ")
    assert re.fullmatch(
        r"rank 0 runs isend to rank 1  \[exchange, line \d+: work = .*\], and rank 1's receive  \[exchange, line \d+: dist.recv.*\] "
        r"waits in the queue behind its own isend to rank 0  \[exchange, line \d+: work = .*\]",
        lines[1],
    )
    assert lines[-1].endswith("to one batch_isend_irecv, or let one of two ranks receive first")


def test_a_read_holds_the_program_and_an_unread_result_does_not():

    def held(dist, reads):
        x, y = torch.zeros(1), torch.zeros(1)
        if dist.get_rank() < 2:  # their communicator is there
            (dist.send if dist.get_rank() == 0 else dist.recv)(x, 1 - dist.get_rank())
        if dist.get_rank() == 0:
            dist.recv(x, 1)  # waits on the GPU alone, until the program reads
            if reads:
                x.item()
            dist.recv(y, 2)
        if dist.get_rank() == 1:
            dist.recv(y, 2)
            dist.send(x, 0)
        if dist.get_rank() == 2:
            works = [dist.isend(x, 0), dist.isend(x, 1)]
            for work in works:
                work.wait()

    # rank 2's communicator with rank 0 needs rank 0's program, which a read holds until rank 1 has sent
    gloo, nccl = verdicts(lambda dist: held(dist, reads=True), 3)
    assert gloo is None and "when first used" in str(nccl) and "pairs" in nccl.rules
    # without the read the program of rank 0 comes; with one communicator for all, rank 2's sends still run in turn
    gloo, nccl = verdicts(lambda dist: held(dist, reads=False), 3)
    assert gloo is None and "made at the start" in str(nccl)


def test_a_work_for_a_whole_batch_as_nccl_gives_it():
    def program(dist):
        rank, size = dist.get_rank(), dist.get_world_size()
        x, y, right, left = torch.ones(1), torch.zeros(1), (rank + 1) % size, (rank - 1) % size
        return len(dist.batch_isend_irecv([dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, y, left)]))

    assert simulate(program, [()] * 2, LINK, rules="nccl").outputs == [1, 1]
    assert simulate(program, [()] * 2, LINK).outputs == [2, 2]


@pytest.mark.parametrize("row", ALGORITHMS, ids=lambda row: row.name)
@pytest.mark.parametrize("size", [2, 4, 5, 8])
def test_every_algorithm_of_the_book_ends_by_nccls_rules(row, size):
    from helpers.programs import inputs_of, options_of, program_of

    options = options_of(row, size)
    inputs = inputs_of(size, 10, torch.float32)

    def program(x, dist):
        dist.barrier()  # an algorithm in which some ranks take no part needs the group's communicator to be there
        program_of(row, **options)(x, dist)

    plain = simulate(program, inputs, LINK)
    strict = simulate(program, inputs, LINK, rules="nccl")
    assert [strict.makespan, strict.messages] == [plain.makespan, plain.messages]


def test_overlapping_computing_with_collectives_is_allowed():
    def program(dist):
        works = []
        for _ in range(3):
            compute(1.0)
            works.append(dist.all_reduce(torch.ones(2), async_op=True))
        for work in works:
            work.wait()

    assert verdicts(program) == [None, None]


def test_rules_that_are_none_are_refused():
    with pytest.raises(UsageError, match='simulate got rules=.mpi.: give "gloo" or "nccl"'):
        simulate(algorithms.ring_all_reduce, [torch.ones(4)] * 2, LINK, rules="mpi")
