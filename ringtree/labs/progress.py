"""How far a learner has come in all labs: one table, and one picture of it in a notebook."""

from html import escape
from pathlib import Path

from ringtree.labs import marks
from ringtree.labs.lab import module_of, names

SYMBOLS = "·", "○", "◐", "●"  # not yet, right, and the levels above
COLOURS = "#8884", "#7aa6c2", "#3f7cac", "#1b4965"


def progress(folder: str = "..") -> "Progress":
    """Return what is right so far, and how good, in every lab.

    folder: where the labs' folders are; each keeps its own marks, beside its notebook.
    """
    folders = [Path("."), *sorted(path for path in Path(folder).glob("*") if path.is_dir())]
    rows = []
    for name in names():
        module = module_of(name)
        noted = {}
        for each in folders:
            noted |= marks.read(name, each)
        rows.append((module.CHAPTER, module.TITLE, {exercise: noted.get(exercise) for exercise in module.EXERCISES}))
    return Progress(rows)


class Progress:
    """By lab: its chapter, its title, and of each exercise the level that was reached, or None."""

    def __init__(self, rows):
        self.rows = rows

    def __repr__(self):
        lines = [
            f"{chapter:2}  {title:24} {' '.join(SYMBOLS[_place(level)] for level in reached.values())}"
            for chapter, title, reached in self.rows
        ]
        return "\n".join([*lines, "· not yet   ○ right   ◐ within the target   ● at the bound"])

    def _repr_html_(self):
        rows = "".join(
            f"<tr><td>{chapter}</td><td>{escape(title)}</td><td>"
            + "".join(
                f'<span title="{escape(name)}: {WORDS[_place(level)]}" style="display:inline-block;width:1.1em;height:1.1em;'
                f'margin-right:4px;border-radius:50%;background:{COLOURS[_place(level)]}"></span>'
                for name, level in reached.items()
            )
            + "</td></tr>"
            for chapter, title, reached in self.rows
        )
        key = " &nbsp; ".join(f'<span style="color:{colour}">●</span> {word}' for colour, word in zip(COLOURS, WORDS))
        return f"<table>{rows}</table><p>{key}</p>"


WORDS = "not yet", "right", "within the target", "at the bound"


def _place(level):
    return 0 if level is None else min(level + 1, len(SYMBOLS) - 1)
