"""Call a learner's function on the live ranks, with all that it uses, and report what kept it from ending."""

import ast
import inspect
import linecache
import textwrap
import types

from ringtree.labs import onrank
from ringtree.labs.comparing import difference
from ringtree.labs.exercise import complain
from ringtree.live import deadline

PLAIN = (bool, int, float, str, tuple, list, dict, type(None))


class Examination:
    """Calls one learner's function on the live ranks."""

    def __init__(self, name, ranks, timeout, namespace):
        self.name, self.ranks, self.timeout = name, ranks, timeout
        self.printed = []  # by rank, what the learner's function printed in the last run
        self._carried = carry(name, namespace)

    def run(self, case):
        """Run one `Case`, which is made for as many ranks as there are.

        Raises CheckFailed where ranks hang (they are then restarted), raise or die, or where an answer is wrong.
        """
        result = self.ranks.view.apply_async(onrank.run_case, *self._carried, self.name, case.given, case.options)
        outcome = deadline.watch(self.ranks, result, list(range(self.ranks.size)), self.timeout)
        self.printed = [_printed(child) for child in result._children]
        if outcome.errors or outcome.stuck or outcome.died:
            self._report(outcome, case)
        wanted = case.wanted(case.given)
        for rank in range(case.size):
            if wanted[rank] is not None and (found := difference(outcome.results[rank], wanted[rank])):
                complain(f"{self.name}, live {case}: rank {rank} {found[0]}, though it was right in the simulator.")

    def _report(self, outcome, case):
        hung = outcome.stuck or outcome.died
        report, _ = deadline.describe(self.ranks, outcome, list(range(self.ranks.size)))
        sentence = f"{self.name}, live {case}: {report}{self._line(outcome)}"
        if hung:
            sentence += "\nThe ranks were restarted, and variables that you set on them are gone. Your functions are kept."
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


def learners(name, namespace):
    """The learner's function called `name`. Raises CheckFailed where there is none."""
    function = namespace.get(name)
    if not callable(function):
        complain(f"{name} is not defined in this notebook: run the cell that defines it.")
    return function


def carry(name, namespace):
    """All that the ranks need to define the learner's function again: (sources, imports, values).

    Ranks know nothing of the notebook's names, so it is read from the notebook's kernel, with the learner's own functions,
    classes, imports and plain values that it uses.
    """
    sources, imports, values, found = {}, {}, {}, [(name, learners(name, namespace))]
    while found:
        name, value = found.pop()
        if name in sources:
            continue
        if isinstance(value, types.ModuleType):
            imports[name] = value.__name__, None
        elif isinstance(value, types.FunctionType) and value.__globals__ is namespace or _own_class(value):
            sources[name] = _source(name, value)
            found += [(used, namespace[used]) for used in _used(value) if used in namespace]
        elif isinstance(value, PLAIN):
            values[name] = value
        elif getattr(value, "__module__", "__main__") != "__main__" and hasattr(value, "__name__"):
            imports[name] = value.__module__, value.__name__
    return dict(reversed(sources.items())), imports, values  # what is used comes before what uses it


def _own_class(value):
    return isinstance(value, type) and value.__module__ == "__main__"


def _source(name, value):
    try:
        return _class_source(value) if isinstance(value, type) else textwrap.dedent(inspect.getsource(value))
    except (OSError, TypeError, StopIteration):
        complain(f"the text of {name} is not known here: run the cell that defines it again.")


def _class_source(value):
    """The text of a class, from the cell that one of its methods stands in: a notebook's classes have no file."""
    code = next(each.__code__ for each in vars(value).values() if hasattr(each, "__code__"))
    text = "".join(linecache.getlines(code.co_filename))
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef) and node.name == value.__name__]
    return textwrap.dedent(ast.get_source_segment(text, found[-1], padded=True))


def _used(value):
    """Names that a function or a class, and the functions inside it, look up outside."""
    if isinstance(value, type):
        members = [*vars(value).values(), *value.__bases__]
        return {name for each in members if hasattr(each, "__code__") for name in _names(each.__code__)} | {
            base.__name__ for base in value.__bases__
        }
    return _names(value.__code__)


def _names(code):
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return {*code.co_names, *(name for each in inner for name in _names(each))}
