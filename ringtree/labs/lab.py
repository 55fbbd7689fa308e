"""An open lab, as a learner sees it: `check` says what is still wrong, `hint` helps a step at a time."""

import importlib
import pkgutil
import sys
from html import escape

from IPython import get_ipython
from IPython.display import display

from ringtree.errors import UsageError
from ringtree.labs import exercises
from ringtree.labs.examination import Examination
from ringtree.labs.exercise import CheckFailed
from ringtree.live import cluster
from ringtree.live.cells import say
from ringtree.waits import join_words


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
        raise UsageError(
            f"this lab needs {module.RANKS} ranks and was given {ranks.size}: run `ranks = ringtree.start({module.RANKS})`"
        )
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
        print(f"{name} {self._module.HEALTHY}: right in {len(examine.sizes)} runs, on {join_words(sizes)} ranks.")

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
        return "".join(
            f"<details><summary>Hint {number}</summary><pre style='white-space: pre-wrap'>{escape(hint)}</pre></details>"
            for number, hint in enumerate(self.hints, 1)
        )
