"""Where the built book lies, and its pages."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


HTML = ROOT / "_build" / "html"


PAGES = sorted(path for path in HTML.rglob("*.html") if "_static" not in path.parts)


def name_of(path):
    return path.relative_to(HTML if HTML in path.parents else ROOT).as_posix()
