"""What torch.distributed refuses, the simulator refuses: every function, with many arguments, on live ranks and simulated."""

import datetime
import inspect
import random
from types import SimpleNamespace

import pytest
import torch
from helpers.processes import Processes

from ringtree import simulate
from ringtree.collectives import call_names, find
from ringtree.cost import Link

SIZE = 2
PATIENCE = 10  # seconds: so long torch looks for a rank that there is not
SEEDS = range(60)


@pytest.fixture(scope="module")
def group():
    """The ranks of this module, in a list so that they can be replaced."""
    holder = [Processes(SIZE, PATIENCE)]
    yield holder
    holder[0].stop()


@pytest.fixture
def ranks(group):
    """Ranks that live: Gloo ends the process for some calls, which is a refusal too, and may do so after the call's answer."""

    def anew():
        group[0].stop()
        group[0] = Processes(SIZE, PATIENCE)

    def call(*asked):
        try:
            return group[0].call(*asked)
        except BrokenPipeError:  # nobody was there to take the call: so it was the one before
            anew()
            return group[0].call(*asked)

    if not group[0].alive:
        anew()
    return SimpleNamespace(call=call)


# -- calls made at random, the same for torch and for the simulator -----------------


def arguments(function, seed, rank):
    """One call's arguments, right or wrong, and how many things are wrong with it; drawn alike on all ranks."""
    rng = random.Random(f"{function} {seed}")
    row = find(function)
    form, dtype = (
        row.calls[function],
        rng.choice([torch.float32] * 4 + [torch.int64, torch.complex64 if function == "all_reduce" else torch.float64]),
    )
    names = list(signature(function))
    values, right = {}, rng.random() < 0.4  # a call with nothing wrong, or with something
    faults = []

    def wrong(chance):
        is_wrong = not right and rng.random() < chance
        faults.extend([chance] * is_wrong)
        return is_wrong

    count = rng.choice([1, 2, 3])
    root = rng.choice([0, 1])
    if row.root:
        way = rng.choice(["global", "group", "place"]) if not wrong(0.4) else rng.choice(["none", "both", "outside"])
        values |= {
            "global": {row.root: root},
            "group": {f"group_{row.root}": root},
            "place": {row.root: root},
            "none": {},
            "both": {row.root: root, f"group_{row.root}": root},
            "outside": {row.root: rng.choice([-1, 2, 7])},
        }[way]
        if way == "none":
            root = 0
    if row.reduces and rng.random() < 0.6:
        ops = torch.distributed.ReduceOp
        allowed = [ops.SUM] if dtype.is_complex else [ops.SUM, ops.MAX, ops.PRODUCT, ops.MIN]
        values["op"] = rng.choice(["sum", None, 3]) if wrong(0.25) else rng.choice([*allowed, *([] if right else [ops.MAX])])
    if row.before == "nothing":
        return values, len(faults)
    for place, name in enumerate(name for name in names if name in TENSORS):
        other = torch.int32 if wrong(0.1) else dtype
        if name.endswith("list"):
            length = SIZE + (rng.choice([-1, 1]) if wrong(0.2) else 0)
            given = rng.choice(["no list", None, (torch.zeros(count, dtype=other),) * 2, [1, 2]]) if wrong(0.15) else None
            made = [torch.zeros(count, dtype=other) for _ in range(length)]
            everywhere = wrong(0.3)
            if given is None:
                given = made if not row.root or (rank == root or everywhere) else None
            values[name] = given
        else:
            long = form == "flat" and (row.before == "blocks" or (place == 0) == (row.after == "whole"))
            length = count * (SIZE if long else 1) + (SIZE if wrong(0.15) else 0)
            values[name] = rng.choice([3, "x", [torch.zeros(2)]]) if wrong(0.1) else torch.zeros(length, dtype=other)
    if "input_split_sizes" in names and rng.random() < 0.5:
        values |= dict.fromkeys(("input_split_sizes", "output_split_sizes"), rng.choice([[1, 2], [0, 4], [2], [1, 2, 1]]))
    if wrong(0.05):
        values["no_such_argument"] = 1
    return values, len(faults)


TENSORS = {
    "tensor",
    "tensor_list",
    "gather_list",
    "scatter_list",
    "output",
    "input",
    "input_list",
    "output_tensor",
    "input_tensor",
    "output_tensor_list",
    "input_tensor_list",
}


def signature(function):
    return inspect.signature(getattr(torch.distributed, function)).parameters


def verdict(call):
    """(None, what it returned), or (the error's name, None)."""
    try:
        return None, call()
    except Exception as error:
        return type(error).__name__, None


def live(dist, function, seeds):
    """By seed, this rank's verdict and those of all ranks; what only some ranks refuse is left pending on a group of its own."""
    found, group, patience = {}, None, datetime.timedelta(seconds=20)
    for seed in seeds:
        group = group or dist.new_group(timeout=patience)
        values, _ = arguments(function, seed, dist.get_rank())
        refused, work = verdict(lambda: getattr(dist, function)(**values, group=group, async_op=True))
        everyone = [None] * SIZE
        dist.all_gather_object(everyone, refused)
        if everyone == [None] * SIZE:
            refused, _ = verdict(work.wait)  # Gloo looks at some arguments only as it begins
            dist.all_gather_object(everyone, refused)
        if any(everyone):
            group = None
        found[seed] = refused
    return found


def simulated(function, seed):
    """By rank, its verdict: each rank only calls, and does not wait for the others."""

    def program(dist):
        values, _ = arguments(function, seed, dist.get_rank())
        verdicts[dist.get_rank()], _ = verdict(lambda: getattr(dist, function)(**values, async_op=True))

    verdicts = {}
    verdict(lambda: simulate(program, [()] * SIZE, Link(1.0, 0.0)))  # ranks that called in vain hang, as live ones do
    return verdicts


@pytest.mark.parametrize("function", sorted(call_names()))
def test_torch_and_the_simulator_refuse_the_same_calls(ranks, function):
    found = ranks.call(live, function, list(SEEDS))
    apart, refused = [], 0
    for seed in SEEDS:
        here = simulated(function, seed)
        for rank in range(SIZE):
            there = found[rank][seed]
            refused += there is not None
            values, faults = arguments(function, seed, rank)
            # the reason's kind too, where torch itself refuses: what a backend refuses is always a RuntimeError
            kind = there == here[rank] or there == "RuntimeError" or faults > 1
            if (there is None) is not (here[rank] is None) or not kind:
                apart.append((seed, rank, there, here[rank], values))
    assert not apart
    assert (
        function == "barrier" or len(SEEDS) / 5 < refused < 2 * len(SEEDS) - 10
    )  # both happened often enough to mean something


# -- messages ------------------------------------------------------------------


MESSAGES = {
    "no peer": lambda dist, x: dist.isend(x),
    "two peers": lambda dist, x: dist.isend(x, dst=1 - dist.get_rank(), group_dst=1 - dist.get_rank()),
    "no tensor": lambda dist, x: dist.isend([1.0], dst=1 - dist.get_rank()),
    "itself": lambda dist, x: dist.isend(x, dst=dist.get_rank()),
    "a stranger": lambda dist, x: dist.isend(x, dst=2),
    "an empty batch": lambda dist, x: dist.batch_isend_irecv([]),
    "a batch that is a tuple": lambda dist, x: dist.batch_isend_irecv((dist.P2POp(dist.isend, x, 1 - dist.get_rank()),)),
    "no operation": lambda dist, x: dist.P2POp(dist.all_reduce, x, 1 - dist.get_rank()),
    "several groups": lambda dist, x: dist.batch_isend_irecv([
        dist.P2POp(dist.isend, x, 1 - dist.get_rank()),
        dist.P2POp(dist.irecv, x, 1 - dist.get_rank(), group=dist.new_group([0, 1])),
    ]),
    "no group": lambda dist, x: dist.get_world_size(group=5),
    "a group of no ranks of ours": lambda dist, x: dist.new_group([0, 5]),
    "a tag below 0": lambda dist, x: dist.isend(x, dst=1 - dist.get_rank(), tag=-1),
}


def refused_live(dist, name):
    return verdict(lambda: MESSAGES[name](dist, torch.zeros(1)))[0]


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_that_torch_refuses_are_refused(ranks, name):
    assert None not in ranks.call(refused_live, name)
    with pytest.raises(Exception):  # noqa: B017 - each has its own type
        simulate(lambda dist: MESSAGES[name](dist, torch.zeros(1)), [()] * SIZE, Link(1.0, 0.0))


# -- where backends differ, and the simulator takes the side that helps ------------


def complex_list(dist):
    return [torch.zeros(1, dtype=torch.complex64) for _ in range(SIZE)] if dist.get_rank() == 0 else None


ONLY_GLOO_REFUSES = {
    "int16": lambda dist: dist.all_reduce(torch.zeros(2, dtype=torch.int16)),
    "complex numbers in a gather": lambda dist: dist.gather(torch.zeros(1, dtype=torch.complex64), complex_list(dist)),
}
ONLY_GLOO_TAKES = {
    "gaps in memory": lambda dist: dist.all_reduce(torch.zeros(4, 2)[:, 0]),
    "a length that cannot be shared out": lambda dist: dist.all_to_all_single(torch.zeros(5), torch.zeros(5)),
}


def live_verdict(dist, table, name):
    return verdict(lambda: globals()[table][name](dist))[0]


@pytest.mark.parametrize("name", ONLY_GLOO_REFUSES)
def test_what_gloo_alone_refuses_is_allowed(ranks, name):
    simulate(lambda dist: ONLY_GLOO_REFUSES[name](dist), [()] * SIZE, Link(1.0, 0.0))
    assert "RuntimeError" in ranks.call(live_verdict, "ONLY_GLOO_REFUSES", name)


@pytest.mark.parametrize("name", ONLY_GLOO_TAKES)
def test_what_gloo_alone_takes_is_refused(ranks, name):
    with pytest.raises(ValueError):
        simulate(lambda dist: ONLY_GLOO_TAKES[name](dist), [()] * SIZE, Link(1.0, 0.0))
    assert ranks.call(live_verdict, "ONLY_GLOO_TAKES", name) == [None] * SIZE
