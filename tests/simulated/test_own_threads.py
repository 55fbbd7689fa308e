"""A rank program that starts threads of its own in the simulator: one sentence with the line, and nothing on stderr."""

import gc
import queue
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import ringtree
from ringtree import Link, ProgramError, simulate


def in_thread(function, *arguments):
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    thread.join()


def receives(x, dist):
    if dist.get_rank():
        dist.send(x, dst=0)
    else:
        in_thread(lambda: dist.recv(x, src=1))  # here


def sends_without_a_line_of_its_own(x, dist):
    if dist.get_rank():
        dist.recv(x, src=0)
    else:
        thread = threading.Thread(target=dist.isend, args=(x, 1))
        thread.start()  # here
        thread.join()  # here


def waits(x, dist):
    work = dist.isend(x, dst=1) if dist.get_rank() == 0 else dist.irecv(x, src=0)
    in_thread(lambda: work.wait())  # here


def polls(x, dist):
    work = dist.isend(x, dst=1) if dist.get_rank() == 0 else dist.irecv(x, src=0)
    in_thread(lambda: work.is_completed())  # here


def reduces(x, dist):
    in_thread(lambda: dist.all_reduce(x))  # here


def reduces_beside(x, dist):
    in_thread(lambda: dist.all_reduce(x, async_op=True))  # here


def computes(x, dist):
    in_thread(lambda: ringtree.compute(60.0))  # here


def has_a_pool(x, dist):
    with ThreadPoolExecutor() as pool:
        pool.submit(lambda: dist.all_reduce(x)).result()  # here


def waits_for_an_answer(x, dist):
    answers = queue.Queue()
    threading.Thread(target=lambda: answers.put(dist.all_reduce(x)), daemon=True).start()  # here
    answers.get()


def catches_all(x, dist):
    def call():
        try:
            dist.all_reduce(x)  # here
        except BaseException:
            dist.all_reduce(x)

    in_thread(call)


PROGRAMS = [
    receives,
    sends_without_a_line_of_its_own,
    waits,
    polls,
    reduces,
    reduces_beside,
    computes,
    has_a_pool,
    waits_for_an_answer,
    catches_all,
]


@pytest.mark.parametrize("autograd", [False, True], ids=["", "autograd"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_call_in_a_thread_of_the_programs_own_is_told_with_its_line(program, autograd, capfd, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)  # pytest has its own
    with pytest.raises(ProgramError) as told:
        simulate(program, [torch.ones(2)] * 2, Link(1.0, 0.0), seconds=20, autograd=autograd)
    first, rest = str(told.value).split("  [")
    who = "a rank" if program is computes else "rank [01]"
    assert re.fullmatch(f"{who} calls the simulator in a thread that it has started itself", first)
    assert "# here]: on a virtual clock a rank has one thread" in rest
    assert capfd.readouterr().err == ""
    assert ringtree.compute(0.0, work=lambda: "done") == "done"  # a thread that hangs forever takes nothing with it


@pytest.mark.parametrize("autograd", [False, True], ids=["", "autograd"])
def test_threads_that_do_not_call_the_simulator_may_compute(autograd):
    def program(x, dist):
        in_thread(lambda: x.add_(dist.get_rank()))
        dist.all_reduce(x)

    run = simulate(program, [torch.ones(2)] * 2, Link(1.0, 0.0), autograd=autograd)
    assert run.outputs[0].tolist() == [3.0, 3.0]


def test_simulations_in_several_threads_do_not_meet():
    before, collects = gc.get_threshold(), (701, 11, 11)
    gc.set_threshold(*collects)

    def program(x, dist):
        ringtree.compute(1.0)
        dist.all_reduce(x)

    with ThreadPoolExecutor(2) as pool:
        runs = [*pool.map(lambda _: simulate(program, [torch.ones(2)] * 4, Link(1.0, 0.0)), range(8))]
        runs += [*pool.map(lambda _: simulate(program, [torch.ones(2)] * 4, Link(1.0, 0.0)), range(32))]
    assert {run.makespan for run in runs} == {runs[0].makespan}
    left = gc.get_threshold()
    gc.set_threshold(*before)
    assert left == collects
