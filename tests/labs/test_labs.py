"""The labs' graders are graded: right answers pass at the level they deserve, everything else fails for the right reason."""

import dataclasses
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial

import nbformat
import pytest
import torch
from helpers.live import kernel
from nbclient import NotebookClient
from nbgrader.utils import compute_checksum
from verdicts import ANSWERS, EXERCISES, LABS, NAMES, RUBBISH, Notebook, learners_cells, release_of, top, verdict

import ringtree
from ringtree import labs
from ringtree.errors import UsageError
from ringtree.labs import exercise, marks
from ringtree.labs.__main__ import main
from ringtree.labs.lab import _Folded, module_of
from ringtree.labs.release import describe, release_all

CLINIC = LABS / "source" / "03-deadlock-clinic" / "deadlock-clinic.ipynb"
SOURCES = sorted(LABS.glob("source/*/*.ipynb"))


# ---------------------------------------------------------------- the table: exercise × answer × verdict


@pytest.mark.parametrize(("lab", "name"), EXERCISES)
def test_the_solution_is_right_at_the_top_level(lab, name):
    found = verdict(lab, name, "our solution")
    assert not found.fault and found.level == top(lab, name), found.fault or found.next_level


@pytest.mark.parametrize(("lab", "name"), EXERCISES)
def test_the_stub_says_that_it_is_not_yet_written(lab, name):
    assert "it is not yet written" in verdict(lab, name, "the stub").fault


@pytest.mark.parametrize(
    ("lab", "name", "what"), [(lab, name, what) for lab, name in EXERCISES for what in ANSWERS[lab].RIGHT.get(name, {})]
)
def test_another_right_answer_passes_too(lab, name, what):
    found = verdict(lab, name, ANSWERS[lab].RIGHT[name][what])
    assert not found.fault and found.level == top(lab, name), found.fault or found.next_level


@pytest.mark.parametrize(
    ("lab", "name", "what"), [(lab, name, what) for lab, name in EXERCISES for what in ANSWERS[lab].WRONG.get(name, {})]
)
def test_a_wrong_answer_fails_for_the_right_reason(lab, name, what):
    text, reason = ANSWERS[lab].WRONG[name][what]
    found = verdict(lab, name, text)
    said = found.fault or found.next_level
    assert said and re.search(reason, said, re.DOTALL), (said, reason)
    assert found.level != top(lab, name) or top(lab, name) == 0 and found.fault


@pytest.mark.parametrize(("lab", "name"), EXERCISES)
def test_every_exercise_has_a_second_right_answer_and_enough_wrong_ones(lab, name):
    least = 4 if isinstance(module_of(lab).EXERCISES[name], exercise.Answer) or lab == "deadlock-clinic" else 8
    assert ANSWERS[lab].RIGHT.get(name)
    assert len(ANSWERS[lab].WRONG.get(name, {})) >= least


def test_no_two_maps_of_the_ordered_reduce_may_be_swapped():
    from ringtree.labs.exercises import reduce as lab

    for one, other in itertools.combinations(lab._maps(5, 3), 2):
        assert (lab.then(one, other) != lab.then(other, one)).any(dim=0).all()


def test_an_assertion_that_is_taken_away_is_noticed():
    """Of one lab here; `make labs-all` takes away those of all labs, and what all checks share."""
    import mutate

    assert len(list(mutate.mutants(NAMES))) > 200
    found = list(mutate.mutants(["measuring"]))
    for row in found[0].rows:
        mutate.tried(*row)
    how = [mutant.run(partial(mutate.noticed, mutant)) for mutant in found]
    assert len(found) > 5 and all(how) and "gets through" in {way for way, _ in how}
    nobody = dataclasses.replace(found[0], concerns=lambda tried: False)
    assert nobody.run(partial(mutate.noticed, nobody)) is None


@pytest.mark.parametrize(
    ("lab", "name"), [each for each in EXERCISES if isinstance(module_of(each[0]).EXERCISES[each[1]], exercise.Answer)]
)
def test_an_answer_of_any_kind_is_told_what_was_expected(lab, name):
    for question in module_of(lab).EXERCISES[name].questions():
        for answer in RUBBISH:
            said = question.wrong(answer)
            assert said is None or isinstance(said, str) and said, (question.says, answer, said)
        assert any(question.wrong(answer) for answer in RUBBISH)


# ---------------------------------------------------------------- on live ranks


@pytest.fixture(scope="module")
def ranks():
    with ringtree.start(4, backend="gloo") as four:
        yield four


@pytest.fixture
def opened(ranks, tmp_path, monkeypatch):
    """A lab whose learner has run these cells; its marks go into a folder of their own."""
    monkeypatch.chdir(tmp_path)

    def opened(name, *texts, timeout=10):
        notebook = Notebook()
        for text in texts:
            notebook.run(text)
        return labs.open(name, ranks, timeout=timeout, namespace=notebook)

    return opened


def complaint(lab, name):
    with pytest.raises(labs.CheckFailed) as failed:
        lab.check(name)
    return str(failed.value)


@pytest.mark.parametrize("name", NAMES)
def test_the_solutions_run_on_live_ranks(opened, name, capsys):
    lab = opened(name)
    lab._namespace.update(learners_cells(name))
    for function in lab._namespace.values():
        if hasattr(function, "__code__") and function.__module__ == "__main__":
            assert function.__globals__ is not lab._namespace
    lab._namespace = learners_cells(name)
    for each in module_of(name).EXERCISES:
        lab.check(each)
        assert capsys.readouterr().out.startswith(f"{each} is right")
    assert "·" not in repr(lab)


# `make test` has our solutions on live ranks, `make labs-all` every answer of the table.
EVERY_ANSWER = os.environ.get("RINGTREE_LABS") == "all"
ON_RANKS = [
    (lab, name, what)
    for lab, name in EXERCISES
    if EVERY_ANSWER
    for what in [*ANSWERS[lab].RIGHT.get(name, {}), *ANSWERS[lab].WRONG.get(name, {})]
]


@pytest.mark.skipif(not EVERY_ANSWER, reason="`make labs-all` tries every answer on live ranks")
@pytest.mark.parametrize(("lab", "name", "what"), ON_RANKS or [("", "", "")])
def test_every_answer_is_judged_on_live_ranks_as_in_the_simulator(opened, lab, name, what, capsys):
    text, reason = ANSWERS[lab].RIGHT[name].get(what), None
    if text is None:
        text, reason = ANSWERS[lab].WRONG[name][what]
    open_lab = opened(lab, text, timeout=3 if "while True" in text else 20)
    try:
        open_lab.check(name)
    except labs.CheckFailed as failed:
        assert reason and re.search(reason, str(failed), re.DOTALL), str(failed)
    else:
        said = capsys.readouterr().out
        assert said.startswith(f"{name} is right") and (reason is None or re.search(reason, said, re.DOTALL)), said


SHIFT = ANSWERS["deadlock-clinic"].BATCH


def test_helpers_classes_modules_and_values_of_the_learner_travel_along(opened, capsys):
    lab = opened(
        "deadlock-clinic",
        "import functools as tools\nfrom functools import reduce\nSTEP = [1]",
        """
class Base:
    def left(self):
        return (self.rank - reduce(max, STEP)) % self.size

class Place(Base):
    def __init__(self, dist):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def right(self):
        return (self.rank + STEP[0]) % self.size
""",
        """
def shift(x, dist):
    place, got = Place(dist), torch.empty_like(x)
    start = tools.partial(dist.batch_isend_irecv)
    for work in start([dist.P2POp(dist.isend, x, place.left()), dist.P2POp(dist.irecv, got, place.right())]):
        work.wait()
    return got
""",
    )
    lab.check("shift")
    assert capsys.readouterr().out.startswith("shift is right: 7 runs in the simulator, 1 on your ranks.")


TRAVELLERS = {
    "a function made by another": (
        "def make(step):\n    def right_of(rank, size):\n        return (rank + step) % size\n    return right_of\nright_of = make(1)",
        "right_of(rank, size)",
    ),
    "a function that remembers": (
        "import functools\n@functools.cache\ndef right_of(rank, size):\n    return (rank + 1) % size",
        "right_of(rank, size)",
    ),
    "a dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass Place:\n    right: int",
        "Place((rank + 1) % size).right",
    ),
    "an enum": ("from enum import Enum\nclass Way(Enum):\n    RIGHT = 1", "(rank + Way.RIGHT.value) % size"),
    "a tensor and a set": (
        "ONE, RANKS = torch.tensor(1), {*range(9)}",
        "(rank + ONE.item()) % size if rank in RANKS else None",
    ),
    "functions in a list": ("WAYS = [lambda rank, size: (rank + 1) % size]", "WAYS[0](rank, size)"),
}


@pytest.mark.parametrize("what", TRAVELLERS)
def test_whatever_a_function_uses_travels_along(opened, what):
    text, right = TRAVELLERS[what]
    opened("deadlock-clinic", text, SHIFT.replace("    got =", f"    right = {right}\n    got =", 1)).check("shift")


@pytest.mark.parametrize(
    "before, function",
    [
        ("", SHIFT.replace("def shift", "@torch.no_grad()\ndef shift")),
        ("import functools\n" + SHIFT.replace("shift(x", "turn(name, x"), "shift = functools.partial(turn, 'x')"),
        (SHIFT.replace("shift(x", "turn(self, x"), "class Shift:\n    __call__ = turn\nshift = Shift()"),
    ],
)
def test_whatever_can_be_called_is_checked(opened, before, function):
    opened("deadlock-clinic", before, function).check("shift")


def test_what_cannot_travel_is_named(opened):
    lab = opened(
        "deadlock-clinic", "steps = (1 for _ in range(9999))", SHIFT.replace("    got =", "    next(steps)\n    got =", 1)
    )
    assert re.search(
        r"shift uses something that cannot be sent to the ranks \(.*generator.*\): make it inside",
        complaint(lab, "shift"),
    )


ONLY_LIVE = SHIFT.replace("    got =", "    {}\n    got =", 1)


def test_a_hang_on_the_live_ranks_alone_is_reported_and_the_next_check_works(opened, capsys):
    """The simulator is right about all that it sees; this program looks at something else."""
    lab = opened(
        "deadlock-clinic",
        ONLY_LIVE.format("import os; 'RANK' in os.environ and rank == 2 and any(x.clone() is None for _ in iter(int, 1))"),
        timeout=3,
    )
    said = complaint(lab, "shift")
    assert "rank 2 is still running" in said and "The ranks were restarted" in said
    lab._namespace.run(SHIFT)
    lab.check("shift")


def test_a_death_is_survived(opened):
    lab = opened(
        "deadlock-clinic", ONLY_LIVE.format("import os; 'RANK' in os.environ and rank == 2 and os._exit(3)"), timeout=3
    )
    assert "rank 2 died: its process exited with code 3" in complaint(lab, "shift")
    lab._namespace.run(SHIFT)
    lab.check("shift")


def test_an_error_on_the_live_ranks_alone_names_rank_and_line(opened):
    lab = opened("deadlock-clinic", ONLY_LIVE.format("import os; 'RANK' in os.environ and missing"))
    said = complaint(lab, "shift")
    assert "NameError: name 'missing' is not defined" in said and "shift, line 4" in said


def test_what_a_function_printed_on_the_live_ranks_is_shown_where_it_failed_there(opened, capsys):
    lab = opened(
        "deadlock-clinic",
        ONLY_LIVE.format("import os; 'RANK' in os.environ and print('here', rank) or 'RANK' in os.environ and missing"),
    )
    complaint(lab, "shift")
    assert [line for line in capsys.readouterr().out.splitlines() if "here" in line] == [
        f"[rank {rank}] here {rank}" for rank in range(4)
    ]


def test_the_check_leaves_the_readers_names_alone(opened, ranks):
    ranks.push({"shift": 7, "x": 8})
    opened("deadlock-clinic", SHIFT).check("shift")
    assert ranks.pull("shift") == [7] * 4
    assert torch.get_deterministic_debug_mode() == 0


def test_what_is_forbidden_works_again_after_a_check(opened):
    lab = opened("ring-all-reduce", ANSWERS["ring-all-reduce"].WRONG["ring_all_reduce"]["the built-in"][0])
    assert "it calls a collective of torch's" in complaint(lab, "ring_all_reduce")
    x = [torch.ones(4) for _ in range(3)]
    assert ringtree.simulate(ringtree.algorithms.ring_all_reduce, x, ringtree.Link(1e-6, 0.0)).outputs[0].tolist() == [3.0] * 4


# ---------------------------------------------------------------- opening, hints, marks


def test_the_room_is_light_until_a_lab_is_opened():
    code = "import sys; import ringtree.labs; sys.exit(bool({'torch', 'IPython', 'ipyparallel'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_opening_a_lab(opened):
    with pytest.raises(UsageError, match="no lab called 'clinic': give one of .*deadlock-clinic"):
        opened("clinic")
    lab = opened("deadlock-clinic")
    with pytest.raises(UsageError, match="nothing called 'shft'; it has shift, hand_out"):
        lab.check("shft")
    assert complaint(lab, "shift") == "shift is not defined in this notebook: run the cell that defines it."
    assert repr(lab).splitlines()[:2] == ["Deadlock clinic: 0 of 4", "· shift"]


@pytest.mark.parametrize("name", NAMES)
def test_hints_unfold_one_by_one(opened, name, capsys):
    lab = opened(name)
    for each, asked in module_of(name).EXERCISES.items():
        said = []
        for number in range(1, len(asked.hints) + 1):
            lab.hint(each, number)
            said.append(capsys.readouterr().out)
        assert len(set(said)) == len(said) >= 3 and all(said)
        with pytest.raises(UsageError, match=f"{len(said)} hints: ask for one from 1 to {len(said)}, not {len(said) + 1}"):
            lab.hint(each, len(said) + 1)


def test_folded_hints():
    folded = _Folded("shift", ("a < b", "c"))
    assert repr(folded) == '2 hints; lab.hint("shift", 1) prints the first'
    assert folded._repr_html_().count("<details>") == 2
    assert "a &lt; b" in folded._repr_html_()


def test_marks_survive_and_only_rise(opened, tmp_path):
    opened("deadlock-clinic", SHIFT).check("shift")
    again = opened("deadlock-clinic", "def shift(x, dist):\n    return x")
    complaint(again, "shift")
    assert repr(again).splitlines()[1] == "✓ shift: once right, but not as the cell stands"
    assert marks.read("deadlock-clinic") == {"shift": 0}
    shown = labs.progress(tmp_path)
    assert "Deadlock clinic          ○ · · ·" in repr(shown)
    assert shown._repr_html_().count("title=") == len(EXERCISES)


def test_marks_that_cannot_be_read_count_for_nothing(tmp_path):
    for text in ("", "[]", '{"deadlock-clinic": 3}', '{"deadlock-clinic": {"shift": "top"}}'):
        (tmp_path / marks.FILE).write_text(text)
        assert marks.read("deadlock-clinic", tmp_path) == {}


def test_progress_in_one_lab_keeps_that_of_another(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    marks.note("deadlock-clinic", "shift", 2)
    marks.note("ring-all-reduce", "ring_all_reduce", 1)
    marks.note("deadlock-clinic", "hand_out", 0)
    assert marks.read("deadlock-clinic") == {"shift": 2, "hand_out": 0}
    assert marks.read("ring-all-reduce") == {"ring_all_reduce": 1}
    assert os.listdir() == [marks.FILE]


def test_kernels_that_note_at_once_lose_nothing(tmp_path):
    code = """
import sys
from ringtree.labs import marks
for number in range(25):
    marks.note(f"lab-{sys.argv[1]}", f"exercise-{number}", number)
"""
    kernels = [subprocess.Popen([sys.executable, "-c", code, str(each)], cwd=tmp_path) for each in range(4)]
    assert [each.wait(120) for each in kernels] == [0] * 4
    for each in range(4):
        assert marks.read(f"lab-{each}", tmp_path) == {f"exercise-{number}": number for number in range(25)}
    assert os.listdir(tmp_path) == [marks.FILE]


@pytest.mark.parametrize(
    "text",
    ['{"deadlock-clinic": {"shift": 2', "[1, 2]", '{"deadlock-clinic": 3, "wires": {"a": 1}}', "[" * 100_000, "\udcff"],
    ids=["half a file", "a list", "a lab that is a number", "nested too deeply", "no UTF-8"],
)
def test_a_progress_file_that_cannot_be_parsed_is_kept(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / marks.FILE).write_text(text, errors="surrogateescape")
    assert marks.read("deadlock-clinic") == {}
    marks.note("deadlock-clinic", "shift", 1)
    assert marks.read("deadlock-clinic") == {"shift": 1}
    assert (tmp_path / f"{marks.FILE}.unreadable-1").read_text(errors="surrogateescape") == text
    assert marks.read("wires") == ({"a": 1} if "wires" in text else {})


def test_entries_of_other_hands_stay_in_the_progress_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / marks.FILE).write_text('{"deadlock-clinic": {"shift": "top"}, "mine": [1]}')
    marks.note("deadlock-clinic", "hand_out", 1)
    assert json.loads((tmp_path / marks.FILE).read_text()) == {
        "deadlock-clinic": {"shift": "top", "hand_out": 1},
        "mine": [1],
    }


def test_a_kernel_that_is_stopped_while_it_notes_does_not_stop_another(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(marks, "PATIENCE", 0.1)
    marks.note("deadlock-clinic", "shift", 0)
    with marks._locked(tmp_path / marks.FILE):
        marks.note("deadlock-clinic", "shift", 2)
    assert marks.read("deadlock-clinic") == {"shift": 2}


def test_a_folder_that_cannot_be_written_to_keeps_no_marks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / marks.FILE).mkdir()
    marks.note("deadlock-clinic", "shift", 2)
    assert marks.read("deadlock-clinic") == {}


# ---------------------------------------------------------------- source and release


def test_every_lab_has_a_notebook_of_its_chapters_number():
    assert {path.stem for path in SOURCES} == set(NAMES)
    for path in SOURCES:
        assert path.parent.name == f"{module_of(path.stem).CHAPTER:02}-{path.stem}"
        title = nbformat.read(path, as_version=4).cells[0].source.splitlines()[0]
        number = module_of(path.stem).CHAPTER
        assert title == (f"# Lab {number}: " if number else "# ") + module_of(path.stem).TITLE


def test_release_is_what_the_sources_make():
    assert SOURCES and release_all(LABS, write=False) == []
    assert main(["release", "--labs", str(LABS), "--check"]) == 0


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_every_code_cell_says_what_it_is_to_nbgrader(path):
    exercises, graded = module_of(path.stem).EXERCISES, {}
    for cell in nbformat.read(path, as_version=4).cells:
        about = cell.metadata.get("nbgrader", {})
        if cell.cell_type == "markdown":
            assert not about
            continue
        assert about["grade_id"] == cell.id and about["schema_version"] == 3 and about["task"] is False
        assert about["solution"] == ("### BEGIN SOLUTION" in cell.source) == (not about["locked"])
        assert about["grade"] == cell.source.startswith("lab.check")
        if about["grade"]:
            graded[re.fullmatch(r'lab\.check\("(\w+)"\)', cell.source)[1]] = about["points"]
    assert graded == {name: 1 + len(asked.levels) for name, asked in exercises.items()}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_release_tells_no_solution(path):
    release = release_of(path.stem).read_text(encoding="utf-8")
    assert "SOLUTION" not in release
    source = nbformat.read(path, as_version=4)
    told = nbformat.reads(release, as_version=4)
    shown = "\n".join(cell.source for cell in told.cells)
    for cell in source.cells:
        if "solution" in cell.metadata.get("tags", []):
            assert cell.source not in shown
        inside = re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", cell.source, re.DOTALL)
        assert not any(text.strip() in shown for text in inside)
    for cell in told.cells:
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None
            about = cell.metadata["nbgrader"]
            assert about["checksum"] == compute_checksum(cell)
            assert cell.metadata.get("editable", True) is not about["grade"], f"{cell.id}: learners could not try a change here"
            assert cell.metadata.get("deletable", True) is not (about["solution"] or about["grade"])
    nbformat.validate(told)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_source_stores_text_only(path):
    for cell in nbformat.read(path, as_version=4).cells:
        for output in cell.get("outputs", []):
            assert set(output.get("data", {})) <= {"text/plain"}


def test_solutions_become_stubs_of_the_same_indentation():
    (cell,) = [
        cell for cell in nbformat.read(release_of("ring-all-reduce"), as_version=4).cells if cell.id == "two_rings-answer"
    ]
    stub = (
        "def two_rings(x, dist):\n    total = x.clone()\n    # your code here\n    raise NotImplementedError\n    return total"
    )
    assert cell.source == stub


@pytest.mark.parametrize("broken", ["### BEGIN SOLUTION\n1", "1\n### END SOLUTION", "### BEGIN SOLUTION\n### BEGIN SOLUTION"])
def test_marks_that_do_not_pair_are_named(broken):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(broken, id="cell-7")])
    with pytest.raises(UsageError, match="cell-7: .*SOLUTION"):
        describe(notebook, "ring-all-reduce")


def test_a_check_of_something_that_no_lab_has_is_named():
    for lab, name in ("clinic", "shift"), ("deadlock-clinic", "shft"):
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(f'lab.check("{name}")', id="cell-7")])
        with pytest.raises(UsageError, match=f"cell-7: ringtree/labs/exercises has no lab '{lab}' with an exercise '{name}'"):
            describe(notebook, lab)


def test_an_out_of_date_release_is_noticed_and_made_again(tmp_path):
    source, gone = tmp_path / "source" / "x" / CLINIC.name, tmp_path / "release" / "y" / "gone.ipynb"
    for path in source, gone:
        path.parent.mkdir(parents=True)
        path.write_bytes(CLINIC.read_bytes())
    with pytest.raises(UsageError, match="no nbgrader_config.py in"):
        release_all(tmp_path)
    shutil.copy(LABS / "nbgrader_config.py", tmp_path)
    notebook = nbformat.read(source, as_version=4)
    for cell in notebook.cells:
        cell.metadata.pop("nbgrader", None)
    nbformat.write(notebook, source)
    assert main(["release", "--labs", str(tmp_path), "--check"]) == 1
    assert main(["release", "--labs", str(tmp_path)]) == 0
    assert source.read_bytes() == CLINIC.read_bytes() and not gone.exists()
    assert main(["release", "--labs", str(tmp_path), "--check"]) == 0


def test_the_release_runs_and_its_checks_fail_in_one_sentence(tmp_path):
    path = LABS / "release" / CLINIC.relative_to(LABS / "source")
    notebook = nbformat.read(path, as_version=4)
    keep = re.compile("start$|-repair$|-check$|-hint$|state$")
    notebook.cells = [cell for cell in notebook.cells if keep.search(cell.id)]
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=60, kernel_name="python3", allow_errors=True, resources=resources).execute()
    found = {cell.id: cell.outputs for cell in notebook.cells}
    for name in module_of("deadlock-clinic").EXERCISES:
        (error,) = [output for output in found[f"{name}-check"] if output.output_type == "error"]
        assert error.ename == "CheckFailed"
        assert f"it is not yet written: replace `raise NotImplementedError` in {name}, line " in error.evalue
        assert " ".join(" ".join(error.traceback).split()) == " ".join(f"CheckFailed: {error.evalue}".split())
        assert max(map(len, error.traceback)) <= exercise.WIDE
    assert found["state"][0].data["text/plain"].startswith("Deadlock clinic: 0 of 4")


def test_a_failed_check_in_a_kernel_shows_the_learners_own_run_and_then_a_repair_passes(tmp_path):
    with kernel() as live:
        live.run(f"import os; os.chdir({str(tmp_path)!r})")
        live.run("import ringtree, torch\nfrom ringtree import labs\nranks = ringtree.start(4, backend='gloo')")
        answer = live.run('lab = labs.open("deadlock-clinic", ranks)')
        assert answer.error is None, answer.traceback
        assert re.fullmatch(r"This machine: .+\n", answer.text)
        live.run(SHIFT.replace("isend, x, left", "isend, x, right").replace("irecv, got, right", "irecv, got, left"))
        answer = live.run('lab.check("shift")')
        assert answer.error == "CheckFailed" and "on 3 ranks" in answer.message
        live.run(SHIFT)
        assert live.run('lab.check("shift")').text.startswith("shift is right")
        live.run("ranks = ringtree.start(4)")  # other ranks, same lab
        assert live.run('lab.check("shift")').text.startswith("shift is right")
        live.run("ranks.stop()")
        assert live.run('lab.check("shift")').error == "UsageError"


def test_labs_name_no_machine_and_no_path():
    for path in [*SOURCES, *LABS.glob("release/*/*.ipynb")]:
        assert not re.search(r"/(home|root|tmp|Users)/", path.read_text(encoding="utf-8"))


# ---------------------------------------------------------------- what learners see of nbgrader

ASK_JUPYTER = """
import json, sys
from jupyter_server.serverapp import ServerApp
from jupyterlab_server.config import get_page_config
app = ServerApp()
app.initialize(argv=["--allow-root"], new_httpserver=False)
on = [name for name, extension in app.extension_manager.extensions.items() if extension.enabled]
print(json.dumps([on, get_page_config([])["disabledExtensions"]]), file=sys.__stdout__)
"""


def test_the_teachers_menus_do_not_show_in_make_lab():
    (line,) = [line for line in (LABS.parent / "Makefile").read_text().splitlines() if "export JUPYTER_CONFIG_PATH" in line]
    folder = re.search(r"\$\(CURDIR\)/([\w/]+)", line)[1]
    seen = {}
    for setting in "", str(LABS.parent / folder):
        env = {**os.environ, "JUPYTER_CONFIG_PATH": setting}
        done = subprocess.run([sys.executable, "-c", ASK_JUPYTER], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        seen[bool(setting)] = json.loads(done.stdout.splitlines()[-1])
    assert any("nbgrader" in name for name in seen[False][0])
    assert "jupyterlab" in seen[True][0] and not any("nbgrader" in name or name == "notebook" for name in seen[True][0])
    assert "@jupyter/nbgrader" not in seen[False][1] and "@jupyter/nbgrader" in seen[True][1]
