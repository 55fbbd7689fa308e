"""`ringtree parallel`: each technique, alone and on a mesh with another, trains as one process does."""

import subprocess
import sys

import pytest
import torch
from helpers.processes import shared

from ringtree import data
from ringtree.command.parallel import Settings, main, train
from ringtree.parallel import experts
from ringtree.parallel import model as M

STEPS = 3
SMALL = {"layers": 4, "width": 24, "tokens": 12, "heads": 6, "dtype": torch.float64, "steps": STEPS}


def losses(dist, technique, mesh, more):
    torch.set_num_threads(1)
    return [*train(Settings(technique, **{**SMALL, **more}, mesh=mesh), torch.device("cpu"))]


def alone(rows, expert_count=0, again=None):
    tokens, symbols = M.tokens_of(data.prose())
    layer = {}
    if expert_count:
        layer["feed_forward"] = lambda width: experts.Experts(width, expert_count, 2, M.FeedForward)
    net = M.seeded(
        lambda: M.GPT(len(symbols), SMALL["layers"], SMALL["width"], SMALL["heads"], SMALL["tokens"], **layer)
    ).double()
    found, optimizer = [], torch.optim.AdamW(net.parameters(), lr=3e-3)
    for batch in M.batches(tokens, STEPS, rows, SMALL["tokens"]):
        optimizer.zero_grad()
        loss = M.loss_of(net, batch)
        (loss + (0.01 * experts.balance_loss(net) if expert_count and again is None else 0)).backward()
        optimizer.step()
        found.append(loss.item())
    return found


MESHES = [
    ("data_parallel", {}, 16),
    ("data_parallel", {"data": 2, "tensor": 2}, 16),
    ("data_parallel", {"pipeline": 2, "data": 2}, 16),
    ("sharded", {}, 16),
    ("sharded", {"data": 2, "tensor": 2}, 16),
    ("tensor_parallel", {"data": 2, "tensor": 2}, 16),
    ("tensor_parallel", {"pipeline": 2, "tensor": 2}, 16),
    ("pipeline", {"pipeline": 2, "data": 2}, 16),
    ("pipeline", {}, 16),
]


@pytest.mark.parametrize(("technique", "mesh", "rows"), MESHES)
def test_a_mesh_trains_as_one_process(technique, mesh, rows):
    wanted = alone(rows)
    for found in shared(4).call(losses, technique, mesh, {}):
        assert found == pytest.approx(wanted, abs=1e-11, rel=0)


@pytest.mark.parametrize("more", [{"parts": 4}, {"recompute": True}])
@pytest.mark.parametrize("technique", ["data_parallel", "sharded", "pipeline"])
def test_parts_and_recomputation_change_no_loss(technique, more):
    wanted = alone(16)
    for found in shared(4).call(losses, technique, {}, more):
        assert found == pytest.approx(wanted, abs=1e-11, rel=0)


@pytest.mark.parametrize(
    ("technique", "mesh", "count"),
    [("experts", {"expert": 4}, 8), ("experts", {"data": 2, "expert": 2}, 4), ("experts", {"pipeline": 2, "expert": 2}, 4)],
)
def test_experts_on_a_mesh_train_as_one_process(technique, mesh, count):
    wanted = alone(16, count, again=None if "pipeline" not in mesh else False)
    for found in shared(4).call(losses, technique, mesh, {}):
        assert found == pytest.approx(wanted, abs=1e-11, rel=0)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("technique", ["data_parallel", "sharded", "tensor_parallel", "pipeline", "experts", "uneven"])
def test_any_number_of_ranks_that_fits_trains(technique, size):
    for found in shared(size).call(losses, technique, {}, {"heads": 6}):
        assert found[-1] < found[0]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["sharded", "--mesh", "data=2,pipeline=2"], "no sharded with pipeline: each micro-batch would gather"),
        (["sharded", "--mesh", "data=2,expert=2"], "no sharded with expert: ZeRO averages over the data axis alone"),
        (
            ["experts", "--mesh", "tensor=2,expert=2"],
            "no tensor with expert: tensor_parallel cuts the matrices of a feed-forward",
        ),
        (
            ["pipeline", "--mesh", "data=2,tensor=2"],
            "pipeline needs the axis pipeline, and the mesh has data, tensor: add pipeline=N",
        ),
        (["data_parallel", "--mesh", "data=2,rows=2"], "'rows=2' in 'data=2,rows=2': give axis=ranks, parted by commas"),
        (["data_parallel", "--mesh", "data=2,tensor=2", "--ranks", "3"], "the mesh has 4 ranks and --ranks says 3"),
        (["tensor_parallel", "--ranks", "3"], "4 heads cannot be shared by 3 ranks: give --heads a multiple of 3"),
        (["tensor_parallel", "--ranks", "2", "--tokens", "31"], "31 tokens a row cannot be shared by 2 ranks"),
        (["data_parallel", "--width", "30"], "4 heads do not divide a width of 30: give a multiple of 4"),
        (["data_parallel", "--ranks", "0"], "'0' is no count: give a whole number from 1 on"),
    ],
)
def test_what_does_not_go_together_is_one_sentence(given, told, capsys, monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(SystemExit) as left:
        main(given)
    assert left.value.code == 2 and told in capsys.readouterr().err.splitlines()[-1]


def test_it_starts_its_ranks_and_says_what_a_step_costs(tmp_path):
    trace = tmp_path / "trace.json"
    given = ["sharded", "--ranks", "2", "--steps", "2", "--width", "32", "--dtype", "bfloat16", "--profile", str(trace)]
    done = subprocess.run([sys.executable, "-m", "ringtree", "parallel", *given], capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "sharded: 2 ranks, gloo"
    tokens, symbols = M.tokens_of(data.prose())
    net = M.GPT(len(symbols), 4, 32, 4)
    units = [[net.token, net.place], *([block] for block in net.blocks), [net.norm, net.head]]
    nbytes = sum(-(-sum(each.numel() for module in unit for each in module.parameters()) // 2) * 2 * 2 for unit in units)
    assert f"a step, over data: all_gather_single 12 times, {2 * nbytes:,} bytes" in lines
    assert f"a step, over data: reduce_scatter_single 6 times, {nbytes:,} bytes" in lines
    assert any(line.startswith("exposed: rank 0 stood in calls and waits for") for line in lines)
    assert "traceEvents" in trace.read_text()
