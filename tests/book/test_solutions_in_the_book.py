"""A lab's page shows our solutions folded, or none at all: in a small book with one lab, built with them and then without."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup

from ringtree.labs.release import place_of

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "_build" / "html"
SOURCES = sorted((ROOT / "labs" / "source").glob("*/*.ipynb"))
LAB = "labs/{}/10-ring-all-reduce/ring-all-reduce"
TOC = f"format: jb-book\nroot: book/errata\nchapters:\n  - file: {LAB.format('release')}\n"


def without_spaces(text):
    return re.sub(r"\s+", "", text)


def told(source):
    """What only our solutions say: the longer lines of their code, and the first words of what explains them."""
    for cell in nbformat.read(source, as_version=4).cells:
        if "solution" in cell.metadata.get("tags", ()):
            yield cell.source[:40]
        for solution in re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", cell.source, re.DOTALL):
            yield from (line.strip() for line in solution.splitlines() if len(line.strip()) > 30)


def terms(html):
    """The words that the book's search finds."""
    index = json.loads((html / "searchindex.js").read_text().removeprefix("Search.setIndex(").removesuffix(")"))
    return {*index["terms"], *index["titleterms"]}


@pytest.fixture(scope="module")
def small_book(tmp_path_factory):
    """Builds the small book, in one folder, with or without solutions; returns its pages' folder."""
    root = tmp_path_factory.mktemp("small")
    shutil.copytree(ROOT / "book", root / "book", ignore=shutil.ignore_patterns("fonts", "mathjax", "__pycache__"))
    (root / "book" / "vendor").mkdir(exist_ok=True)
    shutil.copy(ROOT / "_config.yml", root)
    (root / "_toc.yml").write_text(TOC)
    for kind in "source", "release":
        name = LAB.format(kind) + ".ipynb"
        (root / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / name, root / name)

    def build(solutions):
        command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build", str(root)]
        env = {**os.environ, "RINGTREE_SOLUTIONS": solutions}
        done = subprocess.run(command, cwd=root, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout
        return root / "_build" / "html"

    return build


def test_a_book_without_solutions_has_no_trace_of_them(small_book):
    source = ROOT / f"{LAB.format('source')}.ipynb"
    lines = [without_spaces(line) for line in told(source)]
    assert len(lines) > 20

    page = small_book("1") / f"{LAB.format('release')}.html"
    shown = without_spaces(BeautifulSoup(page.read_text(), "html.parser").get_text())
    assert sum(line in shown for line in lines) > 0.8 * len(lines)
    found = terms(page.parents[3])

    html = small_book("0")
    for path in html.rglob("*"):
        if path.is_file() and path.suffix in (".html", ".js", ".ipynb", ".inv", ".md", ".txt", ".json"):
            text = path.read_text(errors="replace").replace('\\"', '"')
            text = BeautifulSoup(text, "html.parser").get_text() if path.suffix == ".html" else text
            assert not [line for line in lines if line in without_spaces(text)], path.name
    assert not BeautifulSoup(page.read_text(), "html.parser").select(".solution")
    assert "p2pop" in found - terms(html) and terms(html) < found


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_every_lab_shows_its_solutions_folded_and_gives_away_the_release(source):
    learners = place_of(ROOT / "labs", source.relative_to(ROOT / "labs" / "source"))
    name = learners.relative_to(ROOT)
    page = BeautifulSoup((HTML / name).with_suffix(".html").read_text(), "html.parser")
    cells = nbformat.read(source, as_version=4).cells
    asked = [cell for cell in cells if cell.metadata.get("nbgrader", {}).get("solution")]
    folds = page.select("div.admonition.solution.dropdown")
    assert len(folds) == len(asked) and asked
    for fold, cell in zip(folds, asked):
        stub = fold.find_previous("div", class_="cell")
        assert "raise NotImplementedError" in stub.get_text()
        code = "\n".join(line for line in cell.source.split("\n") if "### " not in line)
        assert without_spaces(code) in without_spaces(fold.get_text())
    said = " ".join(cell.source for cell in cells if "solution" in cell.metadata.get("tags", ()))
    words = re.findall(r"[a-z]{5,}", re.sub(r"[$`].*?[$`]|\]\(\S+\)", "", said))
    inside = " ".join(fold.get_text() for fold in folds)
    assert len(words) > 20 and not [word for word in words if word not in inside]

    download = HTML / "_sources" / name
    assert download.read_bytes() == learners.read_bytes()
    (link,) = {a["href"] for a in page.select("a[href$='.ipynb']") if "download" in " ".join(a.get("class", ()))}
    assert (HTML / name.parent / link).resolve() == download
    assert "SOLUTION" not in json.dumps(download.read_text())
