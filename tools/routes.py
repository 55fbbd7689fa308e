"""Minutes, needs, next stops and names: `python tools/routes.py` writes them to the chapters and to pages in `book`.

book/routes.yml names the routes. A chapter's minutes are computed from its words and its lines of code; a lab's are the ones
that it prints. `tests/repository/test_routes.py` fails where something is out of date.
"""

import argparse
import functools
import itertools
import re
from pathlib import Path

import core_names
import nbformat
import yaml

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "book" / "welcome.md", ROOT / "book" / "start.md"]
# What a reader who runs every cell gets through in a minute, folded answers and whole scripts apart.
WORDS, LINES, CELLS = 150, 12, 4
FOLDED = re.compile(r"```\{admonition\} [^\n]*\n:class: dropdown\n.*?\n```", re.DOTALL)
SCRIPT = re.compile(r"```python\n# scripts/.*?\n```", re.DOTALL)
HEAD = re.compile(r"\n\n\*\d+ minutes[.,] [^\n]*\*(?=\n\n|$)")
# The last line of a chapter's summary, as `foot_of` makes it. One that says more is left as it is.
FOOT = re.compile(r"^Next: \[[^\]]*\]\([^)]*\)(?: \([^)]*\))?(?:; \[[^\]]*\]\([^)]*\)(?: \([^)]*\))?)*\.$", re.MULTILINE)
LABS = ROOT / "book" / "labs.md"
NAMES = ROOT / "book" / "names.md"
BETWEEN = r"(?s)(<!-- {0} -->\n).*?(<!-- end of {0} -->)"


@functools.cache
def plan():
    return yaml.safe_load((ROOT / "book" / "routes.yml").read_text(encoding="utf-8"))


@functools.cache
def chapters():
    """{number: path} of all chapters, the first evening among them."""
    return {path.name[:2]: path for path in sorted((ROOT / "notebooks").glob("[0-9][0-9]-*.ipynb"))}


@functools.cache
def labs():
    """{number: path} of the labs' notebooks for learners."""
    return {path.parent.name[:2]: path for path in sorted((ROOT / "labs" / "release").glob("*/*.ipynb"))}


@functools.cache
def notebook(path):
    return nbformat.read(path, as_version=4)


def title(path):
    text = notebook(path).cells[0].source if path.suffix == ".ipynb" else path.read_text(encoding="utf-8")
    return re.search(r"^# (?:Lab \d+: )?(.+)$", text, re.MULTILINE)[1]


def is_further(cell):
    """Whether a chapter's second part begins here, which can be left out."""
    return cell.cell_type == "markdown" and bool(re.search(r"^## Further$", cell.source, re.MULTILINE))


def core(path):
    """The cells of a chapter up to its heading Further; all where it has none."""
    return list(itertools.takewhile(lambda cell: not is_further(cell), notebook(path).cells))


def has_core(path):
    """Whether a chapter has a part called Further, and so a core. The first evening is all core."""
    return path.name.startswith("00-") or any(map(is_further, notebook(path).cells))


@functools.cache
def minutes(path, further=False):
    """How long a page takes: what it says itself, or for a chapter what its words, lines and cells make, in fives.

    further: what comes below its heading Further, in the place of its core.
    """
    if path.suffix != ".ipynb":
        return 5 * max(1, round(len(path.read_text(encoding="utf-8").split()) / WORDS / 5))
    if path.parent.name != "notebooks" or path.name.startswith("00-"):
        return int(re.search(r"^\*(\d+) minutes\. ", notebook(path).cells[0].source, re.MULTILINE)[1])
    first = core(path)
    cells = notebook(path).cells[len(first) :] if further else first
    lines = sum(bool(line.strip()) for cell in shown(cells) for line in cell.source.splitlines())
    return 5 * round((words(cells) / WORDS + lines / LINES + len(shown(cells)) / CELLS) / 5)


def words(cells):
    """The number of words in Markdown cells, without folded answers, whole scripts, addresses, and the lines that say what is next."""
    texts = (
        FOLDED.sub("", SCRIPT.sub("", HEAD.sub("", FOOT.sub("", cell.source))))
        for cell in cells
        if cell.cell_type == "markdown"
    )
    return sum(len(re.findall(r"[^\W\d_][\w'’-]*", re.sub(r"\]\(\S+?\)", "]", text))) for text in texts)


def shown(cells):
    """The code cells that are not folded: of which code, output or both stand on the page."""
    return [cell for cell in cells if cell.cell_type == "code" and "hide-cell" not in cell.metadata.get("tags", ())]


def read(cells):
    """The code cells whose code stands on the page. That of most pictures is folded."""
    return [cell for cell in shown(cells) if "hide-input" not in cell.metadata.get("tags", ())]


def path_of(stop):
    if stop.startswith("lab "):
        return labs()[stop[4:]]
    return chapters()[stop] if stop in chapters() else ROOT / stop


def stops_of(route):
    """The stops of a route: of "everything" all chapters, each with its lab."""
    if route["stops"] != "everything":
        return route["stops"]
    numbers = list(chapters())
    return [stop for number in numbers for stop in (number, f"lab {number}") if stop in numbers or number in labs()]


def link(stop, source):
    """A link to a stop from the notebook or page `source`; a chapter by its title, a lab by its number."""
    path = path_of(stop)
    text = f"lab {int(stop[4:])}" if stop.startswith("lab ") else title(path)
    up = "../" * (len(source.relative_to(ROOT).parts) - 1)
    beside = path.parent == source.parent
    return f"[{text}]({path.name if beside else up + path.relative_to(ROOT).as_posix()})"


def spoken(count):
    """Minutes as hours and minutes."""
    hours, rest = divmod(count, 60)
    return f"{hours} h {rest} min" if hours and rest else f"{hours} h" if hours else f"{rest} min"


def following(number, keep=lambda stop: True):
    """Return {stop: names of the routes on which it comes next after a chapter}, of the stops to keep."""
    found = {}
    for route in plan()["routes"]:
        stops = stops_of(route)
        later = [stop for stop in stops[stops.index(number) + 1 :] if keep(stop)] if number in stops else []
        if later:
            found.setdefault(later[0], []).append(route["name"].lower())
    return found


def foot_of(number):
    """The line at a chapter's end: the next chapter of each route. The lab is named above it, under "Your turn"."""
    path, after = chapters()[number], following(number, chapters().__contains__)
    named = [f" ({', '.join(names)})" if len(after) > 1 else "" for names in after.values()]
    return f"Next: {'; '.join(link(stop, path) + names for stop, names in zip(after, named))}."


def head_of(number):
    """The line below a chapter's first sentence."""
    path = chapters()[number]
    needs = " and ".join(link(each, path) for each in plan()["needs"].get(number, ()))
    after = "; ".join(f"{link(stop, path)} ({', '.join(names)})" for stop, names in following(number).items())
    more = minutes(path, further=True)
    said = f"*{minutes(path)} minutes{f', and {more} for the part called Further' if more else ''}. {f'It needs {needs}.' if needs else 'It needs nothing before it.'}"
    return f"{said} Next: {after}.*" if after else f"{said}*"


def table(page):
    """The routes as a list, with the minutes of each stop."""
    lines = []
    for route in plan()["routes"]:
        stops = stops_of(route)
        total = sum(minutes(path_of(stop)) for stop in stops)
        if route["stops"] == "everything":
            total += sum(minutes(path, further=True) for path in chapters().values() if not path.name.startswith("00-"))
            told = f"All chapters in their order, each with its lab, from {link('00', page)} on."
        else:
            told = " → ".join(f"{link(stop, page)} {minutes(path_of(stop))}" for stop in stops)
        lines.append(f"**{route['name']}** ({spoken(total)})\n: {route['for']}\n\n  {told}\n")
    return "\n".join(lines)


def list_of_labs():
    """All labs as a table: what one writes, how long it takes, what it needs besides its own chapter."""
    from ringtree import labs as exercises
    from ringtree.labs.lab import module_of

    lines = ["| lab | minutes | you write | and needs |", "|---|---|---|---|"]
    for lab in exercises.names():
        module = module_of(lab)
        if module.CHAPTER == 0:
            continue  # the first evening, which is a chapter of its own
        path = labs()[f"{module.CHAPTER:02}"]
        told = notebook(path).cells[0].source
        needs = re.findall(r"\]\(../../../notebooks/(\d\d)-[\w-]+\.ipynb\)", told)
        others = [link(each, LABS) for each in dict.fromkeys(needs) if int(each) != module.CHAPTER]
        functions = ", ".join(f"`{name}`" for name in module.EXERCISES)
        place = f"[{module.TITLE}](../{path.relative_to(ROOT).as_posix()})"
        lines.append(f"| {module.CHAPTER}: {place} | {minutes(path)} | {functions} | {', '.join(others)} |")
    return "\n".join(lines) + "\n"


def first_uses():
    """Return {name of ringtree: (where it is, chapter)} of all that the cores ask a reader to know, in their order."""
    found = {}
    for number, path in chapters().items():
        if has_core(path):
            for name, place in core_names.used(read(core(path))).items():
                found.setdefault(name, (place, number))
    return found


def list_of_names():
    """The names of ringtree that the cores ask a reader to know, as a table."""
    lines = ["| name | what it is or does | first in |", "|---|---|---|"]
    for name, (place, number) in sorted(first_uses().items(), key=lambda item: item[0].lower()):
        lines.append(f"| `{name}` | {core_names.what_it_does(*place)} | {link(number, NAMES)} |")
    return "\n".join(lines) + "\n"


def written(name, made, text):
    """A page with what stands between two comments of this name made anew."""
    return re.sub(BETWEEN.format(name), lambda match: f"{match[1]}{made}{match[2]}", text)


def wanted():
    """(path, its text as it should be) of everything that this file writes."""
    for number, path in chapters().items():
        if number != "00":
            found = nbformat.read(path, as_version=4)
            first, promise, *rest = HEAD.sub("", found.cells[0].source).split("\n\n")
            found.cells[0].source = "\n\n".join([first, promise, head_of(number), *rest])
            for cell in found.cells:
                if cell.cell_type == "markdown":
                    cell.source = FOOT.sub(lambda _: foot_of(number), cell.source)
            yield path, nbformat.writes(found) + "\n"
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        yield page, written("routes", table(page), text)
    yield LABS, written("labs", list_of_labs(), LABS.read_text(encoding="utf-8"))
    yield NAMES, written("names", list_of_names(), NAMES.read_text(encoding="utf-8"))


def main():
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for path, text in wanted():
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
