"""Each technique in each setting of a training: equal to one process, or refused with one sentence."""

import json
import os
import re
from functools import cache
from pathlib import Path

import pytest
import torch
from helpers.cells import CELLS, WAYS, Cell, alone, batches, net_of, train
from helpers.processes import Processes, shared

from ringtree import Link, simulate
from ringtree.parallel import counting
from ringtree.parallel import model as M
from ringtree.parallel.master_weights import MasterWeights

SIZES = [2, 3, 1, 4, 5, 6] if os.environ.get("RINGTREE_NIGHTLY") else [2, 3]

ONE_SIDED = (
    r"blocks\.1\.adapter\.weight has a gradient on \d of \d ranks that share the matrices: all of them must take the same"
)
POSITIONS = r"11 positions cannot be shared by \d ranks: pad the rows to a multiple of \d"
UNEQUAL = r"micro-batches have shapes \(4, 12\), \(3, 12\): give equal ones, from a batch whose rows are a multiple of 2"
TRAVELS = r"stage 0 returned a {}: one tensor travels between stages, so return that alone"

REFUSED = {
    ("tensor_parallel", "a parameter unused on one rank"): ONE_SIDED,
    ("tensor_parallel, sequence", "a parameter unused on one rank"): ONE_SIDED,
    ("tensor_parallel, sequence", "positions that p does not divide"): POSITIONS,
    ("pipeline", "rows that p does not divide"): UNEQUAL,
    ("pipeline", "a module that returns a tuple"): TRAVELS.format("tuple"),
    ("pipeline", "a module that returns a dict"): TRAVELS.format("dict"),
}


def refusal(way: str, name: str, size: int) -> str | None:
    """What is to be said in this cell, if it is refused on so many ranks."""
    if way.startswith("tensor") and 6 % size:
        return rf"6 heads cannot be shared by {size} ranks"
    if way == "experts" and 6 % size:
        return rf"6 experts for {size} ranks: give a multiple of {size}"
    if size == 1 and name in ("a parameter unused on one rank", "positions that p does not divide"):
        return None
    if size == 1 and way == "pipeline" and name.startswith("a module that returns"):
        return None
    return REFUSED.get((way, name))


@cache
def wanted(name: str, size: int, way: str):
    form = WAYS[way]
    return alone(CELLS[name], size, form.split, form.feed_forward)


def must_be_one_process(found, losses, norms, exact=True):
    for ours, our_norms in found:
        assert not isinstance(ours, str), our_norms
        assert ours == pytest.approx(losses, abs=1e-11 if exact else 0.03, rel=0)
        assert our_norms == pytest.approx(norms, rel=1e-6 if exact else 0.01)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("way", WAYS)
def test_a_cell_is_one_process_or_refused(way, name, size):
    told = refusal(way, name, size)
    if told and told.startswith("stage 0"):  # the other ranks wait: on the simulator's clock for no time
        with pytest.raises(ValueError, match=told):
            simulate(lambda _, dist: one_step(dist, way, CELLS[name]), range(size), Link(0, 0))
        return
    found = shared(size).call(train, way, CELLS[name])
    if told:
        assert all(re.search(told, message) for _, message in found), found
    else:
        must_be_one_process(found, *wanted(name, size, way), exact=not CELLS[name].masters)


@pytest.mark.parametrize("name", ["as in the chapters", "clipping", "accumulation over 3 parts", "tied weights"])
@pytest.mark.parametrize("way", WAYS)
def test_a_group_is_one_axis_of_a_mesh(way, name):
    found = shared(4).call(train, way, CELLS[name], 2)
    must_be_one_process(found, *wanted(name, 2, way))


# -- what a step may not do -------------------------------------------------------


def unit_left_out(dist, form, number, everywhere):
    """The error of a rank whose forward pass leaves out a unit, in its second step, everywhere or on rank 0 alone."""
    from ringtree.parallel import sharded

    layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3)).double()
    share = getattr(sharded, form)([[each] for each in layers], dist, torch.optim.AdamW)
    x = torch.ones(2, 4).double()
    layers[2](layers[1](layers[0](x))).sum().backward()
    share.step()
    skips = everywhere or dist.get_rank() == 0
    try:
        for place, layer in enumerate(layers):
            x = x if skips and place == number else layer(x)
        x.sum().backward()
        share.step()
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_zero3_says_which_unit_was_left_out(number):
    told = rf"weight of module 0 in unit {number} and its unit were left out of a forward pass on this rank"
    assert all(re.match(told, error) for error in shared(2).call(unit_left_out, "ZeRO3", number, True))
    assert shared(2).call(unit_left_out, "ZeRO2", number, True) == [None, None]


@pytest.mark.parametrize("number", [0, 1])
def test_zero3_says_so_before_it_calls_anything_that_another_rank_does_not(number):
    ranks = Processes(2, patience=5)
    first, _ = ranks.call(unit_left_out, "ZeRO3", number, False)
    ranks.stop()
    assert re.match(rf"weight of module 0 in unit {number} and its unit were left out", first)


def wrongly_made(dist, how):
    """The error of a ZeRO that is given what it cannot share."""
    from ringtree.parallel import sharded

    one, two = (torch.nn.Linear(4, 4, bias=False) for _ in range(2))
    if how == "tied":
        one.weight = two.weight
    if how == "dtypes":
        two.double()
    try:
        share = sharded.ZeRO3([[one], [two]] if how != "dtypes" else [[one, two]], dist, torch.optim.AdamW)
        if how == "frozen later":
            one.requires_grad_(False)
            two(one(torch.ones(2, 4))).sum().backward()
            share.step()
        if how == "saved":
            one.state_dict()
    except (ValueError, RuntimeError) as error:
        return str(error)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (
            "tied",
            "weight of module 0 in unit 1 is also weight of module 0 in unit 0: modules that share a parameter go into one unit",
        ),
        ("dtypes", "weight of module 0 in unit 0 shares its unit with other dtypes (torch.float32, torch.float64): "),
        (
            "frozen later",
            "weight of module 0 in unit 0 was frozen after it was sharded: freeze it before, or make the shards anew",
        ),
        (
            "saved",
            "the parameters of this Linear are sharded by ZeRO-3, and not here: save and load on every rank within `with sharded.whole():`",
        ),
    ],
)
def test_what_zero_cannot_share_is_told_by_name(how, told):
    assert all(error.startswith(told) for error in shared(2).call(wrongly_made, how))


def one_step(dist, way, cell, times=1):
    step = WAYS[way](dist, cell)
    for _ in range(times):
        step.backward(step.mine(next(batches(cell, step.size))), 1.0, True)
        step.finish()


@pytest.mark.parametrize("way", ["tensor_parallel, sequence", "experts"])
def test_a_backward_pass_on_top_of_a_sum_is_told(way):
    for error in shared(2).call(finished_twice, way):
        assert re.match(r"a backward pass adds to gradients that were (summed|averaged) over ranks: do that once", error)


def summed_again(dist, way):
    """The error of a second sum with no backward pass between."""
    step = WAYS[way](dist, Cell())
    step.backward(step.mine(next(batches(Cell(), step.size))), 1.0, True)
    step.finish()
    try:
        step.finish()
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("way", ["tensor_parallel, sequence", "experts"])
def test_a_sum_on_top_of_a_sum_is_told(way):
    for error in shared(2).call(summed_again, way):
        assert re.match(r"these gradients were (summed|averaged) over ranks already: do that once a step", error)


def finished_twice(dist, way):
    try:
        return one_step(dist, way, Cell(), 2)
    except RuntimeError as error:
        return str(error)


# -- 16 bits -----------------------------------------------------------------------


def held_in_bf16(dist, form):
    """Bytes a parameter of weights, gradients and optimizer, over all ranks together."""
    from functools import partial

    from ringtree.parallel import sharded

    torch.set_num_threads(1)
    net = M.seeded(lambda: M.GPT(16, layers=2, width=32, heads=2)).bfloat16()
    share = None
    make = partial(MasterWeights, make=torch.optim.AdamW)
    if form:
        units = [[net.token, net.place], *([each] for each in net.blocks), [net.norm, net.head]]
        share = getattr(sharded, form)(units, dist, make)
    optimizer = share.optimizer if share else make(net.parameters())
    M.loss_of(net, torch.zeros(2, 9, dtype=torch.long)).backward()
    held = counting.held([*net.parameters(), *(flat.shard for flat in share.flats)] if share else net.parameters())
    (share or optimizer).step()
    state = [value for each in optimizer.state.values() for value in each.values() if value.dim()]
    count = (
        sum(each.numel() for each in net.parameters()) if form != "ZeRO3" else sum(sum(flat.lengths) for flat in share.flats)
    )
    return held / count, counting.held([*optimizer.masters, *state]) / count, {each.dtype for each in state}


@pytest.mark.parametrize("form", [None, "ZeRO1", "ZeRO3"])
def test_mixed_precision_takes_two_bytes_a_weight_and_twelve_for_the_optimizer(form):
    found = shared(2).call(held_in_bf16, form)
    twelve = sum(optimizer for _, optimizer, _ in found) / (1 if form else 2)
    assert twelve == pytest.approx(12, rel=1e-9)
    assert all(dtypes == {torch.float32} for _, _, dtypes in found)


def test_without_masters_most_weights_of_16_bits_do_not_move():
    def moved(make):
        net = M.seeded(lambda: M.GPT(16, layers=2, width=32, heads=2)).bfloat16()
        optimizer, before = make(net.parameters()), [each.detach().clone() for each in net.parameters()]
        for _ in range(40):
            M.loss_of(net, torch.arange(18).reshape(2, 9) % 16).backward()
            optimizer.step()
            optimizer.zero_grad()
        same = sum((new == old).sum().item() for new, old in zip(net.parameters(), before))
        return 1 - same / sum(each.numel() for each in before)

    adam = lambda parameters: torch.optim.AdamW(parameters, lr=3e-5, weight_decay=0)  # noqa: E731
    assert moved(lambda parameters: MasterWeights(parameters, adam)) > moved(adam) + 0.3


def test_what_is_written_to_the_weights_goes_on_from_there():
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = MasterWeights([weight], lambda each: torch.optim.SGD(each, lr=1e-4))
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert weight.tolist() == [1, 1, 1] and optimizer.masters[0][0].item() == pytest.approx(1 - 1e-4)
    with torch.no_grad():
        weight[0] = 5
    optimizer.step()
    assert optimizer.masters[0].tolist() == pytest.approx([5 - 1e-4, 1 - 2e-4, 1 - 2e-4])


# -- the table in the documentation --------------------------------------------------

README = Path(__file__).resolve().parents[2] / "ringtree" / "parallel" / "README.md"
NOTES = {("fully_shard", "evaluation between two steps"): 1, ("fully_shard", "a parameter unused on one rank"): 3}


def table():
    """A row a setting, a column a technique, in Markdown; refused where any number of ranks of the usual run refuses."""
    torchs = json.loads((Path(__file__).parent / "torch_cells.json").read_text())
    short = [way.replace("data_parallel.", "").replace("sharded.", "").replace("tensor_parallel", "tensor") for way in WAYS]
    lines = [
        f"| | {' | '.join(f'`{name}`' for name in short)} | {' | '.join(torchs['cells'])} |",
        "|---" * (1 + len(WAYS) + len(torchs["cells"])) + "|",
    ]
    for setting in CELLS:
        ours = ["refused" if any(refusal(way, setting, size) for size in (2, 3)) else "equal" for way in WAYS]
        theirs = []
        for name, found in torchs["cells"].items():
            note = NOTES.get((name, setting)) or (2 if name == "pipelining" and found[setting]["is"] == "differs" else "")
            theirs.append(f"**{found[setting]['is']}** {note}" if found[setting]["is"] != "equal" else "equal")
        lines.append(f"| {setting} | {' | '.join(ours + [each.strip() for each in theirs])} |")
    return "\n".join([*lines, "", f"PyTorch's columns: torch {torchs['torch']}."])


def test_the_documentation_has_the_table():
    assert table() in README.read_text(), "write what table() returns between the marks of ringtree/parallel/README.md"


# -- memory where activations are computed again ---------------------------------------


def whole_with_recomputation(dist, again):
    """Bytes of parameters within a step at most, and after its backward pass; and how often units were gathered."""
    from ringtree import traced
    from ringtree.parallel import sharded

    torch.set_num_threads(1)
    noted = traced(dist)
    net = net_of(Cell(again=again))
    units = [[net.token, net.place], *([block] for block in net.blocks), [net.norm, net.head]]
    most = counting.watch(net, lambda: {"parameters": net.parameters()})
    share = sharded.ZeRO3(units, noted, torch.optim.AdamW)
    M.loss_of(net, next(batches(Cell(), 2))).backward()
    left = counting.held(net.parameters())
    gathers = sum(call.operation == "all_gather_single" for call in noted.notes.calls)
    share.step()
    return most["parameters"], left, gathers


@pytest.mark.parametrize("again", [None, False, True])
def test_zero3_holds_two_units_also_where_activations_are_computed_again(again):
    block = 8 * sum(each.numel() for each in net_of(Cell()).blocks[0].parameters())
    for most, left, gathers in shared(2).call(whole_with_recomputation, again):
        assert most <= 2 * block + 16 and left == 0  # and the padding of a unit
        assert gathers == 2 * 5
