"""Labels, and links inside the book: none of those that others may link to is lost, and each link leads to something."""

import re
from pathlib import Path
from urllib.parse import unquote

import links
import pytest
import routes

ROOT = routes.ROOT
KEPT = Path(__file__).with_name("labels.txt")
BOOK = [*routes.chapters().values(), *routes.labs().values(), *sorted((ROOT / "book").glob("*.md"))]
CODE = re.compile(r"^(`{3,}|~{3,})(?!\{).*?^\1[ ]*$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
WORKS = set(re.findall(r"^@\w+\{([^,]+),", (ROOT / "book" / "references.bib").read_text(encoding="utf-8"), re.MULTILINE))
LINK = re.compile(r"(?<!!)\[[^\[\]]*\]\(([^)\s]+)\)")


def test_no_label_that_the_book_had_is_lost():
    kept = KEPT.read_text(encoding="utf-8").split()
    assert kept == sorted(set(kept)) and len(kept) > 50
    lost = set(kept) - links.labels().keys()
    assert not lost, f"pages elsewhere may link to these labels: {sorted(lost)}. Put each where its text is now"
    new = links.labels().keys() - set(kept)
    assert not new, f"add these labels to tests/book/labels.txt, sorted: {sorted(new)}"


def test_no_label_is_given_twice():
    given = [found[1] for page in BOOK for found in links.LABEL.finditer(links.markdown_of(page))]
    assert not {label for label in given if given.count(label) > 1}


@pytest.mark.parametrize("page", BOOK, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_each_link_inside_the_book_leads_to_something(page):
    lost = [target for target in targets(page) if not is_there(page, target)]
    assert not lost


def targets(page):
    """Return where the links of a page lead that stay in the book, those in code apart."""
    found = LINK.findall(CODE.sub("", links.markdown_of(page)))
    return [unquote(each) for each in found if not re.match(r"\w+:", each)]


def is_there(page, target):
    path, _, place = target.partition("#")
    to = (page.parent / path).resolve() if path else page
    if not place and links.LABEL.match(f"({target})=\n\n"):
        return target in links.labels()  # a bare label
    if not to.is_file() and not (to.is_dir() and not place):
        return False
    return not place or place in places(to)


def places(page):
    """Return the labels of a page and its headings, as MyST names them; of two pages their words and their works too."""
    headings = re.findall(
        r"^#+ (.+)$",
        CODE.sub(lambda code: code[0].strip("`") if "\n" not in code[0] else "", links.markdown_of(page)),
        re.MULTILINE,
    )
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
    more = (
        links.words().keys() if page == ROOT / links.GLOSSARY else WORKS if page == ROOT / "book" / "references.md" else set()
    )
    return slugs | more | {found[1] for found in links.LABEL.finditer(links.markdown_of(page))}


@pytest.mark.parametrize(
    "target", ["nowhere.md", "#no-such-place", "no-such-label", "notation.md#no-such-place", "../notebooks/99-x.ipynb"]
)
def test_a_link_to_nothing_is_found(target):
    assert not is_there(ROOT / "book" / "welcome.md", target)


@pytest.mark.parametrize("page", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda page: page.stem)
def test_a_label_in_another_notebook_is_named_by_the_path_that_the_build_knows(page):
    """The build finds labels behind `../notebooks/NAME.ipynb#label` alone; without the folder it finds headings."""
    beside = [each for each in targets(page) if "#" in each and not each.startswith(("#", "../"))]
    assert not [each for each in beside if each.partition("#")[2] in links.labels()]
