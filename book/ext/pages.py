"""The book's own Sphinx extension: outputs of live ranks, no script from the web, cells that show their ranks.

- A chapter is shown with the outputs of its kept run (`book/ext/executed.py`), a lab with its solutions folded
  (`book/ext/solutions.py`), and each is read again where these are new.
- Scripts and styles of thebe, which would be fetched from the web, are left out of every page.
- What a cell prints is joined as it was printed.
- A `%%px` cell gets a stripe that says it runs on every rank. In its output each rank's lines
  carry that rank's colour, and a report of an error opens with its name in bold.
- Long lines are marked, so that a narrow screen can fold them under themselves, and what is printed in
  columns says how wide it is, so that a narrow screen can set it small enough.
- Long names in tables may break after a dot or an underscore, so that a narrow screen need not break them elsewhere.
"""

import hashlib
import html
import re
import sys
from pathlib import Path

from docutils import nodes
from myst_nb.core import render
from pygments.lexer import RegexLexer, bygroups, using
from pygments.lexers.python import PythonLexer
from pygments.token import Comment, Keyword, Whitespace

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "book" / "ext"))

import citations
import executed
import links
import solutions

RANK_LINE = re.compile(r"^((?:<span></span>)?)\[rank (\d+)\]( ?)", re.MULTILINE)
ERROR_NAME = re.compile(r"^((?:<span></span>)?)([A-Z]\w+)(?=: )", re.MULTILINE)
OUTPUT_TEXT = re.compile(r'(<div class="output [^"]*">.*?<pre>)(.*?)(</pre>)', re.DOTALL)
SET_TEXT = re.compile(r'(<div class="([^"]*\bhighlight-[^"]*)"><div class="highlight">)<pre>(.*?)</pre>', re.DOTALL)
TAG = re.compile(r"<[^>]*>")
GAPS = re.compile(r"(?<=\S) {2,}(?=\S)")
BEFORE_A_COMMENT = re.compile(r"(?<=  )( +)(?=<span class=\"c1\">)")
AFTER_AN_OPENING = re.compile(r"(<span class=\"[op]\">[^<]*[.(\[]</span>)")
TABLE_CELL = re.compile(r"<t([dh])\b.*?</t\1>", re.DOTALL)
WORDS, LONG_NAME = re.compile(r">[^<\\]+<"), re.compile(r"\w[\w.]{13,}")  # a formula, with its backslashes, is no word
# How many letters of code or output a phone 390 pixels wide has room for: at the full size, where a sentence is better
# folded than made smaller, and at 8.5 pixels, below which nobody can read.
FULL_SIZE, FOLDED, SMALLEST = 44, 52, 68


class RankCell(RegexLexer):
    """A `%%px` cell: the magic's own line, then Python."""

    name = "rank-cell"
    tokens = {
        "root": [
            (r"(%%px)([^\n]*)(\n|$)", bygroups(Keyword, Comment, Whitespace)),
            (r"(?s).+", using(PythonLexer)),
        ]
    }


FIRST = "notebooks/00-first-evening"
MADE = {"notebooks": executed.text_of, "labs": solutions.text_of}  # by folder: the text of a page that is more than its file


def text_of(docname):
    """The notebook that a page shows, or None where the page's own file is all there is."""
    made = solutions.text_of_the_first if docname == FIRST else MADE.get(docname.partition("/")[0])
    return made and for_sphinx(made(ROOT / f"{docname}.ipynb"), docname)


def for_sphinx(text, docname):
    """The text of a page with the links that JupyterLab can follow as the roles that Sphinx resolves."""
    up = "../" * docname.count("/")
    return links.as_roles(citations.as_roles(text, up), up)


def show_more_than_the_file(app, docname, source):
    """Give a chapter the outputs of its kept run, pictures included, and a lab its solutions."""
    if text := text_of(docname):
        source[0] = text
        shown(app.env)[docname] = hash_of(text)
    else:
        source[0] = for_sphinx(source[0], docname)


def pages_that_show_something_old(app, env, added, changed, removed):
    """The chapters whose kept run is another than the one that they show, and the labs whose solutions are others."""
    if getattr(env, "ringtree_solutions", None) != solutions.are_shown():
        env.ringtree_solutions = solutions.are_shown()
        Path(app.outdir, "searchindex.js").unlink(missing_ok=True)  # it would keep the words that a page no longer has
        return list(env.found_docs)
    made = {name: text_of(name) for name in env.found_docs}
    return [name for name, text in made.items() if text and shown(env).get(name) != hash_of(text)]


def hash_of(text):
    return hashlib.sha256(text.encode()).hexdigest()


def shown(env):
    """Of each notebook that was read, a hash of its text with all that it shows."""
    if not hasattr(env, "ringtree_shown"):
        env.ringtree_shown = {}
    return env.ringtree_shown


def mark_rank_cells(app, doctree):
    """Tell cells that run on every rank from cells that run in the notebook."""
    for cell in doctree.findall(lambda node: isinstance(node, nodes.container) and "cell" in node["classes"]):
        source = next(cell.findall(nodes.literal_block), None)
        if source is None or not source.astext().startswith("%%px"):
            continue
        source["language"] = RankCell.name
        options = source.astext().splitlines()[0].split()
        cell["classes"].append("some-ranks" if {"--targets", "-t"} & set(options) else "every-rank")
        if "--local" in options:
            cell["classes"].append("here-too")


def join_streams_first(coalesce):
    return lambda outputs: coalesce(executed.join_streams(outputs))


def leave_out_thebe(app, name, template, context, doctree):
    def ours(item):
        return "thebe" not in str(getattr(item, "filename", item)) + str(getattr(item, "attributes", ""))

    for kind in ("script_files", "css_files"):
        context[kind][:] = [item for item in context.get(kind, []) if ours(item)]


def dress_outputs(app, name, template, context, doctree):
    def lines(match):
        before, text, after = match.groups()
        if 'class="output traceback' in before or 'class="output error' in before:
            text = ERROR_NAME.sub(r'\1<span class="error-name">\2</span>', text)
        return before + RANK_LINE.sub(badge, text) + after

    def badge(match):
        opening, rank, space = match.groups()
        return f'{opening}<span class="rank rank-{int(rank) % 8}">[rank {rank}]</span>{space}'

    if context.get("body"):
        context["body"] = OUTPUT_TEXT.sub(lines, context["body"])


def mark_long_lines(app, name, template, context, doctree):
    """Long lines, each in a span that knows its indent; columns never fold, and wide ones scroll."""

    def marked(match):
        opening, kind, text = match.groups()
        lines = text.split("\n")
        said = [html.unescape(TAG.sub("", line)) for line in lines]
        rows = [is_printed(kind) and is_a_row(line) for line in said]
        columns = max((len(line) for line, row in zip(said, rows) if row), default=0)
        widest = max(columns, *(len(line) for line in said if len(line) <= FOLDED)) if is_printed(kind) else 0
        about = ' class="scrolls"' if columns > SMALLEST else ""
        if columns or widest > FULL_SIZE:
            about += f' style="--letters:{min(widest, SMALLEST)}"'
        kept = [row and columns > SMALLEST for row in rows]
        return f"{opening}<pre{about}>{''.join(map(folding, lines, said, kept)).removesuffix(chr(10))}</pre>"

    def folding(line, words, kept):
        if kept or len(words) <= FULL_SIZE:
            return f"{line}\n"
        indent = len(words) - len(words.lstrip())
        line = BEFORE_A_COMMENT.sub(r'<span class="gap">\1</span>', line)
        if indent + 4 + max(map(len, words.split())) > FULL_SIZE:
            line = AFTER_AN_OPENING.sub(r"\1<wbr>", line)
        # The line's end stands inside: after a block of its own it would be an empty line.
        return f'<span class="long" style="--indent:{indent}">{line}\n</span>'

    if context.get("body"):
        context["body"] = SET_TEXT.sub(marked, context["body"])


def is_a_row(line):
    """Whether a printed line is a row of columns. A wide one has several gaps, or a wide gap: a sentence may have a small one."""
    gaps = GAPS.findall(line)
    return bool(gaps) and (len(line) <= SMALLEST or len(gaps) > 1 or len(gaps[0]) > 3)


def break_names_in_tables(app, name, template, context, doctree):
    """Where a long name in a table may break, so that a column of names leaves room for the others."""

    def breakable(name):
        return re.sub(r"(?<=\w)([._])(?=\w)", r"\1<wbr>", name[0])

    def in_words(words):
        return LONG_NAME.sub(breakable, words[0])

    if context.get("body"):
        context["body"] = TABLE_CELL.sub(lambda cell: WORDS.sub(in_words, cell[0]), context["body"])


def is_printed(kind):
    """Whether a block is what a cell printed: not code, and no report of an error, which folds anyway."""
    return bool({"stream", "text_plain"} & set(kind.split())) and "stderr" not in kind


def setup(app):
    render.coalesce_streams = join_streams_first(render.coalesce_streams)
    app.add_lexer(RankCell.name, RankCell)
    app.connect("env-get-outdated", pages_that_show_something_old)
    app.connect("source-read", show_more_than_the_file)
    app.connect("doctree-read", mark_rank_cells)
    app.connect("html-page-context", leave_out_thebe, priority=900)
    app.connect("html-page-context", dress_outputs, priority=900)
    app.connect("html-page-context", mark_long_lines, priority=901)  # after each line has its rank
    app.connect("html-page-context", break_names_in_tables, priority=900)
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}
