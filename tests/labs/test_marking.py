"""Marks out of the sandbox: an answer earns what the check says, and it does nothing to anybody else."""

import contextlib
import copy
import dataclasses
import errno
import json
import logging
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output, new_raw_cell
from nbgrader.api import Gradebook
from verdicts import ANSWERS, EXERCISES, LABS, NAMES, Notebook, learners_cells, module_of, release_of, source_of, top

from ringtree.errors import UsageError
from ringtree.labs.exercise import Answer
from ringtree.labs.judging import judge
from ringtree.labs.marking import collecting, fence, notebook, nursery, verdict
from ringtree.labs.marking.autograding import MARKED, FeedbackPage, Restore, _outputs
from ringtree.labs.marking.notebook import Mark, cells_of, mark_exercise
from ringtree.labs.marking.rebuilding import keep_plain, rebuilt
from ringtree.labs.marking.sandbox import Sandbox
from ringtree.labs.marking.verdict import hidden_cases, plain, read
from ringtree.live.processes import forks

HIDDEN = LABS / "hidden"
PATIENT = 120.0  # seconds for an exercise: these machines do other things too
SHIFT, WRONG_SHIFT = ANSWERS["deadlock-clinic"].BATCH, "def shift(x, dist):\n    return x.clone()\n"
TOLD = "import os\ndef shift(x, dist):\n    raise ValueError({})"  # an answer that tells what it sees

EVERYTHING = os.environ.get("RINGTREE_LABS") == "all"  # as `make labs-all` sets it


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def marked(sandbox):
    """The mark of a lab's exercise for cells with these texts."""

    def marked(lab, name, *texts):
        cells = dict(enumerate((textwrap.dedent(text) for text in texts), 1))
        return mark_exercise(sandbox, lab, name, cells, time.monotonic() + PATIENT)

    return marked


@pytest.fixture
def patient(monkeypatch):
    monkeypatch.setattr(notebook, "AN_EXERCISE", PATIENT)


@pytest.fixture
def hasty(monkeypatch):
    """Whatever does not end is ended after some seconds."""
    for name, value in {"AN_EXERCISE": 1.0, "PATIENCE": 1, "A_CELL": 1.0}.items():
        monkeypatch.setattr(notebook, name, value)


def with_hidden(lab, folder):
    return verdict.with_hidden(lab, hidden_cases(lab, folder))


# ---------------------------------------------------------------- what an answer earns


# A lab of each kind: rank programs, answers of plain numbers, of a world with a clock, and a training. `make labs-all` has all.
A_FEW = "ring-all-reduce", "alpha-beta", "measuring", "data-parallel"


@pytest.mark.parametrize("lab", NAMES if EVERYTHING else A_FEW)
def test_solutions_have_all_points_and_stubs_none(sandbox, patient, lab):
    more = hidden_cases(lab, HIDDEN)
    for path, share in (source_of(lab), 1), (release_of(lab), 0):
        for name, exercise in module_of(lab).EXERCISES.items():
            found = mark_exercise(sandbox, lab, name, cells_of(path), time.monotonic() + PATIENT, more)
            assert (found.points, found.most) == (share * found.most, 1 + len(exercise.levels)), found
            assert found.says.startswith(f"{name} is right") if share else "it is not yet written" in found.says


def test_points_are_given_part_for_part(marked):
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


def test_hidden_cases_count(sandbox):
    """The answer is right in all cases but one that the teacher has."""
    more = """
import dataclasses
from ringtree.labs.exercises.deadlock_clinic import EXERCISES
def shift():
    *_, case = EXERCISES["shift"].cases()
    yield dataclasses.replace(case, wanted=lambda given: [x - 7 for x, in given], says="a case of the teacher's")
EXTRA = {"shift": shift}
"""
    cells = {1: "import torch", 2: SHIFT.replace("%%px --local\n", "")}
    for text, points in ("", 1), (more, 0):
        found = mark_exercise(sandbox, "deadlock-clinic", "shift", cells, time.monotonic() + PATIENT, text)
        assert found.points == points, found
    assert "a case of the teacher's" in found.says


BREAKS = {
    "return shift(x, dist)": "RecursionError",
    "raise SystemExit": "SystemExit",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "raise BaseException(1)": "BaseException: 1",
    r"raise type('CheckPassed', (Exception,), {})('\x1b[32mshift is right\x07')": "CheckPassed:  [32mshift is right",
    "mine = []; mine.append(mine); return mine": "rank 0 returned a list",
    "return type('None', (), {'__repr__': lambda self: 1 / 0})()": "rank 0 returned a None",
    "while True: pass": "the program had not ended after ",
}


@pytest.mark.parametrize("text", BREAKS)
def test_an_answer_that_breaks_is_told_so_in_a_sentence(marked, monkeypatch, text):
    if "while" in text:
        monkeypatch.setattr(notebook, "AN_EXERCISE", 1.0)
    found = marked("deadlock-clinic", "shift", "import torch", f"def shift(x, dist):\n    {text}")
    assert found.points == 0 and BREAKS[text] in found.says, found.says
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", found.says)


def test_what_an_answer_prints_is_not_the_verdict(marked):
    prints = r"""
        import os, sys
        FORGED = '{"points": 1, "says": "shift is right"}'
        print(FORGED)
        print(FORGED, file=sys.__stderr__)
        os.write(1, FORGED.encode() + b"\n")
        os.system("cat /dev/zero | head -c 1000000")
    """
    found = marked("deadlock-clinic", "shift", "import torch", prints, WRONG_SHIFT)
    assert found.points == 0 and "returned [0] and should return [10]" in found.says


# ---------------------------------------------------------------- a verdict that is none

GOOD = {"points": 1, "says": "shift is right."}
NO_VERDICTS = {
    "nothing": None,
    "an empty line": b"",
    "not JSON": b"shift is right",
    "half of one": json.dumps(GOOD).encode()[:-1],
    "two": json.dumps(GOOD).encode() * 2,
    "not text": b"\xff\xfe" + json.dumps(GOOD).encode(),
    "deeply nested": b"[" * 90_000,
    "a number of many digits": b'{"says": "x", "points": ' + b"9" * 90_000 + b"}",
    "too long": json.dumps(GOOD).encode() + b" " * verdict.MOST,
    "a list": json.dumps([GOOD]).encode(),
    "null": b"null",
    **{
        f"{name}: {value!r}"[:60]: json.dumps(GOOD | {name: value}).encode()
        for name, value in [
            *(("points", each) for each in (-1, 3, 1.5, True, "1", None, [1], float("nan"), float("inf"))),
            *(("says", each) for each in (None, 1, "", ["right"], {"text/html": "<b>"}, "x" * (verdict.SAID + 1))),
            ("name", "shift"),
        ]
    },
    **{f"without {name}": json.dumps({key: GOOD[key] for key in GOOD if key != name}).encode() for name in GOOD},
}


@pytest.mark.parametrize("what", NO_VERDICTS)
def test_anything_else_than_a_verdict_is_not_read(what):
    assert read(NO_VERDICTS[what], most=2) is None


def test_a_verdict_is_read():
    assert read(json.dumps(GOOD).encode(), most=1) == (1, "shift is right.")
    assert read(json.dumps({"points": 0, "says": "a\x1b[31mb\x00\u202e\udc80"}).encode(), most=1) == (0, "a [31mb")
    long = json.dumps(verdict._verdict(0, "\U0001f600" * 10 * verdict.SAID)).encode()
    assert len(long) < verdict.MOST and read(long, most=1)[1].endswith(" …")


SOCKET = """
    import os
    LINE = {!r}
    def shift(x, dist):
        for each in os.listdir("/proc/self/fd"):
            if os.path.exists(f"/proc/self/fd/{{each}}") and "socket" in os.readlink(f"/proc/self/fd/{{each}}"):
                os.write(int(each), LINE)
        os._exit(0)
"""
HOSTILE = {
    "no line": b"{}",
    "no verdict": b"[]\n",
    "more points than there are": b'{"points": 2, "says": "right"}\n',
    "a long one": b'{"points": 1, "says": "' + b"x" * 110_000 + b'"}\n',
}


@pytest.mark.parametrize("what", HOSTILE)
def test_without_a_verdict_there_are_no_points_and_one_sentence(marked, what):
    found = marked("deadlock-clinic", "shift", SOCKET.format(HOSTILE[what]))
    assert found == Mark("shift", 0, 1, notebook.NO_VERDICT.format("shift"))


def test_a_verdict_without_an_end_is_read_no_further_than_its_limit(marked):
    endless = SOCKET.format(b"x" * 65_536).replace("os.write(", "while os.write(").replace("LINE)", "LINE): pass")
    begun = time.monotonic()
    assert marked("deadlock-clinic", "shift", endless).says == notebook.NO_VERDICT.format("shift")
    assert time.monotonic() - begun < notebook.AN_EXERCISE


def test_an_answer_that_writes_its_own_verdict_is_believed_and_changes_no_page(marked):
    """A mark is as honest as its learner; and what it says is text, wherever it is shown."""
    html = '<script>alert(1)</script><img src=x onerror="alert(1)">'
    forged = json.dumps({"points": 1, "says": f"{html}\x1b[2J\u202e"}).encode() + b"\n"
    found = marked("deadlock-clinic", "shift", SOCKET.format(forged))
    assert (found.points, found.says) == (1, f"{html} [2J")
    cell = new_code_cell('lab.check("shift")', metadata={"nbgrader": {"grade": True, "locked": True}})
    cell.outputs = _outputs(dataclasses.asdict(found))
    page, _ = FeedbackPage().from_notebook_node(new_notebook(cells=[cell]))
    assert "&lt;script&gt;alert(1)" in page and "<script>alert(1)" not in page and "<img src=x" not in page


def test_nothing_of_a_sentence_is_a_command_to_a_terminal():
    assert plain("a\x1b[31mb\x00c\nd\u202ee\udc80") == "a [31mb c\nd e"


# ---------------------------------------------------------------- what the sandbox holds

TAKES = {
    "memory": ("kept = [bytes(2**28) for _ in range(100)]", "MemoryError"),
    "a large file": ("open('large', 'wb').write(bytes(2**27))", "File too large"),
    "a larger limit": (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2**40, 2**40))",
        "not allowed to raise maximum limit",
    ),
}


@pytest.mark.parametrize("what", TAKES)
def test_an_answer_takes_no_more_than_its_limits(marked, what):
    text, said = TAKES[what]
    found = marked("deadlock-clinic", "shift", "import torch", f"def shift(x, dist):\n    {text}\n    return x")
    assert found.points == 0 and said in found.says, found.says


def test_an_answer_has_limits_of_processor_time_processes_and_images_of_its_memory(marked):
    limits = "__import__('resource').getrlimit(each) for each in (0, 4, 6)"  # CPU, CORE, NPROC on Linux
    found = re.search(
        r"ValueError: \[\((\d+), \1\), \(0, 0\), \((\d+), \2\)\]",
        marked("deadlock-clinic", "shift", TOLD.format(f"[{limits}]")).says,
    )
    assert found and int(found[1]) == nursery.SECONDS and int(found[2]) < nursery.PROCESSES + forks.threads_of_mine() + 50


# In a process of its own, which is small: a fork of one that has loaded torch takes many times as long.
FORKS_WHAT_IT_MAY = """
import os, resource, signal, sys  # before the user changes, who may not read this Python
from ringtree.live.processes import forks
*limits, most = map(int, sys.argv[1:])
if os.geteuid() == 0:
    os.setresuid(*[100_000 + os.getpid()] * 3)  # a user that no other run of these tests is at the same time
forks.limit(*limits, most)
assert "torch" not in sys.modules
started = 0
try:
    while started < 2 * most:
        if os.fork() == 0:
            signal.pause()
        started += 1
except BlockingIOError:
    print(started, flush=True)
finally:
    os.killpg(0, signal.SIGKILL)
"""


def test_a_process_with_these_limits_starts_only_so_many():
    """Tried as a user who is not root, for whom the system counts none."""
    limits = (nursery.MEMORY, nursery.FILES, nursery.SECONDS, nursery.PROCESSES)
    told = subprocess.run(
        [sys.executable, "-c", FORKS_WHAT_IT_MAY, *map(str, limits)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert told.returncode == -signal.SIGKILL
    assert nursery.PROCESSES - 50 < int(told.stdout) <= nursery.PROCESSES


ENDLESS = {
    "a function that stays in C": "def shift(x, dist):\n    sum(range(10**13))",
    "a cell that catches what ends it": """
        import time
        while True:
            try:
                time.sleep(600)
            except BaseException: pass
    """,
}


@pytest.mark.parametrize("what", ENDLESS)
def test_what_cannot_be_interrupted_is_ended(marked, hasty, what):
    begun = time.monotonic()
    found = marked("deadlock-clinic", "shift", *(ENDLESS[what], SHIFT)[: 1 + ("cell" in what)])
    assert found == Mark("shift", 0, 1, notebook.NO_VERDICT.format("shift")) and time.monotonic() - begun < 60
    assert not [each for each in psutil.Process().children(recursive=True) if _is_of_the_sandbox(each, "running")]


def _is_of_the_sandbox(process, status):
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() == status and "ringtree.labs.marking.nursery" in process.cmdline()


CELLS_WITHOUT_END = "while True:\n    pass", "import time; time.sleep(10**6)"


@pytest.mark.parametrize("text", CELLS_WITHOUT_END)
def test_a_cell_without_an_end_costs_what_it_would_have_defined(marked, monkeypatch, text):
    monkeypatch.setattr(notebook, "A_CELL", 1.0)
    found = marked("deadlock-clinic", "shift", "import torch", text, SHIFT)
    assert found.points == 1, found
    found = marked("deadlock-clinic", "shift", f"import torch\n{text}\n{SHIFT}")
    assert found.points == 0 and "shift is not defined in this notebook; cell 1 was stopped" in found.says


fenced = pytest.mark.skipif(not fence.version(), reason="this kernel has no Landlock")
fences_signals = pytest.mark.skipif(fence.version() < 6, reason="this kernel's Landlock does not fence signals")
REACHES = {
    "hidden cases": f"open({str(HIDDEN / 'deadlock_clinic.py')!r}).read()",
    "a file of the user's": "open(SECRET).read()",
    "a file to be changed": "open(SECRET, 'a')",
    "a file to be cut": "os.truncate(SECRET, 0)",
    "a file to be removed": "os.remove(SECRET)",
    "a new file": "open(SECRET + '2', 'w')",
    "a link out of its folder": "os.link(SECRET, 'mine')",
    "a folder": "os.listdir(os.path.dirname(SECRET))",
    "another process's environment": f"open('/proc/{os.getpid()}/environ').read()",
    "a program of its own": "__import__('subprocess').run(['/bin/cat', SECRET], check=True)",
}


@fenced
@pytest.mark.parametrize("what", REACHES)
def test_an_answer_sees_no_files_but_its_own(marked, tmp_path, what):
    secret = tmp_path / "secret"
    secret.write_text("a secret")
    found = marked("deadlock-clinic", "shift", f"SECRET = {str(secret)!r}", TOLD.format(REACHES[what]))
    assert re.search("Permission denied|returned non-zero exit status|Invalid cross-device link", found.says), found.says
    assert secret.read_text() == "a secret" and [*tmp_path.iterdir()] == [secret]


@fences_signals
def test_an_answer_signals_no_other_process(marked):
    for other in os.getpid(), "os.getppid()":
        assert "Operation not permitted" in marked("deadlock-clinic", "shift", TOLD.format(f"os.kill({other}, 0)")).says


@fenced
def test_an_answer_works_with_files_of_its_own(marked):
    own = "import os, tempfile, pandas, matplotlib.pyplot\nwith tempfile.TemporaryFile() as file: file.write(b'x')\nWAY = 1"
    own += "\nopen('mine', 'w').write('x')\nassert os.listdir('.') and os.system('true') == 0\nopen(os.devnull, 'w').write('x')"
    assert marked("deadlock-clinic", "shift", "import torch", own, SHIFT.replace("rank + 1", "rank + WAY")).points == 1


def test_an_answer_has_nothing_but_its_own(marked):
    looks = """
        import os, sys
        def predict(nbytes, lines, channels):
            own = [f"/proc/self/fd/{fd}" for fd in range(64) if os.path.exists(f"/proc/self/fd/{fd}")]
            told = sorted(os.path.realpath(each).split(":")[0].split("/")[-1] for each in own)
            names, words = [name for name in os.environ if "RINGTREE" in name], str(os.environ) + str(sys.argv)
            raise ValueError(f"{told} {names} {'hidden' in words} {os.listdir()}")
    """
    assert "['null', 'null', 'null', 'socket'] [] False []" in marked("alpha-beta", "predict", looks).says


def test_one_exercise_leaves_nothing_for_another(marked):
    leaves = f"import os, ringtree\nringtree.left = True\nopen(os.path.join(os.environ['HOME'], '..', 'left'), 'w')\n{SHIFT}"
    marked("deadlock-clinic", "shift", leaves)
    looks = TOLD.format("(hasattr(__import__('ringtree'), 'left'), os.path.exists('../left'))")
    assert "ValueError: (False, False)" in marked("deadlock-clinic", "shift", looks).says


CHILD = "import os, time\nif os.fork() == 0:\n    time.sleep(600)\n"


def test_a_child_that_goes_on_does_not_delay_the_verdict(marked):
    begun = time.monotonic()
    assert marked("deadlock-clinic", "shift", "import torch", CHILD, SHIFT).points == 1
    assert time.monotonic() - begun < 60


def test_the_sandbox_may_be_started_by_a_command_that_encloses_it():
    """It stays, with the nursery below it, from exercise to exercise; what answers have started is ended all the same."""
    encloses = ["sh", "-c", 'export ENCLOSED=yes; "$@"; exit', "sh"]
    answers = CHILD + "import torch\n" + SHIFT.replace("%%px --local\n", ""), TOLD.format("os.environ['ENCLOSED']"), SHIFT
    with Sandbox(encloses) as sandbox:
        found = [
            mark_exercise(sandbox, "deadlock-clinic", "shift", {1: "import torch", 2: text}, time.monotonic() + PATIENT)
            for text in answers
        ]
        below = psutil.Process(sandbox._process.pid).children(recursive=True)
        assert sandbox._process.poll() is None
        assert len([each for each in below if each.status() != psutil.STATUS_ZOMBIE]) == 1
    assert [each.points for each in found] == [1, 0, 1] and "ValueError: yes" in found[1].says, found


def test_the_sandbox_starts_again_if_its_nursery_has_ended(sandbox, marked):
    assert marked("deadlock-clinic", "shift", "import torch", SHIFT).points == 1
    sandbox._process.kill()
    sandbox._process.wait()
    assert marked("deadlock-clinic", "shift", "import torch", SHIFT).points == 1


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
    with pytest.raises(UsageError, match="there is no lab called 'other': name one of these with --lab"):
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
    """By these alone: tests/labs/test_labs.py has it that they lose by none of their own."""
    own = learners_cells(lab) if what == "our solution" else Notebook().run(ANSWERS[lab].RIGHT[name][what])
    exercise, known = with_hidden(lab, HIDDEN)[name], len(asked_for(module_of(lab).EXERCISES[name]))
    kind = "questions" if isinstance(exercise, Answer) else "cases"
    hidden = dataclasses.replace(exercise, **{kind: lambda: asked_for(exercise)[known:]})
    found = judge(name, own[name], hidden, PATIENT)
    assert not found.fault and found.level == top(lab, name), found.fault or found.next_level


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
    assert not found.fault and found.level == top(lab, name), found.fault or found.next_level
    found = judge(name, answer, hidden, PATIENT)
    assert found.fault or found.level < top(lab, name)


def test_hidden_cases_for_no_exercise_are_an_error(tmp_path):
    (tmp_path / "alpha_beta.py").write_text("EXTRA = {'guess': list}")
    with pytest.raises(UsageError, match="the hidden cases of alpha-beta name 'guess'; the lab has predict, fit, buy"):
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
    assert shown[:2] == ["shift: 1 of 1", "  shift is right."] and shown[-1] == "1 of 4"


def test_the_command_says_what_is_wrong_with_its_arguments(tmp_path):
    done = command(tmp_path / "other.ipynb")
    assert done.returncode == 2 and "there is no lab called 'other'" in done.stderr


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
    (course / "source" / ASSIGNMENT / ".progress.json").write_text("{}")
    done = nbgrader(course, "generate_assignment")
    assert done.returncode == 0, done.stderr
    solutions = {cell.id: cell.source for cell in nbformat.read(source_of(LAB), 4).cells if cell.id.endswith("-answer")}
    one, two = "ring_all_reduce-answer", "two_rings-answer"
    hand_in(course, "forger", {one: FORGED, two: solutions[two]}, forge)
    if EVERYTHING:
        hand_in(course, "part", {one: solutions[one], two: "def two_rings(x, dist):\n    return ring_all_reduce(x, dist)"})
        hand_in(course, "all", solutions)
        hand_in(course, "endless", {one: "def ring_all_reduce(x, dist):\n    while True:\n        pass", two: solutions[two]})
    return course


def test_nbgraders_own_command_makes_the_same_release(course):
    made = course / "release" / ASSIGNMENT
    assert [path.name for path in made.iterdir()] == [f"{LAB}.ipynb"]
    assert (made / f"{LAB}.ipynb").read_text() == release_of(LAB).read_text()


def test_the_gradebook_has_each_exercise_with_its_points(course):
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as book:
        cells = book.find_notebook(LAB, ASSIGNMENT).grade_cells
        points = {cell.name.removesuffix("-check"): cell.max_score for cell in cells}
    assert points == {each: 1 + len(asked.levels) for each, asked in module_of(LAB).EXERCISES.items()}


def test_what_nbgrader_makes_is_not_kept(course):
    made = {path.relative_to(course).parts[0] for path in course.rglob("*") if path.is_file()}
    made |= {"submitted", "autograded", "feedback"}
    for name in made - {"source", "release", "hidden", "nbgrader_config.py"}:
        asked = ["git", "check-ignore", "-q", "--no-index", f"labs/{name}/x" if "." not in name else f"labs/{name}"]
        assert subprocess.run(asked, cwd=LABS.parent, check=False).returncode == 0, name


FORGED = """
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)  # stays behind in a course"], start_new_session=True)
def ring_all_reduce(x, dist):
    raise ValueError("<script>alert(1)</script>")
from IPython.display import HTML, Javascript, Markdown, display
display(HTML("<b>shown</b>"), Javascript("shown"), Markdown(":::{iframe} javascript:shown"))
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
    (place,) = (number for number, cell in enumerate(notebook.cells) if cell.id == "two_rings-answer")
    notebook.cells.insert(place + 1, new_code_cell(f"import os\nif {MARKED!r} in os.environ:\n    os._exit(0)"))


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
        restore = Restore(release=str(course / "release"))
        notebook, _ = restore.preprocess(notebook, {"nbgrader": {"notebook": LAB, "assignment": ASSIGNMENT}})
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
    own = sum(cell.cell_type == "code" for cell in twice) + 1
    assert restored(release) == given + [None] * own


def test_nbgrader_gives_the_points_that_functions_earn_and_leaves_no_process(course):
    """The whole way of one lab, for one learner; for four by `make labs-all`."""
    done = nbgrader(course, "autograde")
    assert done.returncode == 0, done.stderr
    with Gradebook(f"sqlite:///{course}/gradebook.db") as gradebook:
        found = {
            each.student.id: {grade.name: (grade.auto_score, grade.needs_manual_grade) for grade in each.notebooks[0].grades}
            for each in gradebook.assignment_submissions(ASSIGNMENT)
        }
    points = {"forger": (0, 3)} | ({"part": (3, 1), "all": (3, 3), "endless": (0, 3)} if EVERYTHING else {})
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
    marked = nbformat.read(course / "autograded" / "forger" / ASSIGNMENT / f"{LAB}.ipynb", 4)
    shown = [each.data for cell in marked.cells if cell.cell_type == "code" for each in cell.outputs if "data" in each]
    assert {"text/plain": "<IPython.core.display.HTML object>"} in shown and {kind for each in shown for kind in each} == {
        "text/plain"
    }
    done = nbgrader(course, "generate_feedback")
    assert done.returncode == 0, done.stderr
    page = (course / "feedback" / "forger" / ASSIGNMENT / f"{LAB}.html").read_text(encoding="utf-8")
    assert "ValueError: &lt;script&gt;alert(1)&lt;/script&gt;" in page and "<script>alert(1)" not in page
    assert "two_rings is right, and at the bound." in page
    assert not re.search(r"""(src|href)=["']https?:""", page), "feedback is read where there may be no network"
    shown = re.sub(r"<(script|style)\b.*?</\1>|<[^>]+>", "", page, flags=re.DOTALL)
    assert "Check of two_rings" in shown and "Your answer" in shown and "A ring for each card" in shown
    assert not re.search(r"\$|{admonition}|Hint 1|Test cell|How far you have come", shown), "the learner has the lab's text"
    assert shown.count("Out[") == 1, "the number in the learner's own cell; points stand in the check's head"
    assert 'name="viewport"' in page and "white-space: pre-wrap" in page, "it is read on a phone, too"


RUNS = '<img src="x" onerror="alert(1)">'
FOREIGN = "text/html", "application/javascript", "image/svg+xml", "text/markdown", "text/latex", "application/vnd.vega.v5+json"


def everywhere(notebook):
    """Put markup into each part of a notebook that holds text, but for the code; and code of the learner's own."""
    answer, check = (next(cell for cell in notebook.cells if cell.id == f"two_rings-{part}") for part in ("answer", "check"))
    notebook.cells = [new_code_cell(f"helper = {RUNS!r}"), check, answer, *notebook.cells]
    for cell in notebook.cells:
        cell.metadata.update(tags=[RUNS], trusted=True, name=RUNS)
        cell.attachments = {"x.svg": {"image/svg+xml": RUNS}}
        if cell.cell_type == "code":
            cell.execution_count = RUNS
            shown = dict.fromkeys([*FOREIGN, "text/plain", "image/png"], RUNS)
            cell.outputs = [new_output("display_data", data=shown), new_output("stream", name=RUNS, text=RUNS)]
        else:
            cell.source += f"\n\n{RUNS}\n\n:::{{iframe}} javascript:alert(1)\n:::"
    notebook.cells += [new_markdown_cell(RUNS), new_raw_cell(RUNS)]
    notebook.metadata.update(title=RUNS, widgets={"application/vnd.jupyter.widget-state+json": {"x": RUNS}})
    notebook.metadata.kernelspec = {"name": RUNS, "display_name": RUNS}
    return notebook


@pytest.mark.parametrize("lab", A_FEW)
def test_a_rebuilt_submission_has_the_learners_code_in_its_order_and_nothing_else_of_theirs(lab):
    release = nbformat.read(release_of(lab), 4)
    own = copy.deepcopy(release)
    for number, cell in enumerate(each for each in own.cells if each.cell_type == "code"):
        cell.source = f"answer = {number}"
    own.cells = [new_code_cell("helper = 1"), *reversed(own.cells), new_markdown_cell(RUNS)]
    found = rebuilt(own, release)
    assert [each.source for each in found.cells if each.cell_type == "code"] == [
        each.source for each in own.cells if each.cell_type == "code"
    ]
    given = {cell.id: cell for cell in release.cells}
    for cell in found.cells:
        assert cell.id == "own-1" or cell.metadata == given[cell.id].metadata
        assert cell.cell_type == "code" or cell == given[cell.id]
    assert sorted(each.id for each in found.cells) == sorted(["own-1", *given]) and found.metadata == release.metadata
    assert rebuilt(release, release) == release, "what nobody changed stays as it was"


@pytest.mark.filterwarnings("ignore::nbformat.warnings.DuplicateCellId")  # which a learner's notebook may have
def test_nothing_but_code_is_left_of_a_notebook_with_markup_everywhere(tmp_path, inbound, collect):
    release = nbformat.read(release_of(LAB), 4)
    (inbound.parent / "outbound" / "clinic" / "lab.ipynb").write_text(nbformat.writes(release))
    submit(inbound, ME, 1, notebook=everywhere(copy.deepcopy(release)))
    assert collect().taken == {ME: at(1)}
    text = (tmp_path / "submitted" / ME / "clinic" / "lab.ipynb").read_text()
    assert text.count("onerror") == 1, "in the learner's own line of code"
    nbformat.validate(nbformat.reads(text, 4))


def test_text_that_is_not_a_notebook_is_refused(inbound, collect):
    for minute, text in enumerate(("", "[" * 100_000, '{"nbformat": 4}', '{"cells": 1, "nbformat": 4, "nbformat_minor": 5}')):
        submit(inbound, ME, minute)
        (inbound / name_of(ME, minute) / "lab.ipynb").write_text(text)
    found = collect()
    why = "is not collected: its lab.ipynb cannot be read as a notebook ("
    assert not found.taken and [why in each for each in found.said] == [True] * 4 + [False], found.said


def test_of_what_a_kernel_sent_text_and_pictures_are_kept():
    picture = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==\n"
    result = new_output("execute_result", data={"text/plain": "3", "text/html": RUNS})
    result.execution_count = RUNS
    shown = new_output(
        "display_data", data={"image/png": picture, "image/svg+xml": RUNS}, metadata={"image/png": {"width": RUNS}}
    )
    broken = new_output("display_data", data=dict.fromkeys([*FOREIGN, "image/png"], RUNS) | {"text/plain": ["x"]})
    cell = new_code_cell("")
    cell.update(outputs=[new_output("stream", name=RUNS, text="said"), result, shown, broken], execution_count=RUNS)
    keep_plain(cell)
    assert cell.outputs == [
        new_output("stream", name="stdout", text="said"),
        new_output("execute_result", data={"text/plain": "3"}, execution_count=None),
        new_output("display_data", data={"image/png": picture}),
    ]
    page, _ = FeedbackPage().from_notebook_node(new_notebook(cells=[cell]))
    assert "<img src=x" not in page and 'onerror="' not in page and picture.strip() in page


# ---------------------------------------------------------------- nbgrader's exchange

ME = pwd.getpwuid(os.getuid()).pw_name
OTHER, THIRD = [each.pw_name for each in pwd.getpwall() if each.pw_name != ME and each.pw_uid < 65534][:2]
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")


@pytest.fixture
def inbound(tmp_path):
    (tmp_path / "exchange" / "a-course" / "outbound" / "clinic").mkdir(parents=True)
    (tmp_path / "exchange" / "a-course" / "outbound" / "clinic" / "lab.ipynb").write_text(nbformat.writes(new_notebook()))
    (tmp_path / "exchange" / "a-course" / "inbound").mkdir()
    return tmp_path / "exchange" / "a-course" / "inbound"


def submit(inbound, who, minute, size=1000, owner=None, notebook=None):
    """What `nbgrader submit` leaves; the notebook has so many bytes."""
    folder = inbound / name_of(who, minute)
    folder.mkdir()
    (folder / collecting.SECRET).write_text("0" * 64)
    (folder / "lab.ipynb").write_text(nbformat.writes(notebook or new_notebook()).ljust(size))
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
        submit(inbound, ME, minute, 10_000_000 if minute == 2 else 10_000_001)
    found = collect()
    assert found.taken == {ME: at(2)}
    why = "is not collected: its lab.ipynb has more than 10000000 bytes"
    assert found.said == [*(f"{name_of(ME, minute)} {why}" for minute in range(15, 5, -1)), f"Of {ME} 3 more are not collected"]


def test_who_submits_much_that_cannot_be_read_is_given_up_after_some_of_it(inbound, collect):
    """A notebook may take a second to refuse, and all these may be one file."""
    for minute in range(30):
        submit(inbound, ME, minute, 10_000_001 if minute else 10_000_000)
    found = collect()
    assert not found.taken and f"Of {ME} 20 more are not collected" in found.said
    assert len([each for each in found.said if "is not collected: " in each]) == 10


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
    for minute in (1, 2, 3, 4):
        submit(inbound, ME, minute, 10_000_001 if minute == 2 else 1000)
    with Gradebook(f"sqlite:///{tmp_path}/gradebook.db", "a-course") as gradebook:
        gradebook.add_assignment("clinic", duedate=datetime(2026, 1, 1, 0, 2))
    assert collect(before_duedate=True).taken == {ME: at(1)}
    assert collect(update=True).taken == {ME: at(4)}
