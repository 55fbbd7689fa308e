"""Make stored notebooks comparable: text only, nothing of the machine or the moment. And links that JupyterLab can follow.

    python tools/normalise.py [--execute] [NOTEBOOK …]

Without names: every chapter, every lab source and the pages in `book`. With --execute each is run first, from the
top in a fresh kernel.
"""

import argparse
import copy
import re
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "book" / "ext"))

import citations
import links
from executed import execute_and_keep, join_streams

from ringtree.watching import without_colors

KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
WIDGET = "application/vnd.jupyter.widget-view+json"
KEPT_METADATA = {"tags", "mystnb", "editable", "deletable", "nbgrader", "slideshow", "jupyter"}
CELL_FILE = re.compile(r"/\S*/ipykernel_\d+/\d+\.py")
HIDDEN = {
    "hide-cell": ("source_hidden", "outputs_hidden"),
    "hide-input": ("source_hidden",),
    "hide-output": ("outputs_hidden",),
}
SCRIPT = re.compile(r"```(?:\{literalinclude\} |python\n# )(scripts/[\w-]+\.py)\n.*?\n```(?=\n|$)", re.DOTALL)


def stored_notebooks():
    """Every notebook whose outputs are stored and checked: chapters and lab sources."""
    chapters = sorted((ROOT / "notebooks").glob("*.ipynb"))
    chapters = [path for path in chapters if not path.name.startswith("00-")]  # made from its lab source, with blanks
    labs = sorted((ROOT / "labs" / "source").rglob("*.ipynb"))
    return [path for path in chapters + labs if ".ipynb_checkpoints" not in path.parts]


def normalise(notebook, up="../"):
    """Return a copy of a notebook whose outputs hold text only and whose metadata is stable.

    What Sphinx alone can show is stored as JupyterLab can show it too: links, citations, scripts, what is folded.
    up: the way from the notebook to the root of the project.
    """
    found = copy.deepcopy(notebook)
    found.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}})
    found.nbformat, found.nbformat_minor = 4, 5
    pages = [cell.source for cell in found.cells if cell.cell_type == "markdown"]
    own = {label[1] for page in pages for label in links.LABEL.finditer(page)}
    count = 0
    for cell in found.cells:
        if cell.cell_type == "markdown":
            cell.source = shown_anywhere(cell.source, up, own)
        cell.metadata = nbformat.from_dict({key: cell.metadata[key] for key in cell.metadata if key in KEPT_METADATA})
        if cell.cell_type == "code":
            count += 1  # as a run from the top counts; nbval takes a cell without a count as never run
            cell.execution_count = count
            if hidden := {name: True for tag in cell.metadata.get("tags", ()) for name in HIDDEN.get(tag, ())}:
                cell.metadata["jupyter"] = hidden
            texts = (text_only(output, count) for output in cell.outputs)
            cell.outputs = join_streams(output for output in texts if output is not None)
    return found


def shown_anywhere(text, up, own=()):
    """Markdown with what Sphinx alone can show in a form that JupyterLab shows too. own: the labels on the page itself."""
    return SCRIPT.sub(with_script, citations.as_links(links.as_links(text, up, own), up))


def pages():
    """The pages of the book that are not notebooks."""
    return sorted((ROOT / "book").glob("*.md"))


def with_script(match):
    """A listing that begins with the name of a script in `notebooks/scripts`, with that script of today in it."""
    script = ROOT / "notebooks" / match[1]
    return f"```python\n# {match[1]}\n{script.read_text(encoding='utf-8').rstrip()}\n```" if script.is_file() else match[0]


def way_up(path):
    """The way from a notebook to the root of the project, as its links have it."""
    return "../" * (len(path.resolve().relative_to(ROOT).parts) - 1)


def text_only(output, count):
    """The text of an output, or None where it has none."""
    if output.output_type == "stream":
        return output
    if output.output_type == "error":
        output.traceback = [without_paths(line) for line in output.traceback]
        return output
    if WIDGET in output.data or "text/plain" not in output.data:
        return None
    output.data = nbformat.from_dict({"text/plain": output.data["text/plain"]})
    output.metadata = nbformat.from_dict({})
    if output.output_type == "execute_result":
        output.execution_count = count
    return output


def without_paths(text):
    """A traceback without colours and without this machine's folders."""
    text = without_colors(text)
    text = CELL_FILE.sub("cell", text)
    for folder in (str(ROOT), sys.prefix, sys.base_prefix, str(Path.home())):
        text = text.replace(folder + "/", "")
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: every chapter and lab source")
    parser.add_argument("--execute", action="store_true", help="run each notebook first")
    given = parser.parse_args()
    for path in () if given.notebooks else pages():
        text = path.read_text(encoding="utf-8")
        path.write_text(
            shown_anywhere(text, way_up(path), {label[1] for label in links.LABEL.finditer(text)}), encoding="utf-8"
        )
    for path in given.notebooks or stored_notebooks():
        path = path.resolve()
        print(f"{path.name}: {'running' if given.execute else 'normalising'}", flush=True)
        notebook = execute_and_keep(path) if given.execute else nbformat.read(path, as_version=4)
        nbformat.write(normalise(notebook, way_up(path)), path)


if __name__ == "__main__":
    sys.exit(main())
