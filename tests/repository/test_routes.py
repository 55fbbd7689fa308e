"""The routes: their stops are there, in an order that can be read, and what pages print of them is up to date."""

import re

import pytest
import routes

EVERY_ROUTE = pytest.mark.parametrize("route", routes.plan()["routes"], ids=lambda route: route["name"])


@EVERY_ROUTE
def test_a_route_leads_to_nothing_that_needs_what_it_leaves_out(route):
    stops = routes.stops_of(route)
    assert len(stops) == len(set(stops)) and all(routes.path_of(stop).is_file() for stop in stops)
    for place, stop in enumerate(stops):
        number = stop.removeprefix("lab ")
        before = {number} if stop != number else set(routes.plan()["needs"].get(stop, ()))
        assert before <= set(stops[:place]), f"{stop} comes before what it needs"


def test_every_chapter_says_what_it_needs():
    assert routes.plan()["needs"].keys() == routes.chapters().keys()
    assert set(routes.stops_of(routes.plan()["routes"][-1])) == {*routes.chapters(), *(f"lab {each}" for each in routes.labs())}


def links_under_your_turn(cells):
    """The labs that a chapter's section "Your turn" leads to."""
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    sections = re.findall(r"^## Your turn\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return [lab for section in sections for lab in re.findall(r"\]\(\.\./labs/release/(\S+)\.ipynb\)", section)]


@pytest.mark.parametrize("number", sorted(routes.labs()))
def test_every_chapter_leads_to_its_lab_before_what_can_be_left_out(number):
    lab = routes.labs()[number]
    assert links_under_your_turn(routes.core(routes.chapters()[number])) == [f"{lab.parent.name}/{lab.stem}"]


def test_heads_and_pages_are_up_to_date():
    stale = [path for path, text in routes.wanted() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run python tools/routes.py"


# Chapters whose last line is still written by hand. The list only gets shorter.
BY_HAND = {"08"}


@pytest.mark.parametrize("number", sorted(routes.chapters().keys() - BY_HAND))
def test_a_chapter_ends_with_the_next_chapter_of_every_route(number):
    texts = [cell.source for cell in routes.notebook(routes.chapters()[number]).cells if cell.cell_type == "markdown"]
    last = [line for text in texts for line in text.splitlines() if line.startswith("Next: ")]
    parted = len(routes.following(number, routes.chapters().__contains__)) > 1
    assert last == [routes.foot_of(number)] if parted and number != "00" else len(last) <= 1


def test_minutes_grow_with_what_is_read_and_leave_folds_out(tmp_path):
    def minutes_of(*cells):
        path = tmp_path / "notebooks" / f"{len(list(tmp_path.rglob('*.ipynb'))):02}-x.ipynb"
        path.parent.mkdir(exist_ok=True)
        nbformat = routes.nbformat
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# x"), *cells])
        nbformat.write(notebook, path)
        return routes.minutes(path.rename(path.with_name(f"1{path.name[1:]}")))

    new = routes.nbformat.v4
    words = new.new_markdown_cell("word " * 3000)
    code = new.new_code_cell("x = 1\n" * 240)
    folded = new.new_code_cell("x = 1\n" * 240, metadata={"tags": ["hide-cell"]})
    answer = new.new_markdown_cell("word ```{admonition} Answer\n:class: dropdown\n" + "word " * 3000 + "\n```")
    assert (minutes_of(), minutes_of(words), minutes_of(code), minutes_of(words, folded, answer)) == (0, 20, 20, 20)
