"""What the package says about bad input: one kind of error, and one style of sentence."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "ringtree"
FILES = sorted(PACKAGE.rglob("*.py"))

# A notebook shows a page of traceback for these. Bad input is a UsageError, which is shown as its sentence.
BUILT_IN = {"ValueError", "TypeError", "KeyError", "IndexError", "LookupError", "AssertionError"}
# Where they may be raised, and why.
MAY_RAISE = {
    "algorithms/": "each file can be copied alone into a training script, so it imports nothing of ours",
    "parallel/": "each file can be copied alone into a training script, so it imports nothing of ours",
    "calls.py": "refuses a call as torch.distributed does, so that a program that catches the error runs on both",
    "simulated/dist.py": "stands for torch.distributed and refuses as it does",
    "simulated/faults.py": "stands for torch.distributed and refuses as it does",
    "live/link/": "stands for torch.distributed and refuses as it does",
    "live/reports/works.py": "stands for torch.distributed and refuses as it does",
    "speaks.py": "stands for torch.distributed and refuses as it does",
    "tables.py": "caught in the same file",
    "labs/marks.py": "caught in the same file",
    "labs/exercises/order.py": "belongs to a record of a run that the lab shows",
}
OURS = {
    "UsageError",
    "ProgramError",
    "RuntimeError",
    "CheckFailed",
    "Refused",
    "Unnamed",
    "TimeoutError",
    "NotImplementedError",
}
# Words that begin with a capital wherever they stand.
NAMES = {"P2POp", "PyTorch", "Slurm", "Python", "Sketch"} | {
    node.name for path in FILES for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
}


def errors(path):
    """Each error that a file makes: its class, its line and its sentence, with {} for what is filled in."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Name):
            yield node.exc.id, node.lineno, None
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in BUILT_IN | OURS:
                yield name, node.lineno, text_of(node.args[0]) if node.args else None


def text_of(node):
    """A literal's text; None for anything that is worked out elsewhere."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = text_of(node.left), text_of(node.right)
        return "".join(side or "{}" for side in sides) if any(sides) else None
    return None


def faults_of(kind, text):
    """What is wrong with a sentence's style."""
    several = re.search(r"[.?!] [A-Z]", text)
    if text.endswith(".") and not several:
        yield "ends in a full stop, and is one sentence"
    if re.search(r"[.;:,] {2}", text):
        yield "has two spaces after a mark"
    word = re.match(r"[A-Za-z0-9]*", text)[0]
    if word[:1].isupper() and word not in NAMES and not (word.isupper() and len(word) > 1):
        yield f"begins with {word!r}, a capital and not a name"
    if kind == "UsageError" and text and not re.search(r"[:;] |=\{\}$", text):  # the second: another error's sentence
        yield "does not say what to do"


def test_bad_input_is_one_kind_of_error_in_one_style():
    wrong = []
    for path in FILES:
        where = str(path.relative_to(PACKAGE))
        for kind, line, text in errors(path):
            if kind in BUILT_IN and not where.startswith(tuple(MAY_RAISE)):
                wrong.append(f"{where}:{line} makes a {kind}: make bad input a UsageError")
            wrong += [f"{where}:{line} {fault}: {text}" for fault in faults_of(kind, text or "")]
    assert not wrong, "\n".join(wrong)


def test_every_exception_is_needed():
    raised = {str(path.relative_to(PACKAGE)) for path in FILES for kind, *_ in errors(path) if kind in BUILT_IN}
    assert [each for each in MAY_RAISE if not any(where.startswith(each) for where in raised)] == []
