"""Run a learner's function on the ranks, and say in one sentence what is wrong with what came of it."""

import inspect
import math
import random
import textwrap
import types
from collections import Counter
from typing import NamedTuple

from ringtree.labs import examiner
from ringtree.live import deadline
from ringtree.waits import name_ranks

SHOWN = 6  # numbers of an answer that a message shows
PLAIN = (bool, int, float, str, tuple, list, dict, type(None))


class CheckFailed(AssertionError):
    """Says what is still wrong; a notebook shows that alone."""

    def _render_traceback_(self):
        return [f"{type(self).__name__}: {self}"]


class Exercise(NamedTuple):
    """check(examine): raises CheckFailed, or returns. hints: from the gentlest to the plainest."""

    check: object
    hints: tuple


def complain(sentence):
    raise CheckFailed(sentence)


def names(things):
    """`4`, `4 and 3`, `4, 3 and 2`."""
    *most, last = map(str, things)
    return f"{', '.join(most)} and {last}" if most else last


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
        result = self.ranks.view.apply_async(examiner.run_trial, *self._carried, self.name, inputs)
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


class Trial:
    """One run: by rank, what went in, what came out and what moved.

    inputs: by rank, the arguments. answers: by rank, nested lists, or None where it was no
    tensor. calls: by rank, the notes of its calls, in order (see `examiner.Watched`).
    """

    def __init__(self, name, inputs, results):
        self.name, self.inputs, self.size = name, inputs, len(inputs)
        self._given = [answer for answer, _ in results]
        self.answers = [value if kind == "tensor" else None for kind, value in self._given]
        self.calls = [notes for _, notes in results]

    def sent(self, rank, to=None):
        """The point-to-point messages that `rank` sent (to one peer)."""
        return [each for each in self.calls[rank] if each["kind"] == "send" and to in (None, each["peer"])]

    def received(self, rank, source=None):
        """The point-to-point messages that `rank` received (from one peer)."""
        return [each for each in self.calls[rank] if each["kind"] == "recv" and source in (None, each["peer"])]

    def collectives(self, rank):
        """The names of the collectives that `rank` called."""
        return [each["call"] for each in self.calls[rank] if each["kind"] == "collective"]

    def complain(self, sentence):
        complain(f"{self.name}, on {self.size} ranks: {sentence}")

    def expect(self, wanted, giver=None):
        """Complain unless every rank's answer is `wanted[rank]`.

        giver(rank): the rank that the answer should have come from, to say what went wrong.
        """
        wrong = [rank for rank in range(self.size) if not alike(self.answers[rank], wanted[rank])]
        if not wrong:
            return
        rank = wrong[0]
        others = f" ({name_ranks(wrong)} are wrong.)" if len(wrong) > 1 else ""
        self.complain(f"{self._mistake(rank, wanted[rank], giver and giver(rank))}.{others}")

    def _mistake(self, rank, wanted, giver):
        kind, value = self._given[rank]
        if kind == "other":
            return f"rank {rank} returned {value} where a tensor was expected"
        if shape(value) != shape(wanted):
            return f"rank {rank} returned a tensor of shape {shape(value)} where {shape(wanted)} was expected"
        reason = self._reason(rank, value, giver)
        return f"rank {rank} has {show(value)} where {show(wanted)} was expected" + (f": {reason}" if reason else "")

    def _reason(self, rank, value, giver):
        involved = [rank, *range(self.size)] if giver is None else [rank, giver]
        if fault := self._careless(involved):
            return fault
        if giver not in (None, rank) and not self.received(rank, giver) and not self.collectives(rank):
            return f"it never received from rank {giver}"
        if alike(value, self.inputs[rank][0]):
            return "that is what it was given itself"
        for other in range(self.size):
            if alike(value, self.inputs[other][0]):
                return f"that is what rank {other} was given"
        if any(math.isnan(x) for x in flat(value)) and not any(math.isnan(x) for row in self.inputs for x in flat(row)):
            return "nan marks memory that nothing had yet been written to when it was read"
        return None

    def tidy(self):
        """Complain of messages that were changed or read too early, never waited for, or met no other half."""
        if fault := self._careless(range(self.size)) or self._unmatched():
            self.complain(f"the numbers are right this time, but {fault}.")

    def _careless(self, ranks):
        for rank in ranks:
            for each in self.calls[rank]:
                way = f"{'to' if each['kind'] == 'send' else 'from'} rank {each['peer']}"
                if each["changed"]:
                    return f"rank {rank} wrote to the tensor of its {each['call']} {way} before the wait()"
                if each["done"] is None:
                    where = "" if each["kind"] == "collective" else f" {way}"
                    return f"rank {rank} never waited for its {each['call']}{where}"
        return None

    def _unmatched(self):
        sends = Counter((rank, each["peer"], each["tag"]) for rank in range(self.size) for each in self.sent(rank))
        receives = Counter((each["peer"], rank, each["tag"]) for rank in range(self.size) for each in self.received(rank))
        for src, dst, tag in sorted({*sends, *receives}):
            out, in_ = sends[src, dst, tag], receives[src, dst, tag]
            if out != in_:
                return f"rank {src} sent {out} message{'' if out == 1 else 's'} to rank {dst}, which received {in_}"
        return None


def alike(answer, wanted):
    """Whether nested lists agree, to a few units in the last place of a float32."""
    return (
        answer is not None
        and shape(answer) == shape(wanted)
        and all(math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-5) for a, b in zip(flat(answer), flat(wanted), strict=True))
    )


def shape(value):
    if not isinstance(value, list):
        return []
    return [len(value), *(shape(value[0]) if value else [])]


def flat(value):
    if isinstance(value, (list, tuple)):
        return [x for each in value for x in flat(each)]
    return [value]


def show(value):
    """Nested lists as text, the first few numbers of each."""
    if not isinstance(value, list):
        return f"{round(value, 4) + 0.0}"
    texts = [show(each) for each in value[:SHOWN]]
    return f"[{', '.join(texts + (['…'] if len(value) > SHOWN else []))}]"
