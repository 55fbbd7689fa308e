"""The comment `<!-- verdicts: LAB -->` on a page: every answer to the lab's exercises, and what the check makes of it.

The verdicts are those of `trials/verdicts.py`, which `tools/build.py` runs first. A learner's copy of the course has no trials,
and its page says so.
"""

import re
import sys
from pathlib import Path

from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parent.parent.parent
TRIALS = ROOT / "trials"
NO_TRIALS = "*This copy of the course comes without the answers, so the table is left out.*"

COMMENT = re.compile(r"^<!-- verdicts: ([\w-]+) -->$", re.MULTILINE)

# What else is wrong depends on the numbers that were drawn.
KINDS = {
    "deadlock under NCCL's rules": "deadlock under NCCL's rules",
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


def ask_for_verdicts(app, docname, source):
    """JupyterLab would show a directive of ours as an error, so that the page has a comment."""
    source[0] = COMMENT.sub(r"```{verdicts} \1\n```", source[0])


def setup(app):
    app.add_directive("verdicts", Verdicts)
    app.connect("source-read", ask_for_verdicts)
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}
