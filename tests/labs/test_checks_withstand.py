"""What learners' functions do to a check: it ends in time, says one sentence, and the next one works."""

import sys
import threading
import time

import pytest
import torch
from helpers.live import kernel
from verdicts import Notebook, learners_cells

from ringtree.labs.judging import judge
from ringtree.labs.lab import module_of
from ringtree.labs.patches import put_back
from ringtree.simulated.dist import SimulatedDist

SHIFT = module_of("deadlock-clinic").EXERCISES["shift"]


def said(text, seconds=1.0):
    return judge("shift", Notebook().run(text)["shift"], SHIFT, seconds).fault


SLEEPS = """
import time
def shift(x, dist):
    time.sleep(60)
"""
WAITS = """
import threading
def shift(x, dist):
    threading.Event().wait()
"""
CATCHES = """
def shift(x, dist):
    while True:
        try:
            x = x + 1
        except BaseException:
            pass
"""
CATCHES_ASLEEP = """
import time
def shift(x, dist):
    while True:
        try:
            time.sleep(1)
        except:
            continue
"""


@pytest.mark.parametrize("text", [SLEEPS, WAITS, CATCHES, CATCHES_ASLEEP])
def test_what_sleeps_or_catches_everything_is_stopped_too(text):
    began = time.monotonic()
    assert "had not ended" in said(text)
    assert time.monotonic() - began < 20
    assert sys.gettrace() is None
    assert not judge("shift", learners_cells("deadlock-clinic")["shift"], SHIFT).fault


def test_a_training_that_sleeps_is_stopped_too():
    text = "import time\ndef overlapped(*given):\n    time.sleep(4)"
    asked = module_of("data-parallel").EXERCISES["overlapped"]
    assert "had not ended after" in judge("overlapped", Notebook().run(text)["overlapped"], asked, 1.0).fault


@pytest.mark.parametrize("error", ["SystemExit", "GeneratorExit", "StopIteration", "BaseException", "RecursionError"])
def test_whatever_is_raised_is_told_in_a_sentence(error):
    assert f"{error}  [shift, line 2: raise {error}]" in said(f"def shift(x, dist):\n    raise {error}")


def test_the_learners_own_interrupt_is_none_of_the_answers():
    with pytest.raises(KeyboardInterrupt):
        said("def shift(x, dist):\n    raise KeyboardInterrupt")


def test_a_long_error_is_cut():
    assert len(said("def shift(x, dist):\n    raise ValueError('x' * 10_000)")) < 1000


PATCHES = {
    "the rank's dist": "type(dist).get_rank = lambda self: 0",
    "the simulator": "import ringtree.simulated.messages as messages; messages.Messages.post = None",
    "the check": "import ringtree.labs.judging as judging; judging.difference = lambda *_: None",
    "torch": "torch.equal = torch.Tensor.clone = lambda *_: True",
    "Python": "import builtins; builtins.sorted = builtins.abs = lambda *_: 0",  # not len: the threads of pytest use it
    "the clock": "import time; time.monotonic = lambda: 0.0",
    "what is deleted": "import torch; del torch.empty_like",
}


@pytest.mark.parametrize("patch", PATCHES.values(), ids=PATCHES)
def test_what_an_answer_replaces_is_put_back_and_helps_nobody(patch):
    right = learners_cells("deadlock-clinic")["shift"]
    before = SimulatedDist.get_rank, torch.equal, torch.empty_like, sorted, time.monotonic
    assert said(f"def shift(x, dist):\n    {patch}\n    return x.clone()", 10.0)
    assert (SimulatedDist.get_rank, torch.equal, torch.empty_like, sorted, time.monotonic) == before
    assert not judge("shift", right, SHIFT).fault


def test_a_check_that_is_not_in_the_main_thread_has_its_deadline_too():
    found = []
    thread = threading.Thread(target=lambda: found.append(said("def shift(x, dist):\n    while True:\n        pass")))
    thread.start()
    thread.join(20)
    assert "had not ended" in found[0]


# ---------------------------------------------------------------- in a notebook


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    with kernel() as live:
        live.run(f"import os; os.chdir({str(tmp_path_factory.mktemp('lab'))!r})")
        live.run("import ringtree, torch\nfrom ringtree import labs\nranks = ringtree.start(4, backend='gloo')")
        live.run('lab = labs.open("deadlock-clinic", ranks, timeout=2.0)')
        yield live


def test_what_does_not_end_is_not_run_once_more_to_be_drawn(notebook):
    notebook.run("def shift(x, dist):\n    while True:\n        pass")
    began = time.monotonic()
    assert "had not ended" in notebook.run('lab.check("shift")').message
    assert time.monotonic() - began < 30


def test_an_interrupted_check_says_so_in_a_sentence(notebook):
    notebook.run('long = labs.open("deadlock-clinic", ranks, timeout=60.0)')
    request = notebook.send('long.check("shift")')
    time.sleep(3)
    notebook.interrupt()
    answer = notebook.answer(request)
    assert answer.traceback.endswith("CheckFailed: shift: interrupted before it was decided")


def test_of_what_a_function_prints_a_check_shows_some(notebook):
    notebook.run("def shift(x, dist):\n    print('x' * 1_000_000)\n    return x")
    answer = notebook.run('lab.check("shift")')
    assert "on 2 ranks" in answer.message and 20_000 < len(answer.text) < 21_000
    assert answer.text.endswith("… and 1,980,002 characters more\n")


def test_what_is_no_ranks_opens_no_lab(notebook):
    answer = notebook.run('labs.open("deadlock-clinic", None)')
    assert answer.message == "this lab needs 4 ranks and was given None: run `ranks = ringtree.start(4)`"


def test_what_is_not_written_is_not_drawn_and_says_so(notebook):
    notebook.run("def shift(x, dist):\n    raise NotImplementedError")
    assert "cannot be drawn: it is not yet written" in notebook.run('lab.watch("shift")').message


def test_what_is_put_back_once_is_put_back_again_around_it():
    equal, liar = torch.equal, lambda *_: True
    with put_back():
        with put_back():
            torch.equal = liar
        assert torch.equal is equal
        torch.equal = liar
    assert torch.equal is equal
