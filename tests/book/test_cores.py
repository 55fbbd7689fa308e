"""A chapter's core: what stands above the heading Further can be read in its printed minutes, and asks before it shows."""

import ast

import pytest
import routes

# Chapters that have no core yet. The list only gets shorter.
WITHOUT = {f"{number:02}" for number in range(1, 26)} - {"01", "02", "03", "04", "12"}
MOST_WORDS, MOST_CELLS, LEAST_GUESSES = 1200, 15, 3
CORES = {number: path for number, path in routes.chapters().items() if any(map(routes.is_further, routes.notebook(path).cells))}

every_core = pytest.mark.parametrize("number", CORES)


def names(cells):
    """What cells ask a reader to know of this package: what they import of it, and attributes of its rooms."""
    found = set()
    for cell in routes.shown(cells):
        lines = [line for line in cell.source.splitlines() if not line.startswith(("%", "!"))]
        tree = ast.parse("\n".join(lines))
        rooms = {"ringtree"}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "ringtree":
                found |= {each.name for each in node.names}
                rooms |= {each.asname or each.name for each in node.names}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id in rooms | {"ranks", "lab", "draw", "labs", "measure", "theory", "data"}:
                    found.add(f"{node.value.id}.{node.attr}")
    return found


def test_the_chapters_without_a_core_are_those_that_are_named():
    assert routes.chapters().keys() - CORES.keys() - {"00"} == WITHOUT


@every_core
def test_a_core_is_short(number):
    cells = routes.core(CORES[number])
    assert (routes.words(cells) <= MOST_WORDS, len(routes.shown(cells)) <= MOST_CELLS) == (True, True), (
        routes.words(cells),
        len(routes.shown(cells)),
    )


@every_core
def test_a_core_asks_before_it_shows(number):
    asked = [cell for cell in routes.core(CORES[number]) if cell.cell_type == "markdown" and "**Guess" in cell.source]
    assert len(asked) >= LEAST_GUESSES
    cells = routes.core(CORES[number])
    assert all(cells[cells.index(cell) + 1].cell_type == "code" for cell in asked), "a guess stands right before its cell"


@every_core
def test_further_says_for_whom_it_is(number):
    (heading,) = [cell.source for cell in routes.notebook(CORES[number]).cells if routes.is_further(cell)]
    assert "for " in heading.partition("## Further")[2].strip().split("\n\n")[0]


def test_the_first_cores_ask_for_few_names():
    asked = set().union(*(names(routes.core(CORES[number])) for number in CORES if number <= "05"))
    assert len(asked) <= 35, sorted(asked)
