"""Labs: `check` says what is still wrong, naming ranks; `hint` helps a step at a time.

    from ringtree import labs
    lab = labs.open("deadlock-clinic", ranks)
    lab.check("shift")      # runs your function `shift` on the ranks, with a deadline
    lab.hint("shift")

To make a further lab:

1. Write `ringtree/labs/exercises/<name>.py` (underscores for the hyphens of the lab's name) with
   TITLE, HEALTHY (the words of praise: "is healthy", "is right") and EXERCISES, a dict from
   the name of the learner's function to `Exercise(check, hints)`.
2. `check(examine)` calls `examine(inputs)`, with one tuple of arguments a rank, as often as it
   likes. Arguments are numbers and nested lists, which reach the function as float tensors on
   the rank's device; `dist` is added last. Fewer tuples than ranks means fewer ranks. A hang,
   an error and a dead rank are reported by `examine` itself. It returns a `Trial`: `expect`
   compares its answers with plain lists, `tidy` says whether every message was waited for and
   met its other half, `sent` and `calls` tell what moved. `complain` ends a check with one
   sentence. Draw inputs at random: what the kernel knows never reaches the ranks, save each
   rank's own input, so a right answer has to be communicated.
3. Write `labs/source/<nn>-<name>/<name>.ipynb`: the learner's functions in `%%px --local`
   cells, with what the learner is to write between `### BEGIN SOLUTION` and
   `### END SOLUTION`; cells for teachers alone are tagged `solution`. Then
   `python -m ringtree.labs release` makes `labs/release` from it.
4. Test the check itself in `tests/test_labs.py`: the solution passes, the stub and several
   wrong answers fail with the right reason.
"""

import importlib
import pkgutil
import sys

from IPython import get_ipython
from IPython.display import display

from ringtree.errors import UsageError
from ringtree.labs import exercises
from ringtree.labs.trial import CheckFailed, Examination, Exercise, complain, names
from ringtree.live import cluster
from ringtree.live.cells import say

__all__ = ["CheckFailed", "Exercise", "Lab", "complain", "open"]


def open(name, ranks, timeout=3.0, namespace=None):
    """Open the lab called `name` on live ranks.

    timeout: seconds that one run of a learner's function may take before it counts as hung.
    namespace: where the learner's functions are; left out, the notebook's own names.
    Raises UsageError where there is no such lab, or too few ranks for it.
    """
    labs = [module.name for module in pkgutil.iter_modules(exercises.__path__)]
    if name.replace("-", "_") not in labs:
        known = ", ".join(lab.replace("_", "-") for lab in labs)
        raise UsageError(f"there is no lab called {name!r}; these there are: {known}")
    module = importlib.import_module(f"{exercises.__name__}.{name.replace('-', '_')}")
    if ranks.size < module.RANKS:
        raise UsageError(f"this lab needs {module.RANKS} ranks and was given {ranks.size}: run `ranks = ringtree.start({module.RANKS})`")
    if namespace is None:
        shell = get_ipython()
        namespace = shell.user_ns if shell else vars(sys.modules["__main__"])
    return Lab(module, ranks, timeout, namespace)


class Lab:
    """An open lab; made by `open`."""

    def __init__(self, module, ranks, timeout, namespace):
        self._module, self._ranks, self._timeout, self._namespace = module, ranks, timeout, namespace
        self._right = set()

    def check(self, name):
        """Run the learner's function `name` on the ranks; print praise, or raise CheckFailed with what is wrong."""
        exercise = self._exercise(name)
        self._right.discard(name)
        examine = Examination(name, self._live_ranks(), self._timeout, self._namespace)
        try:
            exercise.check(examine)
        except CheckFailed:
            for rank, text in enumerate(examine.printed):  # of the run that failed alone
                say(sys.stdout, rank, text)
            raise
        self._right.add(name)
        sizes = sorted(set(examine.sizes), reverse=True)
        print(f"{name} {self._module.HEALTHY}: right in {len(examine.sizes)} runs, on {names(sizes)} ranks.")

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
        lines = [f"{'✓' if name in self._right else '·'} {name}" for name in self._module.EXERCISES]
        return "\n".join([f"{self._module.TITLE}: {len(self._right)} of {len(lines)}", *lines])


class _Folded:
    """Hints that open one at a time in a notebook; as text, how to read them."""

    def __init__(self, name, hints):
        self.name, self.hints = name, hints

    def __repr__(self):
        return f'{len(self.hints)} hints; lab.hint("{self.name}", 1) prints the first'

    def _repr_html_(self):
        from html import escape

        return "".join(
            f"<details><summary>Hint {number}</summary><pre style='white-space: pre-wrap'>{escape(hint)}</pre></details>"
            for number, hint in enumerate(self.hints, 1)
        )
