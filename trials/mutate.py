"""Each assertion of the labs' checks taken away, one at a time: some answer of trials/answers must then get through, or be told
something else. What nothing notices is dead weight: write a wrong answer that it stops, or delete it.

    python trials/mutate.py [LAB …]        # prints a table; exits with 1 where something survives
"""

import argparse
import ast
import contextlib
import dataclasses
import functools
import importlib
import inspect
import re
import sys
import time
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "trials")]

from verdicts import ANSWERS, NAMES, RUBBISH, Notebook, learners_cells, module_of

from ringtree.labs import comparing, error_text, forbidding, judging
from ringtree.labs.exercise import Answer, Program
from ringtree.simulated import torch_modes

SECONDS = 20
# Assertions that all checks share and that are no sentence: module, its text, the text without, in words, what an answer is told.
SHARED = (
    (judging, "checked=True", "checked=False", "the simulator's own checks", ""),
    (judging, '(case, "nccl") for case in cases', '(case, "gloo") for case in cases', "NCCL's rules", "NCCL's rules"),
    (judging, 'tried.insert(again + 1, (cases[again], "gloo"))', "pass", "one more run, by Gloo's rules", "run once more"),
    (torch_modes, 'torch.set_deterministic_debug_mode("warn")', "None", "unwritten memory shows", "nan"),
    (forbidding, "setattr(real, name, _refusing(replaced[name]))", "None", "torch's collectives fail", "it calls a collective"),
    (forbidding, "function.__code__ = _refuse.__code__", "None", "the book's algorithms fail", "it calls"),
)


# ---------------------------------------------------------------- a text with an assertion less


class Without(ast.NodeTransformer):
    """Takes away the `number`th of the assertions in a module's functions: an `if` that returns a sentence never holds, a
    sentence that ends a function is None, and of several checks joined by `or` one is missing."""

    def __init__(self, number=None):
        self.number, self.count, self.says = number, 0, []
        self.inside = []

    def visit_FunctionDef(self, node):
        self.inside.append(node)
        self.generic_visit(node)
        self.inside.pop()
        return node

    def visit_If(self, node):
        self.generic_visit(node)
        last = node.body[-1]
        if self._complains() and isinstance(last, ast.Return) and _is_complaint(last.value) and self._this(node, last.value):
            node.test = ast.copy_location(ast.Constant(False), node.test)
        return node

    def visit_Return(self, node):
        if self._complains() and not self._below_an_if(node) and _is_complaint(node.value):
            if isinstance(node.value, ast.BoolOp):
                for place in range(len(node.value.values)):
                    if self._this(node, node.value.values[place]):
                        kept = [each for number, each in enumerate(node.value.values) if number != place]
                        node.value = kept[0] if len(kept) == 1 else ast.copy_location(ast.BoolOp(ast.Or(), kept), node.value)
                        break
            elif self._this(node, node.value):
                node.value = ast.copy_location(ast.Constant(None), node.value)
        return node

    def _complains(self):
        """Whether the function at hand says what is wrong, or returns None where nothing is."""
        if not self.inside:
            return False
        returned = [each.value for each in ast.walk(self.inside[-1]) if isinstance(each, ast.Return)]
        none = any(value is None or isinstance(value, ast.Constant) and value.value is None for value in returned)
        none = none or any(isinstance(value, ast.IfExp) and _is_none(value.body) for value in returned)
        others = len(returned) == 1 and isinstance(returned[0], ast.BoolOp)
        return (none or others) and any(map(_is_complaint, returned))

    def _below_an_if(self, node):
        ifs = [each for each in ast.walk(self.inside[-1]) if isinstance(each, ast.If)]
        return any(each.body[-1] is node for each in ifs)

    def _this(self, node, value):
        self.count += 1
        self.says.append((self.inside[-1].name, value.lineno, _words(value)))
        return self.count - 1 == self.number


def _is_none(node):
    return isinstance(node, ast.Constant) and node.value is None


def _is_complaint(value):
    """Whether what is returned is a sentence, or the sentence of another check."""
    if isinstance(value, ast.IfExp):
        return _is_complaint(value.body) or _is_complaint(value.orelse)
    if isinstance(value, ast.Tuple):
        return bool(value.elts) and _is_complaint(value.elts[0]) and len(value.elts) == 2
    if isinstance(value, ast.BoolOp):
        return isinstance(value.op, ast.Or) and all(isinstance(each, ast.Call) for each in value.values)
    if isinstance(value, ast.Name):
        return value.id == "wrong"
    if isinstance(value, ast.Constant):
        return isinstance(value.value, str) and bool(value.value)
    return isinstance(value, ast.JoinedStr)


def _words(value):
    text = ast.unparse(value)
    return text if len(text) < 70 else text[:67] + "…"


def with_code_of(tree, module, test):
    """What `test` gives while the functions of a module are those of a changed syntax tree."""
    namespace = {**vars(module)}
    exec(compile(ast.fix_missing_locations(tree), module.__file__, "exec"), namespace)
    changed = [(ours, theirs) for ours, theirs in pairs(vars(module), namespace, module.__name__)]
    kept = [ours.__code__ for ours, _ in changed]
    try:
        for ours, theirs in changed:
            ours.__code__ = theirs.__code__
        return test()
    finally:
        for (ours, _), code in zip(changed, kept):
            ours.__code__ = code


def pairs(ours, theirs, module):
    """Functions and methods of a module, each with that of the same name in the changed one."""
    for name, value in list(ours.items()):
        other = theirs.get(name)
        if isinstance(value, type) and isinstance(other, type) and value.__module__ == module:
            yield from pairs(vars(value), vars(other), module)
        value, other = (inspect.unwrap(each) if callable(each) else each for each in (value, other))
        if isinstance(value, types.FunctionType) and isinstance(other, types.FunctionType) and value.__module__ == module:
            if value is not other and not value.__code__.co_freevars:
                yield value, other


# ---------------------------------------------------------------- the mutants


@dataclasses.dataclass
class Tried:
    """An answer with every assertion in its place."""

    lab: str
    name: str
    what: str
    function: object
    reason: str | None  # why it is wrong; None where it is right
    level: int | None
    said: str
    lines: set  # (file, line) of the sentences that it was told


@dataclasses.dataclass
class Mutant:
    where: str
    says: str
    rows: list  # (lab, exercise) whose answers are to notice
    concerns: object  # concerns(tried): whether what an answer was told may have to do with it
    run: object  # run(test): what test({(lab, exercise): the changed exercise}) gives without the assertion


def mutants(labs):
    """Those of some labs; where it is all of them, also those of what their checks share."""
    for lab in labs:
        module = module_of(lab)
        yield from sentences(module, lab, [(lab, name) for name in module.EXERCISES])
        for name, exercise in module.EXERCISES.items():
            for says, concerns, changed in weaker(exercise):
                yield Mutant(f"{lab}: {name}", says, [(lab, name)], concerns, functools.partial(_with, {(lab, name): changed}))
    if len(labs) == len(NAMES):
        every = [(lab, name) for lab in labs for name in module_of(lab).EXERCISES]
        for module in comparing, error_text, judging:
            yield from sentences(module, module.__name__.rpartition(".")[2], every)
        for module, old, new, says, told in SHARED:
            text = Path(module.__file__).read_text()
            if text.count(old) != 1:
                raise SystemExit(f"{module.__name__} has {old!r} {text.count(old)} times, and once was expected")
            run = functools.partial(_with_tree, ast.parse(text.replace(old, new)), module)
            yield Mutant(module.__name__.rpartition(".")[2], says, every, functools.partial(_was_told, told), run)


def sentences(module, where, rows):
    """Without each of the sentences of a module."""
    text = Path(module.__file__).read_text()
    every = Without()
    every.visit(ast.parse(text))
    for number, (function, line, words) in enumerate(every.says):
        run = functools.partial(_with_tree, Without(number).visit(ast.parse(text)), module)
        concerns = functools.partial(lambda place, tried: place in tried.lines, (module.__file__, line))
        yield Mutant(f"{where}: {function}, line {line}", words, rows, concerns, run)


def _with_tree(tree, module, test):
    return with_code_of(tree, module, lambda: test({}))


def _with(changed, test):
    return test(changed)


def _was_told(words, tried):
    return tried.level is None and words in tried.said


def _stopped_at(level, tried):
    return tried.level == level


def weaker(exercise):
    """(what is missing, which answers may notice, the exercise without it)."""
    if isinstance(exercise, Answer):
        for number, level in enumerate(exercise.levels):
            kept = functools.partial(lambda level: [each for each in exercise.questions() if each.level != level], number + 1)
            changed = dataclasses.replace(exercise, questions=kept)
            yield f"the questions of the level {level.name!r}", functools.partial(_stopped_at, number), changed
        for function in exercise.without:
            rest = tuple(each for each in exercise.without if each is not function)
            concerns = functools.partial(_was_told, "here you have to do without")
            yield f"without {function.__name__}", concerns, dataclasses.replace(exercise, without=rest)
        return
    assert isinstance(exercise, Program)
    for number, level in enumerate(exercise.levels):
        for limit in level.limits:
            rest = dataclasses.replace(level, limits=tuple(each for each in level.limits if each is not limit))
            levels = (*exercise.levels[:number], rest, *exercise.levels[number + 1 :])
            changed = dataclasses.replace(exercise, levels=levels)
            yield f"{level.name}: {limit.what}", functools.partial(_stopped_at, number), changed
    if exercise.also:
        yield "also", functools.partial(_was_told, ""), dataclasses.replace(exercise, also=None)
    if exercise.keeps:
        concerns = functools.partial(_was_told, "has changed what it was given")
        yield "what it was given stays", concerns, dataclasses.replace(exercise, keeps=False)
    if not exercise.builtin:
        concerns = functools.partial(_was_told, "it calls a collective of torch's")
        yield "nothing ready-made", concerns, dataclasses.replace(exercise, builtin=True)


# ---------------------------------------------------------------- the answers


@functools.cache
def tried(lab, name):
    """Every answer to an exercise that does not loop forever, with what it is told."""
    found = [("our solution", learners_cells(lab)[name], None)]
    for what, text in ANSWERS[lab].RIGHT.get(name, {}).items():
        found.append((what, Notebook().run(text)[name], None))
    for what, (text, reason) in ANSWERS[lab].WRONG.get(name, {}).items():
        if "while True" not in text:
            found.append((what, Notebook().run(text)[name], reason))
    exercise, results = module_of(lab).EXERCISES[name], []
    for what, function, reason in found:
        with noted(module_of(lab).__file__, comparing.__file__, error_text.__file__, judging.__file__) as lines:
            verdict = judging.judge(name, function, exercise, SECONDS)
        results.append(Tried(lab, name, what, function, reason, verdict.level, verdict.fault or verdict.next_level, lines))
    return results


@contextlib.contextmanager
def noted(*files):
    """The lines of these files that are run: (file, line)."""
    lines = set()

    def trace(frame, event, _):
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            lines.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(None)


def noticed(mutant, changed):
    """(how, the answer that notices) that an assertion is gone, or None. It is best noticed by an answer that comes further."""
    best = None
    for lab, name in mutant.rows:
        exercise = changed.get((lab, name)) or module_of(lab).EXERCISES[name]
        for each in tried(lab, name):
            if not mutant.concerns(each):
                continue
            try:
                verdict = judging.judge(name, each.function, exercise, SECONDS)
            except Exception as error:
                best = best or (f"the check itself fails: {type(error).__name__}", f"{name}: {each.what}")
                continue
            if verdict.level != each.level:
                return "gets through" if each.level is None else "comes further", f"{name}: {each.what}"
            if each.reason and not re.search(each.reason, verdict.fault or verdict.next_level, re.DOTALL):
                best = best or ("is told something else", f"{name}: {each.what}")
        if best is None and isinstance(exercise, Answer):
            best = rubbish(name, exercise)
    return best


def rubbish(name, exercise):
    """How a question fails to tell answers of another kind altogether what was expected, and such an answer; or None."""
    for question in exercise.questions():
        told = []
        for answer in RUBBISH:
            try:
                told.append(question.wrong(answer))
            except Exception as error:
                return f"the check itself fails: {type(error).__name__}", f"{name}: {answer!r}"
        if not any(told):
            return "gets through", f"{name}: anything, asked alone for {question.says}"
    return None


def try_all(labs):
    """The table of all mutants; prints each as it comes, and returns those that nothing noticed."""
    survivors = []
    print("| check | without | answer | which then |\n|---|---|---|---|", flush=True)
    for mutant in mutants(labs):
        began = time.monotonic()
        for row in mutant.rows:
            tried(*row)  # before anything is taken away
        how, what = mutant.run(functools.partial(noticed, mutant)) or ("nobody notices", "–")
        survivors += [mutant] * (how == "nobody notices")
        print(f"| {' | '.join(str(each).replace('|', '/') for each in (mutant.where, mutant.says, what, how))} |", flush=True)
        if (took := time.monotonic() - began) > 60:
            print(f"{mutant.where}: {took:.0f} s", file=sys.stderr)
    return survivors


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("labs", nargs="*", default=NAMES, metavar="LAB", help="default: all, and what their checks share")
    labs = parser.parse_args().labs
    for lab in labs:
        importlib.import_module(f"answers.{lab.replace('-', '_')}")
    survivors = try_all(labs)
    for mutant in survivors:
        print(f"Nobody notices that this is gone: {mutant.where}: {mutant.says}", file=sys.stderr)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
