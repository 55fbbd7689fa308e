"""An open lab, as a learner sees it: `check` says what is still wrong, `hint` helps a step at a time."""

import importlib
import pkgutil
import sys
from html import escape

from IPython import get_ipython
from IPython.display import display

from ringtree.errors import UsageError
from ringtree.labs import exercises, marks
from ringtree.labs.examination import Examination, learners
from ringtree.labs.exercise import CheckFailed, Program
from ringtree.labs.judging import judge, program_of
from ringtree.live import cluster
from ringtree.live.cells import say
from ringtree.units import count_text

NEEDED = 4  # ranks that a lab's live cases are made for


def names() -> list[str]:
    """All labs, in the order of the chapters."""
    found = [module.name.replace("_", "-") for module in pkgutil.iter_modules(exercises.__path__)]
    return sorted(found, key=lambda name: (module_of(name).CHAPTER, name))


def module_of(name):
    """The module of a lab's exercises."""
    return importlib.import_module(f"{exercises.__name__}.{name.replace('-', '_')}")


def open(name, ranks, timeout=10.0, namespace=None):
    """Open the lab called `name` on live ranks.

    timeout: seconds that a check may take in the simulator, and one live run, before what the learner wrote counts as hung.
    namespace: where the learner's functions are; left out, the notebook's own names.
    Raises UsageError where there is no such lab, or too few ranks for it.
    """
    if name not in (labs := names()):
        raise UsageError(f"there is no lab called {name!r}; these there are: {', '.join(labs)}")
    if ranks.size != NEEDED:
        raise UsageError(f"this lab needs {NEEDED} ranks and was given {ranks.size}: run `ranks = ringtree.start({NEEDED})`")
    if namespace is None:
        shell = get_ipython()
        namespace = shell.user_ns if shell else vars(sys.modules["__main__"])
    return Lab(name, module_of(name), ranks, timeout, namespace)


class Lab:
    """An open lab; made by `open`."""

    def __init__(self, name, module, ranks, timeout, namespace):
        self.name = name
        self._module, self._ranks, self._timeout, self._namespace = module, ranks, timeout, namespace

    @property
    def given(self):
        """What a lab gives its learner to work with, in the order that its notebook names it."""
        return self._module.GIVEN

    def check(self, name):
        """Try the learner's function `name`; print what was tried and how far it came, or raise CheckFailed with what is wrong.

        First in the simulator, on many numbers of ranks, under NCCL's rules; then on the live ranks.
        """
        exercise = self._exercise(name)
        verdict = judge(name, learners(name, self._namespace), exercise, self._timeout)
        if verdict.wrong:
            marks.note(self.name, name, None)
            _show(verdict)
            raise CheckFailed(verdict.wrong)
        in_simulator = f"{count_text(verdict.runs, 'run')} in the simulator"
        tried = in_simulator if isinstance(exercise, Program) else count_text(verdict.runs, "case")
        if isinstance(exercise, Program) and exercise.live:
            tried += f", {exercise.live} on your ranks"
            self._live(name, exercise)
        marks.note(self.name, name, verdict.level)
        levels = [level if isinstance(level, str) else level.name for level in exercise.levels]
        reached = f", and {levels[verdict.level - 1]}" if verdict.level else ""
        print(f"{name} is right{reached}: {tried}.")
        if verdict.level and isinstance(exercise, Program) and (why := exercise.levels[verdict.level - 1].why):
            print(why)
        if verdict.more:
            print(verdict.more)

    def _live(self, name, exercise):
        examine = Examination(name, self._live_ranks(), self._timeout, self._namespace)
        cases = [case for case in exercise.cases() if case.size == NEEDED]
        try:
            for case in cases[-exercise.live :]:
                examine.run(case)
        except CheckFailed:
            marks.note(self.name, name, None)
            for rank, text in enumerate(examine.printed):  # of the run that failed alone
                say(sys.stdout, rank, text)
            raise

    def watch(self, name):
        """The step player on a run of the learner's function on 4 simulated ranks."""
        from ringtree.draw import player
        from ringtree.simulated import follow

        exercise = self._exercise(name)
        case = next(case for case in exercise.cases() if case.size == NEEDED and case.nbytes)
        program = program_of(learners(name, self._namespace), case)
        try:
            return player(follow(program, list(case.given)), title=f"{name}, {case}")
        except Exception as error:
            raise CheckFailed(f"{name}, {case}, cannot be drawn: {error}") from None

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
        noted = marks.read(self.name)
        lines = [f"{'✓' if noted.get(name) is not None else '·'} {name}" for name in self._module.EXERCISES]
        return "\n".join([f"{self._module.TITLE}: {sum(line[0] == '✓' for line in lines)} of {len(lines)}", *lines])


def _show(verdict):
    """The step player on the run that failed, where it ended and its chunks can be followed."""
    if verdict.case is None or get_ipython() is None:
        return
    from ringtree.draw import player
    from ringtree.simulated import follow

    try:
        figure = player(follow(verdict.program, list(verdict.case.given)), title=f"Your program, {verdict.case}")
    except Exception:  # it hung, raised, or sent nothing: then the report is all there is
        return
    display(figure)


class _Folded:
    """Hints that open one at a time in a notebook; as text, how to read them."""

    def __init__(self, name, hints):
        self.name, self.hints = name, hints

    def __repr__(self):
        return f'{len(self.hints)} hints; lab.hint("{self.name}", 1) prints the first'

    def _repr_html_(self):
        return "".join(
            f"<details><summary>Hint {number}</summary><pre style='white-space: pre-wrap'>{escape(hint)}</pre></details>"
            for number, hint in enumerate(self.hints, 1)
        )
