"""Two pages of the book: the list of all labs; and every exercise, every answer to it, and what the check makes of it.

python tests/graded.py            # writes book/labs.md and book/graders.md
"""

import re
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from test_labs import ANSWERS, LABS, NAMES, module_of, source_of, verdict

LIST, PAGE = ROOT / "book" / "labs.md", ROOT / "book" / "graders.md"
ALL = """# The labs

In a lab you write what its chapter explains, and a check tells you what is still wrong: in the smallest case, with the ranks and the numbers, and with the step player on your own run. A check tries your function in the simulator first, by NCCL's rules, then on your ranks. Most answers can be *right*, *within the target*, or *at the bound*, where nobody can do better. What does not end is stopped after ten seconds, and the next check works. A call that stays in C for long, such as `sum(range(10**11))`, holds the kernel itself: restart it, and run the cells again.

On these pages you can read the labs only. To work on them run `make lab` and open the notebook below `labs/release`; {doc}`setup` says what else it takes. Each needs its own chapter; what else it needs stands in the last column.

A mark that your teacher's `grade` or `python -m ringtree.labs mark` gives comes from the same check, with more cases. It is as honest as its learner: the check runs beside your answer, so a submission that looks for the hidden cases can read them, as in any nbgrader course. The sandbox around both holds what a submission can do to anybody else: it limits processes, memory, time and files, and it leaves nothing running.

"""
HEAD = """# Graders, graded

The labs' checks are tried themselves, whenever this book's tests run: with our solutions, with right answers of another structure, with the empty stub, and with wrong answers of the kinds that people give. This is what the checks made of them. A check that lets a wrong answer pass, or fails it for another reason than its own, fails the tests.
"""


def said(found, levels):
    """A verdict in a few words that do not change from run to run."""
    if found.wrong:
        if "it is not yet written" in found.wrong:
            return "not yet written"
        kind = next((word for part, word in KINDS.items() if part in found.wrong), "")
        return f"fails{kind and ': '}{kind}"
    if found.level < len(levels):
        return f"right, not {levels[found.level]}"
    return f"right, {levels[-1]}" if levels else "right"


# What else is wrong depends on the numbers that were drawn.
KINDS = {
    "deadlock by NCCL's rules": "deadlock by NCCL's rules",
    "it calls a collective of torch's": "ready-made",
    "had not ended": "it does not end",
    "has changed what it was given": "the input was changed",
    "never waited": "never waited for",
}


def rows(lab, name):
    exercise = module_of(lab).EXERCISES[name]
    levels = [level.name for level in exercise.levels]
    for answer in ("our solution", "the stub"):
        yield answer, said(verdict(lab, name, answer), levels)
    for kind, answers in ("right", ANSWERS[lab].RIGHT), ("wrong", ANSWERS[lab].WRONG):
        for what, text in answers.get(name, {}).items():
            yield f"{kind}: {what}", said(verdict(lab, name, text if kind == "right" else text[0]), levels)


def page():
    lines = [HEAD]
    for lab in NAMES:
        module = module_of(lab)
        lines.append(f"## Lab {module.CHAPTER}: {module.TITLE}\n")
        lines.append("| exercise | answer | verdict |\n|---|---|---|")
        for name in module.EXERCISES:
            lines += [f"| `{name}` | {answer.replace('|', '/')} | {found} |" for answer, found in rows(lab, name)]
        lines.append("")
    return "\n".join(lines)


def list_of_labs():
    lines = [ALL + "| lab | minutes | you write | and needs |\n|---|---|---|---|"]
    for lab in NAMES:
        path, module = source_of(lab), module_of(lab)
        told = nbformat.read(path, as_version=4).cells[0].source
        minutes = re.search(r"^\*(\d+) minutes\. ", told, re.MULTILINE)[1]
        own = f"{module.CHAPTER:02}-"
        needs = [each for each in re.findall(r"\]\(../../../(notebooks/\d\d-[\w-]+)\.ipynb\)", told) if own not in each]
        place = path.relative_to(LABS / "source").with_suffix("")
        others = ", ".join(f"{{doc}}`../{each}`" for each in dict.fromkeys(needs))
        functions = ", ".join(f"`{name}`" for name in module.EXERCISES)
        lines.append(
            f"| {module.CHAPTER}: {{doc}}`{module.TITLE} <../labs/release/{place}>` | {minutes} | {functions} | {others} |"
        )
    return "\n".join([*lines, "", "How the checks themselves are tried: {doc}`graders`.", ""])


if __name__ == "__main__":
    LIST.write_text(list_of_labs(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
