"""Pipeline: equal to one process, by hand and by torch's schedules; the sketch's messages are the hand form's."""

import functools
import re
from functools import partial
from importlib import import_module

import pytest
import torch
from helpers import one_process
from helpers.processes import shared
from torch.nn import functional as F

from ringtree import Deadlock, Link, Sketch, Trace, data, draw, simulate, traced
from ringtree.errors import UsageError
from ringtree.parallel import model as M
from ringtree.parallel import pipeline as by_hand
from ringtree.simulated.sketches import pipeline as sketched
from ringtree.simulated.sketches import transformer
from ringtree.trace import Span

STEPS, ROWS, WIDTH, CONTEXT = 3, 12, 16, 32
# by name: the order, stages a rank, micro-batches
ORDERS = {
    "gpipe": (by_hand.gpipe, 1, 6),
    "1f1b": (by_hand.one_f_one_b, 1, 6),
    "1f1b, few": (by_hand.one_f_one_b, 1, 2),
    "1f1b, one": (by_hand.one_f_one_b, 1, 1),
    "interleaved": (by_hand.interleaved, 2, 12),
    "interleaved, three": (partial(by_hand.interleaved, chunks=3), 3, 12),
}
SCHEDULES = {"GPipe": 1, "1F1B": 1, "Interleaved1F1B": 2, "InterleavedZeroBubble": 2, "ZBVZeroBubble": 2, "DualPipeV": 2}
NOTHING = Link(0.0, 0.0)


@pytest.fixture(scope="module", params=[2, 3, 4])
def ranks(request):
    return shared(request.param)


def new_model(dtype=torch.float64, tied=False):
    tokens, symbols = M.tokens_of(data.prose())
    net = M.seeded(lambda: M.GPT(len(symbols), layers=12, width=WIDTH, heads=2)).to(dtype)
    if tied:
        net.head.weight = net.token.weight
    return tokens, net


def loss_of(scores, wanted):
    return F.cross_entropy(scores.flatten(0, 1), wanted.flatten())


@functools.cache
def alone(dtype=torch.float64, tied=False):
    tokens, net = new_model(dtype, tied)
    return one_process.train(net, M.batches(tokens, STEPS, ROWS))


class Counted(dict):
    """A dict that knows the most that it ever held."""

    most = 0

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        self.most = max(self.most, len(self))


def trained(dist, name, dtype=torch.float64, tied=None):
    """Losses, the messages of the last step as (sends, peer, bytes), and the most that was held.

    tied: None, or what is done with the two gradients of a shared weight: "added" or "nothing".
    """
    torch.set_num_threads(1)
    rank, size = dist.get_rank(), dist.get_world_size()
    order, chunks, count = ORDERS[name]
    ends = dist.new_group([0, size - 1]) if tied else None
    tokens, net = new_model(dtype, bool(tied))
    total = chunks * size
    stages = {number: by_hand.Stage(net, number, total) for number in range(rank, total, size)}
    shared_weights = [net.token.weight] * (rank in (0, size - 1))
    optimizer = torch.optim.AdamW([each for stage in stages.values() for each in stage.parameters()], lr=3e-3)
    like, noted, losses = torch.empty(ROWS // count, CONTEXT, WIDTH, dtype=dtype), traced(dist), []
    for rows in M.batches(tokens, STEPS, ROWS):
        noted.forget()
        optimizer.zero_grad()
        held, parts = Counted(), rows.chunk(count)
        inputs = [each[:, :-1] for each in parts]
        found = by_hand.step(
            order(rank, size, count), stages, total, inputs, lambda y, i: loss_of(y, parts[i][:, 1:]), like, noted, held
        )
        if tied == "added":
            by_hand.add_tied(shared_weights, ends, dist)
        optimizer.step()
        assert not held and len(found) == (count if total - 1 in stages else 0)
        losses += [sum(each.item() for each in found) / count] if found else []
    return losses, messages_of(noted), held.most, shared_weights[0].detach() if shared_weights else None


def sketch(name, size, link=NOTHING, stages=None, activation=None, **options):
    """The simulated step; its outputs are each rank's messages, as `messages_of` gives them."""
    order, chunks, count = ORDERS[name]
    stages = stages or [sketched.Stage(1.0, 2.0)] * chunks * size

    def program(activation, dist):
        noted = traced(dist)
        sketched.step(activation, noted, partial(order, count=count), stages)
        return messages_of(noted)

    return simulate(program, [activation or Sketch(1)] * size, link, **options)


def messages_of(noted):
    """In the order of a rank's calls: (sends, peer, bytes)."""
    return [(each.sends, each.dst if each.sends else each.src, each.nbytes) for each in noted.notes.messages]


@pytest.fixture(scope="module")
def live(ranks):
    """By order, what `trained` gives on every rank."""
    return {name: ranks.call(trained, name) for name in ORDERS}


@pytest.mark.parametrize("name", ORDERS)
def test_losses_are_those_of_one_process(live, name):
    assert live[name][-1][0] == pytest.approx(alone(), abs=1e-12, rel=0)


def test_losses_in_32_bits_are_those_of_one_process(ranks):
    assert ranks.call(trained, "1f1b", torch.float32)[-1][0] == pytest.approx(alone(torch.float32), abs=2e-5)


@pytest.mark.parametrize("name", ORDERS)
def test_the_sketch_sends_what_the_hand_form_sends(live, name):
    """The same messages in the same order on every rank, with peers and bytes; as many bytes as the formula says."""
    _, chunks, count = ORDERS[name]
    found = [messages for _, messages, *_ in live[name]]
    size = len(found)
    assert sketch(name, size, activation=Sketch(ROWS // count * CONTEXT * WIDTH, torch.float64)).outputs == found
    for rank, messages in enumerate(found):
        sent = [nbytes for sends, _, nbytes in messages if sends]
        ends = (rank == 0) + (rank == size - 1)
        assert len(sent) == (2 * chunks - ends) * count
        assert sum(sent) == (2 * chunks - ends) * ROWS * CONTEXT * WIDTH * 8


def multiples(size):
    return [size, 2 * size, 5 * size]


@pytest.mark.parametrize("size", [2, 3, 4, 8, 64])
@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_bytes_by_formula_for_any_number_of_ranks(size, chunks):
    order = partial(by_hand.interleaved, chunks=chunks) if chunks > 1 else by_hand.one_f_one_b
    program = partial(sketched.step, order=partial(order, count=size), stages=[sketched.Stage(1.0, 2.0)] * chunks * size)
    run = simulate(program, [Sketch(7)] * size, NOTHING)
    assert sum(run.trace.bytes_sent) == 2 * (chunks * size - 1) * size * 28
    assert run.messages == 2 * (chunks * size - 1) * size


@pytest.mark.parametrize("forward, backward", [(1.0, 2.0), (1.0, 1.0), (3.0, 5.0)])
@pytest.mark.parametrize("size", [2, 3, 4, 7, 8])
def test_the_bubble_is_that_of_the_books(size, forward, backward):
    """(p−1)/(m+p−1), with v stages a rank (p−1)/(vm+p−1), on links that cost nothing; and NCCL's rules are kept."""
    for count in multiples(size):
        for order, chunks in (by_hand.gpipe, 1), (by_hand.one_f_one_b, 1), (by_hand.interleaved, 2), (by_hand.interleaved, 3):
            more = {"chunks": chunks} if chunks > 1 else {}
            stages = [sketched.Stage(forward, backward)] * chunks * size
            program = partial(sketched.step, order=partial(order, count=count, **more), stages=stages)
            run = simulate(program, [Sketch(1)] * size, NOTHING, rules="nccl")
            whole = (chunks * count + size - 1) * (forward + backward)
            assert run.makespan == pytest.approx(whole)
            for rank in range(size):
                bubble = 1 - run.trace.time(rank, "compute") / run.makespan
                assert bubble == pytest.approx((size - 1) / (chunks * count + size - 1))


@pytest.mark.parametrize("count", [1, 3, 6])
def test_few_micro_batches_keep_nccls_rules_too(count):
    for size in (2, 4, 6):
        for order in by_hand.gpipe, by_hand.one_f_one_b:
            program = partial(sketched.step, order=partial(order, count=count), stages=[sketched.Stage(1.0, 2.0)] * size)
            simulate(program, [Sketch(1)] * size, Link(1.0, 0.1), rules="nccl")


def one_by_one(activation, dist, order, stages):
    """The step as one would first write it: send what came out, then receive what is next."""
    rank, size, last = dist.get_rank(), dist.get_world_size(), len(stages) - 1
    for stage, kind, _ in [action for each in order(rank, size) for action in each]:
        before, after = (stage - 1, stage + 1) if kind == "F" else (stage + 1, stage - 1)
        if 0 <= before <= last:
            dist.recv(activation.clone(), before % size)
        if 0 <= after <= last:
            dist.send(activation.clone(), after % size)


def test_without_batches_1f1b_is_a_deadlock():
    stages = [sketched.Stage(1.0, 2.0)] * 4
    program = partial(one_by_one, order=partial(by_hand.one_f_one_b, count=8), stages=stages)
    with pytest.raises(Deadlock):
        simulate(program, [Sketch(1)] * 4, NOTHING)


def test_interleaved_wants_groups_of_microbatches():
    with pytest.raises(ValueError, match="6 micro-batches on 4 ranks: give a multiple of 4"):
        by_hand.interleaved(0, 4, 6)


@pytest.mark.parametrize("name", ORDERS)
def test_every_micro_batch_goes_once_through_every_stage(name):
    order, chunks, count = ORDERS[name]
    actions = [action for rank in range(4) for each in order(rank, 4, count) for action in each]
    assert sorted(actions) == sorted((stage, kind, i) for stage in range(4 * chunks) for kind in "FB" for i in range(count))


def test_held_is_what_the_papers_say(live):
    most = {name: [most for _, _, most, _ in found] for name, found in live.items()}
    size = len(most["gpipe"])
    assert most["gpipe"] == [6] * size
    assert most["1f1b"] == [size - rank for rank in range(size)]
    assert most["interleaved"] == [2 * (size - 1 - rank) + size + 1 for rank in range(size)]
    for name, each in most.items():
        counts = sketched.held(sketch(name, size).trace)
        assert [max(count for _, count in steps) for steps in counts] == each
        assert [steps[-1][1] for steps in counts] == [0] * size


def test_a_drawing_says_what_is_held_and_shows_every_micro_batch():
    picture = draw.pipeline({name: sketch(name, 4).trace for name in ("1f1b", "interleaved")})
    assert "1f1b: 4 ranks, 48 blocks of computation; micro-batches held at most: 4, 3, 2, 1" in picture.alt
    assert "interleaved: 4 ranks, 192 blocks of computation; micro-batches held at most: 5.5, 4.5, 3.5, 2.5" in picture.alt
    assert re.findall(r">(\d+)</text>", picture.svg).count("5") >= 4 * 2


def test_what_is_no_pipelines_step_is_not_drawn():
    with pytest.raises(UsageError, match="rank 0 computes nothing"):
        draw.pipeline(Trace(size=2))
    with pytest.raises(UsageError, match="'backward' is not an action of a pipeline"):
        draw.pipeline(Trace(size=1, spans=[Span(0, 0.0, 1.0, "backward")]))


# -- tied embeddings


def test_tied_embeddings_are_one_weight_if_their_gradients_are_added(ranks):
    wanted = alone(tied=True)
    found = ranks.call(trained, "1f1b", torch.float64, "added")
    assert found[-1][0] == pytest.approx(wanted, abs=1e-12, rel=0)
    assert torch.equal(found[0][3], found[-1][3])


def test_tied_embeddings_drift_apart_if_they_are_not(ranks):
    found = ranks.call(trained, "1f1b", torch.float64, "nothing")
    assert abs(found[-1][0][-1] - alone(tied=True)[-1]) > 1e-3
    assert (found[0][3] - found[-1][3]).abs().max() > 1e-3


# -- torch's own


def by_torch(dist, name):
    """Losses of torch's schedule, and its order of actions."""
    from torch.distributed.pipelining import PipelineStage

    torch.set_num_threads(1)
    rank, size = dist.get_rank(), dist.get_world_size()
    tokens, net = new_model()
    chunks = SCHEDULES[name]
    total = chunks * size
    numbers = [rank, total - 1 - rank] if name in ("ZBVZeroBubble", "DualPipeV") else [*range(rank, total, size)]
    modules = {number: by_hand.Stage(net, number, total) for number in numbers}
    stages = [PipelineStage(module, number, total, torch.device("cpu")) for number, module in modules.items()]
    make = getattr(import_module("torch.distributed.pipelining"), f"Schedule{name}")
    schedule = make(stages if chunks > 1 else stages[0], 12, loss_fn=loss_of)
    optimizer = torch.optim.AdamW([each for module in modules.values() for each in module.parameters()], lr=3e-3)
    losses = []
    for rows in M.batches(tokens, STEPS, ROWS):
        optimizer.zero_grad()
        found = []
        inputs = (rows[:, :-1],) if 0 in modules else ()
        schedule.step(*inputs, **({"target": rows[:, 1:], "losses": found} if total - 1 in modules else {}))
        optimizer.step()
        losses += [torch.stack(found).mean().item()] if found else []
    return losses, sketched.orders_of(schedule.pipeline_order) if chunks > 1 else None


@pytest.mark.parametrize("name", SCHEDULES)
def test_torchs_schedules_train_as_one_process_and_their_order_can_be_drawn(ranks, name):
    found = ranks.call(by_torch, name)
    size = len(found)
    (losses,) = [losses for losses, _ in found if losses]
    assert losses == pytest.approx(alone(), abs=1e-12, rel=0)
    if SCHEDULES[name] > 1:
        stages = [sketched.Stage(1.0, 2.0)] * 2 * size
        run = simulate(partial(sketched.in_order, orders=found[0][1], stages=stages), [Sketch(1)] * size, NOTHING)
        assert [run.trace.time(rank, "compute") for rank in range(size)] == pytest.approx([12 * 2 * 3.0] * size)
        late = 3.0 if name == "Interleaved1F1B" else 1.0  # the backward pass for the weights fills the rest
        assert run.makespan == pytest.approx(24 * 3.0 + (size - 1) * late)


def test_an_order_runs_as_early_as_it_can():
    """What our own orders take on links that cost nothing, they take without waiting for what they send, too."""
    for order, chunks in (by_hand.one_f_one_b, 1), (by_hand.interleaved, 2):
        orders = [[action for each in order(rank, 4, 8) for action in each] for rank in range(4)]
        stages = [sketched.Stage(1.0, 2.0)] * 4 * chunks
        run = simulate(partial(sketched.in_order, orders=orders, stages=stages), [Sketch(1)] * 4, NOTHING)
        assert run.makespan == pytest.approx((8 * chunks + 3) * 3.0)


# -- unequal stages, real links, as a script


def test_the_slowest_stage_sets_the_pace():
    stages = [sketched.Stage(1.0, 2.0)] * 3 + [sketched.Stage(2.0, 4.0)]
    assert sketch("1f1b", 4, stages=stages).makespan == pytest.approx(6 * 6.0 + 3 * 3.0)


def test_a_real_link_costs_what_is_not_hidden():
    """GPipe, one micro-batch: p−1 messages one after the other there, and back."""
    link, size = Link(1e-3, 1e-9), 4
    program = partial(sketched.step, order=partial(by_hand.gpipe, count=1), stages=[sketched.Stage(1.0, 2.0)] * size)
    run = simulate(program, [Sketch(10**6)] * size, link)
    assert run.makespan == pytest.approx(size * 3.0 + 2 * (size - 1) * link.time(4e6))


def test_stages_of_a_transformer_are_the_hand_forms():
    net = M.GPT(74, layers=10, width=WIDTH, heads=2)
    layers = transformer(10, WIDTH, tokens=100, rate=1e9, vocabulary=74, context=32)
    for stage, number in zip(sketched.stages_of(layers, 4), range(4), strict=True):
        part = by_hand.Stage(net, number, 4)
        count = sum(each.numel() for name, each in part.named_parameters() if not name.startswith(("token", "place")))
        assert (stage.forward, stage.backward) == pytest.approx((2 * count * 100 / 1e9, 4 * count * 100 / 1e9))
    first, *_, last = sketched.stages_of(layers, 4, blocks=[4, 3, 3, 0])
    assert (first.forward, last.forward) == pytest.approx((4 * layers[1].forward, layers[-1].forward))
    with pytest.raises(UsageError, match="give 4 numbers whose sum is 10"):
        sketched.stages_of(layers, 4, blocks=[4, 4, 4, 4])
