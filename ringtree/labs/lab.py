"""An open lab, as a learner sees it: `check` says what is still wrong, `hint` helps a step at a time."""

import contextlib
import hashlib
import importlib
import inspect
import io
import pkgutil
import re
import sys
import threading
from html import escape

import greenlet
from IPython import get_ipython
from IPython.display import display

from ringtree import doctor
from ringtree.errors import UsageError
from ringtree.given import number, takes, text
from ringtree.labs import exercises, marks
from ringtree.labs.error_text import error_text
from ringtree.labs.examination import Examination, learners
from ringtree.labs.exercise import CheckFailed, folded
from ringtree.labs.judging import judge, program_of
from ringtree.labs.patches import put_back
from ringtree.live import cluster
from ringtree.live.cells import say
from ringtree.trace import Trace

NEEDED = 4  # ranks that a lab's live cases are made for
PRINTED = 20_000  # characters of what a function prints that a check shows: more would fill the notebook


def names() -> list[str]:
    """All labs, in the order of the chapters."""
    found = [module.name.replace("_", "-") for module in pkgutil.iter_modules(exercises.__path__)]
    return sorted(found, key=lambda name: (module_of(name).CHAPTER, name))


def module_of(name):
    """The module of a lab's exercises."""
    return importlib.import_module(f"{exercises.__name__}.{name.replace('-', '_')}")


@takes(name=text, timeout=number(above=True))
def open(name, ranks, timeout=10.0, namespace=None):
    """Open the lab called `name` on live ranks.

    timeout: seconds that a check may take in the simulator, and one live run, before what the learner wrote counts as hung.
    namespace: where the learner's functions are; left out, the notebook's own names.
    In a notebook a line says first whether something is wrong with this machine.
    Raises UsageError where there is no such lab, or too few ranks for it.
    """
    if name not in (labs := names()):
        raise UsageError(f"there is no lab called {name!r}: give one of {', '.join(labs)}")
    if (given := getattr(ranks, "size", repr(ranks))) != NEEDED:
        raise UsageError(f"this lab needs {NEEDED} ranks and was given {given}: run `ranks = ringtree.start({NEEDED})`")
    shell = get_ipython()
    if shell:
        print(doctor.in_a_line(NEEDED, running=NEEDED))
    if namespace is None:
        namespace = shell.user_ns if shell else vars(sys.modules["__main__"])
    return Lab(name, module_of(name), ranks, timeout, namespace)


class Lab:
    """An open lab; made by `labs.open`."""

    def __init__(self, name, module, ranks, timeout, namespace):
        self.name = name
        self._module, self._ranks, self._timeout, self._namespace = module, ranks, timeout, namespace
        self._failed = None  # (exercise, what to try once more) of the check that failed last

    @property
    def given(self):
        """Return what a lab gives its learner to work with, in the order that its notebook names it."""
        if not hasattr(self._module, "GIVEN"):
            raise UsageError(
                f'the lab "{self.name}" gives nothing to work with; lab.again() runs the case that failed once more'
            )
        return self._module.GIVEN

    def check(self, name):
        """Try the learner's function `name`; print what was tried and how far it came, or raise CheckFailed with what is wrong.

        First in the simulator, on many numbers of ranks, under NCCL's rules; then on the live ranks.
        """
        exercise = self._exercise(name)
        function = learners(name, self._namespace)
        self._failed = None
        try:
            with _some_of_what_is_printed():
                verdict = judge(name, function, exercise, self._timeout)
        except KeyboardInterrupt:
            raise CheckFailed(f"{name}: interrupted before it was decided") from None
        if verdict.fault:
            self._failed = verdict.tried and (name, verdict.tried)
            marks.note_failed(self.name, name)
            _show_below(verdict, exercise)
            again = "" if verdict.case is None else "\n  lab.again() runs this case once more."
            raise CheckFailed(f"{verdict.fault}{again}")
        if exercise.live:
            try:
                self._live(name, exercise)
            except CheckFailed:
                marks.note_failed(self.name, name)
                raise
        marks.note(self.name, name, verdict.level, _code_of(function))
        reached = exercise.levels[verdict.level - 1] if verdict.level else None
        print(f"{name} is right{f', and {reached.name}' if reached else ''}: {exercise.tried(verdict)}.")
        if reached and reached.why:
            print(*folded(reached.why), sep="\n")
        if verdict.next_level:
            print(*folded(verdict.next_level), sep="\n")

    def again(self):
        """Run the case on which the last check failed once more, with your function as it is now; say what came of it.

        What the function prints is shown line by line, each with its rank.
        """
        if self._failed is None:
            raise UsageError("there is no case to run again: no check has failed since the last one that passed")
        name, tried = self._failed
        exercise, function = self._exercise(name), learners(name, self._namespace)
        with _by_rank() as told_by:
            verdict = judge(
                name, told_by(function) if isinstance(tried, tuple) else function, exercise, self._timeout, only=tried
            )
        if verdict.fault:
            raise CheckFailed(verdict.fault)
        print(f'{name} is right on this case. Run lab.check("{name}") for all of them.')

    def _live(self, name, exercise):
        examine = Examination(name, self._live_ranks(), self._timeout, self._namespace, exercise.harness)
        cases = [case for case in exercise.cases() if case.size == NEEDED]
        try:
            for case in cases[-exercise.live :]:
                examine.run(case)
        except CheckFailed:
            with _some_of_what_is_printed():
                for rank, text in enumerate(examine.printed):  # of the run that failed alone
                    say(sys.stdout, rank, text)
            raise

    def watch(self, name):
        """The step player on a run of the learner's function on 4 simulated ranks; of a training, the time that it takes."""
        exercise = self._exercise(name)
        case = next(case for case in exercise.cases() if case.size == NEEDED and case.nbytes)
        program = program_of(learners(name, self._namespace), case, exercise)
        try:
            figure = _picture(program, case, exercise, f"{name}, {case}")
        except Exception as error:
            raise CheckFailed(f"{name}, {case}, cannot be drawn: {error_text(name, error)}") from None
        if figure is None:
            raise CheckFailed(f"{name}, {case}: there is nothing to draw, because its own messages carry no numbers")
        return figure

    def hint(self, name, level=None):
        """Show the hints for `name`, folded; or one of them, counted from 1."""
        hints = self._exercise(name).hints
        if level is None:
            display(_Folded(name, hints))
        elif level in range(1, len(hints) + 1):
            print(hints[level - 1])
        else:
            raise UsageError(f"{name} has {len(hints)} hints: ask for one from 1 to {len(hints)}, not {level!r}")

    def _exercise(self, name):
        exercises = self._module.EXERCISES
        if name not in exercises:
            raise UsageError(f"this lab has nothing called {name!r}; it has {', '.join(exercises)}")
        return exercises[name]

    def _live_ranks(self):
        if not self._ranks.running:
            if cluster.current() is None:
                raise UsageError("the ranks were stopped: run `ranks = ringtree.start(4)` again, then this cell")
            self._ranks = cluster.current()
        return self._ranks

    def __repr__(self):
        noted, standing = marks.read(self.name), marks.standing(self.name)
        lines = [self._line(name, noted.get(name), standing.get(name)) for name in self._module.EXERCISES]
        return "\n".join([f"{self._module.TITLE}: {sum(line[0] == '✓' for line in lines)} of {len(lines)}", *lines])

    def _line(self, name, level, standing):
        """An exercise, the level that was reached, and whether the cell still stands as it was then."""
        if level is None:
            return f"· {name}"
        levels = ("right", *(each.name for each in self._exercise(name).levels))
        best = levels[min(level, len(levels) - 1)]
        if standing is None:
            return f"✓ {name}: {best}"
        now, code = standing
        function = self._namespace.get(name)
        if now is None or callable(function) and code != _code_of(function):
            return f"✓ {name}: once {best}, but not as the cell stands"
        return f"✓ {name}: {levels[min(now, len(levels) - 1)]}" + (f", once {best}" if now < level else "")


def _code_of(function) -> str:
    """Names the text of a function, for a mark that is of this text alone."""
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):  # what was made by no cell
        text = repr(function)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextlib.contextmanager
def _some_of_what_is_printed():
    """Show what is printed in here, up to a limit."""
    with contextlib.redirect_stdout(_Some(sys.stdout)) as some:
        yield
    if some.left < 0:
        print(f"\n… and {-some.left:,} characters more")


class _Some(io.TextIOBase):
    def __init__(self, shown):
        self.shown, self.left = shown, PRINTED

    def write(self, text):
        self.shown.write(text[: max(0, self.left)])
        self.left -= len(text)
        return len(text)

    def flush(self):
        self.shown.flush()


@contextlib.contextmanager
def _by_rank():
    """Show what the ranks of a simulated run print, line by line, each with its rank. Gives what wraps a rank program for it."""
    ranks, shown = {}, sys.stdout

    def told_by(function):
        def program(*arguments, **options):
            ranks[greenlet.getcurrent(), threading.get_ident()] = arguments[-1].get_rank()
            return function(*arguments, **options)

        return program

    lines = _ByRank(shown, ranks)
    with contextlib.redirect_stdout(lines):
        yield told_by
    for rank in list(lines.begun):
        lines.end(rank)


class _ByRank(io.TextIOBase):
    def __init__(self, shown, ranks):
        self.shown, self.ranks, self.begun = shown, ranks, {}

    def write(self, text):
        rank = self.ranks.get((greenlet.getcurrent(), threading.get_ident()))
        *lines, rest = (self.begun.get(rank, "") + text).split("\n")
        for line in lines:
            self._say(rank, line)
        self.begun[rank] = rest
        return len(text)

    def end(self, rank):
        if line := self.begun.pop(rank):
            self._say(rank, line)

    def _say(self, rank, line):
        self.shown.write(f"{line}\n" if rank is None else f"[rank {rank}] {line}\n")


def _show_below(verdict, exercise):
    """The run that failed, below the sentence, where it ended and can be drawn. What hangs is not run once more."""
    shell = get_ipython()
    if verdict.case is None or shell is None:
        return

    def show(*_):
        shell.events.unregister("post_run_cell", show)
        try:
            with contextlib.redirect_stdout(None):  # what it prints has been shown
                figure = _picture(verdict.program, verdict.case, exercise, f"Your program, {verdict.case}")
        except Exception:  # it does something else now: then the report is all there is
            return
        if figure is not None:
            display(figure)

    shell.events.register("post_run_cell", show)


def _picture(program, case, exercise, title):
    """Draw where every chunk goes, in the step player; of a training, when each rank computes, and which collectives it calls.

    None where there is nothing to see: no message of the learner's own that carries something, and nobody who computes.
    """
    from ringtree.draw import player, timeline
    from ringtree.simulated import follow, simulate
    from ringtree.speaks import of_a_collective

    with put_back():
        if not exercise.harness:
            followed = follow(program, list(case.given)).without(lambda message: of_a_collective(message.tag))
            return player(followed, layout=None, title=title) if any(map(any, followed.sent)) else None
        trace = simulate(program, list(case.given), case.machine, autograd=True).trace
    messages = [each for each in trace if not of_a_collective(each.tag)]
    if not messages and not any(span.kind == "compute" for span in trace.spans):
        return None
    return timeline(Trace(messages, size=trace.size, spans=trace.spans, calls=trace.calls, label=trace.label), title=title)


class _Folded:
    """Hints that open one at a time in a notebook; as text, how to read them."""

    def __init__(self, name, hints):
        self.name, self.hints = name, hints

    def __repr__(self):
        return f'{len(self.hints)} hints; lab.hint("{self.name}", 1) prints the first'

    def _repr_html_(self):
        return "".join(
            f'<details><summary style="{TRIANGLE}">Hint {number}</summary><p style="white-space: pre-line">{_with_code(hint)}</p>'
            "</details>"
            for number, hint in enumerate(self.hints, 1)
        )


# JupyterLab's Markdown extension hides the triangle of all summaries; revert is the browser's own.
TRIANGLE = "display: revert; list-style: revert; cursor: pointer"


def _with_code(text) -> str:
    """Return a text as HTML: what stands between backticks is code, which no line breaks inside."""
    return re.sub(r"`([^`]+)`", r'<code style="white-space: nowrap">\1</code>', escape(text))
