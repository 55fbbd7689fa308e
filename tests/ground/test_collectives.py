"""One table of the collectives: whoever needs their names, shapes or bounds asks there."""

import ast
from pathlib import Path

import pytest
import torch.distributed
from helpers.processes import shared

from ringtree import algorithms
from ringtree.collectives import NAMES, SEND_RECV, TABLE, bus_factor, call_names, find
from ringtree.errors import UsageError

PACKAGE = Path(algorithms.__file__).resolve().parent.parent


@pytest.mark.parametrize(
    "name, meant",
    [
        ("all_reduce", "all_reduce"),
        ("all-reduce", "all_reduce"),
        ("All-Reduce", "all_reduce"),
        ("AllReduce", "all_reduce"),
        ("all_gather_into_tensor", "all_gather"),
        ("reduce-scatter", "reduce_scatter"),
        ("alltoall", "all_to_all"),
        ("alltoall_perf", "all_to_all"),
        ("all_reduce_perf", "all_reduce"),
        ("allgather", "all_gather"),
    ],
)
def test_torchs_mpis_and_nccl_tests_names_are_read(name, meant):
    assert find(name).name == meant


@pytest.mark.parametrize("name", ["all-reduction", "", "tensor", None, 3, "send_recv"])
def test_anything_else_is_an_error_that_says_what_there_is(name):
    with pytest.raises(UsageError, match="is not a collective.* give one of broadcast, reduce, scatter|did you mean"):
        find(name)


def test_a_near_miss_is_answered_with_the_nearest_name():
    with pytest.raises(UsageError, match="'all_reduced' is not a collective: did you mean all_reduce"):
        find("all_reduced")


def test_a_single_message_is_one_only_where_it_is_asked_for():
    assert find("sendrecv", send_recv=True) is SEND_RECV
    assert bus_factor("send_recv", 2) == 1


@pytest.mark.parametrize("name", call_names())
def test_torch_has_every_function_of_the_table(name):
    assert callable(getattr(torch.distributed, name))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_the_algorithm_that_stands_for_a_collective_is_there(row):
    assert row.algorithm in algorithms.__all__


def test_no_name_means_two_collectives():
    every = [name for row in (*TABLE, SEND_RECV) for name in {row.name, *row.calls, *row.aliases}]
    assert len(every) == len(set(every))


def torchs_own(dist):
    """What torch's own collectives leave on this rank, each with the same numbers as in the test below."""
    rank, size = dist.get_rank(), dist.get_world_size()
    blocks = [torch.tensor([100.0 * rank + place, rank + 1.0]) for place in range(size)]
    empty = [torch.zeros(2) for _ in range(size)]
    has = {}

    def whole():
        return torch.cat(blocks)

    has["broadcast"] = whole()
    dist.broadcast(has["broadcast"], src=1)
    has["reduce"] = whole()
    dist.reduce(has["reduce"], dst=1)
    has["all_reduce"] = whole()
    dist.all_reduce(has["all_reduce"])
    has["scatter"] = torch.zeros(2)
    dist.scatter(has["scatter"], blocks if rank == 1 else None, src=1)
    gathered = [each.clone() for each in empty]
    dist.gather(blocks[0], gathered if rank == 1 else None, dst=1)
    has["gather"] = torch.cat(gathered)
    gathered = [each.clone() for each in empty]
    dist.all_gather(gathered, blocks[0])
    has["all_gather"] = torch.cat(gathered)
    has["reduce_scatter"] = torch.zeros(2)
    dist.reduce_scatter(has["reduce_scatter"], blocks)
    gathered = [each.clone() for each in empty]
    dist.all_to_all(gathered, blocks)
    has["all_to_all"] = torch.cat(gathered)
    return {name: tensor.tolist() for name, tensor in has.items()}


def test_the_meaning_of_each_collective_is_what_torchs_own_does():
    size, root = 4, 1
    wholes = [[torch.tensor([100.0 * rank + place, rank + 1.0]) for place in range(size)] for rank in range(size)]
    for rank, has in enumerate(shared(size).call(torchs_own)):
        for row in TABLE:
            before = [blocks[:1] for blocks in wholes] if row.before == "shard" else wholes
            wanted = row.meaning(before, rank, root, sum)
            if row.after != "nothing" and wanted is not None:
                assert has[row.name] == torch.cat(wanted).tolist(), f"{row.name} on rank {rank}"


def test_bounds_are_those_of_chan_and_others():
    moved = {name: find(name).moved(8) for name in NAMES}
    part = 7 / 8
    assert moved == {
        "broadcast": 1,
        "reduce": 1,
        "all_reduce": 2 * part,
        "scatter": part,
        "gather": part,
        "all_gather": part,
        "reduce_scatter": part,
        "all_to_all": part,
        "barrier": 0,
    }
    assert {name for name in NAMES if find(name).reduced(8)} == {"reduce", "all_reduce", "reduce_scatter"}
    assert all(find(name).moved(1) == 0 for name in NAMES)


def test_bus_factors_are_those_of_nccl_tests():
    part = 3 / 4
    factors = {name: bus_factor(name, 4) for name in NAMES}
    assert factors == {
        "broadcast": 1,
        "reduce": 1,
        "all_reduce": 2 * part,
        "scatter": part,
        "gather": part,
        "all_gather": part,
        "reduce_scatter": part,
        "all_to_all": part,
        "barrier": 1,
    }


KNOWN = {name for row in TABLE for name in (row.name, *row.calls)}
# NCCL's own constants are numbers for each collective, not a list of them. A Flight Recorder has torch's inner names too.
NOT_LISTS = {"theory/nccl/constants.py", "measure/flight_recorder.py"}


def listed(node):
    """The collectives that a literal names: a tuple, a list, a set, a dict's keys, or words in one string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value:
        return KNOWN & set(node.value.replace("-", "_").split())
    words = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
    return KNOWN & {
        each.value.replace("-", "_") for each in words if isinstance(each, ast.Constant) and isinstance(each.value, str)
    }


def test_no_other_file_of_the_package_lists_the_collectives():
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        if name == "collectives.py" or name in NOT_LISTS or name.startswith("labs/exercises/"):  # a lab speaks of them
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if len(listed(node)) >= 3:
                found.setdefault(name, []).append((node.lineno, sorted(listed(node))))
    assert found == {}
