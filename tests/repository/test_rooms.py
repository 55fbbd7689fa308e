"""The house: which room stands above which, how large a thing may get, and how few places a chapter needs."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

import ringtree

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "ringtree"
# From the top floor down: a room imports from those below it, never from one above. Below all lies the ground: files that
# stand in no room, which import each other only.
FLOORS = [
    "command",
    "explain",
    "prove",
    "labs",
    "doctor",
    "draw",
    "measure",
    "parallel",
    "theory",
    "simulated",
    "live",
    "algorithms",
    "data",
]
FILES = sorted(PACKAGE.rglob("*.py"))
NOTEBOOKS = sorted([*(ROOT / "notebooks").glob("*.ipynb"), *(ROOT / "labs" / "source").rglob("*.ipynb")])


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def room_of(path):
    """The room that a file of the package stands in; "" for the ground, None for the face and for `python -m ringtree`."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else None if parts[0] in ("__init__.py", "__main__.py") else ""


def imported(path):
    """The parts of ringtree that a file imports, at its top or inside a function: "live.cluster", "cost", …"""
    here = [*path.relative_to(PACKAGE.parent).with_suffix("").parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[2] for alias in node.names if alias.name.split(".")[0] == "ringtree")
        elif isinstance(node, ast.ImportFrom):
            module = (
                ".".join([*here[: len(here) - node.level], *([node.module] if node.module else [])])
                if node.level
                else node.module
            )
            if module == "ringtree":
                yield from (alias.name for alias in node.names)
            elif module.startswith("ringtree."):
                yield module.partition(".")[2]


def test_imports_point_downwards():
    ground = {each.stem for each in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    upwards = []
    for path in FILES:
        room = room_of(path)
        if room is None:
            continue  # the face shows what all rooms have
        below = FLOORS[FLOORS.index(room) :] if room else []
        below += ["command"] if path.name == "__main__.py" else []  # what `python -m ringtree.room` runs stands above
        upwards += [(name_of(path), name) for name in imported(path) if name.split(".")[0] not in {*below, *ground}]
    assert not upwards, "give it from a room below, or move it"


def test_every_room_has_a_floor():
    assert {room_of(path) for path in FILES} <= {*FLOORS, "", None}


@pytest.mark.parametrize("room", ["algorithms", "parallel"])
def test_what_is_to_be_read_and_copied_alone_imports_nothing_of_ours(room):
    for path in (PACKAGE / room).glob("*.py"):
        if path.name not in ("__init__.py", "__main__.py"):
            assert list(imported(path)) == []


def test_a_file_can_be_read_in_one_sitting():
    texts = {path: path.read_text() for path in FILES}
    assert not {name_of(path): lines for path, text in texts.items() if (lines := text.count("\n")) > 450}
    long = [
        f"{name_of(path)}: {node.name}, {lines} lines"
        for path, text in texts.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and (lines := node.end_lineno - node.lineno + 1 - docstring_lines(node))
        > (200 if isinstance(node, ast.ClassDef) else 60)
    ]
    assert not long, "a class has 200 lines at most, a function 60 and its docstring"


def docstring_lines(node):
    first = node.body[0]
    documented = isinstance(node, ast.FunctionDef) and isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return first.end_lineno - first.lineno + 1 if documented else 0


def test_algorithms_shows_every_program_and_nothing_else():
    from ringtree import algorithms

    shown = {name: getattr(algorithms, name) for name in algorithms.__all__}
    files = list((PACKAGE / "algorithms").glob("[a-z]*.py"))
    written = {
        node.name
        for path in files
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }
    assert written - shown.keys() == {"above", "depth", "two_trees", "up_and_down"}
    assert {program.__module__ for program in shown.values()} == {f"ringtree.algorithms.{path.stem}" for path in files}


# -- the face ------------------------------------------------------------------

FACE = """start simulate traced emulate timed follow cost_of lower_bound Link Machine Sketch Trace
Deadlock RankError RanksStuck RankDied""".split()


def test_the_face_shows_what_it_has_and_the_rooms():
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name in FLOORS and path.name != "command"}
    assert {*FACE, *rooms} <= set(dir(ringtree))
    assert all(getattr(ringtree, name) is not None for name in dir(ringtree))
    assert all(f"    {room}  " in ringtree.__doc__ for room in rooms)


@pytest.mark.parametrize(
    "first", ["simulated", "simulated.clock", "live.link.emulated", "live.link.tracing", "theory.costs", "draw", "measure"]
)
def test_the_face_works_whatever_was_imported_before(first):
    code = f"""
import ringtree.{first}
from ringtree.algorithms import ring_all_reduce
import ringtree
link = ringtree.Link(1.0, 0.5)
run = ringtree.simulate(ring_all_reduce, [ringtree.Sketch(8)] * 4, link)
assert run.makespan == ringtree.cost_of(ring_all_reduce, 4, 32, link).time, run
for name in {FACE}:
    assert callable(getattr(ringtree, name)), name
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd="/")


def test_a_room_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nowhere"):
        _ = ringtree.nowhere


# -- chapters ------------------------------------------------------------------

IMPORT = re.compile(r"^\s*from (ringtree[\w.]*) import |^\s*import (ringtree[\w.]*)", re.MULTILINE)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_a_chapter_imports_from_three_places_at_most_and_never_from_inside_a_room(path):
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    places = {"".join(found) for cell in cells for found in IMPORT.findall(cell)}
    assert not [place for place in places if place.count(".") > 1]
    assert len(places | {"ringtree"}) <= 3, sorted(places)
    assert len(places - {"ringtree", "ringtree.algorithms"}) <= 1
