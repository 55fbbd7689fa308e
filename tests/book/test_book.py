"""The built book: built from this tree, whole, offline, executed, described, and not too heavy."""

import re
from collections import Counter
from functools import cache
from unittest.mock import Mock
from urllib.parse import unquote, urlsplit

import build
import citations
import links
import nbformat
import normalise
import pages
import pytest
import yaml
from bs4 import BeautifulSoup
from helpers.built import HTML, PAGES, ROOT, name_of
from myst_nb.core import render

MEGABYTE = 10**6
# In a chapter about measuring, half of the outputs may depend on the machine; elsewhere a quarter.
MEASURING = {"02-alpha-beta.ipynb", "16-measuring.ipynb", "18-predicting.ipynb"}

NOTEBOOKS = normalise.stored_notebooks()


every_page = pytest.mark.parametrize("page", PAGES, ids=name_of)
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)


def test_what_a_kernel_sends_in_pieces_is_joined_as_it_was_printed(monkeypatch):
    monkeypatch.setattr(render, "coalesce_streams", render.coalesce_streams)  # put back afterwards
    pages.setup(Mock())
    sent = [("stdout", "one li"), ("stderr", "oh\n"), ("stdout", "ne\n\nand"), ("stdout", " another\n")]
    outputs = [nbformat.v4.new_output("stream", name=name, text=text) for name, text in sent]
    assert [each["text"] for each in render.coalesce_streams(outputs)] == ["one line\n\nand another\n", "oh\n"]
    assert outputs[0]["text"] == "one li"


@cache
def soup(page):
    return BeautifulSoup(page.read_text(), "html.parser")


@cache
def anchors(page):
    return {tag["id"] for tag in soup(page).find_all(id=True)} | {
        tag["name"] for tag in soup(page).find_all("a", attrs={"name": True})
    }


def code_cells(path):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def tags(cell):
    return set(cell.metadata.get("tags", ()))


# ---- the book is there --------------------------------------------------------------------------


def test_the_book_was_built_from_this_tree_without_a_warning():
    assert build.STAMP.is_file(), "there is no finished book: `make book` says why"
    assert build.STAMP.read_text() == build.fingerprint(), "the book was built from other sources: run `make book`"


def test_every_page_of_the_table_of_contents_was_built():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    listed = [toc["root"]] + [entry["file"] for part in toc["parts"] for entry in part["chapters"]]
    missing = [name for name in listed if not (HTML / f"{name}.html").is_file()]
    assert not missing


def test_a_page_that_is_no_longer_in_the_table_of_contents_goes(monkeypatch, tmp_path):
    for name in ("book/welcome.html", "notebooks/00-gone.html", "labs/release/01-gone/gone.html"):
        (tmp_path / "html" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "html" / name).touch()
    monkeypatch.setattr(build, "BUILD", tmp_path)
    build.remove_old_pages()
    assert [path.stem for path in tmp_path.rglob("*.html")] == ["welcome"]


def test_every_chapter_is_in_the_table_of_contents():
    toc = (ROOT / "_toc.yml").read_text()
    chapters = [path for path in NOTEBOOKS if path.parent.name == "notebooks"]
    assert [path.name for path in chapters if f"notebooks/{path.stem}" not in toc] == []


# ---- nothing from the web -----------------------------------------------------------------------

REMOTE = re.compile(r"^\s*(https?:)?//", re.IGNORECASE)
IN_STYLE = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])\s*((?:https?:)?//[^"')\s]+)""")
LOADED = {
    "script": ["src"],
    "img": ["src", "srcset"],
    "iframe": ["src"],
    "source": ["src", "srcset"],
    "video": ["src"],
    "audio": ["src"],
    "embed": ["src"],
    "object": ["data"],
    "image": ["href", "xlink:href"],
    "use": ["href", "xlink:href"],
    "form": ["action"],
}
RELATIONS_NOT_LOADED = {"canonical", "search", "next", "prev", "index", "author"}


@every_page
def test_a_page_loads_nothing_from_the_web(page):
    found = []
    for tag, attributes in LOADED.items():
        found += [
            str(item)[:120] for item in soup(page).find_all(tag) for name in attributes if REMOTE.match(item.get(name, ""))
        ]
    for link in soup(page).find_all("link"):
        if REMOTE.match(link.get("href", "")) and not RELATIONS_NOT_LOADED & set(link.get("rel", [])):
            found.append(str(link))
    for styled in soup(page).find_all(style=True):
        found += IN_STYLE.findall(styled["style"])
    for inline in soup(page).find_all(["script", "style"]):
        if not inline.get("src") and inline.string:
            found += IN_STYLE.findall(inline.string) + re.findall(r"""["'](https?://[^"']+\.(?:m?js|css))["']""", inline.string)
    assert not found


def test_no_style_sheet_loads_anything_from_the_web():
    found = {name_of(path): IN_STYLE.findall(path.read_text(errors="replace")) for path in HTML.rglob("*.css")}
    assert not {name: urls for name, urls in found.items() if urls}


def test_every_font_is_there():
    sheet = HTML / "_static" / "fonts.css"
    fonts = re.findall(r'url\("([^"]+)"\)', sheet.read_text())
    assert fonts and all((sheet.parent / font).is_file() for font in fonts)


# ---- links --------------------------------------------------------------------------------------


@every_page
def test_internal_links_and_anchors_lead_somewhere(page):
    broken = []
    for link in soup(page).find_all("a", href=True):
        target = urlsplit(link["href"])
        if target.scheme or target.netloc:
            continue
        file = (page.parent / unquote(target.path)).resolve() if target.path else page
        if not file.is_file():
            broken.append(link["href"])
        elif target.fragment and file.suffix == ".html" and unquote(target.fragment) not in anchors(file):
            broken.append(link["href"])
    for tag, attribute in (("img", "src"), ("script", "src"), ("link", "href")):
        for item in soup(page).find_all(tag, attrs={attribute: True}):
            path = urlsplit(item[attribute]).path
            if not REMOTE.match(item[attribute]) and not item[attribute].startswith("data:") and path:
                if not (page.parent / unquote(path)).resolve().is_file():
                    broken.append(item[attribute])
    assert not broken


# ---- cells were run, figures are described ------------------------------------------------------


@every_page
def test_every_figure_has_a_text_of_its_own(page):
    article = soup(page).find("article") or soup(page)
    silent = [str(image)[:200] for image in article.find_all("img") if not image.get("alt", "").strip()]
    for drawing in article.find_all("svg"):
        inside_another = drawing.find_parent("svg") is not None
        hidden = drawing.get("aria-hidden") == "true" or "sd-octicon" in drawing.get("class", [])
        described = (
            drawing.get("aria-label") or drawing.find("title") or (drawing.find_parent("figure") or {}).get("aria-label")
        )
        if not (inside_another or hidden or described):
            silent.append(str(drawing)[:200])
    assert not silent


@every_page
def test_no_figure_was_left_as_its_text(page):
    article = soup(page).find("article") or soup(page)
    assert not [text.get_text() for text in article.select("div.output pre") if text.get_text().startswith("Figure: ")]


@every_notebook
def test_a_page_shows_the_output_of_every_cell_that_prints(path):
    page = HTML / path.relative_to(ROOT).with_suffix(".html")
    if not page.is_file():
        pytest.skip("this notebook is no page of the book")
    shown = {"remove-cell", "remove-output", "remove_cell", "remove_output"}
    printing = [cell for cell in code_cells(path) if cell.outputs and not tags(cell) & shown]
    with_output = soup(page).select("div.cell div.cell_output")
    assert len(with_output) >= len(printing)


@every_page
def test_no_page_is_over_3_MB(page):
    assert page.stat().st_size <= 3 * MEGABYTE


# ---- stored notebooks ---------------------------------------------------------------------------


@every_notebook
def test_stored_outputs_hold_text_only(path):
    kinds = Counter(
        kind for cell in code_cells(path) for output in cell.outputs for kind in output.get("data", {"text/plain": ""})
    )
    assert set(kinds) <= {"text/plain"}


@every_notebook
def test_a_stored_notebook_is_normalised(path):
    stored = nbformat.read(path, as_version=4)
    assert normalise.normalise(stored, normalise.way_up(path)) == stored, f"run python tools/normalise.py {name_of(path)}"


every_notebook_of_readers = pytest.mark.parametrize(
    "path", [*NOTEBOOKS, *sorted(ROOT.glob("notebooks/00-*.ipynb")), *sorted(ROOT.glob("labs/release/*/*.ipynb"))], ids=name_of
)


@every_notebook_of_readers
def test_links_to_pages_lead_to_files_so_that_jupyterlab_can_follow_them(path):
    text = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown")
    assert "{doc}" not in text
    links = re.findall(r"\]\((?!https?:)([^)#\s]+\.\w+)", text)
    assert not [link for link in links if not (path.parent / link).is_file()]


@every_notebook_of_readers
def test_every_link_to_a_labeled_place_is_one_that_the_build_resolves(path):
    cells = nbformat.read(path, as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    left = re.findall(r"\]\([^)#\s]+\.(?:ipynb|md)#[^)\s]+\)", links.as_roles(text, normalise.way_up(path)))
    assert left == []


def test_a_link_of_sphinx_becomes_one_to_the_file_with_its_title():
    def linked(text):
        cell = nbformat.v4.new_markdown_cell(text)
        return normalise.normalise(nbformat.v4.new_notebook(cells=[cell])).cells[0].source

    assert linked("see {doc}`12-ring-or-tree`.") == "see [Ring or tree?](12-ring-or-tree.ipynb)."
    assert (
        linked("{doc}`scatter <../../../notebooks/07-scatter-gather>`")
        == "[scatter](../../../notebooks/07-scatter-gather.ipynb)"
    )
    assert linked("{doc}`../book/glossary`") == "[Glossary](../book/glossary.md)"
    assert linked("{doc}`no-such-page`") == "{doc}`no-such-page`"  # the build names it


@every_notebook
def test_few_cells_depend_on_the_machine_and_each_asserts_what_the_page_claims(path):
    cells = [cell for cell in code_cells(path) if cell.outputs]
    free = [cell for cell in cells if "nbval-ignore-output" in tags(cell)]
    allowed = len(cells) / (2 if path.name in MEASURING else 4)
    assert len(free) <= allowed, f"{len(free)} of {len(cells)} cells with output are not checked"
    silent = [cell.id for cell in free if not re.search(r"^\s*assert\b", cell.source, re.MULTILINE)]
    assert not silent, f"these cells promise nothing: {silent}"


@every_notebook
def test_cell_ids_are_there_and_unique(path):
    ids = [cell.id for cell in nbformat.read(path, as_version=4).cells]
    assert len(ids) == len(set(ids))


# ---- one palette --------------------------------------------------------------------------------


def test_pages_and_figures_use_the_same_colour_for_a_rank():
    from ringtree.draw import RANK_COLOURS

    sheet = (ROOT / "book" / "_static" / "book.css").read_text()
    assert re.findall(r"--rank-\d: (#[0-9a-f]{6});", sheet) == list(RANK_COLOURS)
    for logo in ("logo-light.svg", "logo-dark.svg", "rank-key.svg"):
        assert re.findall(r'fill="(#[0-9a-f]{6})"', (ROOT / "book" / "_static" / logo).read_text()) == list(RANK_COLOURS)


SPHINX_ALONE = r"\{cite|\{literalinclude|\{doc\}|\{term\}|\{ref\}|\{eval-rst|\{labs\}|\{verdicts\}"


# -- citations, as JupyterLab can show them --------------------------------------


def test_a_citation_is_stored_as_a_link_and_cited_on_the_page():
    text = (
        "as {cite:t}`hockney1994` has it ({cite:p}`li2020ddp,zhao2023fsdp`), {cite:p}`nino2026mastering`, {cite:p}`nothing2000`"
    )
    stored = citations.as_links(text, "../")
    assert "[Hockney (1994)](https://doi.org/10.1016/S0167-8191%2806%2980021-9) has" in stored
    assert "([Li et al., 2020](https://doi.org/10.14778/3415478.3415530); [Zhao et al., 2023](" in stored
    assert "[Nino, 2026](../book/references.md#nino2026mastering)" in stored and "{cite:p}`nothing2000`" in stored
    assert citations.as_roles(stored, "../") == text


def test_no_two_works_are_stored_alike():
    for role in "pt":
        links = [citations.link(key, role, "../") for key in citations.works()]
        assert len(links) == len(set(links)) > 50


# Words, places and pages go the same way.


def test_words_places_and_pages_are_stored_as_links_and_resolved_on_the_page():
    text = "{term}`ranks <rank>`, {ref}`there <claim-9>`, [](claim-10), [it](why-batch), {doc}`setup`, {term}`nothing`, [x](y)"
    stored = links.as_links(text, "../", {"why-batch"})
    assert stored.startswith("[ranks](../book/glossary.md#term-rank), [there](../notebooks/03-point-to-point.ipynb#claim-9), [")
    assert stored.endswith("[it](#why-batch), [Set-up](setup.md), {term}`nothing`, [x](y)")
    resolved = links.as_roles(stored, "../")
    assert resolved.startswith("{term}`ranks <rank>`, [there](claim-9), [") and "](claim-10), [it](why-batch), [Set" in resolved
    assert links.as_links(resolved, "../", {"why-batch"}) == stored


def test_the_glossary_is_stored_as_myst_has_it_and_shown_as_sphinx_has_it():
    text = "```{glossary}\nα-β model\n  A model.\n  Of time.\n\nrank\n  A number.\n```\n\nend\n  x\n"
    stored = links.as_links(text, "../")
    assert "α-β model\n: A model.\n  Of time.\n\nrank\n: A number.\n" in stored and stored.endswith("end\n  x\n")
    assert links.as_roles(stored, "../") == text
    assert [links.id_of(word) for word in ("rank", "α-β model", "1F1B")] == ["term-rank", "term-id-model", "term-id-1f1b"]


def test_no_two_words_and_no_two_places_are_stored_alike():
    glossary = links.ENTRIES.search((ROOT / links.GLOSSARY).read_text())[0]
    assert len(links.words()) == len(re.findall(r"^: ", glossary, re.MULTILINE)) > 50
    pages = [ROOT / page for page in {page for page, _ in links.labels().values()}]
    found = [label[1] for page in pages for label in links.LABEL.finditer(links.markdown_of(page))]
    assert len(found) == len(set(found)) == len(links.labels()) > 50


@pytest.mark.parametrize("path", normalise.pages(), ids=name_of)
def test_a_page_is_stored_as_jupyterlab_can_show_it(path):
    text = path.read_text(encoding="utf-8")
    own = {label[1] for label in links.LABEL.finditer(text)}
    assert normalise.shown_anywhere(text, normalise.way_up(path), own) == text, "run python tools/normalise.py"
    assert not re.search(SPHINX_ALONE, text)


@every_notebook
def test_in_jupyterlab_too_nothing_is_left_for_sphinx_alone_and_answers_are_folded(path):
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            assert not re.search(SPHINX_ALONE, cell.source)
        elif "hide-cell" in cell.metadata.get("tags", ()):
            assert cell.metadata.jupyter == {"source_hidden": True, "outputs_hidden": True}
