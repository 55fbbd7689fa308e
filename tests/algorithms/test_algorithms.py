"""Every algorithm gives what its collective promises, and costs what its formula says."""

import math

import pytest
import torch
from helpers.programs import WHOLE_NODES, assert_definition, inputs_of, options_of, program_of
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtree import collectives
from ringtree.algorithms.all_reduce_over_nodes import Among
from ringtree.cost import Link, Machine
from ringtree.errors import UsageError
from ringtree.simulated import simulate
from ringtree.simulated.sketch import Sketch
from ringtree.theory import ALGORITHMS, cost_of, find, lower_bound, textbook_time

LINK, GAMMA = Link(3.0, 0.25), 0.0625  # powers of two: sums are exact, whatever their order
SIZES = [*range(1, 18), 32, 64]
RUN_AT = [*range(1, 10), 12, 17]  # of 402 mutants of the programs, each that dies does so on 8 ranks or fewer
NAMES = [row.name for row in ALGORITHMS]
OPERATIONS = [torch.add, torch.maximum, torch.minimum, torch.mul, torch.bitwise_xor]


def assert_cost(row, size, inputs, options, machine=LINK):
    """The schedule has the messages of a run, and the cost is what it takes; on up to nine ranks also by runs in which only
    rounds take time, and only bytes."""
    program, nbytes, itemsize = program_of(row, **options), inputs[0].nbytes, inputs[0].element_size()
    run = simulate(program, inputs, machine, gamma=GAMMA)
    # cost_of runs the program where a schedule does not say which message goes first, so the schedule is compared by itself
    said = [message for messages, _ in row.steps(size, nbytes, itemsize, options) for message in messages]
    assert sorted(said) == sorted((message.src, message.dst, message.nbytes) for message in run.trace)
    cost = cost_of(row.name, size, nbytes, machine, gamma=GAMMA, itemsize=itemsize, **options)
    assert list(cost.sent) == run.trace.bytes_sent
    assert list(cost.received) == run.trace.bytes_received
    assert cost.time == pytest.approx(run.makespan, rel=1e-12)
    assert cost.path_bytes >= cost.busiest_port
    if size <= 9:
        assert cost.rounds == simulate(program, inputs, Link(1.0, 0.0), trace=False).makespan
        assert cost.path_bytes == simulate(program, inputs, Link(0.0, 1.0), trace=False).makespan
    return run, cost


# -- what the collectives promise, and the exact cost --------------------------


@pytest.mark.parametrize(
    ("name", "size"),
    [(name, size) for name in NAMES for size in RUN_AT] + [("ring_all_reduce", 64), ("two_trees_all_reduce", 64)],
)
def test_outputs_are_the_definition_and_the_cost_is_the_formula(name, size):
    row = find(name)
    for count in [2 * size + 3] if size > 17 else (0, 1, size - 1, 2 * size + 3, 48):
        options = options_of(row, size, root=size // 3)
        inputs = inputs_of(size, count)
        run, _ = assert_cost(row, size, inputs, options)
        assert_definition(row, inputs, run.outputs, options.get("root", 0))


@pytest.mark.parametrize("name", NAMES)
def test_without_options_the_outputs_are_the_definition_too(name):
    inputs = inputs_of(8, 19)
    assert_definition(find(name), inputs, simulate(program_of(find(name)), inputs, LINK, trace=False).outputs)


@pytest.mark.parametrize("op", OPERATIONS, ids=lambda op: op.__name__)
@pytest.mark.parametrize("name", [row.name for row in ALGORITHMS if collectives.find(row.collective).reduces])
def test_every_operation_reduces(name, op):
    row = find(name)
    for size in (2, 5, 8):
        options = options_of(row, size, root=size - 1)
        inputs = inputs_of(size, 11)
        outputs = simulate(program_of(row, op=op, **options), inputs, LINK, trace=False).outputs
        assert_definition(row, inputs, outputs, size - 1 if row.collective == "reduce" else 0, op)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_any_size_root_length_dtype_and_chunks(data):
    row = data.draw(st.sampled_from(ALGORITHMS))
    size = data.draw(st.integers(1, 20))
    root = data.draw(st.integers(0, size - 1))
    count = data.draw(st.integers(0, 70))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64, torch.int32, torch.uint8, torch.bfloat16]))
    options = options_of(row, size, root, data.draw(st.integers(1, 9)))
    inputs = inputs_of(size, count, torch.int64)
    inputs = [each.clamp(max=6).to(dtype) for each in inputs]  # sums stay exact in every dtype
    run, _ = assert_cost(row, size, inputs, options)
    assert_definition(row, inputs, run.outputs, options.get("root", 0))


@pytest.mark.parametrize("name", NAMES)
def test_a_buffer_is_never_touched_while_it_is_in_flight(name):
    row = find(name)
    for size in (2, 3, 6, 8):
        inputs = inputs_of(size, 13)
        options = options_of(row, size)
        run = simulate(program_of(row, **options), inputs, LINK, checked=True)
        assert_definition(row, inputs, run.outputs)


@pytest.mark.parametrize("name", NAMES)
def test_a_sketch_has_the_same_trace_as_tensors(name):
    row = find(name)
    for size, count in ((6, 20), (8, 64)):
        options = options_of(row, size)
        program = program_of(row, **options)
        real = simulate(program, [torch.zeros(count)] * size, LINK, gamma=GAMMA).trace
        sketched = simulate(program, [Sketch(count)] * size, LINK, gamma=GAMMA).trace
        assert [(m.src, m.dst, m.nbytes, m.start, m.end) for m in real] == [
            (m.src, m.dst, m.nbytes, m.start, m.end) for m in sketched
        ]


@pytest.mark.parametrize("name", NAMES)
def test_the_formula_knows_slow_links_between_nodes(name):
    row = find(name)
    for part in (1.0, 0.125, 0.0):  # of α is the gap
        machine = Machine(Link(1.0, 0.125, part), Link(8.0, 0.5, 8.0 * part), ranks_per_node=4)
        for size in (8, 12):
            assert_cost(row, size, inputs_of(size, 24), options_of(row, size), machine)


# -- what the textbooks say ----------------------------------------------------


@pytest.mark.parametrize("name", [row.name for row in ALGORITHMS if row.form])
def test_the_textbook_form_is_exact_where_it_holds(name):
    row, held = find(name), 0
    for size in SIZES:
        for count in (48, size, 8 * size, 840 * size):
            options = options_of(row, size, root=0, chunks=8)
            for link in (LINK, Link(LINK.alpha, LINK.beta, 0.1 * LINK.alpha)):
                time = textbook_time(name, size, 4 * count, link, gamma=GAMMA, **options)
                if time is not None:
                    held += 1
                    assert time == pytest.approx(cost_of(name, size, 4 * count, link, gamma=GAMMA, **options).time, rel=1e-12)
    assert held >= 12


@pytest.mark.parametrize(
    "name, turns",
    [("ring_all_gather", 1), ("ring_reduce_scatter", 1), ("ring_all_reduce", 2), ("pairwise_all_to_all", 1)],
)
def test_with_uneven_chunks_every_step_of_a_ring_costs_the_longest(name, turns):
    for size in SIZES:
        for count in (1, 5, 48, 1001):
            longest = 4 * -(-count // size)
            assert cost_of(name, size, 4 * count, LINK).time == turns * (size - 1) * LINK.time(longest)


def test_with_uneven_chunks_a_chain_waits_for_the_longest_only_while_it_fills():
    for size in SIZES[1:]:
        for chunks, count in ((1, 7), (4, 30), (8, 3), (9, 100)):
            filling = (size - 2) * LINK.time(4 * -(-count // chunks))
            time = cost_of("chain_broadcast", size, 4 * count, LINK, chunks=chunks).time
            assert time == filling + chunks * LINK.alpha + 4 * count * LINK.beta


def test_ring_all_reduce_moves_two_p_minus_one_over_p():
    cost = cost_of("ring_all_reduce", 8, 1 << 20, LINK)
    assert set(cost.sent) == set(cost.received) == {2 * 7 * (1 << 20) // 8}


def test_six_ranks_take_three_rounds_with_one_partner_at_a_time():
    assert cost_of("mst_broadcast", 6, 4, LINK).rounds == 3


def test_bruck_moves_seven_sixths_of_n_on_six_ranks():
    assert max(cost_of("bruck_all_to_all", 6, 6 * 4, LINK).sent) == 7 * 4


def test_a_tree_scatter_needs_the_sender_to_keep_the_larger_half():
    kept, given_away = (cost_of("mst_scatter", 3, 12, Link(0.0, 1.0), root=root).time for root in (0, 2))
    assert (kept, given_away) == (8, 12)


# -- bounds --------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_no_algorithm_beats_the_lower_bound(name):
    row = find(name)
    for size in SIZES:
        bound, n = lower_bound(row.collective, size), 4 * 8 * size
        cost = cost_of(name, size, n, Link(0.0, 1.0), **options_of(row, size))
        assert cost.rounds >= bound.rounds
        assert max(cost.sent + cost.received) >= bound.moved * n - 1e-9
        assert cost.time >= bound.moved * n - 1e-9


@pytest.mark.parametrize(
    "name, rounds, moved",
    [
        ("mst_broadcast", True, False),
        ("mst_gather", True, True),
        ("bruck_all_gather", True, True),
        ("ring_reduce_scatter", False, True),
        ("ring_all_reduce", False, True),
        ("recursive_doubling_all_reduce", True, False),
        ("pairwise_all_to_all", False, True),
        ("dissemination_barrier", True, False),
    ],
)
def test_which_algorithms_meet_a_bound_on_sixteen_ranks(name, rounds, moved):
    bound = lower_bound(find(name).collective, 16)
    cost = cost_of(name, 16, 1600, Link(0.0, 1.0))
    assert (cost.rounds == bound.rounds, cost.time == pytest.approx(bound.moved * 1600)) == (rounds, moved)


def test_two_trees_pay_twice_n_and_a_logarithm():
    for size in SIZES[1:]:
        for chunks in (1, 8, 64):
            n = 2 * 4 * chunks * 100
            cost = cost_of("two_trees_all_reduce", size, n, LINK, gamma=GAMMA, chunks=chunks)
            steps = 4 * math.ceil(math.log2(size)) + 4 * chunks
            assert 4 * chunks <= cost.rounds <= steps
            assert 2 * n * LINK.beta <= cost.time <= steps * LINK.time(400) + steps / 2 * 400 * GAMMA
            assert max(cost.sent + cost.received) <= 2 * n


def test_in_two_trees_only_the_root_and_leaves_of_one_are_no_leaves_of_the_other():
    for size in SIZES[1:]:
        edges = find("two_trees_all_reduce").steps(size, 8, 4, {"chunks": 1, "ranks_per_node": 1})
        down = [message for messages, reduces in edges if not reduces for message in messages]
        assert sorted(dst for _, dst, _ in down) == sorted(2 * list(range(1, size)))
        assert all(sum(src == rank for src, _, _ in down) <= 2 for rank in range(size))


def test_chains_hang_below_two_trees_of_the_nodes_first_ranks():
    row, n = find("two_trees_all_reduce"), 2 * 4 * 8 * 100
    for nodes in (2, 3, 4, 7, 8):
        left = [0] * nodes
        for messages, _ in row.steps(4 * nodes, n, 4, {"chunks": 8, "ranks_per_node": 4}):
            across = [(src, dst) for src, dst, _ in messages if src // 4 != dst // 4]
            inside = [(src, dst) for src, dst, _ in messages if src // 4 == dst // 4]
            for pairs in (across, inside):  # a card and a port of its own inside: neither is asked for two messages at once
                assert all(len(set(ends)) == len(ends) for ends in zip(*pairs))
            assert all(src % 4 == dst % 4 == 0 for src, dst in across)
            assert all(abs(src - dst) == 1 for src, dst in inside)
            for src, dst, nbytes in messages:
                left[src // 4] += nbytes * (src // 4 != dst // 4)
        assert max(left) == (n if nodes == 2 else 1.5 * n if nodes == 3 else 2 * n)


def test_left_out_options_are_those_of_the_program():
    alone = cost_of("two_trees_all_reduce", 8, 6400, LINK)
    assert alone == cost_of("two_trees_all_reduce", 8, 6400, LINK, ranks_per_node=1, chunks=8)
    assert alone != cost_of("two_trees_all_reduce", 8, 6400, LINK, ranks_per_node=8)


def test_a_hierarchical_ring_spares_the_links_between_nodes():
    machine = Machine(Link(1e-6, 1 / 450e9), Link(10e-6, 1 / 25e9), ranks_per_node=8)
    n = 1 << 26
    hierarchical = cost_of("hierarchical_ring_all_reduce", 32, n, machine, ranks_per_node=8)
    assert hierarchical.time < cost_of("ring_all_reduce", 32, n, machine).time / 4


def leaving_by_rank(program, size, count, **options):
    """The bytes that each rank sends to another node of four, over n."""
    trace = simulate(program_of(find(program), **options), inputs_of(size, count, torch.int32), LINK).trace
    left = [0] * size
    for message in trace:
        left[message.src] += message.nbytes * (message.src // 4 != message.dst // 4)
    return [nbytes / (4 * count) for nbytes in left]


def test_two_levels_send_equal_shares_out_of_a_node_and_leaders_send_for_all():
    for nodes, doubled in ((2, 1), (4, 2), (8, 3)):
        halved = 2 * (nodes - 1) / nodes
        given = {"size": 4 * nodes, "count": 32 * nodes, "ranks_per_node": 4}
        assert leaving_by_rank("two_level_halving_all_reduce", **given) == [halved / 4] * 4 * nodes
        assert leaving_by_rank("two_level_doubling_all_reduce", **given) == [doubled / 4] * 4 * nodes
        assert leaving_by_rank("node_leader_all_reduce", **given) == [doubled, 0, 0, 0] * nodes


def test_two_levels_need_the_rounds_of_one_and_fewer_than_rings_of_rings():
    rounds = {
        name: cost_of(name, 32, 4 * 32, LINK, ranks_per_node=4).rounds
        for name in ("two_level_halving_all_reduce", "two_level_doubling_all_reduce", "hierarchical_ring_all_reduce")
    }
    assert list(rounds.values()) == [2 * 5, 2 * 2 + 3, 2 * 3 + 2 * 7]
    assert rounds["two_level_halving_all_reduce"] == cost_of("rabenseifner_all_reduce", 32, 4 * 32, LINK).rounds


def test_two_trees_a_card_leave_by_every_card_as_one_pair_leaves_by_one():
    for nodes, part in ((2, 1), (3, 1.5), (4, 2), (8, 2)):
        given = {"size": 4 * nodes, "count": 256, "chunks": 8, "ranks_per_node": 4}
        one, all_cards = (leaving_by_rank(name, **given) for name in ("two_trees_all_reduce", "multi_tree_all_reduce"))
        assert max(one) == part and all_cards == [one[rank - rank % 4] / 4 for rank in range(4 * nodes)]


# -- among some of the ranks ----------------------------------------------------

WITHOUT_BLOCKS = [name for name in NAMES if find(name).collective != "all_to_all"]


@pytest.mark.parametrize("name", WITHOUT_BLOCKS)
@pytest.mark.parametrize("some", [range(1, 7), [7, 0, 5], [3]], ids=str)
def test_every_algorithm_runs_among_some_of_the_ranks_as_if_there_were_no_others(name, some):
    row, some = find(name), list(some)
    options = options_of(row, len(some), root=len(some) - 1)
    alone = simulate(program_of(row, **options), inputs_of(len(some), 13), LINK)

    def program(tensor, dist):
        group = Among(dist, some)
        if group.get_rank() >= 0:
            program_of(row, **options)(tensor, group)

    inputs = inputs_of(8, 13)
    for place, rank in enumerate(some):
        inputs[rank] = inputs_of(len(some), 13)[place]
    run = simulate(program, inputs, LINK)
    assert [run.outputs[rank].tolist() for rank in some] == [output.tolist() for output in alone.outputs]
    assert run.makespan == alone.makespan
    assert all(run.outputs[rank].equal(inputs[rank]) for rank in range(8) if rank not in some)


# -- programs of one's own --------------------------------------------------------


def two_laps(tensor, dist, laps=2):
    """A learner's program: the whole tensor goes round the ring, `laps` times."""
    rank, size = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(tensor)
    for _ in range(laps * (size - 1)):
        for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, tensor, (rank + 1) % size),
            dist.P2POp(dist.irecv, received, (rank - 1) % size),
        ]):
            work.wait()


def test_the_cost_of_a_program_of_ones_own_is_counted_from_a_run():
    cost = cost_of(two_laps, 4, 400, LINK)
    assert (cost.rounds, cost.time) == (6, 6 * LINK.time(400))
    assert cost.sent == cost.received == (2400,) * 4
    assert cost_of(two_laps, 4, 400, LINK, laps=1).rounds == 3


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_of_ours_costs_what_ours_does(name):
    row = find(name)
    options = options_of(row, 6)

    def copy(*given):
        return row.program(*given, **options)

    def blocks(outputs, inputs, dist):
        return row.program(outputs, inputs, dist, **options)

    program = blocks if row.collective == "all_to_all" else copy
    machine = Machine(LINK, Link(7.0, 0.5), ranks_per_node=3)
    for nbytes in (6 * 40, 4 * 13):
        assert cost_of(program, 6, nbytes, machine, gamma=GAMMA) == cost_of(name, 6, nbytes, machine, gamma=GAMMA, **options)


def test_a_program_that_looks_at_its_numbers_is_counted_too():
    def nosy(tensor, dist):
        if tensor.sum().item() == 0 and dist.get_rank() < 2:
            dist.send(tensor, 1) if dist.get_rank() == 0 else dist.recv(tensor, 0)

    assert cost_of(nosy, 3, 12, LINK).sent == (12, 0, 0)


def test_a_program_of_another_form_is_refused_in_one_sentence():
    def strange(one, two, three, dist):
        pass

    with pytest.raises(UsageError, match=r"strange takes \(one, two, three, dist\): give one of that form, or simulate"):
        cost_of(strange, 4, 8, LINK)


def test_what_a_program_raises_comes_through():
    def broken(tensor, dist):
        tensor.no_such_thing()

    with pytest.raises(AttributeError, match="no_such_thing"):
        cost_of(broken, 2, 8, LINK)


# -- what is refused -----------------------------------------------------------


@pytest.mark.parametrize("name", WHOLE_NODES)
def test_ranks_that_do_not_make_whole_nodes_are_refused(name):
    program = program_of(find(name), ranks_per_node=4)
    with pytest.raises(ValueError, match="6 ranks do not make whole nodes of 4"):
        simulate(program, inputs_of(6, 8), LINK)


def test_an_unknown_algorithm_is_refused_with_those_there_are():
    with pytest.raises(UsageError, match="'ring_allreduce' is not one of our algorithms: give one of flat_broadcast"):
        cost_of("ring_allreduce", 4, 8, LINK)


@pytest.mark.parametrize("name", ["all-reduce", "all_reduce", "allreduce", "all_reduce_perf"])
def test_a_bound_is_the_same_however_its_collective_is_spelled(name):
    bound = lower_bound(name, 8)
    assert (bound.rounds, bound.moved, bound.reduced) == (3, 14 / 8, 7 / 8)


@pytest.mark.parametrize("name", ["rubbish", "send_recv", None, ""])
def test_a_bound_for_what_is_no_collective_is_refused(name):
    with pytest.raises(UsageError, match="is not a collective: .*ive one of broadcast, reduce"):
        lower_bound(name, 8)


@pytest.mark.parametrize("size", [0, -1, 2.0, None])
def test_a_bound_needs_ranks(size):
    with pytest.raises(UsageError, match="give a whole number, 1 or more"):
        lower_bound("broadcast", size)


@pytest.mark.parametrize("size, nbytes", [(0, 8), (4, -4), (4, 6)])
def test_ranks_and_whole_elements_are_needed(size, nbytes):
    with pytest.raises(UsageError, match="whole elements|give a whole number, [01] or more"):
        cost_of("ring_all_reduce", size, nbytes, LINK)


@pytest.mark.parametrize(
    "name, options, said",
    [
        ("mst_broadcast", {"root": 4}, "mst_broadcast got root=4: give a rank, 0 to 3"),
        ("chain_broadcast", {"chunks": 0}, "chain_broadcast got chunks=0: give a whole number, 1 or more"),
        ("chain_tree_all_reduce", {"ranks_per_node": 1.5}, "got ranks_per_node=1.5: give a whole number, 1 or more"),
        ("mst_broadcast", {"chunk": 3}, "mst_broadcast has no option chunk: it has root=, so leave chunk= out"),
        ("ring_all_reduce", {"chunks": 3}, "ring_all_reduce has no option chunks: it has none, so leave chunks= out"),
    ],
)
def test_a_cost_is_asked_for_with_the_options_that_the_algorithm_has(name, options, said):
    for ask in (cost_of, textbook_time):
        with pytest.raises(UsageError, match=said):
            ask(name, 4, 1000, LINK, **options)
