"""Measuring: messages by ping-pong, collectives with their results checked, and the tables that come of it."""

from __future__ import annotations

import dataclasses
import gc
import inspect
import itertools
import math
import os
import re
import signal
import statistics
import sys
import time

import pytest
import torch
import torch.distributed as dist
from helpers.processes import shared

import ringtree
from ringtree import measure
from ringtree.algorithms import ring_all_reduce
from ringtree.collectives import NAMES, call_names, find
from ringtree.cost import Link
from ringtree.errors import UsageError
from ringtree.live.processes import launchers
from ringtree.measure import buffers, crews, logs, progress, table, timing
from ringtree.measure import call as calls
from ringtree.theory import ALGORITHMS

SIZE = 4
QUICK = dict(budget=0.02, warmup=1)

# ---------------------------------------------------------------- messages


def played(dist):
    for bad in ({"sizes": []}, {"sizes": [0]}, {"sizes": [1.5]}, {"sizes": [8], "repeats": 0}):
        with pytest.raises(UsageError, match="ping_pong got"):
            measure.ping_pong(**bad)
    return measure.ping_pong([1, 1000, 2**16], repeats=7, warmup=1, at_most=2**17)


def test_ping_pong_gives_plain_rows_on_rank_zero():
    rows, *others = shared(SIZE).call(played)
    assert others == [None] * (SIZE - 1), "only ranks 0 and 1 play, and only rank 0 tells"
    assert [row["bytes"] for row in rows] == [1, 1000, 2**16]
    assert [row["repeats"] for row in rows] == [7, 7, 5], "long messages are repeated less often"
    for row in rows:
        assert 0 < row["min"] <= row["median"] and row["first"] > 0


def queued(dist):
    """On a GPU the round trips are queued; here they run one by one, over a link whose α is known."""
    from ringtree.measure import messages

    wire = ringtree.emulate(dist, Link(20e-3, 0.0))
    if dist.get_rank() > 1:
        return None
    pair = messages._Pair(64, dist.get_rank(), torch.device("cpu"), wire)
    pair.play(1)
    return pair.queued(4), pair.row(0, 1)


def test_what_a_queued_round_trip_adds_is_two_messages():
    (each, row), (other, _), *_ = shared(SIZE).call(queued)
    for seconds in (each, other):
        assert seconds > 0.8 * 20e-3, "no message of an emulated link is early"
    assert "queued" not in row, "on a CPU a call returns when its message is there"


def ways_through(dist):
    """The sizes of all messages of a ping-pong, in order."""
    noted = ringtree.traced(dist)
    measure.ping_pong([1, 2, 3], repeats=10, warmup=1, dist=noted)
    return [message.nbytes for message in noted.notes.messages if message.src == 0]


def test_sizes_are_gone_through_several_times():
    sizes = shared(SIZE).call(ways_through)[0]
    assert sizes == [1, 2, 3] + 5 * [1, 1, 2, 2, 3, 3]


# ---------------------------------------------------------------- order statistics


def test_the_median_interval_is_the_narrowest_with_95_percent():
    """Held against the binomial distribution: of n coins, fewer than k heads at either end."""
    for n in range(6, 61):
        low, high = measure.median_interval(range(1, n + 1))
        assert low + high == n + 1, "as far from one end as from the other"
        outside = [2 * sum(math.comb(n, i) for i in range(k)) / 2**n for k in (low, low + 1)]
        assert outside[0] <= 0.05 < outside[1]


def test_the_median_interval_of_many_times_is_nearly_the_binomial_one():
    for n in (61, 100, 400, 1000):
        low, _ = measure.median_interval(range(1, n + 1))
        exact = next(k for k in range(n) if 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n > 0.05)
        assert 0 <= exact - low <= 1


def test_median_and_quartiles_lie_between_neighbors_in_proportion():
    row = timing.summary("all_reduce", 4, 8, [5.0, 1.0, 4.0, 2.0, 8.0, 1.5])
    assert [row[name] for name in ("min", "q1", "time", "q3", "max")] == [1.0, 1.625, 3.0, 4.75, 8.0]
    alone = timing.summary("all_reduce", 4, 8, [5.0])
    assert {alone[name] for name in ("min", "q1", "time", "q3", "max")} == {5.0}
    assert {type(value) for value in row.values()} == {float}, "plain numbers, which any file can hold"


def test_a_median_is_stable_when_its_interval_is_narrow_on_both_sides():
    assert timing.is_stable([1.0] * 6, 0.01)
    assert not timing.is_stable([1.0] * 5, 0.5), "five times have no 95 % interval"
    assert not timing.is_stable([1, 1, 1, 1, 1, 2], 0.5), "the interval of six is all of them"
    assert timing.is_stable([1.0] * 8 + [2], 0.01), "one straggler among nine is outside"


# ---------------------------------------------------------------- the numbers that are sent


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 64, 119, 120, 200])
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "band", "bor", "bxor"])
def test_results_are_exact_in_every_type_and_in_every_order(op, ranks):
    terms = [buffers._terms(op, rank, ranks) for rank in range(ranks)]
    expected = buffers._reduced(op, range(ranks), ranks)
    for name in calls.TYPES:
        if op[0] == "b" and name in calls.FLOATING:
            continue
        kind = getattr(torch, calls.TYPES[name])
        together = getattr(torch, calls.OPERATIONS[op].function)
        for order in (terms, terms[::-1]):
            total = torch.tensor(order[0], dtype=kind)
            for each in order[1:]:
                total = together(total, torch.tensor(each, dtype=kind))
            assert total.tolist() == expected
    if ranks <= buffers.LARGEST_SUM:
        assert buffers.SPOILED not in expected


def test_bus_factors_are_those_of_nccl_tests():
    factors = {name: measure.bus_factor(name, 4) for name in NAMES}
    assert factors == {
        "all_reduce": 1.5,
        "broadcast": 1,
        "reduce": 1,
        "all_gather": 0.75,
        "reduce_scatter": 0.75,
        "gather": 0.75,
        "scatter": 0.75,
        "all_to_all": 0.75,
        "barrier": 1,
    }
    assert measure.bus_factor("all-reduce", 1) == 0
    assert measure.bus_factor("reduce_scatter_tensor", 2) == 0.5
    with pytest.raises(UsageError, match="'all_reduced' is not a collective"):
        measure.bus_factor("all_reduced", 4)
    with pytest.raises(UsageError, match="0 ranks"):
        measure.bus_factor("all_reduce", 0)


# ---------------------------------------------------------------- on ranks


def measured(dist, what, size, settings):
    return measure.time_collective(what, size, **{**QUICK, **settings})


def rows_of(what, size, ranks=SIZE, **settings):
    """The row of every rank."""
    return shared(ranks).call(measured, what, size, settings)


@pytest.mark.parametrize("name", call_names())
def test_every_collective_of_torch_is_measured_and_right(name):
    collective = find(name)
    rows = rows_of(name, 4100, root=2 if collective.root else 0)
    row = rows[0]
    assert all(each == row for each in rows), "all ranks know the same times"
    assert row["wrong"] == 0
    assert 0 < row["min"] <= row["q1"] <= row["time"] <= row["q3"] <= row["max"]
    assert row["min"] <= row["low"] <= row["time"] <= row["high"] <= row["max"]
    assert row["first"] > 0 and row["batches"] >= 6 and len(row["by_rank"]) == SIZE
    assert row["program"] == name and row["collective"] == collective.name
    if name == "barrier":
        assert (row["size"], row["count"], row["type"], row["algbw"]) == (0, 0, "none", 0)
        return
    shards = SIZE if collective.sharded else 1
    assert row["count"] == 4100 // 4 // shards, "what one rank passes, as nccl-tests counts"
    assert row["size"] == row["count"] * 4 * shards, "the full vector"
    assert row["algbw"] == row["size"] / row["time"]
    assert row["busbw"] == row["algbw"] * measure.bus_factor(name, SIZE)


def by_a_row_of_its_own(dist, name):
    """A collective's row under a name that no table has: elements that are wrong after each call, and without one."""
    found, row = {}, dataclasses.replace(find(name), name="new")
    for function, form in row.calls.items():
        root, op = 2 if row.root else -1, "sum" if row.reduces else "none"
        job = buffers.prepare(calls.Call(function, row, None, form, op, "float", root, False), 100, dist, torch.device("cpu"))
        job.refresh()
        without = job.wrong()
        job.run()
        found[function] = job.wrong(), without
    return found


@pytest.mark.parametrize(
    "name, spoiled",
    [
        ("all_gather", [400, 400, 400, 400]),
        ("gather", [0, 0, 400, 0]),
        ("scatter", [100, 100, 100, 100]),
        ("reduce_scatter", [100, 100, 100, 100]),
        ("all_to_all", [400, 400, 400, 400]),
    ],
)
def test_what_a_rank_has_before_and_after_follows_from_the_row_alone(name, spoiled):
    for rank, found in enumerate(shared(SIZE).call(by_a_row_of_its_own, name)):
        assert set(found.values()) == {(0, spoiled[rank])}


@pytest.mark.parametrize(
    "name, called", [("AllReduce", "all_reduce"), ("reduce-scatter", "reduce_scatter"), ("alltoall", "all_to_all")]
)
def test_a_collective_by_another_name_is_torchs_call(name, called):
    assert (calls.describe(name).name, calls.describe(name).program) == (called, None)


@pytest.mark.parametrize("row", ALGORITHMS, ids=[row.name for row in ALGORITHMS])
def test_every_algorithm_of_ours_is_measured_and_right(row):
    options = {"ranks_per_node": 2} if "ranks_per_node" in inspect.signature(row.program).parameters else {}
    root = 1 if find(row.collective).root else 0
    found = rows_of(row.name, 400, options=options, root=root)[0]
    assert (found["wrong"], found["program"]) == (0, row.name)
    assert found["collective"] == find(row.collective).name


@pytest.mark.parametrize("dtype", calls.TYPES)
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
def test_every_type_and_operation_is_right(dtype, op):
    for what in ("all_reduce", "ring_all_reduce"):
        row = rows_of(what, 1000, op=op, dtype=dtype)[0]
        assert (row["wrong"], row["redop"], row["type"]) == (0, op, dtype)
        assert row["size"] == 1000 and row["count"] * calls.ITEMSIZE[dtype] == 1000


def test_torchs_own_names_of_types_and_operations_will_do():
    row = rows_of("reduce_scatter_tensor", 800, dtype="float64", op="product")[0]
    assert (row["type"], row["redop"], row["wrong"]) == ("double", "prod", 0)
    row = rows_of("all_reduce", 800, dtype=torch.int64)[0]
    assert (row["type"], row["redop"]) == ("int64", "sum")


@pytest.mark.parametrize(
    "name", ["all_reduce", "broadcast", "reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "ring_all_reduce"]
)
def test_in_place_and_out_of_place_are_both_right(name):
    for in_place in (True, False):
        row = rows_of(name, 1 << 12, in_place=in_place, calls=3)[0]
        assert (row["wrong"], row["in_place"], row["calls"]) == (0, in_place, 3)


def test_sizes_need_not_divide():
    for name in ("all_gather_into_tensor", "ring_all_reduce", "bruck_all_to_all", "mst_scatter"):
        assert rows_of(name, 1001, ranks=SIZE)[0]["wrong"] == 0


def off_by_one(tensor, dist):
    dist.all_reduce(tensor)
    if dist.get_rank() == 1:
        tensor[-3:] += 1


def nothing(tensor, dist):
    pass


def once(tensor, dist):
    """Right the first time only."""
    if not hasattr(once, "done"):
        once.done = True
        dist.all_reduce(tensor)


def test_wrong_elements_are_counted_over_all_ranks():
    assert rows_of(off_by_one, 400, of="all_reduce")[0]["wrong"] == 3
    assert rows_of(off_by_one, 400, of="all-reduce", calls=4)[0]["wrong"] == 3
    assert rows_of(nothing, 400, of="all_gather")[0]["wrong"] == SIZE * (SIZE - 1) * 25
    assert rows_of(nothing, 400, of="broadcast")[0]["wrong"] == 3 * 100
    assert rows_of(off_by_one, 400, of="all_reduce", check=False)[0]["wrong"] is None


def backwards(tensor, dist):
    shards = list(tensor.chunk(SIZE))
    dist.all_gather(shards[::-1], shards[dist.get_rank()].clone())


def test_shards_in_the_wrong_places_are_wrong():
    assert rows_of(backwards, 400, of="all_gather")[0]["wrong"] == SIZE * 100


def once_of_two_buffers(outputs, inputs, dist):
    if not hasattr(once_of_two_buffers, "done"):
        once_of_two_buffers.done = True
        dist.all_to_all(outputs, inputs)


def test_a_program_that_goes_wrong_later_is_caught():
    assert rows_of(once_of_two_buffers, 400, of="all_to_all")[0]["wrong"] == 400, "what is left of an earlier call is no result"
    assert rows_of(once, 400, of="all_reduce")[0]["wrong"] > 0


def late_rank_2(tensor, dist):
    if dist.get_rank() == 2:
        time.sleep(0.02)


def slow_at_first(tensor, dist):
    if not hasattr(slow_at_first, "done"):
        slow_at_first.done = True
        time.sleep(1)


def test_the_slowest_rank_counts():
    row = rows_of(late_rank_2, 400, of="all_reduce", check=False)[0]
    assert row["time"] >= 0.02 and row["by_rank"][2] >= 0.02
    assert max(row["by_rank"][0], row["by_rank"][1], row["by_rank"][3]) < row["by_rank"][2]


def test_the_first_call_stays_apart():
    row = rows_of(slow_at_first, 400, of="all_reduce", check=False)[0]
    assert row["first"] >= 1 > row["max"]


def test_calls_with_a_root_are_timed_one_by_one_unless_told_otherwise():
    assert rows_of("broadcast", 8)[0]["calls"] == 1
    assert rows_of("broadcast", 8, calls=20)[0]["calls"] == 20


def over_a_link(dist):
    return measure.time_collective("ring_all_reduce", 4000, link=Link(5e-3, 0.0), calls=1, budget=0.05, warmup=0)


def test_an_emulated_link_is_felt():
    """2(p−1) messages, one after the other, of 5 ms each."""
    row = shared(SIZE).call(over_a_link)[0]
    assert row["wrong"] == 0 and row["min"] >= 2 * (SIZE - 1) * 5e-3


def swept(dist):
    found = measure.measure("all_reduce", sizes=[8, 64], show=False, **QUICK)
    return found["size"].tolist(), found["time"].tolist(), found.attrs["backend"]


def test_ranks_of_a_torchrun_measure_together():
    found = shared(SIZE).call(swept)
    assert all(each == found[0] for each in found) and found[0][0] == [8, 64] and found[0][2] == "gloo"


# ---------------------------------------------------------------- when to stop


@pytest.fixture
def alone(monkeypatch):
    """A group of one rank, whose times come from a list."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def times(*seconds):
        given = itertools.chain(seconds, itertools.repeat(seconds[-1]))

        def stopwatch(run, device):
            run()
            return next(given)

        monkeypatch.setattr(timing, "stopwatch", stopwatch)

    yield times
    dist.destroy_process_group()


def test_a_steady_time_is_believed_after_six_batches(alone):
    alone(9.0, 1.0)
    row = measure.time_collective("all_reduce", 8, warmup=0, budget=100.0)
    assert (row["batches"], row["stable"], row["first"], row["time"]) == (6, True, 9.0, 1.0)
    assert row["calls"] == 1, "a call of a second is timed by itself"


def test_an_unsteady_time_is_repeated_until_its_median_is_sure(alone):
    noisy = [1.0, 3.0, 0.5, 2.0, 4.0, 0.7]
    alone(1.0, *noisy, 1.0)
    row = measure.time_collective("all_reduce", 8, warmup=0, budget=100.0, stable=0.05)
    times = [*noisy, *[1.0] * (row["batches"] - 6)]
    assert row["batches"] > 6 and row["stable"]
    assert timing.is_stable(times, 0.05) and not timing.is_stable(times[:-1], 0.05), "no sooner and no later"
    assert row["time"] == statistics.median(times)


def test_warm_up_calls_do_not_count(alone):
    alone(9.0, 5.0, 4.0, 3.0, 1.0)
    row = measure.time_collective("all_reduce", 8, warmup=3)
    assert (row["first"], row["max"], row["batches"]) == (9.0, 1.0, 6)


def test_a_budget_that_is_spent_ends_the_repeats(alone):
    alone(*[1.0, 2.0] * 50)
    row = measure.time_collective("all_reduce", 8, warmup=0, budget=1e-9)
    assert (row["batches"], row["stable"]) == (6, False)


def test_short_calls_are_timed_together_and_divided(alone):
    alone(1e-3, 1e-3, 5e-3)
    row = measure.time_collective("all_reduce", 8, warmup=1)
    assert row["calls"] == 5 and row["time"] == pytest.approx(1e-3)
    alone(1e-6, 1e-6, 2e-5)
    assert measure.time_collective("all_reduce", 8, warmup=1)["calls"] == 20


def test_on_a_gpu_the_time_is_between_two_events(monkeypatch):
    """Without a GPU: fakes that note in which order they are used."""
    order = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing
            self.name = f"event {sum(each.startswith('new') for each in order) + 1}"
            order.append(f"new {self.name}")

        def record(self):
            order.append(f"record {self.name}")

        def synchronize(self):
            order.append(f"wait for {self.name}")

        def elapsed_time(self, later):
            assert (self.name, later.name) == ("event 1", "event 2")
            return 1.5

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: order.append("wait for the device"))
    assert timing.stopwatch(lambda: order.append("run"), torch.device("cuda")) == 1.5e-3
    assert order[2:] == ["wait for the device", "record event 1", "run", "record event 2", "wait for event 2"]


def test_on_gpus_ranks_say_which_and_buffers_live_there(alone, monkeypatch):
    """Without a GPU: what NCCL's ranks are asked, answered by fakes."""
    monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100")
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))
    call = calls.describe("all_reduce")
    assert timing._surroundings(call, None, None, None) == (dist, torch.device("cuda", 3))
    attrs = crews._provenance([crews.where_it_runs()] * 8, 1, None)
    assert attrs["devices"] == ["NVIDIA H100"] * 8 and attrs["nccl"] == "2.28.9" and attrs["clock"] == "CUDA events"
    text = measure.table_text(table.frame([row(8, 1e-5)], attrs))
    assert "8 x NVIDIA H100" in text and "CPU" not in text


# ---------------------------------------------------------------- from the kernel


@pytest.fixture(scope="module")
def ranks():
    with ringtree.start(2, timeout=30) as live:
        yield live
    launchers.fork_server().close()


def readers(source, name):
    """A function as a cell defines it: its code is sent to the ranks, not the name of its module."""
    names = {"__name__": "__main__"}
    exec(source, names)
    return names[name]


def test_measure_prints_the_table_and_returns_it(ranks, capsys):
    before = signal.getsignal(signal.SIGINT)
    found = measure.measure("all_reduce", sizes=[8, 1024], **QUICK)
    assert signal.getsignal(signal.SIGINT) == before, "an interrupt is again what it was"
    printed = capsys.readouterr().out
    assert found["size"].tolist() == [8, 1024] and found["wrong"].tolist() == [0, 0]
    assert list(found) == list(table.COLUMNS)
    assert found.attrs["backend"] == "gloo" and found.attrs["devices"] == ["CPU", "CPU"]
    assert found.attrs["torch"] == torch.__version__ and found.attrs["clock"] == "monotonic clock"
    assert printed == measure.table_text(found) + "\n"
    assert "they say nothing about a GPU" in printed
    measure.measure("barrier", show=False, ranks=ranks, **QUICK)
    assert capsys.readouterr().out == ""


def test_a_program_of_the_readers_own_is_measured(ranks):
    mine = readers("def mine(tensor, dist, op=None, extra=0):\n    dist.all_reduce(tensor)\n    tensor += extra", "mine")
    good = measure.measure(mine, sizes=[64], of="all_reduce", show=False, **QUICK)
    bad = measure.measure(mine, sizes=[64], of="all_reduce", show=False, extra=1, **QUICK)
    assert good["program"].tolist() == ["mine"]
    assert (good["wrong"][0], bad["wrong"][0]) == (0, 2 * 16)


def test_an_error_on_a_rank_keeps_what_was_measured(ranks, capsys):
    picky = readers("def picky(tensor, dist):\n    assert len(tensor) < 100, 'too long'\n    dist.all_reduce(tensor)", "picky")
    with pytest.raises(ringtree.RankError, match="too long") as caught:
        measure.measure(picky, sizes=[64, 128, 1024, 2048], of="all_reduce", **QUICK)
    assert caught.value.measured["size"].tolist() == [64, 128]
    assert capsys.readouterr().out == measure.table_text(caught.value.measured) + "\n"


def test_an_algorithm_of_ours_may_be_given_as_the_function_that_it_is(ranks):
    table = measure.measure(ring_all_reduce, sizes=[64], show=False, **QUICK)
    assert (table.collective[0], table.program[0], table.wrong[0]) == ("all_reduce", "ring_all_reduce", 0)


def test_an_average_on_gloo_is_measured_and_the_table_says_how(ranks):
    table = measure.measure("all_reduce", sizes=[64], op="avg", show=False, **QUICK)
    assert (table.redop[0], table.wrong[0]) == ("avg", 0)
    assert "an average on Gloo is a sum, then a division by the number of ranks" in measure.table_text(table)


def test_a_rank_program_that_only_moves_takes_numbers_of_one_byte(ranks):
    for dtype in calls.FP8:
        table = measure.measure("mst_broadcast", sizes=[64, 1000], dtype=dtype, show=False, **QUICK)
        assert table["wrong"].tolist() == [0, 0] and table["count"].tolist() == [64, 1000] and set(table["type"]) == {dtype}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 8, 64, 200])
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
@pytest.mark.parametrize("dtype", calls.FP8)
def test_results_are_exact_in_numbers_of_one_byte_too(dtype, op, ranks):
    kind, largest = getattr(torch, calls.FP8[dtype]), buffers.LARGEST_SUM_OF_FP8
    terms = [torch.tensor(buffers._terms(op, rank, ranks, largest), dtype=kind).float() for rank in range(ranks)]
    expected = torch.tensor(buffers._reduced(op, range(ranks), ranks, largest), dtype=kind).float()
    for order in (terms, terms[::-1]):
        total = order[0]
        for each in order[1:]:
            total = getattr(torch, calls.OPERATIONS[op].function)(total, each).to(kind).float()
        assert torch.equal(total, expected)
    assert (
        buffers.SPOILED not in expected.tolist() and float(torch.tensor(buffers.SPOILED, dtype=kind)) not in expected.tolist()
    )


@pytest.mark.parametrize("dtype", calls.FP8)
def test_what_ranks_send_of_one_byte_sums_up_to_what_they_expect(dtype):
    call = calls.Call("all_reduce", find("all_reduce"), None, "one", "sum", dtype, -1, True)
    numbers = [buffers._numbers(call, 100, rank, 8, torch.device("cpu")) for rank in range(8)]
    assert torch.equal(sum(sent.float() for sent, _ in numbers), numbers[0][1].float())


def test_after_a_hang_the_ranks_are_back_and_nothing_is_lost(ranks):
    stuck = readers(
        "def stuck(tensor, dist):\n    if len(tensor) > 16 and dist.get_rank() == 0:\n        dist.recv(tensor, 1)", "stuck"
    )
    with pytest.raises(ringtree.RanksStuck, match="after 3 s") as caught:
        measure.measure(stuck, sizes=[64, 128], of="all_reduce", timeout=3.0, show=False, check=False, **QUICK)
    assert caught.value.measured["size"].tolist() == [64]
    assert measure.measure("all_reduce", sizes=[64], show=False, **QUICK)["wrong"][0] == 0


@pytest.fixture
def interruptible():
    """What a shell starts in the background ignores interrupts, and so would these tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupting(monkeypatch, after, times):
    """The reader presses stop while size number `after` runs."""
    call, seen = crews.LiveRanks.call, []

    def pressed(self, *arguments, **settings):
        seen.append(arguments)
        if len(seen) == after:
            gc.disable()  # hypothesis is told of each collection, and an interrupt that meets it there is lost
            try:
                for _ in range(times):
                    signal.raise_signal(signal.SIGINT)
            finally:
                gc.enable()
        return call(self, *arguments, **settings)

    monkeypatch.setattr(crews.LiveRanks, "call", pressed)


def test_an_interrupt_ends_after_the_size_that_runs_and_keeps_all(ranks, interruptible, monkeypatch, capsys):
    interrupting(monkeypatch, after=2, times=1)
    before = [place.pid for place in ranks.places], signal.getsignal(signal.SIGINT)
    found = measure.measure("all_reduce", sizes=[8, 16, 32, 64], **QUICK)
    assert found["size"].tolist() == [8, 16]
    assert "interrupted: 2 of 4 sizes" in capsys.readouterr().err
    assert ([place.pid for place in ranks.places], signal.getsignal(signal.SIGINT)) == before


def test_a_second_interrupt_ends_at_once_and_keeps_what_there_was(ranks, interruptible, monkeypatch):
    interrupting(monkeypatch, after=3, times=2)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as caught:
        measure.measure("all_reduce", sizes=[8, 16, 32, 64], **QUICK)
    assert caught.value.measured["size"].tolist() == [8, 16]
    assert signal.getsignal(signal.SIGINT) == before


def programmed(tensor, dist):
    pass


@pytest.mark.parametrize(
    ("wishes", "sentence"),
    [
        ({"what": "all_reduced"}, "did you mean all_reduce"),
        ({"what": "xyzzy"}, f"give one of {', '.join(call_names())}, or a rank program"),
        ({"what": 7}, "measure got 7: give the name"),
        ({"what": print}, "say which collective it is"),
        ({"what": print, "of": "sorting"}, "of='sorting' is not a collective"),
        ({"what": "all_reduce", "of": "broadcast"}, "is not broadcast: leave of= out"),
        ({"sizes": [64, 8]}, "out of order, 8 comes after 64"),
        ({"sizes": [8, 8]}, "out of order"),
        ({"sizes": [0]}, "a size is 0"),
        ({"sizes": [-4]}, "a size is -4"),
        ({"sizes": [1.5]}, "a size is 1.5"),
        ({"sizes": ["8"]}, "a size is '8'"),
        ({"sizes": []}, "no sizes"),
        ({"sizes": [2]}, "2 bytes are less than one float; give sizes of 4 bytes or more"),
        ({"what": "all_gather", "sizes": [4]}, "less than one float for each of 2 ranks; give sizes of 8 bytes"),
        ({"what": "barrier", "sizes": [8]}, "a barrier has no size"),
        ({"op": "mean"}, "op='mean' is not an operation"),
        ({"op": "bor"}, "bitwise operations need integers"),
        ({"what": "ring_all_reduce", "op": "avg"}, "take op='sum'"),
        ({"what": "broadcast", "op": "sum"}, "broadcast reduces nothing"),
        ({"root": 1}, "all_reduce has no root"),
        ({"what": "broadcast", "root": 2}, "root=2 is not one of the 2 ranks"),
        ({"dtype": "float8"}, "dtype='float8' cannot be measured"),
        ({"dtype": "f8e4m3"}, "gloo has no f8e4m3, which NCCL alone has: give one of int8"),
        ({"what": "ring_all_reduce", "dtype": torch.float8_e5m2}, "no sum of two f8e5m2 tensors"),
        ({"what": "all_to_all", "in_place": True}, "no in-place form"),
        ({"warmup": -1}, "warmup=-1"),
        ({"calls": 0}, "calls=0"),
        ({"budget": math.inf}, "budget=inf"),
        ({"stable": 0}, "stable=0"),
        ({"chunks": 4}, "measure has no argument chunks=4"),
        ({"what": programmed, "of": "broadcast", "root": 1}, "programmed takes no argument root"),
        ({"what": programmed, "of": "reduce", "op": "max"}, "programmed takes no argument op"),
        ({"what": "ring_all_reduce", "chunk": 4}, "neither measure nor ring_all_reduce has an argument 'chunk'"),
        ({"link": Link(1e-3, 0.0)}, "knows no emulated link"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(ranks, wishes, sentence):
    with pytest.raises(UsageError, match=re.escape(sentence)) as caught:
        measure.measure(**{"sizes": None if wishes.get("what") == "barrier" else [64], **wishes})
    assert "\n" not in str(caught.value)


def test_without_ranks_measure_says_what_to_do(monkeypatch):
    monkeypatch.setattr("ringtree.live.cluster._current", None)
    with pytest.raises(UsageError, match=r"ringtree.start\(4\)"):
        measure.measure("all_reduce")


def test_sizes_between():
    assert measure.sizes_between(8, 100, 3) == [8, 24, 72]
    assert measure.sizes_between()[0] == 8 and measure.sizes_between()[-1] == 1 << 24
    with pytest.raises(UsageError, match="smallest size first"):
        measure.sizes_between(8, 4)
    with pytest.raises(UsageError, match="factor"):
        measure.sizes_between(8, 16, 1)


# ---------------------------------------------------------------- the progress bar


class Terminal:
    """A terminal, and what was written on it."""

    encoding = "utf-8"

    def __init__(self):
        self.written = ""

    def write(self, text):
        self.written += text

    def flush(self):
        pass

    def isatty(self):
        return True


def test_a_bar_in_a_terminal_names_the_size_and_is_wiped_off(ranks, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(progress, "BAR_AFTER", 0)
    monkeypatch.setattr(sys, "stderr", terminal)
    measure.measure("all_reduce", sizes=[8, 4096], show=False, **QUICK)
    assert "all_reduce, 4 KiB" in terminal.written and "1/2" in terminal.written
    assert terminal.written.endswith("\r") and terminal.written.rstrip("\r").rpartition("\r")[2].strip() == "", "wiped off"


def test_a_short_sweep_shows_no_bar_and_a_file_never_does(ranks, monkeypatch, capfd):
    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        measure.measure("all_reduce", sizes=[8, 16], show=False, **QUICK)
    assert terminal.written == ""
    monkeypatch.setattr(progress, "BAR_AFTER", 0)
    measure.measure("all_reduce", sizes=[8, 16], show=False, **QUICK)
    assert capfd.readouterr().err == ""


@pytest.fixture(scope="module")
def notebook():
    from helpers.live import kernel  # here, so that ranks that import this file do not pay for it

    with kernel() as live:
        answer = live.run(
            "import ringtree\nfrom ringtree import measure\nranks = ringtree.start(2)\nmeasure.progress.BAR_AFTER = 0"
        )
        assert answer.error is None, answer.traceback
        yield live


def test_in_a_notebook_a_bar_is_for_a_person_and_leaves_nothing(notebook):
    code = "table = measure.measure('all_reduce', sizes=[8, 4096], show=False, budget=0.02)"
    executed = notebook.run(code)
    assert (executed.error, executed.text, executed.shown) == (None, "", []), executed.traceback
    watched = notebook.run(code, allow_stdin=True)
    assert watched.error is None and any("4 KiB" in each for each in watched.shown)
    assert watched.shown[-1] == "" and watched.text == ""


def test_in_a_cell_on_ranks_all_measure_together_and_rank_0_prints(notebook):
    answer = notebook.run("%%px\nfrom ringtree.measure import measure\ntable = measure('all_reduce', sizes=[64], budget=0.02)")
    assert answer.error is None, answer.traceback
    assert answer.text.count("# ringtree.measure") == 1
    assert all(line.startswith("[rank 0]") for line in answer.text.splitlines())


def test_a_hang_is_reported_as_in_a_cell(notebook):
    notebook.run("def mine(tensor, dist):\n    if dist.get_rank() == 0:\n        dist.recv(tensor, 1)")
    answer = notebook.run("measure.measure(mine, sizes=[64], of='all_reduce', timeout=3.0)")
    assert answer.error == "RanksStuck"
    assert "rank 0 waits to receive from rank 1, which waits in all_gather" in answer.message
    assert "mine, line 3" in answer.message


# ---------------------------------------------------------------- tables


def row(size, time, **more):
    what = {"collective": "all_reduce", "program": "all_reduce", "ranks": 8, "size": size, "count": size // 4, "type": "float"}
    how = {"redop": "sum", "root": -1, "in_place": True, "wrong": 0}
    return what | how | {"time": time, "algbw": size / time, "busbw": 1.75 * size / time} | more


def test_a_row_reads_as_in_nccl_tests():
    frame = table.frame([row(1 << 30, 4e-3), row(8, 17.3e-6, wrong=None, in_place=False)])
    large, small = measure.table_text(frame).splitlines()[-2:]
    assert large.split() == ["1073741824", "268435456", "float", "sum", "-1", "in", "4000.00", "268.44", "469.76", "0"]
    assert small.split() == ["8", "2", "float", "sum", "-1", "out", "17.30", "0.00", "0.00", "N/A"]


def test_long_figures_lose_decimals_not_columns():
    frame = table.frame([row(1 << 34, 123.456789), row(1 << 34, 1234567.0)])
    lines = measure.table_text(frame).splitlines()
    assert len({len(line) for line in lines[-2:]}) == 1
    assert lines[-2].split()[6] == "1.2e+08" and lines[-1].split()[6] == "1.2e+12"


def test_files_keep_every_digit(ranks, tmp_path):
    import pandas

    found = measure.measure("all_reduce", sizes=[8, 1024], show=False, check=False, **QUICK)
    for name in ("times.csv", "times.json"):
        back = logs.read(measure.save(found, tmp_path / name))
        pandas.testing.assert_frame_equal(back, found, check_exact=True)
        assert back.attrs == found.attrs


def test_a_file_that_exists_is_not_overwritten_unasked(tmp_path):
    frame = table.frame([row(8, 1e-6)])
    path = measure.save(frame, tmp_path / "t.csv")
    with pytest.raises(UsageError, match="exists already"):
        measure.save(table.frame([row(16, 1e-6)]), path)
    assert logs.read(path)["size"].tolist() == [8]
    measure.save(table.frame([row(16, 1e-6)]), path, overwrite=True)
    assert logs.read(path)["size"].tolist() == [16]
    with pytest.raises(UsageError, match="neither .csv nor .json"):
        measure.save(frame, tmp_path / "t.xls")
    with pytest.raises(UsageError, match="there is no folder"):
        measure.save(frame, tmp_path / "nowhere" / "t.csv")


@pytest.mark.parametrize("time", [math.nan, math.inf, -1.0])
def test_a_table_takes_no_time_that_cannot_be(time):
    with pytest.raises(UsageError, match="must be finite"):
        table.frame([row(8, 1.0) | {"time": time}])


def test_tables_side_by_side():
    here, there = table.frame([row(8, 2.0), row(16, 3.0)]), table.frame([row(16, 6.0), row(32, 1.0)])
    beside = measure.compare({"here": here, "there": there})
    assert list(beside) == ["size", "here", "there", "there / here"]
    assert beside["size"].tolist() == [8, 16, 32]
    assert beside["there / here"].tolist()[1] == 2.0 and beside["there / here"].isna().tolist() == [True, False, True]
    assert measure.compare({"here": here, "there": there}, value="algbw")["there / here"][1] == 0.5
    with pytest.raises(UsageError, match="there has several rows of 8 bytes"):
        measure.compare({"here": here, "there": table.frame([row(8, 1.0), row(8, 2.0, in_place=False)])})
    with pytest.raises(UsageError, match="two tables or more"):
        measure.compare({"here": here})
    with pytest.raises(UsageError, match="no column 'cost'"):
        measure.compare({"here": here, "there": there}, value="cost")


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="asks for the cores of this process")
def test_ranks_say_on_how_many_cores_they_run():
    found = shared(SIZE).call(where)
    assert found[0]["cores"] == len(os.sched_getaffinity(0))


def where(dist):
    return crews.where_it_runs()
