"""Simulated ranks that call backward(): each has its own gradients, hooks and modes, and may wait in the middle of a pass."""

import threading

import pytest
import torch
from torch import nn

from ringtree import compute
from ringtree.algorithms import ring_all_reduce
from ringtree.cost import Link
from ringtree.labs.harnesses import held, nets
from ringtree.parallel import data_parallel
from ringtree.simulated import Deadlock, ProgramError, simulate

LINK = Link(1e-3, 0.0)
WEIGHTS = [torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3), torch.linspace(0, 1, 4, dtype=torch.float64).view(2, 2)]
ROWS = torch.linspace(-2, 3, 12, dtype=torch.float64).view(4, 3)


def train(program, size=4, **options):
    """Each of `size` ranks with a row of its own."""
    return simulate(program, [ROWS[rank : rank + 1] for rank in range(size)], LINK, autograd=True, **options)


def gradients(net):
    return torch.cat([each.grad.flatten() for each in net.parameters()])


def of_one_process():
    net = nets.layers(WEIGHTS)
    net(ROWS).square().sum(1).mean().backward()
    return gradients(net)


def averaged(average):
    """A rank program: average(net, dist) is called before the backward pass; it returns what is called behind it."""

    def program(row, dist):
        net = nets.layers(WEIGHTS)
        behind = average(net, dist)
        net(row).square().sum(1).mean().backward()
        behind()
        return gradients(net)

    return program


def in_each_hook(net, dist):
    def mean(parameter):
        dist.all_reduce(parameter.grad)  # waits, in the middle of the backward pass
        parameter.grad /= dist.get_world_size()

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(mean)
    return lambda: None


WAYS = {
    "after the pass": lambda net, dist: lambda: data_parallel.average_buckets(net, dist, 40),
    "overlapped": lambda net, dist: data_parallel.Overlapped(net, dist, 40).finish,
    "in each hook, waiting": in_each_hook,
}


@pytest.mark.parametrize("rules", ["gloo", "nccl"])
@pytest.mark.parametrize("way", WAYS)
def test_ranks_average_their_gradients_to_those_of_one_process(way, rules):
    run = train(averaged(WAYS[way]), checked=True, rules=rules)
    for output in run.outputs:
        torch.testing.assert_close(output, of_one_process(), rtol=1e-12, atol=0)


def test_an_autograd_function_may_wait_in_its_backward_pass():
    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, dist):
            ctx.dist = dist
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            gradient = gradient.clone()
            ctx.dist.all_reduce(gradient)
            return gradient, None

    def program(row, dist):
        row.requires_grad_()
        ((dist.get_rank() + 1) * Copy.apply(row, dist)).sum().backward()
        return row.grad

    assert [output.tolist() for output in train(program).outputs] == [[[10.0] * 3]] * 4


def test_computing_in_a_hook_takes_the_rank_s_time_and_hides_what_is_under_way():
    def program(row, dist):
        net = nets.layers([torch.eye(3, dtype=torch.float64)] * 2)
        for layer in net:
            nets.lasting(layer, forward=1.0, backward=2.0)
        averaging = data_parallel.Overlapped(net, dist, 72)
        net(row.requires_grad_()).sum().backward()
        averaging.finish()

    run = train(program)
    assert run.makespan == pytest.approx(2 * 1.0 + 2 * 2.0 + 6 * LINK.alpha)  # the last bucket's ring alone is exposed
    assert run.trace.time(2, "compute") == pytest.approx(6.0)


def test_a_rank_that_waits_inside_no_grad_takes_no_gradients_from_the_others():
    def program(row, dist):
        weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
        if dist.get_rank() == 0:
            with torch.no_grad():
                dist.barrier()
        else:
            dist.barrier()
        return (weight * row).sum().requires_grad

    assert train(program).outputs == [True] * 4
    with torch.no_grad():
        assert train(program).outputs == [False] * 4  # as the caller has it


def test_what_moves_brings_no_graph_along_and_leaves_the_sender_s():
    def program(row, dist):
        rank, weight = dist.get_rank(), nn.Parameter(torch.ones(3, dtype=torch.float64))
        dist.broadcast(weight, src=0)  # a parameter may be written
        mine = weight * row[0]
        came = torch.empty_like(mine)
        if rank == 0:
            dist.send(mine, 1)
        if rank == 1:
            dist.recv(came, 0)
        dist.all_reduce(total := mine.clone())
        mine.sum().backward()
        return came.requires_grad, weight.is_leaf, weight.grad.tolist() == row[0].tolist(), total.tolist()

    assert train(program).outputs == [(False, True, True, ROWS.sum(0).tolist())] * 4


def test_without_gradients_a_run_is_the_same_as_ever():
    given = [torch.arange(10.0) * rank for rank in range(5)]
    link = Link(2e-6, 1e-9)
    one, other = (simulate(ring_all_reduce, given, link, checked=True, autograd=each) for each in (False, True))
    assert list(one.trace) == list(other.trace) and one.makespan == other.makespan
    assert all(map(torch.equal, one.outputs, other.outputs))


# -- what goes wrong -----------------------------------------------------------


def hanging(net, dist):
    for parameter in net.parameters() if dist.get_rank() else ():
        parameter.register_post_accumulate_grad_hook(lambda parameter: dist.all_reduce(parameter.grad))
    return lambda: None


def looping(net, dist):
    def loops(parameter):
        while dist.get_rank() == 2:
            pass

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(loops)
    return lambda: None


def test_a_deadlock_in_a_hook_is_named_with_the_line_that_called_backward():
    with pytest.raises(Deadlock, match="ranks 1, 2 and 3 can never finish") as caught:
        train(averaged(hanging))
    assert "program, line" in str(caught.value) and "backward()" in str(caught.value)
    assert "threading" not in str(caught.value) and "_bootstrap" not in str(caught.value)


def test_a_hook_that_loops_is_stopped_and_named():
    with pytest.raises(ProgramError, match="after 0.5 s of real time; rank 2 was running .*loops, line"):
        train(averaged(looping), seconds=0.5)


@pytest.mark.parametrize("autograd", [False, True])
def test_a_program_without_end_is_told_by_a_rank_that_there_is(autograd):
    def program(row, dist):
        while True:
            dist.all_reduce(row, async_op=True).wait()  # mostly a stream runs, beside a rank

    with pytest.raises(ProgramError, match="rank [0-3] was running"):
        simulate(program, list(ROWS), LINK, trace=False, seconds=0.3, autograd=autograd)


@pytest.mark.parametrize("error", [ValueError("mine"), SystemExit(3)])
def test_what_a_hook_raises_is_the_caller_s(error):
    def raising(net, dist):
        def raises(parameter):
            dist.barrier()
            if dist.get_rank() == 2:
                raise error

        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(raises)
        return lambda: None

    with pytest.raises(type(error)) as caught:
        train(averaged(raising))
    assert caught.value is error


@pytest.mark.parametrize("average", [hanging, looping, in_each_hook])
def test_no_thread_is_left(average):
    before = set(threading.enumerate())
    try:
        train(averaged(average), seconds=0.5)
    except ProgramError:
        pass
    left = [each for each in threading.enumerate() if each not in before]
    for each in left:
        each.join(2)
    assert not any(each.is_alive() for each in left)


def test_a_buffer_under_way_is_guarded_in_a_hook_too():
    def reading(net, dist):
        def reads(parameter):
            work = dist.all_reduce(parameter.grad, async_op=True)
            parameter.grad.div_(2)
            work.wait()

        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(reads)
        return lambda: None

    with pytest.raises(ProgramError, match="which may still be running"):
        train(averaged(reading), checked=True)


# -- how much a rank holds -----------------------------------------------------


def test_held_is_the_most_that_was_made_and_kept_at_once():
    def program(row, dist):
        with held.noted() as memory:
            kept = torch.zeros(100, dtype=torch.float64)
            kept.view(10, 10).add_(1)  # neither a view nor what is done in place makes anything
            for _ in range(3):
                copies = kept * 2  # while the next is made, the one before is still there
            del copies
        after = memory.most
        kept.clone()
        return after, memory.most

    assert train(program).outputs == [(3 * 800, 3 * 800)] * 4


def test_held_leaves_out_what_a_collective_needs_for_itself():
    def program(row, dist):
        with held.noted() as memory:
            total = torch.zeros(100, dtype=torch.float64)
            dist.all_reduce(total)
            dist.all_reduce(total, async_op=True).wait()
        return memory.most

    assert train(program).outputs == [800] * 4


def test_held_counts_the_gradients_and_each_rank_its_own():
    def program(row, dist):
        with held.noted() as memory:
            weight = torch.ones(100 * (1 + dist.get_rank()), requires_grad=True)
            (weight * 2.0).sum().backward()
            compute(1.0)
        return memory.most

    small, *_, large = train(program).outputs
    assert 800 <= small <= 1300 and large == pytest.approx(4 * small, rel=0.05)
