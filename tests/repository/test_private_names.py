"""ringtree/live/README.md lists the private names of Jupyter's packages that the project uses, and the tests that notice a change."""

import ast
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
from helpers.requirements import DIRECT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "ringtree" / "live" / "README.md").read_text(encoding="utf-8")
PACKAGES = "ipykernel ipyparallel IPython jupyter_client jupyter_server jupyterlab_server tornado".split()
PYTHONS = {"_exit", "_getframe", "_replace"}
LOOKED_THROUGH = ["ringtree/live", "ringtree/labs", "book/jupyter", "hub"]
SCRIPT = ROOT / "book" / "jupyter" / "labextensions" / "rings-and-trees" / "static" / "extension.js"
JUPYTERLABS = {"_JUPYTERLAB"}  # the place where JupyterLab documents that an extension puts itself


def rows(heading):
    """Return the cells of each row of the table below a heading."""
    lines = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("|")][2:]


def quoted(cell):
    return re.findall(r"`([^`]+)`", cell)


NAMES = rows("Private names")
EVERY_ROW = [*NAMES, *rows("Public names that we replace or that have no documentation")]


def jupyters():
    """Return all private words in the code of Jupyter's packages."""
    files = [path for name in PACKAGES for path in Path(importlib.util.find_spec(name).origin).parent.rglob("*.py")]
    return {word for path in files for word in re.findall(r"\b_[a-zA-Z]\w*", path.read_text(encoding="utf-8"))}


def private_names(code):
    """Return the private names that a file takes of something else and does not make itself."""
    used, own = set(), set(PYTHONS)
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Attribute(ast.Name("self" | "cls"), name, ast.Store()):
                own.add(name)
            case ast.Attribute(_, name) | ast.Call(ast.Name("getattr"), [_, ast.Constant(str(name)), *_]) if name.startswith(
                "_"
            ):
                used.add(name)
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name) | ast.Name(name, ast.Store()):
                own.add(name)
    return {name for name in used - own if not name.startswith("__")}


def test_each_private_name_of_jupyter_that_is_used_is_listed_with_its_file():
    theirs = jupyters()
    used = {}
    for folder in LOOKED_THROUGH:
        for path in (ROOT / folder).rglob("*.py"):
            for name in private_names(path.read_text(encoding="utf-8")) & theirs:
                used.setdefault(name, set()).add(path.relative_to(ROOT).as_posix().removeprefix("ringtree/"))
    for name in set(re.findall(r"\b_[a-zA-Z]\w*", SCRIPT.read_text(encoding="utf-8"))) - JUPYTERLABS:
        used.setdefault(name, set()).add(SCRIPT.relative_to(ROOT).as_posix())
    listed = {name: set(quoted(where)) for names, _, _, where, _ in NAMES for name in quoted(names)}
    assert used == listed


def test_a_private_name_is_found_whether_it_is_read_set_or_asked_for():
    code = (
        "shell._one = 1\nx = f()._two\ngetattr(s, '_three', None)\nself._own = 1\nself._own\nos._exit(1)\na.__dict__\nb.plain"
    )
    assert private_names(code) == {"_one", "_two", "_three"}


@pytest.mark.parametrize("row", EVERY_ROW, ids=lambda row: row[0])
def test_each_row_names_a_test_and_files_that_are_there(row):
    names, _, _, where, test = row
    for place in quoted(where):
        path = next(path for path in (ROOT / place, ROOT / "ringtree" / place) if path.is_file())
        missing = [name for name in quoted(names) if name.rpartition(".")[2] not in path.read_text(encoding="utf-8")]
        assert not missing or len(quoted(where)) > 1, f"{place} does not use {missing}"
    (test,) = quoted(test)
    file, _, function = test.partition("::")
    assert (
        (ROOT / file).is_file() and f"def {function}(" in (ROOT / file).read_text(encoding="utf-8") or file.endswith(".ipynb")
    )


def test_the_versions_are_those_that_are_pinned_and_no_older_than_what_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    declared = {canonicalize_name(each.name): each for each in map(Requirement, sum(project.values(), []))}
    for package, oldest, newest in rows("Versions that were run"):
        assert newest == DIRECT[canonicalize_name(package)], f"{package}: say that the newest is the one in requirements.txt"
        assert oldest in declared[canonicalize_name(package)].specifier
