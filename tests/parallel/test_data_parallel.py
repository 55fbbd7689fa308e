"""Data parallel: equal to one process, by hand and by DDP; the sketch's calls are the hand form's."""

import os
import re
import subprocess
import sys
from functools import partial

import pytest
import torch
from helpers import one_process
from helpers.one_process import losses_of_the_script
from helpers.processes import shared

from ringtree import Link, data, simulate, traced
from ringtree.parallel import data_parallel as by_hand
from ringtree.parallel import model as M
from ringtree.simulated import sketches

STEPS = 3
PARAMETERS = sum(parameter.numel() for parameter in M.GPT(74, layers=2, width=32, heads=2).parameters())
WAYS = {
    "each": dict(),
    "buckets": dict(nbytes=40_000),
    "overlapped": dict(nbytes=40_000, overlapped=True),
    "one bucket": dict(nbytes=1 << 30, overlapped=True),
    "a bucket a tensor": dict(nbytes=1, overlapped=True),
}


@pytest.fixture(scope="module", params=[2, 3, 4])
def ranks(request):
    return shared(request.param)


def new_model(dtype=torch.float64, seed=0):
    tokens, symbols = M.tokens_of(data.prose())
    return tokens, M.seeded(lambda: M.GPT(len(symbols), layers=2, width=32, heads=2), seed).to(dtype)


def alone(dtype=torch.float64, batch=12):
    """Losses of one process on whole batches."""
    tokens, net = new_model(dtype)
    return one_process.train(net, M.batches(tokens, STEPS, batch))


def trained(dist, way, dtype=torch.float64, batch=12, sent=None):
    """Losses, and the calls of the last step: (operation, bytes, group)."""
    torch.set_num_threads(1)
    rank, size = dist.get_rank(), dist.get_world_size()
    tokens, net = new_model(dtype, seed=rank)
    by_hand.same_start(net, dist)
    noted = traced(dist)
    nbytes, overlapped = WAYS.get(way, {}).get("nbytes"), WAYS.get(way, {}).get("overlapped")
    averaging = by_hand.Overlapped(net, noted, nbytes, sent) if overlapped else None
    model = torch.nn.parallel.DistributedDataParallel(net) if way == "DDP" else net
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    losses = []
    for rows in M.batches(tokens, STEPS, batch):
        noted.forget()
        optimizer.zero_grad()
        loss = M.loss_of(model, rows.chunk(size)[rank])
        loss.backward()
        if averaging:
            averaging.finish()
        elif nbytes:
            by_hand.average_buckets(net, noted, nbytes, sent)
        elif way == "each":
            by_hand.average_each(net, noted)
        optimizer.step()
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        losses.append(whole.item() / size)
    return losses, [(call.operation, call.nbytes, call.group) for call in noted.notes.calls]


@pytest.mark.parametrize("way", [*WAYS, "DDP"])
def test_losses_are_those_of_one_process(ranks, way):
    wanted = alone()
    for losses, _ in ranks.call(trained, way):
        assert losses == pytest.approx(wanted, abs=1e-12, rel=0)


@pytest.mark.parametrize("way", WAYS)
def test_the_sketch_calls_what_the_hand_form_calls(ranks, way):
    size = len(ranks.call(rank_of))
    live = [calls for _, calls in ranks.call(trained, way, torch.float32)]
    layers = sketches.layers_of(new_model(torch.float32)[1], forward=1e-3, backward=2e-3)
    run = simulate(partial(sketches.data_parallel.step, **WAYS[way]), [layers] * size, Link(10e-6, 1e-9))
    for rank in range(size):
        sketched = [(call.operation, call.nbytes, call.group) for call in run.trace.calls if call.rank == rank]
        assert sketched == live[rank]
    assert sum(nbytes for _, nbytes, _ in live[0]) == 4 * PARAMETERS


@pytest.mark.parametrize("size", [2, 3, 8, 64])
def test_payload_bytes_are_the_parameters_however_many_ranks(size):
    net = new_model(torch.float32)[1]
    program = partial(sketches.data_parallel.step, **WAYS["overlapped"])
    run = simulate(program, [sketches.layers_of(net)] * size, Link(10e-6, 1e-9))
    by_bucket = [sum(each.nbytes for each in bucket) for bucket in by_hand.buckets_of(net.parameters(), 40_000)]
    for rank in range(size):
        assert [call.nbytes for call in run.trace.calls if call.rank == rank] == by_bucket
    assert sum(by_bucket) == 4 * PARAMETERS
    assert sum(run.trace.bytes_sent) == 2 * (size - 1) * 4 * PARAMETERS


def rank_of(dist):
    return dist.get_rank()


def test_gradients_that_travel_in_bf16_cost_half_and_some_digits(ranks):
    wanted = alone(torch.float32)
    for losses, calls in ranks.call(trained, "overlapped", torch.float32, 12, torch.bfloat16):
        assert sum(nbytes for _, nbytes, _ in calls) == 2 * PARAMETERS
        assert losses != wanted and losses == pytest.approx(wanted, abs=2e-2)


def averaged_twice(dist):
    _, net = new_model()
    by_hand.Overlapped(net, dist, 1 << 30)
    rows = torch.zeros(1, 9, dtype=torch.long)
    M.loss_of(net, rows).backward()
    try:
        M.loss_of(net, rows).backward()
    except RuntimeError as error:
        return str(error)


def test_a_second_backward_pass_before_finish_is_told():
    assert set(shared(4).call(averaged_twice)) == {
        "head.weight has received a second gradient before finish(): "
        "set `on = False` for all backward passes of a step but the last"
    }


def accumulated(dist):
    """Two backward passes on halves, averaged once."""
    torch.set_num_threads(1)
    rank, size = dist.get_rank(), dist.get_world_size()
    tokens, net = new_model()
    noted = traced(dist)
    averaging = by_hand.Overlapped(net, noted, 40_000)
    rows = next(M.batches(tokens, 1)).chunk(size)[rank]
    averaging.on = False
    (M.loss_of(net, rows[:2]) / 2).backward()
    averaging.on = True
    (M.loss_of(net, rows[2:]) / 2).backward()
    averaging.finish()
    return len(noted.notes.calls), [parameter.grad for parameter in net.parameters()]


def test_accumulation_sends_once():
    tokens, net = new_model()
    M.loss_of(net, next(M.batches(tokens, 1))).backward()
    for calls, gradients in shared(4).call(accumulated):
        assert calls == len(by_hand.buckets_of(net.parameters(), 40_000))
        for gradient, parameter in zip(gradients, net.parameters(), strict=True):
            torch.testing.assert_close(gradient, parameter.grad, rtol=0, atol=1e-14)


def test_buckets_hold_what_they_may_and_come_from_the_end():
    parameters = [torch.nn.Parameter(torch.zeros(count)) for count in (10, 20, 300, 5, 5)]
    sizes = [[each.numel() for each in bucket] for bucket in by_hand.buckets_of(parameters, 100)]
    assert sizes == [[5, 5], [300], [20], [10]]
    layers = [sketches.Layer(str(i), (each.numel(),), 0, 0) for i, each in enumerate(parameters)]
    assert sketches.data_parallel.buckets_of(layers, 100) == [(3, 10), (2, 300), (1, 20), (0, 10)]


@pytest.mark.parametrize("counts", [(5, 0), (0, 5), (5, 0, 5)])
def test_a_tensor_without_elements_has_a_place_in_a_bucket(counts):
    parameters = [torch.nn.Parameter(torch.zeros(count)) for count in counts]
    (bucket,) = by_hand.buckets_of(parameters, 100)
    assert [each.numel() for each in bucket] == [*reversed(counts)]
    layers = sketches.layers_of(torch.nn.ParameterList(parameters))
    assert sketches.data_parallel.buckets_of(layers, 100) == [(0, sum(counts))]


def test_overlap_hides_what_fits_behind_the_backward_pass():
    """Eight equal layers, an all-reduce as long as a layer's backward pass: only the last one is seen."""
    link, size = Link(0.0, 1e-9), 4
    layers = [sketches.Layer(f"{i}", (10**6,), 0.0, 2 * 3 / 4 * 4e6 * 1e-9) for i in range(8)]
    each = layers[0].backward
    late = simulate(partial(sketches.data_parallel.step, nbytes=4e6), [layers] * size, link)
    early = simulate(partial(sketches.data_parallel.step, nbytes=4e6, overlapped=True), [layers] * size, link)
    assert late.makespan == pytest.approx(16 * each)
    assert early.makespan == pytest.approx(9 * each)


def test_the_model_of_the_chapters():
    tokens, symbols = M.tokens_of(data.prose())
    assert len(symbols) == 74 and len(tokens) > 190_000
    parameters = [each.numel() for each in M.GPT(len(symbols)).parameters()]
    assert (len(parameters), sum(parameters)) == (45, 814_336)
    before = torch.rand(3)
    torch.manual_seed(7)
    first = torch.rand(3)
    torch.manual_seed(7)
    M.seeded(lambda: M.GPT(74), 5)
    assert torch.equal(torch.rand(3), first) and not torch.equal(first, before)  # the generator is as it was


def test_a_transformer_of_the_sketch_has_the_tensors_of_the_model():
    net = M.GPT(74, layers=3, width=64, heads=2, context=16)
    sketched = sketches.transformer(3, 64, tokens=100, rate=1e9, vocabulary=74, context=16, dtype=torch.float32)
    parts = [("token", "place"), *((f"blocks.{i}.",) for i in range(3)), ("norm.", "head")]
    for layer, names in zip(sketched, parts, strict=True):
        assert layer.counts == tuple(each.numel() for name, each in net.named_parameters() if name.startswith(names))
        seconds = 0 if layer.name == "embedding" else 2e-7 * sum(layer.counts)
        assert (layer.forward, layer.backward) == pytest.approx((seconds, 2 * seconds))


# -- as scripts ------------------------------------------------------------------


def alone_as_the_scripts(steps, layers=4):
    """Losses of one process on the scripts' model and rows, of two ranks."""
    tokens, symbols = M.tokens_of(data.prose())
    net = M.seeded(lambda: M.GPT(len(symbols), layers=layers))
    return one_process.train(net, M.batches(tokens, steps, 8))


@pytest.mark.parametrize("technique, layers", [("data_parallel", 4), ("sharded", 4), ("tensor_parallel", 4), ("pipeline", 8)])
def test_a_script_trains_as_one_process(technique, layers):
    assert shared(2).call(losses_of_the_script, technique, 3)[0] == pytest.approx(alone_as_the_scripts(3, layers), abs=5e-5)


def test_started_by_torchrun_it_prints_its_losses():
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            "-m",
            "ringtree.parallel",
            "data_parallel",
            "--steps",
            "2",
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo"},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    first, *steps = done.stdout.splitlines()[:3]
    assert first == "data_parallel: 2 ranks, gloo"
    told = [re.fullmatch(r"step +(\d+): loss (\d\.\d{4})", line).groups() for line in steps]
    assert [int(number) for number, _ in told] == [1, 2]
    assert [float(loss) for _, loss in told] == pytest.approx(alone_as_the_scripts(2), abs=1e-4)
