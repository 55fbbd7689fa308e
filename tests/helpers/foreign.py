"""A notebook by somebody who wants to act for its reader: each cell, output and field tries one way to run a script in the page.

A script that runs adds the name of its way to `top.ran`. In JupyterLab's own page it can do all that the reader can.
"""

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output, new_raw_cell

# What runs in JupyterLab as it is installed, and so what the defence is for.
ON_OPENING = {"iframe", "iframe in an output"}
ON_A_CLICK = {"card"}
COMMAND = "[data-commandlinker-command]"  # a button that gives JupyterLab a command, here to run all cells; it asks first
SHOWN = '.jp-Notebook iframe[src^="javascript:"]'  # the cells are drawn


def runs(way):
    return f"(top.ran=top.ran||[]).push('{way}')"


def script(way):
    return f"javascript:{runs(way)}"


def image(way):
    return f'<img src="x" onerror="{runs(way)}">'


def iframe(address):
    return f":::{{iframe}} {address}\n:::"


def drawing(way):
    shape = '<svg xmlns="http://www.w3.org/2000/svg" onload="{}"><script>{}</script><image href="x" onerror="{}"/></svg>'
    return shape.format(*[runs(way)] * 3)


TEXTS = (
    iframe(script("iframe")),
    iframe("data:text/html,<h1>framed</h1>"),
    iframe("http://127.0.0.1:1/elsewhere"),
    iframe("/api/status"),
    f":::{{card}} A card\n:link: {script('card')}\n\nRead more\n:::",
    f"[Read more]({script('link')}) <{script('autolink')}> {{button}}`Read more <{script('button')}>`",
    "[Read more](vscode://x) [Read more](file:///etc/passwd) [Read more](data:text/html,x) [Read more](tel:1)",
    f"![x]({script('picture')})\n\n:::{{figure}} {script('figure')}\n:::\n\n:::{{image}} {script('film')}.mp4\n:::",
    f":::{{embed}} {script('embed')}\n:::\n\n:::{{include}} {script('include')}\n:::",
    f":::{{raw}} html\n{image('raw')}\n:::\n\n{{raw:html}}`{image('raw role')}`",
    f"$\\href{{{script('in a formula')}}}{{x}}$ $\\includegraphics{{{script('picture in a formula')}}}$",
    f'```{{mermaid}}\ngraph TD\n  A[Read more]\n  click A "{script("in Mermaid")}"\n```',
    f'```mermaid\ngraph TD\n  A["{image("HTML in Mermaid")}"]\n```',
    f"<script>{runs('script')}</script>\n\n{image('image')}",
    drawing("drawing"),
    f'<iframe src="{script("HTML iframe")}"></iframe>',
    f'<iframe srcdoc="<script>{runs("srcdoc")}</script>"></iframe>',
    f'<object data="{script("object")}"></object><embed src="{script("embedded")}">',
    f'<details open ontoggle="{runs("details")}">x</details><style onload="{runs("style")}"></style>',
    f'<a href="{script("in HTML")}">Read more</a> <form action="{script("form")}"><button>Read more</button></form>',
    f'<svg><a xlink:href="{script("in SVG")}"><text y="20">Read more</text></a></svg>',
)
BUTTON = "<button data-commandlinker-command='notebook:run-all-cells'>Read more</button>"
VEGA = {
    "width": 50,
    "height": 50,
    "marks": [
        {"type": "rect", "encode": {"enter": {"x2": {"value": 50}, "y2": {"value": 50}, "href": {"value": script("Vega")}}}}
    ],
}
OUTPUTS = {
    "text/html": f"<script>{runs('script in an output')}</script>{image('output')}{BUTTON}<a href='tel:1'>Read more</a>",
    "application/javascript": runs("JavaScript"),
    "image/svg+xml": drawing("drawn output"),
    "text/markdown": f"{iframe(script('iframe in an output'))}\n\n{image('output in Markdown')}\n\n{BUTTON}",
    "text/latex": f"$\\href{{{script('in LaTeX')}}}{{Read more}}$",
    "text/vnd.mermaid": f'graph TD\n  A[Read more]\n  click A "{script("Mermaid output")}"',
    "application/vnd.vega.v5+json": VEGA,
    "application/vnd.jupyter.widget-view+json": {"model_id": "html", "version_major": 2, "version_minor": 0},
}


def widgets():
    """The state of a widget that shows HTML, as a notebook keeps it."""

    def model(name, module, **state):
        return {"model_name": name, "model_module": module, "model_module_version": "2.0.0", "state": state}

    html = model("HTMLModel", "@jupyter-widgets/controls", value=image("widget"), layout="IPY_MODEL_layout")
    models = {"html": html, "layout": model("LayoutModel", "@jupyter-widgets/base")}
    return {"application/vnd.jupyter.widget-state+json": {"version_major": 2, "version_minor": 0, "state": models}}


def notebook():
    cells = [new_markdown_cell(text) for text in TEXTS]
    attached = new_markdown_cell("![x](attachment:x.svg) [Read more](attachment:x.html)")
    attached.attachments = {"x.svg": {"image/svg+xml": drawing("attachment")}, "x.html": {"text/html": image("attached HTML")}}
    cells += [attached, new_raw_cell(image("raw cell"), metadata={"raw_mimetype": "text/html"})]
    for kind, data in OUTPUTS.items():
        shown = new_output("display_data", data={kind: data, "text/plain": "x"})
        cells.append(new_code_cell(f"# {kind}", outputs=[shown]))
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"
        cell.metadata.update(trusted=True, tags=[image("tag")])
    kernel = {"name": "python3", "display_name": image("kernel"), "language": "python"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel, "title": image("title"), "widgets": widgets()})


def stored():
    """Return {way: a notebook that runs it}, where JupyterLab is as it is installed.

    - The stored result of an inline expression shows a stored widget, and the widget shows outputs of its own as trusted. This
      works if the expression is drawn after the widgets are there: so it stands below many cells, and the reader scrolls down.
    - An output of a type that nbformat does not know counts as harmless, so the notebook is trusted when it is opened again after the reader has saved it.
    """

    def shown(kind, way):
        data = {"text/html": f"<b>shown</b><script>{runs(way)}</script>", "text/plain": "x"}
        return {"output_type": kind, "data": data, "metadata": {}}

    ways = {}
    view = {"model_id": "out", "version_major": 2, "version_minor": 0}
    data = {"text/html": "<b>x</b>", "text/plain": "the result", "application/vnd.jupyter.widget-view+json": view}
    above = [new_code_cell("# one line\n" * 20, id=f"above-{number}") for number in range(60)]
    cell = new_markdown_cell("Value: {eval}`x`", id="cell-0")
    result = {"status": "ok", "data": data, "metadata": {}}
    cell.metadata = {"user_expressions": [{"expression": "x", "result": result}], "trusted": True}
    state = widgets()
    outputs = {"outputs": [shown("display_data", "stored widget")], "layout": "IPY_MODEL_layout", "msg_id": ""}
    model = {"model_name": "OutputModel", "model_module": "@jupyter-widgets/output", "model_module_version": "1.0.0"}
    state["application/vnd.jupyter.widget-state+json"]["state"]["out"] = {**model, "state": outputs}
    ways["stored widget"] = new_notebook(cells=[*above, cell], metadata={"kernelspec": KERNEL, "widgets": state})

    cell = new_code_cell("# unknown", id="cell-0")
    ways["unknown output"] = new_notebook(cells=[cell], metadata={"kernelspec": KERNEL})
    cell = ways["unknown output"].cells[0]
    cell.outputs = [nbformat.from_dict(shown("update_display_data", "unknown output"))]
    return ways


KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


def write(folder):
    """Write the notebook under a name that is a way in, too; returns the name."""
    name = f"{image('name').replace(' ', '/').replace('/', ' ')}.ipynb"
    nbformat.write(notebook(), folder / name)
    return name


CLICK = """
async () => {
  const goes = [];
  for (const each of document.querySelectorAll(".jp-Notebook a, .jp-Notebook .jp-RenderedHTMLCommon button")) {
    const form = each.closest("form");
    const leads = form ? form.getAttribute("action") : each.getAttribute("href") ?? each.getAttribute("xlink:href");
    const click = new MouseEvent("click", { bubbles: true, cancelable: true, view: window });
    if ((form || each.dispatchEvent(click)) && leads) goes.push(leads);  // a form would load the page anew
    await new Promise((done) => setTimeout(done, 50));  // the next one would take this one's place
  }
  return goes;
}
"""


def click_all(page):
    """Click on each link and button in a notebook; return the addresses of those to which the page lets the browser go."""
    return page.evaluate(CLICK)


def ran(page):
    return set(page.evaluate("top.ran || []"))
