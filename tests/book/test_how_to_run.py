"""Every notebook's page says how to run it; a button leads to the hub where one is named, and to none where none is."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest
from bs4 import BeautifulSoup

ROOT = Path(__file__).resolve().parents[2]
import running

PAGES = sorted((ROOT / "_build" / "html" / "notebooks").glob("*.html")) + sorted(
    (ROOT / "_build" / "html" / "labs").rglob("*.html")
)


def shown(address, name, course=running.COURSE):
    app = SimpleNamespace(config=SimpleNamespace(hub_address=address, hub_course=course))
    context = {"body": "<h1>Title</h1><p>Text</p><h1>no title</h1>", "pathto": lambda name: f"../{name}.html"}
    running.say_how_to_run(app, name, "page.html", context, None)
    return context


def test_without_a_hub_there_is_a_line_and_no_button():
    context = shown("", "notebooks/06-reduce")
    line = BeautifulSoup(context["body"], "html.parser").select("p.how-to-run")
    assert [each.get_text() for each in line] == ["To run this page: make lab, then notebooks/06-reduce.ipynb. Set-up"]
    assert "header_buttons" not in context


@pytest.mark.parametrize("address", ["https://labs.example.org", "https://labs.example.org/"])
def test_with_a_hub_line_and_button_lead_to_this_notebook_there(address):
    context = shown(address, "notebooks/06-reduce")
    (button,) = context["header_buttons"]
    link = urlsplit(button["url"])
    assert f"{link.scheme}://{link.netloc}{link.path}" == "https://labs.example.org/hub/user-redirect/git-pull"
    asked = parse_qs(link.query)
    assert asked["urlpath"] == ["lab/tree/course/notebooks/06-reduce.ipynb"] and asked["targetPath"] == ["course"]
    (line,) = BeautifulSoup(context["body"], "html.parser").select("p.how-to-run")
    assert line.get_text() == "To run this page: make lab, then notebooks/06-reduce.ipynb, or open it on the hub. Set-up"
    assert [each["href"] for each in line.select("a")] == [button["url"], "../book/setup.html"]


def test_the_link_asks_for_the_course_that_make_hub_puts_there():
    spec = importlib.util.spec_from_file_location("hub_layout", ROOT / "hub" / "server" / "layout.py")
    layout = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(layout)
    (state,) = re.findall(r'^STATE = Path\("(.+)"\)$', (ROOT / "hub" / "server" / "install.py").read_text(), re.MULTILINE)
    theirs, ours = (urlsplit(link) for link in (layout.course_link(state), running.link_to_hub("", "notebooks/06-reduce")))
    opened = {"urlpath": ["lab/tree/course/notebooks/06-reduce.ipynb"]}
    assert ours.path == theirs.path and parse_qs(ours.query) == parse_qs(theirs.query) | opened


def test_on_another_hub_the_link_asks_for_the_repository_that_is_named():
    theirs = "https://git.example.org/course.git"
    (button,) = shown("https://labs.example.org", "notebooks/06-reduce", theirs)["header_buttons"]
    assert parse_qs(urlsplit(button["url"]).query)["repo"] == [theirs]


def test_a_page_that_is_no_notebook_says_nothing():
    assert shown("https://labs.example.org", "book/claims")["body"].count("how-to-run") == 0


def test_every_notebooks_page_has_the_line_once():
    assert PAGES, "run `make book`"
    for page in PAGES:
        found = BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser").select("p.how-to-run")
        assert len(found) == 1 and page.stem in found[0].get_text(), page.name


@pytest.fixture
def small_book(tmp_path):
    """Builds a book of two pages by the book's own settings, changed where told, as (pattern, text); returns the two pages."""
    shutil.copytree(ROOT / "book", tmp_path / "book", ignore=shutil.ignore_patterns("fonts", "mathjax", "__pycache__"))
    (tmp_path / "book" / "vendor").mkdir(exist_ok=True)
    (tmp_path / "notebooks").mkdir()
    shutil.copy(ROOT / "notebooks" / "01-ranks.ipynb", tmp_path / "notebooks")
    (tmp_path / "_toc.yml").write_text("format: jb-book\nroot: book/setup\nchapters:\n  - file: notebooks/01-ranks\n")

    def build(*changes):
        settings = (ROOT / "_config.yml").read_text()
        for pattern, text in changes:
            settings, found = re.subn(pattern, text, settings)
            assert found == 1, pattern
        (tmp_path / "_config.yml").write_text(settings)
        command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build", str(tmp_path)]
        done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout
        built = [tmp_path / "_build" / "html" / name for name in ("notebooks/01-ranks.html", "book/setup.html")]
        return [BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser") for page in built]

    return build


def test_a_book_that_is_built_again_once_the_settings_name_a_hub_has_the_button_on_its_notebooks_alone(small_book):
    notebook, other = small_book()
    assert notebook.select(".article-header-buttons .btn") and not notebook.select(".btn-launch-hub")
    assert "user-redirect" not in str(notebook) + str(other)

    theirs = "https://git.example.org/course.git"
    notebook, other = small_book(
        (r'(?<=hub_address: )""', "https://labs.example.org"),
        (r"# (hub_course: )\S+", rf"\1{theirs}"),
    )
    (button,) = notebook.select(".article-header-buttons a.btn-launch-hub")
    assert button["href"] == running.link_to_hub("https://labs.example.org", "notebooks/01-ranks", theirs)
    assert button["title"] == "Run this page on the hub" and button.select("i.fa-rocket")
    assert button["href"] in [link["href"] for link in notebook.select("p.how-to-run a")]
    assert not other.select(".btn-launch-hub, .how-to-run")
