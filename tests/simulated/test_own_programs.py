"""What draws, follows or notes one of our algorithms does so with any rank program: whatever can be called."""

import functools
import json
import re

import pytest
import torch
from helpers.live import kernel

from ringtree import Link, draw, follow, shortest
from ringtree.algorithms import ring_all_reduce
from ringtree.errors import UsageError

LINK = Link(10e-6, 1e-9)


def mine(tensor, dist):
    ring_all_reduce(tensor, dist)


class Reducer:
    """A rank program that is an object."""

    def __call__(self, tensor, dist):
        ring_all_reduce(tensor, dist)

    def reduce(self, tensor, dist):
        ring_all_reduce(tensor, dist)


def scaled(factor, tensor, dist):
    tensor *= factor
    ring_all_reduce(tensor, dist)


def textless():
    """A function whose source is nowhere."""
    names = {"ring_all_reduce": ring_all_reduce}
    exec("def program(tensor, dist):\n    ring_all_reduce(tensor, dist)", names)
    return names["program"]


PROGRAMS = {
    "a function": mine,
    "a lambda": lambda tensor, dist: ring_all_reduce(tensor, dist),
    "a lambda that names no tensor": lambda *arguments: ring_all_reduce(*arguments),
    "a partial": functools.partial(ring_all_reduce, op=torch.maximum),
    "a partial of its first argument": functools.partial(scaled, 1),
    "an object": Reducer(),
    "a method": Reducer().reduce,
    "text given to exec": textless(),
}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_any_program_is_followed_and_played(kind):
    followed = follow(PROGRAMS[kind], [torch.ones(8) for _ in range(4)], LINK)
    assert followed.columns == (("tensor", 4),)
    assert followed.end == follow(ring_all_reduce, [torch.ones(8) for _ in range(4)], LINK).end
    assert "0 → 1: a of 0" in draw.player(followed).html
    for picture in (draw.timeline, draw.traffic):
        assert repr(picture(followed.trace)).startswith("Figure: ")


def test_tensors_that_a_program_does_not_name_get_names():
    def swap(*arguments):
        taken, given, dist = arguments
        other = 1 - dist.get_rank()
        for work in [dist.isend(given, other), dist.irecv(taken, other)]:
            work.wait()

    followed = follow(swap, [(torch.zeros(2), torch.ones(2)) for _ in range(2)], LINK)
    assert [name for name, _ in followed.columns] == ["argument 1", "argument 2"]
    data = json.loads(re.search(r'json">(.*?)</script>', draw.player(followed).html)[1])
    assert [name for name, *_ in data["columns"]] == ["argument 2", "argument 1"]


# -- its code


def test_the_code_of_a_partial_says_what_was_given_to_it():
    shown = repr(draw.source(functools.partial(scaled, 2)))
    assert shown == "# with factor=2\n" + repr(draw.source(scaled))
    shown = repr(draw.source(PROGRAMS["a partial"]))
    assert shown.startswith("# with op=maximum\ndef ring_all_reduce(tensor, dist, op=torch.add):")
    assert repr(draw.source(functools.partial(mine))) == repr(draw.source(mine))


def test_the_code_of_an_object_is_what_is_run_when_it_is_called():
    assert repr(draw.source(Reducer())) == "def __call__(self, tensor, dist):\n    ring_all_reduce(tensor, dist)"
    assert repr(draw.source(Reducer().reduce)).startswith("def reduce(self, tensor, dist):")
    assert repr(draw.source(Reducer)).startswith("class Reducer:")


def test_the_code_of_a_lambda_is_the_statement_that_it_stands_in():
    program = lambda tensor, dist: mine(tensor, dist)  # noqa: E731
    assert repr(draw.source(program)).startswith("program = lambda tensor, dist: mine(tensor, dist)")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (textless(), "program, whose code is not known here"),
        (functools.partial(textless(), 1), "program, whose code is not known here"),
        (torch.add, "add, whose code is not known here"),
        (3, "3, which is not a program"),
    ],
)
def test_code_that_is_not_known_is_refused_in_one_sentence(program, words):
    with pytest.raises(UsageError, match=rf"source\(\) was given {words}: give a function that a cell or a file defines$"):
        draw.source(program)


def test_a_program_that_a_cell_defines_is_shown_followed_and_played():
    with kernel() as notebook:
        answer = notebook.run("""
            import functools, torch
            from ringtree import draw, follow
            from ringtree.algorithms import ring_all_reduce

            def mine(tensor, dist, twice=False):
                ring_all_reduce(tensor, dist)
            """)
        assert answer.error is None, answer.traceback
        code = "def mine(tensor, dist, twice=False):\n    ring_all_reduce(tensor, dist)"
        assert notebook.run("print(draw.source(mine))").text == code + "\n"
        shown = notebook.run("print(draw.source(functools.partial(mine, twice=True)))").text
        assert shown == f"# with twice=True\n{code}\n"
        assert "exchange 4 messages" in notebook.run("print(repr(draw.player(follow(mine, [torch.ones(2)] * 2))))").text


# -- its shortest run


class OneRank:
    """torch.distributed of a group of one."""

    def get_rank(self):
        return 0

    def get_world_size(self):
        return 1

    def barrier(self):
        pass

    def all_gather_object(self, everyone, mine):
        everyone[:] = [mine]


def compute(dist, label="compute"):
    with dist.computing(label):
        pass


class Computer:
    def __call__(self, dist):
        compute(dist)


def test_the_shortest_run_of_any_program_goes_by_its_name():
    programs = [compute, functools.partial(compute, label="mine"), Computer(), lambda dist: compute(dist)]
    for program, name in zip(programs, ["compute", "compute", "Computer", "<lambda>"], strict=True):
        (trace,) = (found := shortest(OneRank(), [program], tries=2)).values()
        assert list(found) == [name] and len(trace.spans) == 1


def test_programs_of_one_name_are_told_apart_by_a_dict():
    one, other = (functools.partial(compute, label=label) for label in ("one", "other"))
    with pytest.raises(UsageError, match="two programs called 'compute': give a dict from a name to each"):
        shortest(OneRank(), [one, other])
    found = shortest(OneRank(), {"first": one, "second": other}, tries=1)
    assert [(name, trace.spans[0].label) for name, trace in found.items()] == [("first", "one"), ("second", "other")]
