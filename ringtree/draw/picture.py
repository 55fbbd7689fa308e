"""A figure as inline SVG that takes its colours from the page around it."""

from __future__ import annotations

import hashlib
import html
import io
import re
from dataclasses import dataclass, field

from matplotlib.text import Annotation

from ringtree.draw.style import INK, NARROW, PAPER, RANK_COLOURS, fold, narrow
from ringtree.given import one_line, takes

# The page's background under whichever name the reader's tool gives it: book, JupyterLab, plain browser.
_PAPER_CSS = "var(--pst-color-background, var(--jp-layout-color0, Canvas))"
_FONT_CSS = "var(--pst-font-family-base, system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif)"

# A rank's colour is strong enough for a line, not for small letters: these take three tenths of the page's ink.
_COLOURED_WORDS = re.compile(rf"(<text style=\"[^\"]*fill: )({'|'.join(RANK_COLOURS)})")
_LETTERS_CSS = r"\1color-mix(in srgb, \2 70%, currentColor)"


# Which of the two drawings is seen: the width of the figure decides, whatever page or notebook it stands in. The wide one
# gives way where its smallest letters would come to be less than 8.5 pixels high.
_ONE_OF_TWO = (
    "<style>.ringtree-picture>.ringtree-narrow{display:none}"
    "@container (max-width:590px){.ringtree-picture>.ringtree-wide{display:none}"
    ".ringtree-picture>.ringtree-narrow{display:block}}</style>"
)


@dataclass(frozen=True)
class Picture:
    """An SVG and one sentence that says what it shows; narrow: the same for a page as narrow as a phone, where it differs.

    In a notebook it appears as the drawing; as text it is the one stable line `Figure: <alt>`,
    which is what a stored notebook keeps.
    """

    svg: str = field(repr=False)
    alt: str
    narrow: str = field(default="", repr=False)

    def __repr__(self) -> str:
        return f"Figure: {self.alt}"

    def _repr_html_(self) -> str:
        drawings = self.svg
        if self.narrow:
            wide, small = (
                svg.replace("<svg ", f'<svg class="ringtree-{which}" ', 1)
                for svg, which in ((self.svg, "wide"), (self.narrow, "narrow"))
            )
            drawings = f"{_ONE_OF_TWO}{wide}{small}"
        style = "margin:1em 0;color:inherit;container-type:inline-size"
        return f'<figure class="ringtree-picture" style="{style}">{drawings}</figure>'

    def save(self, path) -> None:
        """Write the drawing as an SVG file of its own (black on white)."""
        text = self.svg.replace(_PAPER_CSS, "white").replace(_FONT_CSS, "sans-serif")
        text = re.sub(r"color-mix\(in srgb, (#\w+) 70%, currentColor\)", r"\1", text)  # few tools but browsers know it
        text = text.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


@takes(alt=one_line)
def picture(fig, alt: str) -> Picture:
    """Turn a matplotlib figure into a `Picture`.

    fig: a figure drawn inside a `styled` function, so that its text and axes carry the stand-in
    colours; alt: one sentence that says what the figure shows. Put no measured number in alt: it is
    stored with the notebook and compared on every run.

    Raises UsageError when alt is empty or has more than one line.
    """
    alt = alt.strip()
    if narrow():
        _fit(fig)
    buffer = io.StringIO()
    fig.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    width, height = (side * 72 for side in fig.get_size_inches())
    return Picture(inline_svg(buffer.getvalue(), alt, width, height), alt)


def _fit(fig) -> None:
    """Fold titles that are wider than a phone, and move words beside points to where they are whole."""
    width = fig.get_figwidth() * 72
    fig.draw_without_rendering()
    for ax in fig.axes:
        left, right = ax.get_title("left"), ax.get_title("right")
        room = ax.get_window_extent()
        folded = fold(left, width - room.x0)
        if left and right and len(folded.split("\n")[-1]) + len(right) > room.width / 7:
            folded += "\n"  # the other title stands on the line below
        if folded != left:
            ax.set_title(folded, loc="left")
    fig.draw_without_rendering()
    for ax in fig.axes:
        for words in ax.texts:
            if isinstance(words, Annotation) and words.anncoords == "offset points" and words.get_text():
                box, (x, y) = words.get_window_extent(), words.get_position()
                words.set_position((x - max(0, box.x1 - width + 2) + max(0, 2 - box.x0), y))


def inline_svg(svg: str, alt: str, width: float, height: float) -> str:
    """An SVG document made fit to stand in a page, once or beside many others.

    Its own header, metadata and style sheet go (a style sheet inside a page would reach the whole
    page), ids get a prefix of their own, stand-in colours become the page's, and the alternative
    text goes on it.
    """
    body = re.sub(r"^.*?<svg\b[^>]*>", "", svg, count=1, flags=re.DOTALL)
    body = body[: body.rindex("</svg>")]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<style\b.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = body.replace("xlink:href", "href")
    body = _own_ids(body)
    body = _COLOURED_WORDS.sub(_LETTERS_CSS, body)
    body = body.replace(INK, "currentColor").replace(PAPER, _PAPER_CSS)
    body = re.sub(r" ?font-family: [^;\"]*;?", "", body)
    body = re.sub(r"(?<=\d\.\d\d)\d+", "", body)
    body = re.sub(r' d="[^"]*"', lambda way: re.sub(r"(?<=\d\.\d)\d", "", way[0]), body)  # a tenth of a pixel is enough
    body = re.sub(r"\s*\n\s*", " ", body).replace("> <", ">\n<").strip()
    # A drawing as wide as a phone may grow on a larger one: it is shown on pages up to 590 pixels wide.
    shown = f"width:100%;max-width:{1.25 * width if narrow() and width == NARROW else width:.0f}px;height:auto"
    return (
        f'<svg role="img" aria-label="{html.escape(alt)}" viewBox="0 0 {width:g} {height:g}" '
        f'style="{shown};font-family:{_FONT_CSS};stroke-linejoin:round;stroke-linecap:butt" fill="currentColor">\n{body}\n</svg>'
    )


def _own_ids(body: str) -> str:
    """Drop the ids that nothing points at and prefix the others, so that no two figures share one."""
    prefix = "f" + hashlib.sha256(body.encode()).hexdigest()[:10] + "-"
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', body))
    body = re.sub(r' id="([^"]*)"', lambda m: f' id="{prefix}{m[1]}"' if m[1] in used else "", body)
    return re.sub(r'(url\(#|href="#)', rf"\1{prefix}", body)
