"""Somebody else's notebook in JupyterLab, as `make lab` starts it: nothing in it acts for its reader, and all else works."""

import contextlib
import json
import shutil
from urllib.parse import quote

import nbformat
import pytest
from helpers import foreign
from helpers.browser import find_chromium, launched
from helpers.jupyterlab import CONFIG, TOKEN, lab
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

pytestmark = pytest.mark.skipif(not find_chromium(), reason="no Chromium found on this machine")
DEFENCE = "jupyter_server_config.py", "guard.js", "labconfig/default_setting_overrides.json"

TEXT = """# Works

A formula, $x^2$, and a link to [the project](https://jupyter.org).

```{note}
A note that MyST draws
```

```{mermaid}
graph TD
  A --> B
```
"""
CELLS = {
    "a picture": ("import matplotlib.pyplot as plt\nplt.plot([1, 2]);", ".jp-RenderedImage img"),
    "a figure that moves": (
        """
import torch
from ringtree.algorithms import ring_all_reduce
from ringtree.cost import Link
from ringtree.draw import player
from ringtree.simulated.following import follow
player(follow(ring_all_reduce, [torch.ones(4)] * 4, Link(1e-6, 1e-9)))
""",
        "figure.rt-player[data-step]",
    ),
    "a script in HTML": (
        "from IPython.display import HTML, Javascript, display\n"
        "display(HTML('<b id=here></b><script>here.textContent = \"a script has run\"</script>'))",
        "b:text('a script has run')",
    ),
    "JavaScript": ("display(Javascript('element.textContent = 2 * 21'))", ".jp-OutputArea-output:text-is('42')"),
    "a widget": ("from ipywidgets import IntSlider\nIntSlider()", ".jp-OutputArea-output .widget-slider"),
}


@pytest.fixture(scope="module")
def chromium():
    with launched(reaches="127.0.0.1") as browser:
        yield browser


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    with lab(folder, CONFIG) as address:
        yield folder, address


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """JupyterLab as it is installed, with the course's settings but not with the defence."""
    config, folder = tmp_path_factory.mktemp("config"), tmp_path_factory.mktemp("bare")
    for path in CONFIG.rglob("*"):
        if path.is_file() and (name := path.relative_to(CONFIG).as_posix()) not in DEFENCE:
            (config / name).parent.mkdir(parents=True, exist_ok=True)
            (config / name).write_bytes(path.read_bytes())
    with lab(folder, config) as address:
        yield folder, address


# By this line JupyterLab trusts no stored result or output.
DISTRUST = "ContentsManager.mark_trusted_cells, NotebookNotary._check_cell = mark_trusted_cells, check_cell\n"


@pytest.fixture(scope="module")
def trusting(tmp_path_factory):
    """JupyterLab with the policy and the guard, and without DISTRUST."""
    config, folder = tmp_path_factory.mktemp("config") / "jupyter", tmp_path_factory.mktemp("trusting")
    shutil.copytree(CONFIG, config)
    settings = config / "jupyter_server_config.py"
    assert DISTRUST in settings.read_text()
    settings.write_text(settings.read_text().replace(DISTRUST, ""))
    with lab(folder, config) as address:
        yield folder, address


@contextlib.contextmanager
def opened(chromium, server, name, **reader):
    """A notebook of the server's folder, drawn; the page and what its console says."""
    with chromium.new_context(viewport={"width": 1400, "height": 3000}, **reader) as context:
        context.set_default_timeout(60_000)
        page, said = context.new_page(), []
        page.on("console", lambda line: said.append(line.text))
        page.goto(f"{server[1]}/lab/tree/{quote(name)}?token={TOKEN}&reset")
        yield page, said


@contextlib.contextmanager
def a_foreign_one(chromium, server, **reader):
    name = foreign.write(server[0])
    with opened(chromium, server, name, **reader) as (page, _):
        page.wait_for_selector(foreign.SHOWN, state="attached")
        page.wait_for_function(f"document.querySelectorAll('.jp-Notebook .jp-Cell').length == {len(foreign.notebook().cells)}")
        page.wait_for_timeout(1500)  # whatever loads an extension first: Mermaid, Vega, widgets
        yield page


# ---------------------------------------------------------------- nothing acts


def test_these_ways_run_where_the_defence_is_off(chromium, bare):
    """So the other tests try what works: {iframe} when the notebook is opened, and links when they are clicked."""
    with a_foreign_one(chromium, bare) as page:
        assert foreign.ran(page) == foreign.ON_OPENING
        lets = foreign.click_all(page)
        page.wait_for_timeout(1000)
        assert foreign.ran(page) == foreign.ON_OPENING | foreign.ON_A_CLICK
        assert {"vscode://x", "tel:1"} <= {*lets}, lets
        assert (
            page.locator(f".jp-Notebook {foreign.COMMAND}").count()
            and page.locator(".jp-Dialog:has-text('Run Command?')").count()
        )
        framed = [each.url for each in page.frames]
        assert any(each.startswith("data:") for each in framed) and any(each.endswith("/api/status") for each in framed)


LAYERS = {"both layers": {}, "the guard alone": {"bypass_csp": True}}


@pytest.mark.parametrize("layers", LAYERS)
def test_nothing_in_a_foreign_notebook_acts_for_its_reader(chromium, guarded, layers):
    with a_foreign_one(chromium, guarded, **LAYERS[layers]) as page:
        lets = foreign.click_all(page)
        page.wait_for_timeout(1000)
        assert foreign.ran(page) == set()
        assert not page.locator(f".jp-Notebook {foreign.COMMAND}").count() and not page.locator(".jp-Dialog").count()
        assert all(each.startswith(("#", "http:", "https:", "mailto:")) for each in lets), lets
        if layers == "both layers":
            assert {each.url for each in page.frames[1:]} <= {"", "about:blank", "chrome-error://chromewebdata/"}


SCROLL = (
    "document.querySelectorAll('.jp-Notebook, .jp-Notebook .jp-WindowedPanel-outer').forEach((each) => each.scrollTo(0, 1e6))"
)


@pytest.mark.parametrize("way", foreign.stored())
@pytest.mark.parametrize("defence", ["off", "on"])
def test_stored_results_and_outputs_do_not_act_when_a_notebook_is_opened_again(chromium, guarded, trusting, defence, way):
    server = guarded if defence == "on" else trusting
    (server[0] / "again.ipynb").write_text(json.dumps(foreign.stored()[way]))
    with opened(chromium, server, "again.ipynb") as (page, _):
        page.wait_for_selector("text=/Python 3 .* Idle/")
        assert not foreign.ran(page)
        page.locator(".jp-Notebook .jp-Cell .jp-InputPrompt").first.click(force=True)
        page.keyboard.press("Escape")
        page.keyboard.press("b")
        page.keyboard.press("Control+s")
        page.wait_for_timeout(2000)
        page.reload()
        page.wait_for_selector("text=/Python 3 .* Idle/")
        page.wait_for_timeout(3000)
        page.evaluate(SCROLL)
        page.wait_for_selector(".jp-Notebook :text('the result'), .jp-Notebook :text('shown')", state="attached")
        if defence == "off":
            page.wait_for_function("way => (top.ran || []).includes(way)", arg=way)
        else:
            page.wait_for_timeout(3000)
            assert not foreign.ran(page)


# What JupyterLab's page would hold if one of its sanitizers failed. The guard is not asked here: a parser makes these elements.
MARKUP = [
    foreign.image("image"),
    f'<svg onload="{foreign.runs("drawing")}"></svg>',
    f'<iframe src="{foreign.script("iframe")}"></iframe>',
    f'<iframe srcdoc="<script>{foreign.runs("srcdoc")}</script>"></iframe>',
    f'<details open ontoggle="{foreign.runs("details")}">x</details>',
    f'<object data="{foreign.script("object")}"></object>',
]
PUT = """
(markup) => {
  const made = document.createRange().createContextualFragment(markup);
  document.body.append(made);
  const link = document.body.appendChild(document.createElement("a"));
  link.href = "LINK";
  link.dispatchEvent(new MouseEvent("click"));  // it does not bubble, so that no listener sees it
}
""".replace("LINK", foreign.script("link"))


def put_markup(page):
    for markup in [*MARKUP, f"<script>{foreign.runs('script')}</script>"]:
        page.evaluate(PUT, markup)
    page.wait_for_timeout(1000)
    return foreign.ran(page)


def test_the_policy_alone_holds_markup_that_a_sanitizer_lets_through(chromium, guarded, bare):
    for server in guarded, bare:
        nbformat.write(new_notebook(), server[0] / "empty.ipynb")
    with opened(chromium, bare, "empty.ipynb") as (page, _):
        page.wait_for_selector(".jp-Notebook")
        assert put_markup(page) >= {"image", "iframe", "srcdoc", "details", "script", "link"}
    with opened(chromium, guarded, "empty.ipynb") as (page, _):
        page.wait_for_selector(".jp-Notebook")
        assert put_markup(page) == set()


def test_the_policy_is_on_every_page_that_is_not_in_a_sandbox_and_its_number_is_new_each_time(guarded):
    import urllib.error
    import urllib.request

    folder, address = guarded
    (folder / "page.html").write_text("<script>1</script>")
    numbers = []
    for path in (
        "lab",
        "lab/tree/x",
        "doc",
        "login",
        "api/status",
        "no/such/page",
        "files/page.html",
        "nbconvert/html/empty.ipynb",
    ):
        asked = urllib.request.Request(f"{address}/{path}", headers={"Authorization": f"token {TOKEN}"})
        try:
            answer = urllib.request.urlopen(asked)
        except urllib.error.HTTPError as error:
            answer = error
        policies = " | ".join(answer.headers.get_all("Content-Security-Policy"))
        assert "script-src 'nonce-" in policies or "sandbox allow-scripts" in policies, (path, policies)
        numbers.append(policies.partition("'nonce-")[2].partition("'")[0] or path)
    assert len({*numbers}) == len(numbers)


# ---------------------------------------------------------------- all else works


def test_what_a_reader_runs_still_shows_pictures_figures_scripts_and_widgets(chromium, guarded):
    cells = [new_markdown_cell(TEXT), *(new_code_cell(text) for text, _ in CELLS.values())]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), guarded[0] / "works.ipynb")
    with opened(chromium, guarded, "works.ipynb") as (page, said):
        page.wait_for_selector("text=/Python 3 .* Idle/")
        page.wait_for_selector("aside:has-text('A note that MyST draws')")
        page.wait_for_selector(".jp-Notebook .katex")
        page.wait_for_selector('.jp-Notebook [id^="mermaid"]')
        page.click("text=Run >> nth=0")
        page.click("text=Run All Cells")
        for what, (_, seen) in CELLS.items():
            assert page.wait_for_selector(f".jp-Notebook {seen}"), what
        figure = page.locator("figure[data-step]").first
        before = figure.get_attribute("data-step")
        figure.locator("[data-do=forward], [data-do=next]").first.click()
        page.wait_for_function("before => document.querySelector('figure[data-step]').dataset.step != before", arg=before)

        page.click("text=Help >> nth=0")
        page.click(".lm-Menu-itemLabel:has-text('JupyterLab Reference')")
        page.wait_for_selector("iframe[src^='https://jupyterlab.readthedocs.io']")
        page.keyboard.press("Control+,")
        page.wait_for_selector(".jp-SettingsForm, #jp-SettingsEditor, .jp-PluginList")
        refused = [line for line in said if "Content Security Policy" in line]
        assert not refused


def test_a_page_in_a_file_is_shown_and_its_scripts_run_in_a_tab_of_its_own(chromium, guarded):
    """The tab has no origin; in the frame within JupyterLab, nothing runs."""
    says = "<h1>A page</h1><script>document.querySelector('h1').textContent = `${self.origin} has run`</script>"
    (guarded[0] / "says.html").write_text(says)
    with opened(chromium, guarded, "says.html") as (page, _):
        frame = page.frame_locator(".jp-HTMLViewer iframe")
        frame.locator("text=A page").wait_for()
        page.click("text=Trust HTML")
        page.wait_for_timeout(1000)
        frame.locator("text=A page").wait_for()
        page.goto(f"{guarded[1]}/files/says.html?token={TOKEN}")
        page.wait_for_selector("text=null has run")
