"""Call a learner's function on the ranks, with all that it uses, and report what kept it from ending."""

import inspect
import random
import textwrap
import types

from ringtree.labs import onrank
from ringtree.labs.exercise import complain
from ringtree.labs.trial import Trial
from ringtree.live import deadline

PLAIN = (bool, int, float, str, tuple, list, dict, type(None))


class Examination:
    """Calls one learner's function on the ranks, as often as its check asks."""

    def __init__(self, name, ranks, timeout, namespace):
        self.name, self.ranks, self.timeout = name, ranks, timeout
        self.sizes = []  # the number of ranks of each run so far
        self.printed = []  # by rank, what the learner's function printed in the last run
        self._carried = carry(name, namespace)
        # The system's own randomness: no seed that a function sets reaches it.
        self.random = random.SystemRandom()

    def numbers(self, size, length):
        """`length` whole numbers a rank; the first time easy to recognise, then drawn at random."""
        if not self.sizes:
            return [[10.0 * rank + i + 1 for i in range(length)] for rank in range(size)]
        drawn = self.random.sample(range(-500, 500), size * length)
        return [[float(x) for x in drawn[rank * length : (rank + 1) * length]] for rank in range(size)]

    def __call__(self, inputs):
        """Run on ranks 0 … len(inputs) − 1, each with its own arguments; returns a `Trial`.

        Raises CheckFailed where ranks hang (they are then restarted), raise or die.
        """
        everyone = list(range(self.ranks.size))
        result = self.ranks.view.apply_async(onrank.run_trial, *self._carried, self.name, inputs)
        outcome = deadline.watch(self.ranks, result, everyone, self.timeout)
        self.printed = [_printed(child) for child in result._children]
        if outcome.errors or outcome.stuck or outcome.died:
            self._report(outcome, len(inputs))
        self.sizes.append(len(inputs))
        return Trial(self.name, inputs, [outcome.results[rank] for rank in range(len(inputs))])

    def _report(self, outcome, size):
        hung = outcome.stuck or outcome.died
        if any(error.ename == "NotImplementedError" for error in outcome.errors.values()):
            sentence = f"{self.name} is not yet written: replace `raise NotImplementedError` by your repair."
        else:
            outcome.results = {rank: value for rank, value in outcome.results.items() if rank < size}
            report, _ = deadline.describe(self.ranks, outcome, list(range(size)))
            sentence = f"{self.name}, on {size} ranks: {report}{self._line(outcome)}"
            if hung:
                sentence += "\nThe ranks were restarted, and variables that you set on them are gone. Your functions are kept."
        if hung:
            self.ranks.restart()
        complain(sentence)

    def _line(self, outcome):
        """Where the first error was raised, in the learner's own words."""
        for rank, error in outcome.errors.items():
            shown = [line.strip() for line in error.traceback.splitlines()]
            own = [line for line in shown if any(f"{name}, line" in line for name in self._carried[0])]
            if own:
                return f"\n  (rank {rank}: {own[-1]})"
        return ""


def _printed(child):
    if child.done():
        child.output.wait(1)  # a rank's output is complete when the rank says that it is idle
    return child.output.metadata["stdout"]


def carry(name, namespace):
    """All that the ranks need to define the learner's function again: (sources, imports, values).

    Ranks that were restarted have forgotten it, so it is read from the notebook's kernel, with
    the learner's own functions, imports and plain values that it uses.
    """
    function = namespace.get(name)
    if not isinstance(function, types.FunctionType):
        complain(f"{name} is not defined in this notebook: run its cell, which begins with `%%px --local`.")
    sources, imports, values, found = {}, {}, {}, [(name, function)]
    while found:
        name, value = found.pop()
        if name in sources:
            continue
        if isinstance(value, types.ModuleType):
            imports[name] = value.__name__, None
        elif isinstance(value, types.FunctionType) and value.__globals__ is namespace:
            sources[name] = _source(name, value)
            found += [(used, namespace[used]) for used in _used(value.__code__) if used in namespace]
        elif isinstance(value, PLAIN):
            values[name] = value
        elif getattr(value, "__module__", "__main__") != "__main__" and hasattr(value, "__name__"):
            imports[name] = value.__module__, value.__name__
    return sources, imports, values


def _source(name, function):
    try:
        return textwrap.dedent(inspect.getsource(function))
    except OSError:
        complain(f"the text of {name} is not known here: run the cell that defines it again.")


def _used(code):
    """Names that a function and the functions inside it look up outside."""
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return {*code.co_names, *(name for each in inner for name in _used(each))}
