"""Links to words, to labeled places and to pages, in a form that JupyterLab can follow.

Sphinx knows `{term}`, `{ref}` and links to a bare label. JupyterLab renders one notebook alone, so it shows these as links that
lead nowhere. `tools/normalise.py` stores links to files instead, `as_links`, and the build turns exactly these back, `as_roles`.
The glossary itself is stored as MyST writes one, with a colon before each definition, and Sphinx has the definition indented.
"""

import functools
import re
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent.parent
GLOSSARY = "book/glossary.md"
TERM = re.compile(r"\{term\}`(?:([^`<]+?) *<([^`>]+)>|([^`<]+))`")
REF = re.compile(r"\{ref\}`(?:([^`<]+?) *<([^`>]+)>|([^`<]+))`")
DOC = re.compile(r"\{doc\}`(?:([^`<]+?) *<([^`>]+)>|([^`<]+))`")
TO_A_LABEL = re.compile(r"(?<!!)\[([^\[\]]*)\]\(#?([a-z][\w-]*)\)")
LABEL = re.compile(r"^\(([a-z][\w-]*)\)=\n+(?:#+ (.+))?", re.MULTILINE)
ENTRIES = re.compile(r"(?<=^```\{glossary\}\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)


def markdown_of(path):
    """The Markdown of a page, whether it is a notebook or not."""
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    cells = nbformat.read(path, as_version=4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


@functools.cache
def labels():
    """{label: (page from the root of the project, heading below the label or None)}."""
    pages = [*ROOT.glob("notebooks/[0-9]*.ipynb"), *ROOT.glob("labs/release/*/*.ipynb"), *ROOT.glob("book/*.md")]
    return {
        found[1]: (page.relative_to(ROOT).as_posix(), found[2]) for page in pages for found in LABEL.finditer(markdown_of(page))
    }


@functools.cache
def words():
    """{id in JupyterLab: word} of the glossary."""
    entries = ENTRIES.search((ROOT / GLOSSARY).read_text(encoding="utf-8"))[0]
    return {id_of(line): line for line in entries.splitlines() if line and not line.startswith((":", " "))}


def id_of(word):
    """The id that jupyterlab-myst gives to a word of the glossary."""
    made = re.sub(r"^(?=[0-9-])", "id-", re.sub(r"[^a-z0-9-]", "-", word.lower()))
    return "term-" + re.sub(r"-+", "-", made).strip("-")


def as_links(text, up, own=()):
    """Markdown with links in place of roles. What is unknown stays, and the build says so.

    up: the way from the page to the root of the project. own: the labels on the page itself.
    """

    def to_a_word(match):
        shown, word = match[1] or match[3], match[2] or match[3]
        return f"[{shown}]({up}{GLOSSARY}#{id_of(word)})" if id_of(word) in words() else match[0]

    def to_a_label(match):
        shown, label = (match[1], match[2]) if match.re is TO_A_LABEL else (match[1], match[2] or match[3])
        if label not in labels():
            return match[0]
        page, heading = labels()[label]
        return f"[{shown or heading or label}]({'' if label in own else up + page}#{label})"

    def to_a_page(match):
        to = (match[2] or match[3]).lstrip("/")
        name = re.sub(r"^(\.\.?/)+", "", to)
        for path in (
            folder / f"{name}{kind}" for folder in (ROOT, ROOT / "notebooks", ROOT / "book") for kind in (".ipynb", ".md")
        ):
            if path.is_file():
                return f"[{match[1] or title_of(path)}]({to}{path.suffix})"
        return match[0]

    text = ENTRIES.sub(lambda entries: re.sub(r"^([^\s:].*\n)  (?=\S)", r"\1: ", entries[0], flags=re.MULTILINE), text)
    return TO_A_LABEL.sub(to_a_label, REF.sub(to_a_label, DOC.sub(to_a_page, TERM.sub(to_a_word, text))))


@functools.cache
def title_of(path):
    return re.search(r"^# (.+)$", markdown_of(path), re.MULTILINE)[1]


@functools.cache
def _pattern(up):
    return re.compile(
        rf"(?<!!)\[([^\[\]]+)\]\((?:{re.escape(up + GLOSSARY)}#(term-[^)\s]+)|({re.escape(up)}[^)#\s]+)?#([a-z][\w-]*))\)"
    )


def as_roles(text, up):
    """Markdown with the links of `as_links` as what Sphinx resolves itself, and says where it cannot."""

    def resolved(match):
        shown, word, page, label = match.groups()
        if word in words():
            return f"{{term}}`{shown} <{words()[word]}>`" if "`" not in shown else match[0]
        if label in labels() and (page is None or page == up + labels()[label][0]):
            return f"[{shown}]({label})"
        return match[0]

    text = ENTRIES.sub(lambda entries: re.sub(r"^: ", "  ", entries[0], flags=re.MULTILINE), text)
    return _pattern(up).sub(resolved, text)
