"""One run for many sizes and links: to the last digit what as many separate runs give, and run anew where it does not hold."""

import builtins
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtree import Link, Machine, Sketch, compute, cost_of, simulate, theory
from ringtree.algorithms import rabenseifner_all_reduce, ring_all_reduce
from ringtree.simulated import sweep as module
from ringtree.simulated.lengths import Differ, Lengths
from ringtree.simulated.sketch import len_gives_lengths
from ringtree.simulated.sweep import Swept, sweep
from ringtree.theory import ALGORITHMS
from ringtree.theory.costs import _arguments, _of_one_tensor

NVLINK, CARD = theory.nvlink(1e-6, bandwidth=371e9), theory.card(5e-6, bandwidth=50e9)
TEXTBOOK = Link.of(5e-6, bandwidth=50e9)
COUNTS = 0, 1, 3, 5, 1000, 1025, 4096, 99_991, 1 << 24
MACHINES = {
    "textbook": Machine(TEXTBOOK),
    "gap": Machine(CARD),
    "no gap": Machine(Link.of(5e-6, bandwidth=50e9, gap=0.0)),
    "nodes": Machine(NVLINK, CARD, ranks_per_node=4),
    "a card": Machine(NVLINK, CARD, ranks_per_node=4, cards_per_node=1),
    "cards": Machine(NVLINK, CARD, ranks_per_node=4, cards_per_node=2),
    "textbook cards": Machine(TEXTBOOK, Link.of(9e-6, bandwidth=20e9), ranks_per_node=4, cards_per_node=4),
}


def entries(program, size, count, dtype=torch.float32):
    return [_arguments(program, Sketch(count, dtype), rank, size) for rank in range(size)]


def separate(program, given, machine, gamma=0.0):
    run = simulate(program, given, machine, gamma=gamma)
    return Swept(run.makespan, tuple(run.trace.bytes_sent), tuple(run.trace.bytes_received))


@pytest.fixture
def alone(monkeypatch):
    """The cases that were run by themselves."""
    cases, run_alone = [], module._alone

    def noted(program, entries, *case):
        cases.append(case)
        return run_alone(program, entries, *case)

    monkeypatch.setattr(module, "_alone", noted)
    return cases


@pytest.mark.parametrize("row", ALGORITHMS, ids=lambda row: row.name)
@pytest.mark.parametrize("size", [4, 6, 8])
def test_a_sweep_gives_what_separate_runs_give_to_the_last_digit(row, size):
    options = {"ranks_per_node": 2 if size == 6 else 4} if "ranks_per_node" in row.taken else {}
    program = _of_one_tensor(row)
    cases = [(n, machine, (0.0, 3e-11)[at % 2]) for at, machine in enumerate(MACHINES.values()) for n in COUNTS]
    found = sweep(partial(program, **options), partial(entries, program, size), cases)
    for case, each in zip(cases, found, strict=True):
        assert each == separate(partial(program, **options), entries(program, size, case[0]), *case[1:]), case


@pytest.mark.parametrize("row", ALGORITHMS, ids=lambda row: row.name)
def test_the_sizes_of_a_usual_sweep_are_not_run_one_by_one(row, alone):
    options = {"ranks_per_node": 4} if "ranks_per_node" in row.taken else {}
    program, cases = _of_one_tensor(row), [(1 << power, MACHINES["gap"], 0.0) for power in range(8, 26)]
    sweep(partial(program, **options), partial(entries, program, 8), cases)
    # on one port a rank, the messages of these two meet in another order for nearly every size: eight pairs of trees, and
    # a chain through the nodes beside what goes on inside them
    assert len(alone) <= 6 or row.name in ("multi_tree_all_reduce", "two_level_chain_broadcast")


def test_links_and_gammas_are_swept_together(alone):
    links = TEXTBOOK, CARD, Link(1.0, 0.0), Link(0.0, 1.0)
    cases = [(n, Machine(link), gamma) for n in (1000, 4096) for link in links for gamma in (0.0, 1e-10)]
    found = sweep(ring_all_reduce, partial(entries, ring_all_reduce, 8), cases)
    assert found == [separate(ring_all_reduce, entries(ring_all_reduce, 8, case[0]), *case[1:]) for case in cases] and not alone


def test_cost_of_takes_a_list_and_gives_a_list(alone):
    def program(tensor, dist):
        rabenseifner_all_reduce(tensor, dist)

    sizes = [4 * n for n in COUNTS]
    for each in program, "rabenseifner_all_reduce", "sliced_ring_all_reduce":
        assert cost_of(each, 6, sizes, CARD) == [cost_of(each, 6, n, CARD) for n in sizes]
    assert cost_of(program, 6, [4096], CARD) == [cost_of(program, 6, 4096, CARD)] and cost_of(program, 6, [], CARD) == []


# -- what only a run of its own can tell ---------------------------------------------


def by_length(tensor, dist):
    """Another algorithm for long vectors."""
    (ring_all_reduce if tensor.numel() > 2000 else rabenseifner_all_reduce)(tensor, dist)


def in_pieces(tensor, dist):
    """Pieces of one length: how many there are depends on the size."""
    other = dist.get_rank() ^ 1
    for piece in tensor.split(500):
        for work in [dist.isend(piece, other), dist.irecv(torch.empty_like(piece), other)]:
            work.wait()


def by_a_table(tensor, dist):
    {5: ring_all_reduce}.get(len(tensor), rabenseifner_all_reduce)(tensor, dist)


def by_a_text(tensor, dist):
    (ring_all_reduce if f"{len(tensor)}".startswith("1") else rabenseifner_all_reduce)(tensor, dist)


def by_a_loop(tensor, dist):
    for _ in range(len(tensor) // 1000):
        ring_all_reduce(tensor[: len(tensor) // 3], dist)


def polling(tensor, dist):
    other = dist.get_rank() ^ 1
    works = [dist.isend(tensor, other), dist.irecv(tensor.clone(), other)]
    while not all(work.is_completed() for work in works):
        pass
    ring_all_reduce(tensor, dist)


def beside(tensor, dist):
    work = dist.all_reduce(tensor, async_op=True)
    dist.all_reduce(tensor.clone())
    work.wait()


def computing(tensor, dist):
    compute(1e-6 * dist.get_rank())
    ring_all_reduce(tensor, dist)


def of_contents(tensor, dist):
    if tensor.sum().item() == 0:
        ring_all_reduce(tensor, dist)


def catching(tensor, dist):
    """It hides every error of its own."""
    try:
        long = bool(tensor.numel() > 2000)
    except Exception:
        long = True
    (ring_all_reduce if long else rabenseifner_all_reduce)(tensor, dist)


OWN = [by_length, in_pieces, by_a_table, by_a_text, by_a_loop, polling, beside, computing, of_contents, catching]


@pytest.mark.parametrize("program", OWN)
def test_a_program_that_goes_by_the_size_is_swept_as_it_runs(program):
    sizes = [4 * n for n in (0, 1, 5, 999, 1000, 1001, 4096, 10_000)]
    assert cost_of(program, 4, sizes, CARD) == [cost_of(program, 4, n, CARD) for n in sizes]


@pytest.mark.parametrize("program", [polling, beside, computing])
def test_what_time_may_decide_is_run_case_by_case(program, alone):
    cost_of(program, 4, [400, 4000], CARD)
    assert len(alone) == 6, "two sizes, each for the time, the rounds and the path"


def test_what_a_program_raises_for_one_size_is_raised():
    def program(tensor, dist):
        if tensor.numel() == 1000:
            raise ValueError("not this one")

    with pytest.raises(ValueError, match="not this one"):
        cost_of(program, 2, [400, 4000, 40_000], CARD)


def crossing(tensor, dist):
    """Rank 3 hears from 0 by way of 1, and from 2: what comes first is what the length decides."""
    rank, short = dist.get_rank(), Sketch(100)
    if rank == 0:
        dist.send(tensor, 1)
    if rank == 1:
        dist.recv(tensor, 0)
        dist.send(tensor, 3)
    if rank == 2:
        dist.recv(short, 4)
        dist.recv(short, 4)
        dist.send(Sketch(5000), 3)
    if rank == 3:
        works = [dist.irecv(tensor, 1), dist.irecv(Sketch(5000), 2)]
        works[0].wait()
        dist.send(tensor, 4)
        works[1].wait()
    if rank == 4:
        dist.send(short, 2)
        dist.send(short, 2)
        dist.recv(tensor, 3)


def test_a_size_that_turns_the_order_at_a_port_is_run_anew(alone):
    counts = [1 << power for power in range(8, 22)]
    found = sweep(crossing, lambda count: [Sketch(count)] * 5, [(n, Machine(CARD), 0.0) for n in counts])
    assert found == [separate(crossing, [Sketch(n)] * 5, Machine(CARD)) for n in counts]
    cases = [(n, Machine(CARD), 0.0) for n in counts]
    _, holds = module._together(crossing, lambda count: [Sketch(count)] * 5, cases)
    assert 1 < sum(holds) < len(counts)


def in_places(tensor, dist):
    """Two messages to rank 3 are ready at one moment. That of rank 0 is its second one where the first is ready at that moment too."""
    rank, short, more, long = dist.get_rank(), Sketch(100), Sketch(5000), Sketch(10_000_000)
    if rank == 0:
        first, second = dist.isend(short, 1), dist.isend(short, 3)
        second.wait()
        dist.send(long, 5)
        first.wait()
    if rank == 1:
        dist.recv(tensor, 4)
        dist.recv(short, 0)
    if rank == 2:
        dist.send(more, 3)
    if rank == 3:
        dist.recv(Sketch(10_000), 5)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, short, 0), dist.P2POp(dist.irecv, more, 2)]):
            work.wait()
    if rank == 4:
        dist.send(tensor, 1)
    if rank == 5:
        dist.send(Sketch(10_000), 3)
        dist.recv(long, 0)


def test_places_at_one_moment_are_those_of_each_size():
    cases = [(n, Machine(TEXTBOOK), 0.0) for n in (200, 100, 300, 10_000)]
    found = sweep(in_places, lambda count: [Sketch(count)] * 6, cases)
    assert found == [separate(in_places, [Sketch(n)] * 6, machine) for n, machine, _ in cases]
    _, holds = module._together(in_places, lambda count: [Sketch(count)] * 6, cases)
    assert [*holds] == [True, True, True, False]


messages = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 4), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), max_size=24
)


@given(messages, st.sampled_from(sorted(MACHINES)), st.sampled_from([0.0, 2e-10]))
@settings(max_examples=150, deadline=None)
def test_any_messages_are_swept_as_they_run(sent, machine, gamma):
    """sent: (src, ranks further, times n, plus, which of its works the two ranks then wait for)."""

    def program(tensor, dist):
        rank, works = dist.get_rank(), []
        for src, further, times, plus, waits in sent:
            dst = (src + further) % 5
            if rank in (src, dst):
                buffer = tensor.new_empty(tensor.numel() * times + 100 * plus)
                works.append(dist.isend(buffer, dst) if rank == src else dist.irecv(buffer, src))
                if waits < len(works):
                    works[waits].wait()
                    torch.add(buffer, buffer, out=buffer)
        for work in works:
            work.wait()

    cases = [(n, MACHINES[machine], gamma) for n in (0, 1, 100, 2000, 3001, 50_000)]
    found = sweep(program, lambda count: [Sketch(count)] * 5, cases)
    assert found == [separate(program, [Sketch(n)] * 5, MACHINES[machine], gamma) for n, *_ in cases]


# -- lengths ---------------------------------------------------------------------------


def test_lengths_count_as_whole_numbers_do_and_part_where_they_must():
    import numpy as np

    one = Lengths(np.array([4, 4, 9]))
    assert (one + one).each.tolist() == [8, 8, 18] and (20 - one).each.tolist() == [16, 16, 11]
    assert [each.each.tolist() for each in divmod(one, 4)] == [[1, 1, 2], [0, 0, 1]] and (one / 4).each.tolist() == [1, 1, 2.25]
    assert one > 3 and not one < 1 and max(one, 1) is one and one == one
    assert [*range(Lengths(np.array([2, 2])))] == [0, 1]
    for part in (lambda: bool(one > 5), lambda: range(one), lambda: {one: 0}, lambda: str(one), lambda: 3 // (one - 4)):
        with pytest.raises(Differ) as parted:
            part()
        assert [*parted.value.same] in ([False, False, True], [True, True, False])
    with pytest.raises(ZeroDivisionError):
        one % 0
    with pytest.raises(OverflowError):
        one * 2**60


def test_a_sketch_of_lengths_is_cut_as_each_is_alone():
    import numpy as np

    counts = [0, 1, 7, 100]
    whole = Sketch(Lengths(np.array(counts)))
    pieces = [
        lambda x: x[3:],
        lambda x: x[-2:],
        lambda x: x[1:-1],
        lambda x: x[: len(x) // 2],
        lambda x: x.tensor_split(3)[1],
        lambda x: x[2:][:50].tensor_split(4)[0],
        lambda x: torch.cat([x, x[:5]]),
        lambda x: x.split([len(x) - len(x) // 3, len(x) // 3])[1],
    ]
    for piece in pieces:
        with len_gives_lengths():
            parts = piece(whole)
        assert parts.count.each.tolist() == [piece(Sketch(n)).count for n in counts]
        assert parts.nbytes.each.tolist() == [4 * n for n in parts.count.each]


def test_len_is_pythons_own_afterwards():
    before = builtins.len
    cost_of(in_pieces, 2, [400, 4000], CARD)
    with pytest.raises(ValueError), len_gives_lengths():
        assert len("abc") == 3 and len(Sketch(5)) == 5
        raise ValueError
    assert builtins.len is before
