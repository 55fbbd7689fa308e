"""Two directives: `{labs}` lists all labs, and `{verdicts}` every answer to their exercises and what the check makes of it.

The verdicts are those of `trials/verdicts.py`, which `tools/build.py` runs first. A learner's copy of the course has no trials,
and its page says so.
"""

import re
import sys
from pathlib import Path

import nbformat
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parent.parent.parent
TRIALS = ROOT / "trials"
NO_TRIALS = "*This copy of the course comes without the answers, so the table is left out.*"

# What else is wrong depends on the numbers that were drawn.
KINDS = {
    "deadlock by NCCL's rules": "deadlock by NCCL's rules",
    "it calls a collective of torch's": "ready-made",
    "had not ended": "it does not end",
    "has changed what it was given": "the input was changed",
    "never waited": "never waited for",
}


def said(found, levels):
    """A verdict in a few words that do not change from run to run."""
    if found.fault:
        if "it is not yet written" in found.fault:
            return "not yet written"
        kind = next((word for part, word in KINDS.items() if part in found.fault), "")
        return f"fails{kind and ': '}{kind}"
    if found.level < len(levels):
        return f"right, not {levels[found.level]}"
    return f"right, {levels[-1]}" if levels else "right"


def rows(lab, name):
    """(answer, verdict) of every answer to an exercise, in words."""
    import verdicts

    exercise = verdicts.module_of(lab).EXERCISES[name]
    levels = [level.name for level in exercise.levels]
    for what, text in verdicts.answers_to(lab, name):
        yield what, said(verdicts.verdict(lab, name, text), levels)


def table_of(lab):
    """The verdicts of a lab as a table in Markdown."""
    from ringtree.labs.lab import module_of

    lines = ["| exercise | answer | verdict |", "|---|---|---|"]
    for name in module_of(lab).EXERCISES:
        lines += [f"| `{name}` | {answer.replace('|', '/')} | {found} |" for answer, found in rows(lab, name)]
    return "\n".join(lines)


def list_of_labs():
    """All labs as a table in Markdown: what one writes, how long it takes, what it needs."""
    from ringtree import labs
    from ringtree.labs.lab import module_of

    lines = ["| lab | minutes | you write | and needs |", "|---|---|---|---|"]
    for lab in labs.names():
        if module_of(lab).CHAPTER == 0:
            continue  # the first evening, which is a chapter of its own
        (path,) = (ROOT / "labs" / "release").glob(f"*/{lab}.ipynb")
        module, told = module_of(lab), nbformat.read(path, as_version=4).cells[0].source
        minutes = re.search(r"^\*(\d+) minutes\. ", told, re.MULTILINE)[1]
        own = f"{module.CHAPTER:02}-"
        needs = [each for each in re.findall(r"\]\(../../../(notebooks/\d\d-[\w-]+)\.ipynb\)", told) if own not in each]
        place = path.relative_to(ROOT / "labs").with_suffix("").as_posix()
        others = ", ".join(f"{{doc}}`../{each}`" for each in dict.fromkeys(needs))
        functions = ", ".join(f"`{name}`" for name in module.EXERCISES)
        lines.append(f"| {module.CHAPTER}: {{doc}}`{module.TITLE} <../labs/{place}>` | {minutes} | {functions} | {others} |")
    return "\n".join(lines)


class Labs(SphinxDirective):
    def run(self):
        for path in (ROOT / "labs" / "release").glob("*/*.ipynb"):
            self.env.note_dependency(str(path))
        return self.parse_text_to_nodes(list_of_labs())


class Verdicts(SphinxDirective):
    """`{verdicts} LAB`: the answers to the exercises of one lab."""

    has_content, required_arguments = False, 1

    def run(self):
        if not TRIALS.is_dir():
            return self.parse_text_to_nodes(NO_TRIALS)
        if str(TRIALS) not in sys.path:
            sys.path.insert(0, str(TRIALS))
        self.env.note_reread()  # it rests on the whole package
        return self.parse_text_to_nodes(table_of(self.arguments[0]))


def setup(app):
    app.add_directive("labs", Labs)
    app.add_directive("verdicts", Verdicts)
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}
