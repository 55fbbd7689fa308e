"""The book in JupyterLab as `make lab` opens it: no warning, no empty box, no open answer, no dead link, nothing too wide.

One server and one browser serve all pages, and no kernel runs. The usual suite opens a sample; with RINGTREE_NIGHTLY all.
"""

import os
import re
import shutil
from urllib.parse import unquote, urlsplit

import links
import nbformat
import pytest
import torch
from helpers.browser import find_chromium, launched
from helpers.jupyterlab import ROOT, TOKEN, lab
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from ringtree import draw, follow
from ringtree.algorithms import ring_all_reduce

pytestmark = pytest.mark.skipif(not find_chromium(), reason="no Chromium found on this machine")
NIGHTLY = bool(os.environ.get("RINGTREE_NIGHTLY"))
PAGES = [
    path.relative_to(ROOT).as_posix()
    for pattern in ("notebooks/*.ipynb", "labs/release/*/*.ipynb", "book/*.md")
    for path in sorted(ROOT.glob(pattern))
]
SAMPLE = [
    "notebooks/00-first-evening.ipynb",
    "notebooks/10-ring-all-reduce.ipynb",
    "labs/release/10-ring-all-reduce/ring-all-reduce.ipynb",
    "book/start.md",
    "book/glossary.md",
]
IN_THE_DARK = ["notebooks/00-first-evening.ipynb", "notebooks/03-point-to-point.ipynb", "book/claims.md"]

# To open a page that was opened before, its widget goes first: a changed notebook would ask whether to save.
OPEN = """
async name => {
  for (const each of [...jupyterapp.shell.widgets("main")]) each.dispose();
  const factory = name.endsWith(".md") ? "Markdown Preview" : "Notebook";
  const kernelPreference = {shouldStart: false, shouldReuse: false};
  await jupyterapp.commands.execute("docmanager:open", {path: name, factory, kernelPreference});
}
"""
RENDERED = """
count => {
  const shown = [...document.querySelectorAll(".jp-MarkdownViewer .myst, .jp-Notebook .jp-MarkdownCell .myst")];
  return shown.filter(each => each.childElementCount).length === count;
}
"""
FAULTS = """
() => {
  const page = document.querySelector(".jp-Notebook, .jp-MarkdownViewer"), found = [];
  const say = (what, each) => found.push(`${what}: ${each.outerHTML.slice(0, 160)}`);
  const all = selector => [...page.querySelectorAll(selector)];
  for (const each of all(".myst, .myst *")) {
    const own = [...each.childNodes].filter(child => child.nodeType === 3).map(child => child.data).join(" ");
    if (/⚠|Unknown (Directive|Role)/.test(own)) say("a warning", each);
    if (!each.closest("code, pre, .katex") && /\\{[a-z][\\w:-]*\\}|^\\s*(```|:::)|^\\([\\w-]+\\)=/.test(own)) say("raw markup", each);
  }
  for (const each of all(".katex-error, [title*='Not Found'], [title*='control sequence']")) say("a warning", each);
  for (const each of all(".myst details, .myst aside"))
    if (!each.querySelector(".details-body, .myst-admonition-body")?.textContent.trim()) say("an empty box", each);
  for (const each of all(".myst pre")) if (!each.textContent.trim()) say("an empty box", each);
  for (const each of all(".myst details[open]")) say("an open answer", each);
  for (const each of all(".myst span:empty")) if (each.getBoundingClientRect().height && each.matches(".not-prose")) say("a gap", each);
  for (const each of all(".myst img")) if (each.checkVisibility() && !each.naturalWidth) say("no picture", each);
  const ids = new Set([...document.querySelectorAll("[id]")].map(each => `#${each.id}`));
  for (const each of all(".myst a")) {
    const to = each.getAttribute("href");
    const nowhere = !to || to === "#" || (to.startsWith("#") && !to.startsWith("#fn-") && !ids.has(decodeURIComponent(to)));
    if (nowhere) say("a dead link", each);
  }
  const right = page.getBoundingClientRect().right + 1;
  const clipped = each => {
    for (let over = each.parentElement; over !== page; over = over.parentElement)
      if (getComputedStyle(over).overflowX !== "visible") return true;
  };
  for (const each of all(".jp-Cell *, .myst *"))
    if (each.getBoundingClientRect().right > right && each.checkVisibility() && !clipped(each)) say("too wide", each);
  if (page.scrollWidth > page.clientWidth + 1) found.push(`too wide: ${page.scrollWidth} in ${page.clientWidth}`);
  return found;
}
"""
FILES = """[...document.querySelectorAll(".myst a")].map(each => each.href).filter(each => each.includes("/files/"))"""
FOLDED = """
() => {
  const {widgets} = [...jupyterapp.shell.widgets("main")].find(each => each.content?.widgets).content, open = [];
  const seen = (cell, selector) => [...cell.node.querySelectorAll(selector)].some(each => each.checkVisibility());
  widgets.forEach((cell, i) => {
    const tags = cell.model.getMetadata("tags") ?? [];
    const code = tags.includes("hide-cell") || tags.includes("hide-input");
    const output = tags.includes("hide-cell") || tags.includes("hide-output");
    if (code && seen(cell, ".jp-InputArea-editor")) open.push(`an open answer: the code of cell ${i}`);
    if (output && seen(cell, ".jp-OutputArea-output")) open.push(`an open answer: the output of cell ${i}`);
    if (code && !seen(cell, ".jp-InputPlaceholder")) open.push(`nothing opens cell ${i}`);
  });
  return open;
}
"""


@pytest.fixture(scope="module")
def jupyterlab(tmp_path_factory):
    """A copy of what a reader opens, and the page of a browser with JupyterLab on it."""
    folder = tmp_path_factory.mktemp("book")
    for name in ("notebooks", "labs/release", "book"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("ext", "jupyter", "vendor", ".ipynb*"))
    with lab(folder, options=["--LabApp.expose_app_in_browser=True"]) as address, launched(reaches="127.0.0.1") as browser:
        context = browser.new_context(viewport={"width": 1400, "height": 1000})
        context.set_default_timeout(120_000)
        page, said = context.new_page(), []
        page.on("console", lambda line: line.type in ("error", "assert") and said.append(f"console: {line.text}"))
        page.on("pageerror", lambda error: said.append(f"exception: {error}"))
        page.on("requestfailed", lambda request: said.append(f"request failed: {request.url}"))
        page.goto(f"{address}/lab?token={TOKEN}&reset")
        page.wait_for_function("window.jupyterapp?.restored.then(() => true)")
        yield folder, page, said


# JupyterLab's own, where a notebook has no kernel: its debugger looks for one.
NOT_OURS = "Cannot read properties of null (reading 'kernel')"


def faults_of(jupyterlab, name):
    """Open a page, and return everything about it that a reader would stumble over."""
    folder, page, said = jupyterlab
    said.clear()
    page.evaluate(OPEN, name)
    is_notebook = name.endswith(".ipynb")
    cells = nbformat.read(folder / name, as_version=4).cells if is_notebook else []
    page.wait_for_function(RENDERED, arg=sum(each.cell_type == "markdown" for each in cells) if is_notebook else 1)
    page.wait_for_timeout(200)  # pictures
    found = page.evaluate(FAULTS) + (page.evaluate(FOLDED) if is_notebook else [])
    for address in page.evaluate(FILES):
        path = unquote(urlsplit(address).path).partition("/files/")[2]
        if not (folder / path).exists() and not (ROOT / path).exists():
            found.append(f"a dead link: {path}")
    return found + [each for each in said if NOT_OURS not in each]


@pytest.mark.parametrize("name", PAGES if NIGHTLY else SAMPLE)
def test_a_page_reads_well(jupyterlab, name):
    assert faults_of(jupyterlab, name) == []


@pytest.fixture
def dark(jupyterlab):
    change = "theme => jupyterapp.commands.execute('apputils:change-theme', {theme}).then(() => 1)"
    is_dark = "dark => (document.body.dataset.jpThemeLight === 'false') === dark"
    for theme, wanted in ("JupyterLab Dark", True), ("JupyterLab Light", False):
        jupyterlab[1].evaluate(change, theme)
        jupyterlab[1].wait_for_function(is_dark, arg=wanted)
        if wanted:
            yield


@pytest.mark.parametrize("name", IN_THE_DARK if NIGHTLY else IN_THE_DARK[:1])
def test_a_page_reads_well_in_the_dark(jupyterlab, dark, name):
    assert faults_of(jupyterlab, name) == []


BAD = """# Bad

A {term}`rank`, {nonsense}`x`, {cite:p}`li2020ddp`, [nowhere](#gone), [a file](no-such.ipynb).

```{nothing} y
z
```

````{dropdown} A script
```{literalinclude} script.py
```
````

:::{dropdown} Open
:open:
text
:::

![pic](no.png) $\\undefined{x}$
"""


def test_what_is_looked_for_is_found(jupyterlab):
    answer = {"tags": ["hide-cell"]}
    wide = new_output("display_data", data={"text/html": '<div style="width: 3000px">wide</div>'})
    cells = [new_markdown_cell(BAD), new_code_cell("1", metadata=answer, outputs=[new_output("stream", text="x")])]
    nbformat.write(new_notebook(cells=[*cells, new_code_cell("2", outputs=[wide])]), jupyterlab[0] / "bad.ipynb")
    found = "\n".join(faults_of(jupyterlab, "bad.ipynb"))
    kinds = (
        "Unknown Directive",
        "an empty box",
        "the code of cell 1",
        "the output of cell 1",
        "nothing opens cell 1",
        "no picture",
    )
    kinds += "Not Found", "control sequence", '"#gone"', "a dead link: no-such.ipynb", "console: ", 'href="#"'
    assert [kind for kind in kinds if kind not in found] == [], found


@pytest.mark.parametrize("width", [1400, 800])
def test_make_lab_opens_the_start_page_alone_with_the_notebooks_beside_it(jupyterlab, width):
    (address,) = re.findall(r"--LabApp.default_url=(\S+)", (ROOT / "Makefile").read_text())
    assert address.endswith("/book/start.md")
    server = "{0.scheme}://{0.netloc}".format(urlsplit(jupyterlab[1].url))
    with jupyterlab[1].context.browser.new_context(viewport={"width": width, "height": 1000}) as context:
        context.set_default_timeout(120_000)
        page = context.new_page()
        page.goto(f"{server}{address}?token={TOKEN}&reset")  # nothing that another test has opened
        page.wait_for_selector(".jp-MarkdownViewer h1:text-is('Start here')")
        page.wait_for_selector(".jp-DirListing-item:has-text('00-first-evening.ipynb')")
        assert page.evaluate("[...jupyterapp.shell.widgets('main')].map(each => each.context?.path)") == ["book/start.md"]
        assert not page.locator(".jp-Dialog").count()
        assert page.locator(".jp-MarkdownViewer").bounding_box()["width"] > width / 2
        page.click(".jp-MarkdownViewer a:text-is('A first evening') >> nth=0")
        page.wait_for_selector(".jp-NotebookPanel h1:has-text('A first evening')")


def test_a_word_has_the_id_that_its_links_name(jupyterlab):
    faults_of(jupyterlab, "book/glossary.md")
    ids = jupyterlab[1].evaluate("[...document.querySelectorAll('.myst dt')].map(each => each.id)")
    assert ids == list(links.words())


def test_a_link_leads_to_its_word_and_to_its_place(jupyterlab):
    _, page, _ = jupyterlab
    faults_of(jupyterlab, "book/glossary.md")
    is_on_top = "id => { const y = document.getElementById(id)?.getBoundingClientRect().y; return y > 0 && y < 300; }"
    page.click("#term-bubble + dd a:text-is('micro-batch')")
    page.wait_for_function(is_on_top, arg="term-micro-batch")
    page.click("#term-1F1B + dd a:has-text('One forward'), #term-id-1f1b + dd a:has-text('One forward')")
    page.wait_for_function(is_on_top, arg="pipeline-1f1b")
    page.wait_for_timeout(2500)  # nothing moves any more, and then a cell above is rendered after all
    page.evaluate("document.querySelector('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell').style.paddingBottom = '3000px'")
    assert not page.evaluate(is_on_top, "pipeline-1f1b")
    page.wait_for_function(is_on_top, arg="pipeline-1f1b")


KERNEL_STARTS = """
() => {
  const { model } = [...jupyterapp.shell.widgets("main")].find(each => each.content?.widgets).context;
  model.setMetadata("kernelspec", {name: "python3", display_name: "Python 3 (ipykernel)", language: "python"});
  model.setMetadata("language_info", {name: "python", version: "3.99.0", pygments_lexer: "ipython3"});
  const before = model.dirty;
  model.cells.get(0).sharedModel.setSource("changed");
  return [before, model.dirty];
}
"""


def test_a_notebook_that_was_only_opened_is_not_marked_as_changed(jupyterlab):
    faults_of(jupyterlab, "notebooks/10-ring-all-reduce.ipynb")
    assert jupyterlab[1].evaluate(KERNEL_STARTS) == [False, True]


def test_the_steps_in_words_stand_at_the_left(jupyterlab):
    _, page, _ = jupyterlab
    faults_of(jupyterlab, "book/start.md")
    align = """html => {
      const output = document.createElement("div");
      output.className = "jp-RenderedHTMLCommon jp-RenderedHTML";
      output.innerHTML = html;
      document.querySelector(".jp-MarkdownViewer").append(output);
      return [...output.querySelectorAll("th, td")].map(each => getComputedStyle(each).textAlign);
    }"""
    html = draw.player(follow(ring_all_reduce, [torch.arange(4.0)] * 4)).html
    assert set(page.evaluate(align, html)) == {"left"}


# -- cells that run on ranks --------------------------------------------------------------

STRIPE = "cell => getComputedStyle(cell.querySelector('.jp-InputArea-editor'), '::before').backgroundImage"


def test_a_cell_is_marked_as_its_first_line_is_edited_and_in_a_notebook_drawn_in_parts(jupyterlab):
    folder, page, _ = jupyterlab
    cells = [new_code_cell(text) for text in ("x", "%%px\nx", "%%px --local\nx", "%%px --targets 0\nx")]
    nbformat.write(
        new_notebook(cells=cells + [new_code_cell("%%px\n" + "x\n" * 50) for _ in range(40)]), folder / "marks.ipynb"
    )
    faults_of(jupyterlab, "marks.ipynb")
    marks = """() => [...jupyterapp.shell.widgets("main")].find(each => each.content?.widgets).content.widgets.map(
      cell => [...cell.node.classList].filter(each => each.startsWith("rt-")).join(" "))"""
    edit = "([i, text]) => [...jupyterapp.shell.widgets('main')].find(each => each.content?.widgets).content.widgets[i].model.sharedModel.setSource(text)"
    every, here = "rt-every-rank", "rt-every-rank rt-here-too"
    assert page.evaluate(marks) == ["", every, here, "rt-some-ranks"] + [every] * 40
    page.evaluate(edit, [0, "%%px --local\ny"])
    page.evaluate(edit, [1, "y"])
    page.wait_for_timeout(100)
    assert page.evaluate(marks)[:2] == [here, ""]


def test_the_stripe_has_the_colors_of_the_book(jupyterlab):
    _, page, _ = jupyterlab
    book = (ROOT / "book" / "_static" / "book.css").read_text()
    lab_css = (ROOT / "book" / "jupyter" / "labextensions" / "rings-and-trees" / "static" / "style.css").read_text()
    for name in ("rank-0", "rank-1", "rank-2", "rank-3", "ink-soft", "panel-deep"):
        assert re.findall(rf"--rt-{name}: (#\w+)", lab_css) == re.findall(rf"--{name}: (#\w+)", book), name
    faults_of(jupyterlab, "notebooks/10-ring-all-reduce.ipynb")
    stripe = page.locator(".rt-every-rank:has(.jp-InputArea-editor)").first.evaluate(STRIPE)
    colors = re.findall(r"--rank-[0-3]: #(\w\w)(\w\w)(\w\w)", book)
    assert all(f"rgb({int(r, 16)}, {int(g, 16)}, {int(b, 16)})" in stripe for r, g, b in colors), stripe


def test_an_answer_opens_with_its_output(jupyterlab):
    _, page, _ = jupyterlab
    faults_of(jupyterlab, "notebooks/05-broadcast.ipynb")
    answers = page.locator(".jp-Cell:has(.jp-InputPlaceholder)").filter(has=page.locator(".jp-OutputPlaceholder"))
    said = answers.first.locator(".jp-InputPlaceholder .jp-PlaceholderText")
    assert "Show the answer" in said.evaluate("each => getComputedStyle(each, '::before').content")
    place = answers.first.get_attribute("data-windowed-list-index")
    answers.first.locator(".jp-InputPlaceholder .jp-Placeholder-content").click()
    page.locator(f".jp-Cell[data-windowed-list-index='{place}'] .jp-OutputArea-output").first.wait_for()
