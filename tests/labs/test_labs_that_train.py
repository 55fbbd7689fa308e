"""Checks that train a small model by the learner's function: its harness, what it returns by name, and marks."""

import time

import pytest
import torch
from answers.data_parallel import FAIR, OVERLAPPED

from ringtree.labs.comparing import difference, parts
from ringtree.labs.exercise import Case, Program
from ringtree.labs.judging import judge, program_of
from ringtree.labs.lab import _picture, module_of
from ringtree.labs.marking.notebook import mark_exercise
from ringtree.labs.marking.sandbox import Sandbox

EXERCISES = module_of("data-parallel").EXERCISES
PATIENT = 60


def test_what_is_returned_by_name_is_told_by_name():
    wanted = {"loss": torch.tensor(2.0), "gradients": [torch.zeros(2), torch.ones(2)]}
    assert difference(wanted | {"bytes held": 7}, wanted) is None  # more may be in it
    said, place = difference(wanted | {"loss": torch.tensor(3.0)}, wanted)
    assert (said, place) == ("has the loss [3] and should have [2]", (("loss",), 0))
    said, place = difference(wanted | {"gradients": [torch.zeros(2), torch.tensor([1.0, 5.0])]}, wanted)
    assert said == "in place 1 of its list has the gradients [1, 5] and should have [1, 1]"
    assert place == (("gradients", 1), 1)
    said, place = difference(wanted | {"loss": torch.tensor(2.00003)}, wanted)
    assert said == "has the loss [2.00003] and should have [2]"  # as many decimals as tell them apart
    large = torch.tensor([1000.0, 1e-3], dtype=torch.float64)
    said, _ = difference(large + 5e-5, large)  # little beside the largest, though not beside the other
    assert "right to only six digits" in said
    for lacking in {}, None, [1], {"loss": torch.tensor(2.0)}:
        said, place = difference(lacking, wanted)
        assert said.startswith("has the ") and "and should have" in said and place is None


def test_a_part_that_is_missing_is_found_below_a_name():
    case = Case(tuple((torch.ones(3),) for _ in range(3)), lambda given: [{"sum": [sum(x for (x,) in given)]}] * len(given))

    def outputs(given):
        return [{"sum": [given[0][0] + 2 * given[2][0]]}] * 3

    assert (
        parts(outputs, case, 0, (("sum", 0), 1)) == "in element 1 the part of rank 1 is missing, rank 2's part counts 2 times"
    )
    assert parts(lambda given: [None] * 3, case, 0, (("sum", 0), 1)) is None


def harness(function, x, dist):
    """Gives the function a parameter, and returns its gradient."""
    weight = torch.nn.Parameter(x.clone())
    function(weight, dist)
    (weight * (1 + dist.get_rank())).sum().backward()
    return {"gradient": weight.grad}


def test_a_harness_stands_around_the_learners_function():
    cases = [Case(((torch.ones(2),), (torch.ones(2),)), lambda given: [{"gradient": torch.full((2,), 3.0)}] * 2)]
    exercise = Program(lambda: cases, (), builtin=True, adds=False, harness=harness)

    def summing(weight, dist):
        weight.register_post_accumulate_grad_hook(lambda weight: dist.all_reduce(weight.grad))

    assert judge("summing", summing, exercise).level == 0
    found = judge("nothing", lambda weight, dist: None, exercise)
    assert "rank 0 has the gradient [1, 1] and should have [3, 3]" in found.fault


def test_a_sentence_of_a_harness_is_told_as_it_stands():
    found = judge("overlapped", lambda *given: 3, EXERCISES["overlapped"])
    assert found.fault.endswith("a step: it returned int: return a function without arguments, the one that waits")


def test_a_training_is_drawn_in_time_without_the_messages_of_its_collectives():
    names = {"torch": torch}
    exec(OVERLAPPED, names)
    exercise = EXERCISES["overlapped"]
    case = next(case for case in exercise.cases() if case.size == 4)
    picture = _picture(program_of(names["overlapped"], case, exercise), case, exercise, "a title")
    assert "4 ranks, 0 messages and 80 blocks of computation, 24 collective calls beside them" in repr(picture)


# -- marks ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def marked():
    with Sandbox() as sandbox:

        def marked(name, *texts):
            cells = dict(enumerate(("import torch", *texts), 1))
            return mark_exercise(sandbox, "data-parallel", name, cells, time.monotonic() + PATIENT)

        yield marked


def test_a_right_answer_in_its_harness_has_all_points(marked):
    assert marked("fair_loss", FAIR).points == 3
