"""The report as one HTML page: what the text says, with curves and sliders drawn by `page.js` from numbers in the page."""

from __future__ import annotations

import html
import json
import re
from importlib.resources import files

import numpy as np

from ringtree.collectives import find
from ringtree.explain import anomalies, verdicts
from ringtree.explain.blocks import Bullets, Code, Paragraph, Table
from ringtree.theory import NAMES
from ringtree.units import binary_text, seconds_text

__all__ = ["numbers_of", "page_of"]

_DRAWS = 400  # machines that the page keeps for its interval: as many as Fitted.interval draws
_UNIT = re.compile(r"(?<=\d) (?=(?:%|[KMGT]?i?B|Gb|[nµm]?s)(?![a-z]))")


def page_of(report) -> str:
    """An HTML page that needs no network and no kernel; colours follow the reader's light or dark setting."""
    style, script = ((files(__package__) / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    # "</script" inside a script element would end it, and "<!--<script" would keep it from ending.
    numbers = json.dumps(numbers_of(report), allow_nan=False).replace("<", "\\u003c")
    worlds = ", ".join(dict.fromkeys(sweep.world for sweep in report.sweeps))
    what = ", ".join(fit.collective for fit in report.fits)
    sections = "\n".join(_section(each, report) for each in report.sections)
    links = "".join(f'<a href="#{each.name}">{html.escape(each.title)}</a>' for each in report.sections)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Your cluster: {html.escape(worlds)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<style>{style}</style></head>
<body><main>
<header><h1>Your cluster on one page</h1><p>{html.escape(what)} on {html.escape(worlds)}.</p>
<nav aria-label="Parts of the report">{links}</nav></header>
{sections}
</main>
<script type="application/json" id="numbers">{numbers}</script>
<script>{script}</script>
</body></html>
"""


def numbers_of(report) -> dict:
    """Return what the drawings are made of: for each fitted machine its protocols, its draws and its sweeps; seconds and bytes."""
    return {
        "fits": [_numbers_of_fit(report, fit) for fit in report.fits if fit.machine is not None],
        "turned": _turned(report),
    }


def _turned(report) -> list[dict]:
    """The verdicts that the gap turns: of two programs the seconds at several gaps, and the gap at which they change places."""
    return [
        {
            "what": f"{one.collective} of {binary_text(each.size)} on {one.ranks} ranks",
            "programs": [verdicts.short(one.collective, way) for way in (each.textbook, each.wire)],
            "gap": one.gap,
            "turns": each.turns,
            "curve": each.curve,
        }
        for found in report.verdicts
        for one in found
        for each in one.each
        if each.turns is not None
    ]


def _numbers_of_fit(report, fit) -> dict:
    row = find(fit.collective, send_recv=True)
    logs, longer = fit.machine.draws(_DRAWS)
    sweeps = [
        {
            "world": sweep.world,
            "ranks": sweep.ranks,
            "nodes": sweep.nodes,
            "algorithm": sweep.algorithm,
            "sizes": sweep.sizes.tolist(),
            "times": sweep.times.tolist(),
            "slow": []
            if sweep.no_latency
            else [size for one in anomalies.slow(sweep.sizes, sweep.times) for size in one.sizes],
            "nccl": [choice.seconds for choice in report.expectations[sweep.name].choices],
        }
        for sweep in fit.sweeps
    ]
    return {
        "collective": fit.collective,
        "laps": row.laps,
        "rooted": row.root is not None,
        "tree": fit.collective == "all_reduce",
        "factor": [row.bus_factor(2), row.bus_factor(3)],
        "protocols": [[float(getattr(each, name)) for name in NAMES] for each in fit.machine.model.protocols],
        "draws": np.round(logs, 5).reshape(_DRAWS, -1, len(NAMES)).tolist(),
        "longer": np.round(longer, 5).tolist(),
        "network": any(sweep.nodes > 1 for sweep in fit.sweeps),
        "inside": any(sweep.nodes == 1 for sweep in fit.sweeps),
        "sweeps": sweeps,
    }


def _section(section, report) -> str:
    blocks = "\n".join(map(_block, section.blocks))
    drawn = {"beside": _comparison, "more": _sliders}.get(section.name)
    fitted = [fit for fit in report.fits if fit.machine is not None]
    drawings = "\n".join(drawn(i, fit, len(fitted) > 1) for i, fit in enumerate(fitted)) if drawn else ""
    if section.name == "gap":
        drawings = _by_the_gap(_turned(report))
    tables = _all_times(report) if section.name == "beside" else ""
    return f'<section id="{section.name}"><h2>{html.escape(section.title)}</h2>\n{drawings}\n{blocks}\n{tables}</section>'


def _block(block) -> str:
    if isinstance(block, Paragraph):
        return f"<p>{_words(block.text)}</p>"
    if isinstance(block, Bullets):
        return f"<ul>{''.join(f'<li>{_words(item)}</li>' for item in block.items)}</ul>"
    if isinstance(block, Code):
        return f"<pre>{html.escape(block.text)}</pre>"
    return _table(block)


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{_words(cell)}</th>' for cell in table.head)
    rows = "".join(
        f'<tr><th scope="row">{_words(first)}</th>{"".join(f"<td>{_words(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in table.rows
    )
    return f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _words(text: str) -> str:
    """Escaped, and no line ends between a number and its unit."""
    return _UNIT.sub("\u00a0", html.escape(text))


def _comparison(index, fit, several) -> str:
    """Return the place where the curves and the residuals of one fitted machine are drawn, with the choice of a world."""
    largest = fit.sweeps.index(fit.largest)
    options = "".join(
        f'<option value="{i}"{" selected" if i == largest else ""}>{html.escape(sweep.world)}: {html.escape(sweep.name)}</option>'
        for i, sweep in enumerate(fit.sweeps)
    )
    title = f"<h3>{html.escape(fit.collective)}</h3>" if several else ""
    return f"""<div class="comparison" data-fit="{index}">{title}
<p><label>World <select>{options}</select></label></p>
<ul class="legend"><li class="measured">measured</li><li class="fitted">fitted, with its 90 % interval</li>
<li class="nccl">NCCL's own model</li><li class="slow">slower than a longer message</li></ul>
<figure><svg class="curves" role="img"></svg><figcaption>Time over size, both axes logarithmic.</figcaption></figure>
<figure><svg class="residuals" role="img"></svg><figcaption>Predicted over measured: above the line too long, below too short.
</figcaption></figure></div>"""


def _sliders(index, fit, several) -> str:
    """Return the place where the sliders of one fitted machine are made, and what they say."""
    if fit.collective == "send_recv":  # two ranks, whatever the cluster
        return ""
    title = f"<h3>{html.escape(fit.collective)}</h3>" if several else ""
    rows = "".join(
        f'<div class="slider"><label for="{name}-{index}">{words}</label>'
        f'<input type="range" id="{name}-{index}" data-of="{name}" step="1"><output for="{name}-{index}"></output></div>'
        for name, words in (("size", "Message size"), ("nodes", "Nodes"), ("cards", "Cards on a node"))
    )
    return f"""<div class="prediction" data-fit="{index}">{title}
<form onsubmit="return false">{rows}</form>
<p class="said" role="status" aria-live="polite"></p><p class="warned"></p>
<figure><svg class="forecast" role="img"></svg>
<figcaption>Time over size for these nodes and cards, with the 90 % interval; the dot is the chosen size.</figcaption></figure>
<noscript><p>The sliders need JavaScript; the table below does not.</p></noscript></div>"""


def _by_the_gap(turned) -> str:
    """Return the place where the two programs of a verdict that the gap turns are drawn over the gap, with a slider."""
    if not turned:
        return ""
    options = "".join(f'<option value="{i}">{html.escape(one["what"])}</option>' for i, one in enumerate(turned))
    return f"""<div class="by-gap">
<p><label>Verdict <select>{options}</select></label></p>
<form onsubmit="return false"><div class="slider"><label for="between-messages">Gap</label>
<input type="range" id="between-messages" min="0" max="100" step="1"><output for="between-messages"></output></div></form>
<p class="said" role="status" aria-live="polite"></p>
<figure><svg class="gaps" role="img"></svg><figcaption>Time over the gap, up to g = α: the line is where the verdict turns.
</figcaption></figure>
<noscript><p>The slider needs JavaScript; the tables below do not.</p></noscript></div>"""


def _all_times(report) -> str:
    """Every measured time with what the models say of it, for those who read tables rather than drawings."""
    parts = []
    for fit in report.fits:
        for sweep in fit.sweeps:
            choices = report.expectations[sweep.name].choices
            fitted = fit.predicted(sweep) if fit.machine is not None else [None] * len(sweep.sizes)
            rows = tuple(
                (
                    binary_text(size),
                    seconds_text(time),
                    "–" if guess is None else seconds_text(guess),
                    seconds_text(choices[i].seconds) if choices else "–",
                    f"{choices[i].algorithm} {choices[i].protocol}" if choices else "–",
                )
                for i, (size, time, guess) in enumerate(zip(sweep.sizes, sweep.times, fitted))
            )
            table = _table(Table(("size", "measured", "fitted", "NCCL expects", "and takes"), rows))
            title = html.escape(f"{fit.collective}, {sweep.world}: every size")
            parts.append(f"<details><summary>{title}</summary>{table}</details>")
    return "\n".join(parts)
