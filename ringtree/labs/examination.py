"""Call a learner's function on the live ranks, with all that it uses, and report what kept it from ending."""

import functools
import io
import linecache
import re

import cloudpickle

from ringtree.labs import onrank
from ringtree.labs.comparing import difference
from ringtree.labs.exercise import complain
from ringtree.live.reports import deadline


class Examination:
    """Calls one learner's function on the live ranks."""

    def __init__(self, name, ranks, timeout, namespace, harness=None):
        self.name, self.ranks, self.timeout, self.harness = name, ranks, timeout, harness
        self.printed = []  # by rank, what the learner's function printed in the last run
        self._carried = carry(name, namespace)

    def run(self, case):
        """Run one `Case`, which is made for as many ranks as there are.

        Raises CheckFailed where ranks hang (they are then restarted), raise or die, or where an answer is wrong.
        """
        result = self.ranks.view.apply_async(onrank.run_case, *self._carried, case.given, case.options, self.harness)
        outcome = deadline.finish(self.ranks.diagnosis, result, list(range(self.ranks.size)), self.timeout)
        self.printed = [_printed(child) for child in result._children]
        if outcome.error:
            self._report(outcome, case)
        wanted = case.wanted(case.given)
        for rank in range(case.size):
            if wanted[rank] is not None and (found := difference(outcome.results[rank], wanted[rank])):
                complain(f"{self.name}, live {case}: rank {rank} {found[0]}, though it was right in the simulator.")

    def _report(self, outcome, case):
        report, _ = deadline.describe(self.ranks.diagnosis, outcome)
        sentence = f"{self.name}, live {case}: {report}{self._line(outcome)}"
        if outcome.lost:
            sentence += "\nThe ranks were restarted, and variables that you set on them are gone. Your functions are kept."
            self.ranks.restart()
        complain(sentence)

    def _line(self, outcome):
        """Return where the first error was raised, in the learner's own words."""
        for rank, error in outcome.errors.items():
            if own := re.findall(r"^\s*(\S+, line \d+: .*)", error.traceback, re.MULTILINE):
                return f"\n  (rank {rank}: {own[-1].strip()})"
        return ""


def _printed(child):
    if child.done():
        child.output.wait(1)  # a rank's output is complete when the rank says that it is idle
    return child.output.metadata["stdout"]


def learners(name, namespace):
    """The learner's function called `name`. Raises CheckFailed where there is none."""
    function = namespace.get(name)
    if not callable(function):
        complain(f"{name} is not defined in this notebook: run the cell that defines it.")
    return function


def carry(name, namespace):
    """Return what the ranks need to call the learner's function: (itself with all that it uses, as bytes; the texts of the cells).

    Ranks do not know the notebook's names, so helpers, classes, closures and values travel along, in the way of
    cloudpickle. The texts are for reports that show a line.
    """
    function, packed = learners(name, namespace), io.BytesIO()
    try:
        _Packer(packed).dump(function)
    except Exception as error:
        complain(f"{name} uses something that cannot be sent to the ranks ({error}): make it inside the function.")
    return packed.getvalue(), {file: entry for file, entry in linecache.cache.items() if len(entry) == 4 and entry[1] is None}


class _Packer(cloudpickle.Pickler):
    """Takes along what `functools.cache` has wrapped, too."""

    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child({
        functools._lru_cache_wrapper: lambda wrapper: (functools.cache, (wrapper.__wrapped__,))
    })
