"""The course that learners get: written whole, the same each time, and with no solution of a lab anywhere in it."""

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from ringtree import labs
from ringtree.labs.judging import judge
from ringtree.labs.lab import module_of
from ringtree.labs.release import place_of

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "labs" / "source").glob("*/*.ipynb"))
FIRST = [path for path in SOURCES if path.parent.name.startswith("00-")]  # its learners' notebook stands with the chapters
import course as making


def squeezed(text):
    return re.sub(r"\s+", "", text)


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def text_of(path):
    """What a reader finds in a file: of a notebook its cells and outputs, not the JSON around them."""
    if path.suffix != ".ipynb":
        return path.read_text(encoding="utf-8", errors="replace")
    cells = nbformat.read(path, as_version=4).cells
    return "\n".join([cell.source for cell in cells] + [json.dumps(cell.get("outputs", "")) for cell in cells])


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "course"
    making.write(folder)
    return folder


def test_the_course_has_what_learners_need_and_nothing_of_the_teachers(course):
    names = set(contents(course))
    assert {
        "README.md",
        "LICENSE",
        "LICENSE-text",
        "_toc.yml",
        "Makefile",
        "requirements.txt",
        "book/welcome.md",
        "ringtree/__init__.py",
    } <= names
    assert {path.name for path in course.glob("labs/release/*/*.ipynb")} == {path.name for path in SOURCES if path not in FIRST}
    assert {path.name for path in course.glob("notebooks/*.ipynb")} == {path.name for path in ROOT.glob("notebooks/*.ipynb")}
    assert {name.split("/")[1] for name in names if name.startswith("labs/")} == {"release"}
    assert not [name for name in names if name.startswith(("tests/", ".git", ".venv", "benchmarks/", "hub/", "_build/"))]
    assert not [name for name in names if "__pycache__" in name or name.endswith((".progress.json", ".pyc"))]


def test_it_is_the_same_each_time_and_what_is_gone_goes(course, tmp_path):
    making.write(tmp_path / "again")
    assert contents(tmp_path / "again") == contents(course)
    old, own = tmp_path / "again" / "notebooks" / "old" / "00-gone.ipynb", tmp_path / "again" / "notes.md"
    for path in old, own:
        path.parent.mkdir(exist_ok=True)
        path.write_text("text")
    noted = tmp_path / "again" / making.LIST
    noted.write_text(noted.read_text() + "notebooks/old/00-gone.ipynb\n")
    (tmp_path / "again" / "README.md").write_text("another")
    making.write(tmp_path / "again")
    assert own.exists()  # nobody's but the reader's
    own.unlink()
    assert contents(tmp_path / "again") == contents(course) and not old.parent.exists()


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path):
    (tmp_path / "notes.md").write_text("text")
    with pytest.raises(ValueError, match="is not empty and no course was written there"):
        making.write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.md"]


@pytest.fixture(scope="module")
def public():
    """What anybody may read: the chapters, their algorithms and hand-written trainings, and the hints. A line that stands there gives nothing away."""
    paths = [*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("notebooks/scripts/*.py"), *ROOT.glob("ringtree/algorithms/*.py")]
    paths += ROOT.glob("ringtree/parallel/*.py")
    hints = []
    for path in ROOT.glob("ringtree/labs/exercises/*.py"):
        hints += re.findall(r"^\w*HINTS = \(\n(.*?)^\)", path.read_text(), re.DOTALL | re.MULTILINE)
    joined = re.sub(r'"\s*\n\s*"', "", "\n".join(hints))
    return squeezed(joined + "\n".join(map(text_of, paths)))


def lines_of_solutions(source, public):
    """The lines of a lab's solutions, and the sentences about them, that stand nowhere else: not even in what the lab gives."""
    cells = nbformat.read(source, as_version=4).cells
    given = [cell.source for cell in cells if "SOLUTION" not in cell.source and "solution" not in cell.metadata.get("tags", ())]
    public += squeezed("\n".join(given))
    for cell in cells:
        if "solution" in cell.metadata.get("tags", ()):
            yield from (squeezed(sentence) for sentence in re.split(r"(?<=[.:])\s", cell.source) if len(sentence) > 25)
        for solution in re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", cell.source, re.DOTALL):
            lines = map(squeezed, solution.splitlines())
            yield from (line for line in lines if len(line) > 28 and line not in public)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_no_solution_of_a_lab_is_in_it(course, source, public):
    lines = list(lines_of_solutions(source, public))
    assert lines
    learners = course / place_of(ROOT / "labs", source.relative_to(ROOT / "labs" / "source")).relative_to(ROOT)
    release = squeezed(text_of(learners))
    found = {}
    for path in course.rglob("*"):
        if path.is_file() and path.suffix in (".py", ".ipynb", ".md", ".txt", ".json", ".yml", ".js"):
            text = release if path.name == learners.name else squeezed(text_of(path))
            if there := [line for line in lines if line in text]:
                found[path.relative_to(course).as_posix()] = there
    assert not found


EXERCISES = [(lab, name) for lab in labs.names() for name in module_of(lab).EXERCISES]


@pytest.mark.parametrize(("lab", "name"), EXERCISES)
def test_no_function_of_the_checks_is_an_answer(lab, name):
    module = module_of(lab)
    functions = [each for each in vars(module).values() if inspect.isfunction(each) and each.__module__ == module.__name__]
    assert functions
    for function in functions:
        assert judge(name, function, module.EXERCISES[name], seconds=0.5).fault, f"{function.__name__} answers {name}"


def test_a_lab_works_in_it(course, tmp_path):
    """With the course's own package, and nothing of this tree."""
    path = course / "labs" / "release" / "10-ring-all-reduce" / "ring-all-reduce.ipynb"
    notebook = nbformat.read(path, as_version=4)
    answer = next(cell for cell in notebook.cells if cell.id == "ring_all_reduce-answer")
    source = nbformat.read(ROOT / "labs" / "source" / path.relative_to(course / "labs" / "release"), as_version=4)
    answer.source = next(cell.source for cell in source.cells if cell.id == answer.id)
    kept = {"start", answer.id, "ring_all_reduce-check"}
    notebook.cells = [cell for cell in notebook.cells if cell.id in kept] + [nbformat.v4.new_code_cell("ringtree.__file__")]
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=90, kernel_name="python3", resources=resources).execute(
        env={**os.environ, "PYTHONPATH": str(course)}
    )
    *_, checked, place = notebook.cells
    assert checked.outputs[0].text.startswith("ring_all_reduce is right, and at the bound: 15 runs in the simulator, 2 on")
    assert str(course) in place.outputs[0].data["text/plain"]


def test_the_labs_solutions_are_not_in_its_book(course):
    """The page of a lab is made from its source where there is one."""
    code = "import solutions, sys; from pathlib import Path; print(solutions.text_of(Path(sys.argv[1]).resolve()))"
    path = course / "labs" / "release" / "10-ring-all-reduce" / "ring-all-reduce.ipynb"
    done = subprocess.run([sys.executable, "-c", code, str(path)], cwd=course / "book" / "ext", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(path.read_text())
