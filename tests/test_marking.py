"""Marks in two processes: what an answer earns, it gets, and nothing that it does besides changes that."""

import copy
import dataclasses
import errno
import json
import logging
import os
import pwd
import re
import shutil
import subprocess
import sys
import textwrap
import time
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import nbformat
import numpy as np
import psutil
import pytest
import torch
from graded import said
from hypothesis import given, settings
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_notebook
from test_labs import ANSWERS, EXERCISES, LABS, NAMES, Notebook, learners_cells, module_of, source_of, top, verdict

from ringtree.errors import UsageError
from ringtree.labs.exercise import Answer
from ringtree.labs.judging import judge
from ringtree.labs.marking import collecting, notebook, processes
from ringtree.labs.marking.autograding import Restore
from ringtree.labs.marking.encoding import Decoder, Encoder, NotUnderstood, TrustingDecoder, Unknown
from ringtree.labs.marking.notebook import cells_of, mark_exercise, plain, records_of, verdict_of, with_hidden
from ringtree.labs.marking.processes import Nursery

HIDDEN = LABS / "hidden"
PATIENT = 120.0  # seconds for an exercise: these machines do other things too
SHIFT, WRONG_SHIFT = ANSWERS["deadlock-clinic"].BATCH, "def shift(x, dist):\n    return x.clone()\n"

EVERYTHING = os.environ.get("RINGTREE_LABS") == "all"  # as `make labs-all` sets it


@pytest.fixture(scope="module")
def nursery():
    with Nursery() as nursery:
        yield nursery


@pytest.fixture
def marked(nursery):
    """The mark of a lab's exercise for cells with these texts."""

    def marked(lab, name, *texts):
        cells = dict(enumerate((textwrap.dedent(text) for text in texts), 1))
        exercise = module_of(lab).EXERCISES[name]
        return mark_exercise(nursery, name, exercise, cells, [name], time.monotonic() + PATIENT, records_of(lab))

    return marked


@pytest.fixture
def patient(monkeypatch):
    monkeypatch.setattr(notebook, "AN_EXERCISE", PATIENT)


def release_of(lab):
    return LABS / "release" / source_of(lab).relative_to(LABS / "source")


# ---------------------------------------------------------------- the same verdicts as in one process


# A lab of each kind: rank programs, answers of plain numbers, of a world with a clock, and a training. `make labs-all` has all.
A_FEW = "ring-all-reduce", "alpha-beta", "measuring", "data-parallel"


@pytest.mark.parametrize("lab", NAMES if EVERYTHING else A_FEW)
def test_solutions_have_all_points_and_stubs_none(nursery, patient, lab):
    exercises = with_hidden(lab, HIDDEN)
    for path, share in (source_of(lab), 1), (release_of(lab), 0):
        for name, exercise in exercises.items():
            found = mark_exercise(
                nursery, name, exercise, cells_of(path), exercises, time.monotonic() + PATIENT, records_of(lab)
            )
            assert (found.points, found.most) == (share * found.most, 1 + len(exercise.levels)), found
            assert found.says.startswith(f"{name} is right") if share else "it is not yet written" in found.says


def sample(lab, name):
    """(what, text, the reason that is looked for, or None for a right answer): all, or one that is always the same, a right
    one for every second exercise."""
    right = [(what, text, None) for what, text in ANSWERS[lab].RIGHT[name].items()]
    wrong = [(what, *answer) for what, answer in ANSWERS[lab].WRONG[name].items()]
    if EVERYTHING:
        return right + wrong
    place = EXERCISES.index((lab, name))
    ends = [each for each in wrong if "while True" not in each[1]]  # an endless one takes all the time that it is given
    return right[:1] if place % 2 else ends[place // 2 % len(ends) :][:1]


# What ranks have in common in one process, and what a tensor says of itself, does not come to the judge from another.
APART = {
    "on a board that all see": "KeyError",
    "through files": "FileNotFoundError",
    "a tensor that says it is equal": "rank 0 returned .* and should return",
}


@pytest.mark.parametrize(
    ("lab", "name", "what", "text", "reason"),
    [pytest.param(lab, name, *each, id=f"{lab}-{name}-{each[0]}") for lab, name in EXERCISES for each in sample(lab, name)],
)
def test_answers_have_the_verdict_that_they_have_in_one_process(nursery, lab, name, what, text, reason):
    exercise = module_of(lab).EXERCISES[name]
    seconds = 4.0 if "while True" in text else PATIENT
    cells = {1: "import torch", 2: textwrap.dedent(text).strip("\n")}
    found, problems = verdict_of(nursery, name, exercise, cells, [name], seconds, records_of(lab))
    assert found is not None, problems
    levels, alone = [getattr(level, "name", level) for level in exercise.levels], verdict(lab, name, text)
    assert (said(found, levels), found.level, bool(found.more)) == (said(alone, levels), alone.level, bool(alone.more))
    if reason:
        reason = APART.get(what, reason)
        assert re.search(reason, found.wrong or found.more, re.DOTALL), (reason, found.wrong or found.more)


def test_points_are_given_part_for_part(marked):
    naive = ANSWERS["ring-all-reduce"].WRONG["ring_all_reduce"]
    levels = {marked("ring-all-reduce", "ring_all_reduce", "import torch", text).points for text, _ in list(naive.values())[:4]}
    assert 3 not in levels
    cells = cells_of(source_of("ring-all-reduce"))
    one_ring = next(text for text in cells.values() if "def ring_all_reduce" in text)
    found = marked(
        "ring-all-reduce", "two_rings", "import torch", one_ring, "def two_rings(x, dist):\n    return ring_all_reduce(x, dist)"
    )
    assert (found.points, found.most) == (1, 3) and "Not yet within the target" in found.says


def test_reports_name_the_learners_lines(marked):
    found = marked(
        "deadlock-clinic",
        "shift",
        "import torch",
        """
        def shift(x, dist):
            rank, size = dist.get_rank(), dist.get_world_size()
            got = torch.empty_like(x)
            dist.recv(got, (rank - 1) % size)
            dist.send(x, (rank + 1) % size)
            return got
    """,
    )
    assert "deadlock" in found.says and "[shift, line 5: dist.recv(got, (rank - 1) % size)]" in found.says


# ---------------------------------------------------------------- only what messages bring


WHISPER = """
    import torch
    SEEN = {}

    def shift(x, dist):
        rank, size = dist.get_rank(), dist.get_world_size()
        SEEN[rank] = x
        empty = torch.zeros_like(x)
        for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, empty.clone(), (rank + 1) % size), dist.P2POp(dist.irecv, empty, (rank - 1) % size),
        ]):
            work.wait()
        return SEEN[(rank - 1) % size]
"""


def test_ranks_share_nothing_but_messages(marked):
    found = marked("deadlock-clinic", "shift", WHISPER)
    assert found.points == 0 and "KeyError" in found.says


def test_what_a_message_brings_is_there_after_the_wait_and_not_before(marked):
    """Also for who has switched off what would tell of it."""
    early = """
        import contextlib, torch
        from ringtree.labs.marking import rank as rankside
        rankside.told_of_operations = lambda **_: contextlib.nullcontext()

        def shift(x, dist):
            rank, size = dist.get_rank(), dist.get_world_size()
            got = torch.zeros_like(x)
            works = dist.batch_isend_irecv([
                dist.P2POp(dist.isend, x, (rank + 1) % size), dist.P2POp(dist.irecv, got, (rank - 1) % size),
            ])
            early = got.clone()
            for work in works:
                work.wait()
            return early if rank + 1 == size else got
    """
    found = marked("deadlock-clinic", "shift", early)
    assert found.points == 0 and "on 3 ranks" in found.says and "rank 2 returned [0, 0]" in found.says, found
    assert marked("deadlock-clinic", "shift", early.replace("return early if", "return got if")).points == 1


def test_functions_and_objects_of_a_case_are_called_where_the_judge_is(marked):
    """A world's clock is the judge's: the learner's process has the methods, and nothing else of it."""
    peeking = "def seconds_a_call(world):\n    return world.answer"
    assert "AttributeError" in marked("measuring", "seconds_a_call", peeking).says
    forged = """
        def seconds_a_call(world):
            return world._talk.method(world._number, "{}", ())
    """
    for name in ("_take", "__init__", "answer", "__class__"):
        assert "has no meaning here" in marked("measuring", "seconds_a_call", forged.format(name)).says


# ---------------------------------------------------------------- answers that try something else

PATCHES = {
    "torch says that all is equal": """
        import torch
        yes = lambda *_, **__: torch.ones(1, dtype=torch.bool).expand(1)
        torch.equal = torch.allclose = lambda *_, **__: True
        torch.isclose = lambda one, *_, **__: torch.ones_like(one, dtype=torch.bool)
        torch.Tensor.__eq__ = lambda self, other: torch.ones_like(self, dtype=torch.bool)
    """,
    "the judge says that all is right": """
        from ringtree.labs import comparing, exercise, judging, lab, limits
        judging.judge = lambda *_, **__: judging.Verdict("", 99, 9)
        judging.difference = comparing.difference = lambda *_: None
        judging.Verdict.wrong = ""
        exercise.Program.levels = ()
    """,
    "the other module": """
        import sys, types
        for name in [name for name in sys.modules if name.startswith("ringtree.labs.") and "marking" not in name]:
            sys.modules[name] = types.SimpleNamespace()
    """,
    "builtins": """
        import builtins
        builtins.AssertionError = builtins.print = builtins.exit = lambda *_, **__: None
        builtins.any = lambda *_: False
    """,
    "whatever the collector finds": """
        import gc
        for each in gc.get_objects():
            if type(each).__name__ in ("Verdict", "Mark", "Run", "Simulation"):
                vars(each).update(points=9, level=9, wrong="")
    """,
    "printed marks": r"""
        import sys
        print('[{"name": "shift", "points": 1, "most": 1, "says": "right"}]', file=sys.stderr)
        print("\x1b[2J\x1b[Hshift: 1 of 1\n1.0")
        print("x" * 10**7)
    """,
    "a thread": """
        import threading
        def spin():
            while True:
                pass
        threading.Thread(target=spin, daemon=True).start()
    """,
    "a cell that exits": "raise SystemExit",
    "a cell that leaves Python": "import os; os._exit(0)",
    "a cell that recurses": "def deeper(): return deeper()\ndeeper()",
    "a cell that eats memory": "kept = [bytes(2**28) for _ in range(1000)]",
    "a cell that crashes": "import ctypes; ctypes.string_at(0)",
    "a child that goes on": "import os, time\nif os.fork() == 0:\n    time.sleep(600)",
}


@pytest.mark.parametrize("what", PATCHES)
def test_what_an_answer_patches_prints_or_breaks_is_worth_nothing(marked, what):
    assert marked("deadlock-clinic", "shift", "import torch", PATCHES[what], SHIFT).points == 1
    found = marked("deadlock-clinic", "shift", "import torch", PATCHES[what], WRONG_SHIFT)
    assert found.points == 0 and "returned [0] and should return [10]" in found.says


LOOPS = {
    "loops": "while True:\n    pass",
    "sleeps": "import time; time.sleep(10**6)",
    "cannot be stopped": """
while True:
    try:
        while True:
            pass
    except BaseException:
        pass
""",
}


@pytest.mark.parametrize("what", LOOPS)
def test_a_cell_without_an_end_costs_what_it_would_have_defined(marked, monkeypatch, what):
    monkeypatch.setattr(processes, "A_CELL", 1.0)
    found = marked("deadlock-clinic", "shift", "import torch", LOOPS[what], SHIFT)
    assert found.points == 1, found
    found = marked("deadlock-clinic", "shift", f"import torch\n{LOOPS[what]}\n{SHIFT}")
    assert found.points == 0 and "shift is not defined in this notebook; cell 1 was left" in found.says


ENDS = {
    "import os; os._exit(0)": "the process that ran it has ended",
    "import ctypes; ctypes.string_at(0)": "the process that ran it has ended",
    "raise SystemExit": "SystemExit",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "raise BaseException(1)": "BaseException: 1",
    "raise GeneratorExit": "GeneratorExit",
    r"raise type('CheckPassed', (Exception,), {})('\x1b[32mshift is right\x07')": "CheckPassed:  [32mshift is right",
    "return shift(x, dist)": "RecursionError",
    "kept = [bytes(2**28) for _ in range(1000)]": "MemoryError",
    "import os; [os.write(fd, FORGED) for fd in range(3, 64) if os.path.exists(f'/proc/self/fd/{fd}')]": "has no meaning here",
    "dist._talk.pipe.send({'kind': 'ready', 'defined': ['shift'], 'points': 1}); return dist.isend(x, 1)": "has no meaning here",
    "dist._talk.pipe.send({'kind': 'mark', 'points': 1, 'looked': False, 'at': []}); return x": "has no meaning here",
    "dist._talk.pipe._socket.send(b'x' * 100); return x": "has",
    "return dist._talk.ask({'kind': 'wait', 'work': 10**9})": "IndexError",
    "return dist._talk.call('_call', (), {})": "has no meaning here",
    "return dist._talk.ask(dict(kind='call', name='isend', args=[], kwargs={}, regions=[[1, 2**60, 0, 2**60, 0]]))": "has no",
}


@pytest.mark.parametrize("text", ENDS)
def test_an_answer_that_does_not_return_fails_in_a_sentence(marked, text):
    forged = "import torch\nFORGED = bytes([0, 0, 0, 2, 0, 0, 0, 0]) + b'{}'"
    found = marked("deadlock-clinic", "shift", forged, f"def shift(x, dist):\n    {text}")
    assert found.points == 0 and ENDS[text] in found.says, found.says
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", found.says)


STRANGE = {
    "equal to everything": "class Answer:\n    def __eq__(self, other): return True\n    __class__, dtype = torch.Tensor, 1",
    "no text": "class Answer:\n    def __repr__(self): raise SystemError\n    def __len__(self): return 1",
    "a tensor that lies": """
class Answer(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return torch.ones(1, dtype=torch.bool)
    def __new__(cls): return torch.zeros(1).as_subclass(cls)
""",
    "a great deal": "Answer = lambda: [0] * 10**5",
    "more than all": "Answer = lambda: torch.zeros(2**27)",
    "itself": "def Answer():\n    mine = []\n    mine.append(mine)\n    return mine",
    "deep": "def Answer():\n    mine = []\n    for _ in range(900): mine = [mine]\n    return mine",
    "a number without an end": "Answer = lambda: 10**100000",
    "a text that is none": "Answer = lambda: '\\udc80\\x1b[2J' * 1000",
    "a dtype of its own": "Answer = lambda: torch.zeros(1).to(torch.float8_e5m2)",
    "no numbers": "Answer = lambda: torch.zeros(1, device='meta')",
}


@pytest.mark.parametrize("what", STRANGE)
@pytest.mark.parametrize(
    ("lab", "name"), [("deadlock-clinic", "shift"), ("alpha-beta", "predict"), ("ranks-and-groups", "all_groups")]
)
def test_strange_answers_are_wrong_answers(marked, what, lab, name):
    found = marked(lab, name, "import torch", STRANGE[what], f"def {name}(*_, **__):\n    return Answer()")
    assert found.points == 0 and found.says, found


def test_a_tensor_of_the_learners_own_class_counts_as_its_numbers(marked):
    own = SHIFT.replace("return got", "return got.as_subclass(Mine)")
    assert own != SHIFT and marked("deadlock-clinic", "shift", "import torch\nclass Mine(torch.Tensor): pass", own).points == 1


def test_a_process_of_a_rank_has_nothing_but_its_own(marked):
    looks = """
        import os, sys
        def predict(nbytes, lines, channels):
            own = [f"/proc/self/fd/{fd}" for fd in range(64) if os.path.exists(f"/proc/self/fd/{fd}")]
            told = sorted(os.path.realpath(each).split(":")[0].split("/")[-1] for each in own)
            names, words = [name for name in os.environ if "RINGTREE" in name], str(os.environ) + str(sys.argv)
            raise ValueError(f"{told} {names} {'hidden' in words} {os.listdir()}")
    """
    assert "['null', 'null', 'null', 'socket'] [] False []" in marked("alpha-beta", "predict", looks).says


def test_the_processes_may_be_started_by_a_command_that_encloses_them():
    """It stays, with the nursery below it, from exercise to exercise; what ranks have started is ended all the same."""
    encloses = ["sh", "-c", 'export ENCLOSED=yes; "$@"; exit', "sh"]
    answer = "import os, time\nif os.fork() == 0:\n    time.sleep(600)\n" + SHIFT.replace("%%px --local\n", "")
    told = "def shift(x, dist):\n    raise ValueError(os.environ['ENCLOSED'])"
    exercise = module_of("deadlock-clinic").EXERCISES["shift"]
    with Nursery(encloses) as nursery:
        found = [
            mark_exercise(nursery, "shift", exercise, {1: "import os, torch", 2: text}, ["shift"], time.monotonic() + PATIENT)
            for text in (answer, told, SHIFT)
        ]
        below = psutil.Process(nursery._process.pid).children(recursive=True)
        assert nursery._process.poll() is None and len(below) == 1
    assert [each.points for each in found] == [1, 0, 1] and "ValueError: yes" in found[1].says, found


# ---------------------------------------------------------------- cells


def test_cells_run_as_in_a_notebook_without_ranks(marked):
    cells = (
        "%matplotlib inline\nimport torch\n!true\nimport ringtree\nfrom ringtree import draw, labs\nranks = ringtree.start(4)\n"
        "draw.timeline(None).show()\nimport sys\nassert 'matplotlib.figure' not in sys.modules, 'nobody sees a picture here'",
        "lab = labs.open('deadlock-clinic', ranks)\nlab.check('shift')\nprint(ranks.pull('x')[0])",
        "%%px\nnot_on_this_side",
        "%%time\nWAY = 1",
        "this is no Python",
        "1 / 0",
        "%%px --local\n" + SHIFT.replace("rank + 1", "rank + WAY"),
        "display(torch); get_ipython().run_line_magic('who', '')",
    )
    found = marked("deadlock-clinic", "shift", *cells)
    assert found.points == 1, found
    found = marked("deadlock-clinic", "shift", *cells[:6])
    assert found.says.startswith("shift is not defined in this notebook; cell 5 raised SyntaxError: ")
    assert "; cell 6 raised ZeroDivisionError: division by zero" in found.says and "cell 1" not in found.says


def test_what_is_no_notebook_and_what_is_no_lab_is_said(tmp_path):
    (tmp_path / "scale.ipynb").write_text("no notebook")
    with pytest.raises(UsageError, match="cannot be read as a notebook.*give an .ipynb file"):
        notebook.mark(tmp_path / "scale.ipynb")
    with pytest.raises(UsageError, match="there is no lab called 'other'.*name it with --lab"):
        notebook.mark(tmp_path / "other.ipynb")


def test_an_exercise_that_is_not_reached_in_time_says_so(tmp_path):
    found = notebook.mark(source_of("alpha-beta"), seconds=0.0)
    assert [each.points for each in found] == [0, 0, 0] and all(
        "the time for this notebook was up" in each.says for each in found
    )


# ---------------------------------------------------------------- hidden cases


def asked_for(exercise):
    """The questions of an exercise, or its cases."""
    return [*(exercise.questions if isinstance(exercise, Answer) else exercise.cases)()]


@pytest.mark.parametrize("lab", NAMES)
def test_hidden_cases_are_more_of_the_same(lab):
    own, all_of_them = module_of(lab).EXERCISES, with_hidden(lab, HIDDEN)
    assert own.keys() == all_of_them.keys()
    for name in own:
        assert len(asked_for(all_of_them[name])) > len(asked_for(own[name])), f"{name} has cases that its learners cannot read"


@pytest.mark.parametrize(
    ("lab", "name", "what"),
    [(lab, name, what) for lab, name in EXERCISES for what in ["our solution", *ANSWERS[lab].RIGHT[name]]],
)
def test_no_right_answer_loses_by_the_hidden_cases(lab, name, what):
    """By these alone: tests/test_labs.py has it that they lose by none of their own."""
    own = learners_cells(lab) if what == "our solution" else Notebook().run(ANSWERS[lab].RIGHT[name][what])
    exercise, known = with_hidden(lab, HIDDEN)[name], len(asked_for(module_of(lab).EXERCISES[name]))
    kind = "questions" if isinstance(exercise, Answer) else "cases"
    hidden = dataclasses.replace(exercise, **{kind: lambda: asked_for(exercise)[known:]})
    found = judge(name, own[name], hidden, PATIENT)
    assert not found.wrong and found.level == top(lab, name), found.wrong or found.more


def fitted(exercise, solution):
    """Our solution, for what everybody can read: its questions, or its numbers of ranks. For all else an answer of these."""
    if not isinstance(exercise, Answer):
        sizes = {case.size for case in exercise.cases()}
        return lambda *given, **options: solution(*given, **options) if given[-1].get_world_size() in sizes else given[0]
    known = [each.arguments for each in exercise.questions()]
    if repr(known) == repr([each.arguments for each in exercise.questions()]):
        return lambda *given: solution(*given) if repr(given) in map(repr, known) else solution(*known[0])
    answers = [solution(*given) for given in known]  # the arguments are drawn afresh, or are worlds: the nearest of the answers

    def nearest(*given):
        mine = solution(*given)
        apart = [sum(abs(a - b) / b for a, b in zip(*map(as_numbers, (mine, other)))) for other in answers]
        return answers[apart.index(min(apart))]

    return nearest


def as_numbers(answer):
    return answer if isinstance(answer, tuple) else [answer]


@pytest.mark.parametrize(("lab", "name"), EXERCISES)
def test_an_answer_fitted_to_the_cases_that_everybody_can_read_loses_marks_by_the_hidden_ones(lab, name):
    own, hidden = module_of(lab).EXERCISES[name], with_hidden(lab, HIDDEN)[name]
    answer = fitted(own, learners_cells(lab)[name])
    found = judge(name, answer, own, PATIENT)
    assert not found.wrong and found.level == top(lab, name), found.wrong or found.more
    found = judge(name, answer, hidden, PATIENT)
    assert found.wrong or found.level < top(lab, name)


def test_hidden_cases_for_no_exercise_are_an_error(tmp_path):
    (tmp_path / "alpha_beta.py").write_text("EXTRA = {'guess': list}")
    with pytest.raises(UsageError, match="has cases for 'guess', and the lab has fit, predict, buy"):
        with_hidden("alpha-beta", tmp_path)


# ---------------------------------------------------------------- the command


def command(path, *options):
    return subprocess.run(
        [sys.executable, "-m", "ringtree.labs", "mark", str(path), *options], capture_output=True, text=True, check=False
    )


def test_the_command_marks_and_leaves_no_process(tmp_path):
    stays = f"import time; time.sleep(600)  # stays behind {os.getpid()}"
    leaves = f"""
import os, subprocess, sys
def leave():
    if os.fork() == 0:
        os.setsid()
        subprocess.Popen([sys.executable, "-c", {stays!r}], start_new_session=True)
        os._exit(0)
    os.wait()
leave()
"""
    path = tmp_path / "deadlock-clinic.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell(each) for each in ("import torch", leaves, SHIFT)]), path)
    done = command(path, "--json")
    assert done.returncode == 0, done.stderr
    found = {each["name"]: each for each in json.loads(done.stdout)}
    assert found["shift"]["points"] == 1 and found["relay"] == {
        "name": "relay",
        "points": 0,
        "most": 1,
        "says": "relay is not defined in this notebook.",
    }
    left = [each for each in psutil.process_iter(["cmdline"]) if stays in (each.info["cmdline"] or ())]
    for each in left:
        each.kill()
    assert not left
    shown = command(path).stdout.splitlines()
    assert shown[:2] == ["shift: 1 of 1", "  shift is right."] and shown[-1] == "1 of 5"


def test_the_command_says_what_is_wrong_with_its_arguments(tmp_path):
    done = command(tmp_path / "other.ipynb")
    assert done.returncode == 2 and "there is no lab called 'other'" in done.stderr


# ---------------------------------------------------------------- values between two processes


def there_and_back(value, decoder=None):
    tree, blocks = Encoder().pack(value)
    return (decoder or Decoder()).unpack(json.loads(json.dumps(tree)), blocks)


def test_plain_values_arrive_as_they_were():
    from ringtree.cost import Link

    value = [None, True, 3, -1.5, "é", (1, [2]), {"a": {1, 2}, (1, 2): 0.1}, range(2, 9, 3)]
    assert there_and_back(value) == value and repr(there_and_back(float("nan"))) == "nan"
    for tensor in (torch.arange(6).view(2, 3).t(), torch.zeros(0, 3), torch.tensor(2.5), torch.ones(3, dtype=torch.bfloat16)):
        back = there_and_back(tensor)
        assert torch.equal(back, tensor) and back.dtype is tensor.dtype
    for array in (np.arange(6.0).reshape(2, 3).T, np.zeros((0, 2), np.int32), np.array(True)):
        back = there_and_back(array)
        assert np.array_equal(back, array) and back.dtype == array.dtype
    assert isinstance(there_and_back(range(10**9)), Unknown)  # nobody is made to count that far
    assert there_and_back(Link(1.0, 0.5), TrustingDecoder()) == Link(1.0, 0.5)
    assert isinstance(there_and_back(Link(1.0, 0.5)), Unknown) and there_and_back(Link(1.0, 0.5)) != Link(1.0, 0.5)
    assert type(there_and_back(object())).__name__ == "object" and there_and_back(print).__name__ == "print"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["float32", "list", "tensor", "<f8"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3), inner, max_size=2)
        | st.tuples(
            st.sampled_from([name.removeprefix("read_") for name in dir(Decoder) if name.startswith("read_")]),
            inner,
            inner,
            inner,
        ).map(list)
    ),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None)
@given(tree=JSON)
def test_what_is_malformed_is_not_understood_and_never_anything_worse(tree):
    try:
        Decoder().unpack(tree, [b"1234"])
    except NotUnderstood:
        pass


def test_nothing_of_a_sentence_is_a_command_to_a_terminal():
    assert plain("a\x1b[31mb\x00c\nd\u202ee\udc80") == "a [31mb c\nd e"


# ---------------------------------------------------------------- nbgrader, in earnest

ASSIGNMENT, LAB = "10-ring-all-reduce", "ring-all-reduce"


def nbgrader(course, *arguments):
    """Run one of nbgrader's commands in a course's folder; the programs that it starts itself are beside this Python."""
    environment = os.environ | {"PATH": f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", *arguments, ASSIGNMENT],
        cwd=course,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course with one lab, whose release nbgrader has made, and what learners have handed in."""
    course = tmp_path_factory.mktemp("course")
    shutil.copy(LABS / "nbgrader_config.py", course)
    shutil.copytree(HIDDEN, course / "hidden", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(LABS / "source" / ASSIGNMENT, course / "source" / ASSIGNMENT)
    done = nbgrader(course, "generate_assignment")
    assert done.returncode == 0, done.stderr
    solutions = {cell.id: cell.source for cell in nbformat.read(source_of(LAB), 4).cells if cell.id.endswith("-answer")}
    one, two = "ring_all_reduce-answer", "two_rings-answer"
    hand_in(course, "part", {one: solutions[one], two: "def two_rings(x, dist):\n    return ring_all_reduce(x, dist)"})
    hand_in(course, "forger", {one: FORGED, two: solutions[two]}, forge)
    if EVERYTHING:
        hand_in(course, "all", solutions)
        hand_in(course, "endless", {one: "def ring_all_reduce(x, dist):\n    while True:\n        pass", two: solutions[two]})
    return course


def test_nbgraders_own_command_makes_the_same_release(course):
    made = course / "release" / ASSIGNMENT / f"{LAB}.ipynb"
    assert made.read_text() == (LABS / "release" / ASSIGNMENT / f"{LAB}.ipynb").read_text()


FORGED = """
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)  # stays behind in a course"], start_new_session=True)
def ring_all_reduce(x, dist):
    return x
print(3)
3.0
"""


def forge(notebook):
    """A check is taken out, another made worth 100 points for its text alone; and the grading kernel ends before its end."""
    notebook.cells = [cell for cell in notebook.cells if cell.id != "two_rings-check"]
    for cell in notebook.cells:
        if cell.id == "ring_all_reduce-check":
            cell.metadata["nbgrader"].update(grade=False, points=100)
            cell.source = "100.0"
    notebook.cells.append(new_code_cell("import os; os._exit(0)"))


def hand_in(course, who, answers, change=lambda notebook: None):
    notebook = nbformat.read(course / "release" / ASSIGNMENT / f"{LAB}.ipynb", 4)
    for cell in notebook.cells:
        cell.source = answers.get(cell.id, cell.source)
    change(notebook)
    (course / "submitted" / who / ASSIGNMENT).mkdir(parents=True)
    nbformat.write(notebook, course / "submitted" / who / ASSIGNMENT / f"{LAB}.ipynb")


TAMPERED = {
    "worth more": lambda about: about.update(points=100),
    "not graded": lambda about: about.update(grade=False),
    "graded, for what the learner wrote": lambda about: about.update(grade=True, points=100),
    "its text may be changed": lambda about: about.update(locked=False),
    "no solution": lambda about: about.update(solution=not about["solution"]),
    "another sum": lambda about: about.update(checksum="0"),
    "text": lambda about: about.update(cell_type="markdown"),
    "of another time": lambda about: about.update(schema_version=1),
    "a task": lambda about: about.update(task=True),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_what_a_cell_is_to_nbgrader_is_put_back(course, what):
    def restored(notebook):
        told = {"notebook": LAB, "assignment": ASSIGNMENT, "db_url": f"sqlite:///{course}/gradebook.db"}
        notebook, _ = Restore().preprocess(notebook, {"nbgrader": told})
        return [cell.metadata.get("nbgrader") for cell in notebook.cells]

    release = nbformat.read(course / "release" / ASSIGNMENT / f"{LAB}.ipynb", 4)
    given = [copy.deepcopy(cell.metadata.get("nbgrader")) for cell in release.cells]
    assert restored(copy.deepcopy(release)) == given and any(given)
    for cell in release.cells:
        if "nbgrader" in cell.metadata:
            TAMPERED[what](cell.metadata["nbgrader"])
    twice = copy.deepcopy(release.cells)
    unknown = new_code_cell("3.0", metadata={"nbgrader": given[1] | {"grade_id": "mine", "grade": True, "points": 3}})
    release.cells += [*twice, unknown]
    assert restored(release) == given + [None] * (len(given) + 1)


def test_nbgrader_gives_the_points_that_functions_earn_and_leaves_no_process(course):
    """The whole way of one lab, for two learners; for four by `make labs-all`."""
    from nbgrader.api import Gradebook

    done = nbgrader(course, "autograde")
    assert done.returncode == 0, done.stderr
    with Gradebook(f"sqlite:///{course}/gradebook.db") as gradebook:
        found = {
            each.student.id: {grade.name: (grade.auto_score, grade.needs_manual_grade) for grade in each.notebooks[0].grades}
            for each in gradebook.assignment_submissions(ASSIGNMENT)
        }
    points = {"part": (3, 1), "forger": (0, 3)} | ({"all": (3, 3), "endless": (0, 3)} if EVERYTHING else {})
    checks = "ring_all_reduce-check", "two_rings-check"
    assert found == {who: {check: (each, False) for check, each in zip(checks, scores)} for who, scores in points.items()}
    left = [
        each
        for each in psutil.process_iter(["cmdline"])
        if any("stays behind in a course" in word for word in each.info["cmdline"] or ())
    ]
    for each in left:
        each.kill()
    assert not left
    done = nbgrader(course, "generate_feedback")
    assert done.returncode == 0, done.stderr
    page = (course / "feedback" / "part" / ASSIGNMENT / f"{LAB}.html").read_text(encoding="utf-8")
    assert "two_rings is right. Not yet within the target" in page
    assert not re.search(r"""(src|href)=["']https?:""", page), "feedback is read where there may be no network"
    shown = re.sub(r"<(script|style)\b.*?</\1>|<[^>]+>", "", page, flags=re.DOTALL)
    assert "Check of two_rings" in shown and "Your answer" in shown and "A ring for each card" in shown
    assert not re.search(r"\$|{admonition}|Hint 1|Test cell|How far you have come|Out\[", shown), (
        "the learner has the lab's text"
    )
    assert 'name="viewport"' in page and "white-space: pre-wrap" in page, "it is read on a phone, too"


# ---------------------------------------------------------------- nbgrader's exchange

ME = pwd.getpwuid(os.getuid()).pw_name
OTHER, THIRD = [each.pw_name for each in pwd.getpwall() if each.pw_name != ME and each.pw_uid < 65534][:2]
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")


@pytest.fixture
def inbound(tmp_path):
    (tmp_path / "exchange" / "a-course" / "outbound" / "clinic").mkdir(parents=True)
    (tmp_path / "exchange" / "a-course" / "outbound" / "clinic" / "lab.ipynb").touch()
    (tmp_path / "exchange" / "a-course" / "inbound").mkdir()
    return tmp_path / "exchange" / "a-course" / "inbound"


def submit(inbound, who, minute, size=10_000_000, owner=None):
    """What `nbgrader submit` leaves; the notebook is a hole of so many bytes."""
    folder = inbound / name_of(who, minute)
    folder.mkdir()
    (folder / collecting.SECRET).write_text("0" * 64)
    (folder / "lab.ipynb").touch()
    os.truncate(folder / "lab.ipynb", size)
    if (owner or who) != ME:
        for path in (folder, *folder.iterdir()):
            shutil.chown(path, owner or who)


def at(minute):
    return f"2026-01-01 00:{minute:02}:00.0 UTC"


def name_of(who, minute):
    return f"{who}+clinic+{at(minute)}+a"


@pytest.fixture
def collect(tmp_path, inbound, monkeypatch, caplog):
    """Collects as a teacher does: the `copies` made, the time of what lies in `submitted` by learner, the lines `said`."""
    from nbgrader.coursedir import CourseDirectory

    copies, start = [], collecting.ExchangeCollect.start

    def look(self):
        copies.extend(path.name for path in Path(self.root, "a-course", "inbound").iterdir())
        start(self)

    monkeypatch.setattr(collecting, "_sees_all_users", lambda: True)  # these tests may run where there are few
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)  # nbgrader starts programs of its own
    monkeypatch.setattr(collecting.ExchangeCollect, "start", look)

    def collect(**options):
        coursedir = CourseDirectory(root=str(tmp_path), course_id="a-course", assignment_id="clinic")
        options |= dict(coursedir=coursedir, root=str(inbound.parent.parent), log=logging.getLogger("collect"))
        collecting.CollectOwn(**options).start()
        stamps = (tmp_path / "submitted").glob("*/clinic/timestamp.txt")
        said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        return SimpleNamespace(copies=copies, taken={path.parent.parent.name: path.read_text() for path in stamps}, said=said)

    return collect


def test_of_all_that_a_learner_submits_one_is_copied_when_it_is_collected(inbound, collect):
    for minute in range(20):
        submit(inbound, ME, minute)
    found = collect()
    assert found.copies == [name_of(ME, 19)] and found.taken == {ME: at(19)} and not found.said


def test_what_cannot_be_collected_gives_way_to_what_came_before_it_and_some_of_it_is_told(inbound, collect):
    for minute in range(16):
        submit(inbound, ME, minute, 1 if minute == 2 else 10_000_001)
    found = collect()
    assert found.taken == {ME: at(2)}
    why = "is not collected: its lab.ipynb has more than 10000000 bytes"
    assert found.said == [*(f"{name_of(ME, minute)} {why}" for minute in range(15, 5, -1)), f"Of {ME} 3 more are not collected"]


@only_root
def test_who_submits_under_anothers_name_hides_nothing_of_theirs(inbound, collect):
    submit(inbound, OTHER, 1)
    submit(inbound, OTHER, 2, 10_000_001)
    for minute in range(3, 18):
        submit(inbound, OTHER, minute, owner=THIRD)
    found = collect()
    assert found.taken == {OTHER: at(1)}
    assert f"Of {THIRD} 5 more are not collected" in found.said
    assert f"{name_of(OTHER, 2)} is not collected: its lab.ipynb has more than 10000000 bytes" in found.said


@only_root
def test_a_copy_for_which_there_is_no_room_keeps_nobody_elses_from_being_collected(inbound, collect, monkeypatch):
    write = Path.write_bytes

    def full(path, data):
        if ME in path.parent.name and path.suffix == ".ipynb":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    for who in (OTHER, ME, THIRD):
        submit(inbound, who, 1)
        submit(inbound, who, 2)
    found = collect()
    assert found.taken == {OTHER: at(2), THIRD: at(2)}  # nor what was submitted before, which is not what is meant to count
    assert found.said == [f"{name_of(ME, 2)} is not collected: it could not be copied: [Errno 28] No space left on device"]


def test_what_came_in_time_is_collected_before_what_came_late_where_nbgrader_is_asked_to(tmp_path, inbound, collect):
    from nbgrader.api import Gradebook

    for minute in (1, 2, 3, 4):
        submit(inbound, ME, minute, 10_000_001 if minute == 2 else 1)
    with Gradebook(f"sqlite:///{tmp_path}/gradebook.db", "a-course") as gradebook:
        gradebook.add_assignment("clinic", duedate=datetime(2026, 1, 1, 0, 2))
    assert collect(before_duedate=True).taken == {ME: at(1)}
    assert collect(update=True).taken == {ME: at(4)}
