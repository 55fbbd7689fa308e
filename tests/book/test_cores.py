"""A chapter's core: what stands above the heading Further can be read in its printed minutes, and asks before it shows."""

import re

import core_names
import pytest
import routes

# Chapters that have no core yet. The list only gets shorter.
WITHOUT = {f"{number:02}" for number in (*range(14, 19), *range(20, 26))}
MOST_WORDS, MOST_CELLS, LEAST_GUESSES, MOST_NAMES = 1200, 15, 3, 85
CORES = {number: path for number, path in routes.chapters().items() if routes.has_core(path) and number != "00"}

every_core = pytest.mark.parametrize("number", CORES)


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
    asked = set().union(*(core_names.used(routes.read(routes.core(CORES[number]))) for number in CORES if number <= "05"))
    assert len(asked) <= 25, sorted(asked)


def test_all_cores_together_ask_for_names_that_fit_on_one_card():
    asked = routes.first_uses()
    assert len(asked) <= MOST_NAMES, sorted(asked)
    card = (routes.ROOT / "book" / "names.md").read_text(encoding="utf-8")
    for name in asked:
        assert card.count(f"\n| `{name}` | ") == 1, f"{name} is not on the card: run python tools/routes.py"
    assert not re.findall(r"^\| `[^`]+` \|\s*\|", card, re.MULTILINE), "a name without a sentence: give it a docstring"


def test_a_name_counts_as_it_is_imported_and_with_what_is_taken_of_it():
    new = routes.nbformat.v4.new_code_cell
    cells = [new("from ringtree import bytes_text as KB, Link"), new("%%px\nx = Link.of(1, bandwidth=2)\nranks.pull('x')")]
    found = core_names.used(cells)
    assert found == {
        "bytes_text": ("ringtree", "bytes_text"),
        "Link": ("ringtree", "Link"),
        "Link.of": ("ringtree", "Link.of"),
        "ranks.pull": ("ringtree.live.cluster", "Ranks.pull"),
    }
    assert all(core_names.what_it_does(*place) for place in found.values())


def test_a_constant_is_described_by_the_string_below_it_and_not_by_its_type():
    told = core_names.what_it_does("ringtree.theory", "PRODUCT_RATE")
    assert told.startswith("Floating-point operations a second"), told
    assert core_names.what_it_does("ringtree", "theory.PRODUCT_RATE") == told
