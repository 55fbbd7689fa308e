"""The book's own Sphinx extension: outputs of live ranks, no script from the web, cells that show their ranks.

- A chapter is shown with the outputs of its kept run (`book/executed.py`), and read again where they are new.
- Scripts and styles of thebe, which would be fetched from the web, are left out of every page.
- What a cell prints is joined as it was printed.
- A `%%px` cell gets a stripe that says it runs on every rank. In its output each rank's lines
  carry that rank's colour, and a report of an error opens with its name in bold.
- Long lines are marked, so that a narrow screen can fold them under themselves, and what is printed in
  columns says how wide it is, so that a narrow screen can set it small enough.
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

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "book"))

import executed  # noqa: E402

RANK_LINE = re.compile(r"^((?:<span></span>)?)\[rank (\d+)\]( ?)", re.MULTILINE)
ERROR_NAME = re.compile(r"^((?:<span></span>)?)([A-Z]\w+)(?=: )", re.MULTILINE)
OUTPUT_TEXT = re.compile(r'(<div class="output [^"]*">.*?<pre>)(.*?)(</pre>)', re.DOTALL)
SET_TEXT = re.compile(r'(<div class="([^"]*\bhighlight-[^"]*)"><div class="highlight">)<pre>(.*?)</pre>', re.DOTALL)
TAG = re.compile(r"<[^>]*>")
IN_COLUMNS = re.compile(r"\S {2,}\S")
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


def show_the_kept_run(app, docname, source):
    """Give a chapter the outputs of its kept run, pictures included."""
    if docname.startswith("notebooks/"):
        source[0] = executed.text_of(ROOT / f"{docname}.ipynb")
        shown(app.env)[docname] = hash_of(source[0])


def chapters_with_new_outputs(app, env, added, changed, removed):
    """The chapters whose kept run is another than the one that they show."""
    chapters = [name for name in env.found_docs if name.startswith("notebooks/")]
    return [name for name in chapters if shown(env).get(name) != hash_of(executed.text_of(ROOT / f"{name}.ipynb"))]


def hash_of(text):
    return hashlib.sha256(text.encode()).hexdigest()


def shown(env):
    """Of each chapter that was read, a hash of its text with the outputs that it shows."""
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


def join_streams(outputs):
    """Text of one stream as one output, to the letter.

    A kernel sends it in pieces that may end anywhere. myst-nb, which would join them itself, puts each on a line of its own.
    """
    joined, streams = [], {}
    for output in outputs:
        if output["output_type"] == "stream":
            if output["name"] in streams:
                streams[output["name"]]["text"] += output["text"]
                continue
            output = streams[output["name"]] = output.copy()
        joined.append(output)
    return joined


def join_streams_first(coalesce):
    return lambda outputs: coalesce(join_streams(outputs))


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
        columns = max((len(line) for line in said if IN_COLUMNS.search(line)), default=0) if is_printed(kind) else 0
        widest = max(columns, *(len(line) for line in said if len(line) <= FOLDED)) if is_printed(kind) else 0
        about = ' class="scrolls"' if columns > SMALLEST else ""
        if widest > FULL_SIZE:
            about += f' style="--letters:{min(widest, SMALLEST)}"'
        if columns <= SMALLEST:
            text = "".join(map(folding, lines, said)).removesuffix("\n")
        return f"{opening}<pre{about}>{text}</pre>"

    def folding(line, words):
        if len(words) <= FULL_SIZE:
            return f"{line}\n"
        # The line's end stands inside: after a block of its own it would be an empty line.
        return f'<span class="long" style="--indent:{len(words) - len(words.lstrip())}">{line}\n</span>'

    if context.get("body"):
        context["body"] = SET_TEXT.sub(marked, context["body"])


def is_printed(kind):
    """Whether a block is what a cell printed: not code, and no report of an error, which folds anyway."""
    return bool({"stream", "text_plain"} & set(kind.split())) and "stderr" not in kind


def setup(app):
    render.coalesce_streams = join_streams_first(render.coalesce_streams)
    app.add_lexer(RankCell.name, RankCell)
    app.connect("env-get-outdated", chapters_with_new_outputs)
    app.connect("source-read", show_the_kept_run)
    app.connect("doctree-read", mark_rank_cells)
    app.connect("html-page-context", leave_out_thebe, priority=900)
    app.connect("html-page-context", dress_outputs, priority=900)
    app.connect("html-page-context", mark_long_lines, priority=901)  # after each line has its rank
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}
