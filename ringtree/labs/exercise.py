"""What an exercise asks: the cases on which a learner's function is tried, what is wanted, the levels above "right", hints."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

from ringtree.cost import Link, Machine
from ringtree.simulated import simulate
from ringtree.units import count_text


class CheckFailed(AssertionError):
    """Says what is still wrong; a notebook shows that alone."""

    def _render_traceback_(self):
        lines = f"{type(self).__name__}: {self}".split("\n")
        return [part for line in lines for part in folded(line)]


WIDE = 110  # characters of a line, which a notebook would otherwise break in the middle of a number


def folded(line):
    """Return a line in lines of at most `WIDE` characters."""
    inside = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.wrap(line, WIDE, subsequent_indent=inside, break_long_words=False, break_on_hyphens=False) or [line]


def complain(sentence):
    raise CheckFailed(sentence)


ROUNDS, BYTES = Link(1.0, 0.0), Link(0.0, 1.0)


@dataclass(frozen=True)
class Case:
    """One run of a rank program.

    given: by rank, the arguments before `dist`: tensors, lists of tensors, plain values. wanted(given): by rank, what the
    function must return; None where nothing is promised, and of a dict what must be in it, beside whatever else. options: named
    arguments, the same on every rank. machine: where its time is looked at. says: what is special about it, for the learner.
    holds: what a rank is given, in words; left out, how many numbers and of what type.
    """

    given: tuple
    wanted: Callable
    options: dict = field(default_factory=dict)
    machine: Link | Machine = ROUNDS
    says: str = ""
    holds: str = ""

    @property
    def size(self) -> int:
        return len(self.given)

    @property
    def nbytes(self) -> int:
        """Of the tensors that the rank with the most is given."""
        return max(sum(each.nbytes for each in tensors(given)) for given in self.given)

    def __str__(self) -> str:
        counts = sorted({sum(each.numel() for each in tensors(given)) for given in self.given})
        numbers = count_text(counts[0], "number") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} numbers"
        dtypes = {str(each.dtype).removeprefix("torch.") for given in self.given for each in tensors(given)}
        details = [f"on {count_text(self.size, 'rank')}"]
        details += [self.holds or f"{numbers} ({', '.join(sorted(dtypes))}) each"] if dtypes else []
        details += [f"{name}={getattr(value, '__name__', value)}" for name, value in self.options.items()]
        return ", ".join(details + ([self.says] if self.says else []))


class Run:
    """What a case's run in the simulator showed; made by `ringtree.labs.judging`."""

    def __init__(self, case, program, simulation, kept, outputs, autograd=False):
        self.case, self.trace, self.makespan = case, simulation.trace, simulation.makespan
        self.kept, self.outputs = kept, outputs  # by rank: the arguments as the function left them, and what it returned
        self._program, self._autograd = program, autograd
        self.function = getattr(program, "of", program)  # the learner's own, without its harness

    @cached_property
    def rounds(self) -> int:
        """Messages one after the other on the longest way, where each takes one second whatever its length."""
        return round(simulate(self._program, list(self.case.given), ROUNDS, trace=False, autograd=self._autograd).makespan)

    @property
    def busiest_port(self) -> int:
        """Bytes that the busier port of the busiest rank moves: out or in."""
        return max([*self.trace.bytes_sent, *self.trace.bytes_received], default=0)

    @property
    def messages(self) -> int:
        return len(self.trace)


@dataclass(frozen=True)
class Limit:
    """what: is counted ("rounds"). count(run): how many. most(case): how many a right answer of this level may have, or
    None where the case does not matter. show: a count as text."""

    what: str
    count: Callable
    most: Callable
    show: Callable = str


@dataclass(frozen=True)
class Level:
    """A level above "right". name: "within the target" or "at the bound". limits: of a `Program`, all must hold; an `Answer`
    has questions of each level instead. why: the proof, or where the target comes from."""

    name: str
    limits: tuple[Limit, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Program:
    """An exercise whose answer is a rank program.

    cases(): the cases, the smallest first. hints: from the gentlest to the plainest. levels: above "right", the easier first.
    builtin: whether torch's collectives and the book's algorithms may be called. keeps: whether what the function is given
    must stay as it is. adds: whether the answer is a sum of parts, so that a missing part can be named. tells(run, rank,
    element): where it is not such a sum, how that element of the rank's answer comes about, in words. also(run): complains
    of what else is wrong with a right run, in a sentence, or returns None. live: how many of the cases, from the end, run on
    live ranks too. harness: what each rank runs in the place of the learner's function, a function of `ringtree.labs.harnesses`
    that is called as harness(function, *given, dist): it makes a model of what it is given, trains it by the function, and
    returns what came of that.
    """

    cases: Callable
    hints: tuple[str, ...]
    levels: tuple[Level, ...] = ()
    builtin: bool = False
    keeps: bool = True
    adds: bool = True
    tells: Callable | None = None
    also: Callable | None = None
    live: int = 1
    harness: Callable | None = None

    def with_more(self, cases) -> Program:
        """Return the same exercise with more cases: `cases()` yields them."""
        return replace(self, cases=lambda: [*self.cases(), *cases()])

    def tried(self, verdict) -> str:
        """Return on how much a check has tried a right answer, in words."""
        simulated = f"{count_text(verdict.runs, 'run')} in the simulator"
        return f"{simulated}, {self.live} on your ranks" if self.live else simulated


@dataclass(frozen=True)
class Question:
    """One call of a function that is not a rank program. arguments: of the call. wrong(answer): what is wrong with its answer, in
    a sentence, or None. says: the case in words. level: 0 where a right answer must pass it, 1, 2 … for the levels above."""

    arguments: tuple
    wrong: Callable
    says: str
    level: int = 0


@dataclass(frozen=True)
class Answer:
    """An exercise whose answer is a function of data: a fit, a choice, a diagnosis, a layout.

    questions(): the calls, the simplest first. hints: from the gentlest to the plainest. levels: above "right", the easier
    first. without: functions of this package that it may not call. live, harness: as for `Program`; it has neither.
    """

    questions: Callable
    hints: tuple[str, ...]
    levels: tuple[Level, ...] = ()
    without: tuple[Callable, ...] = ()
    live: ClassVar[int] = 0
    harness: ClassVar[None] = None

    def with_more(self, questions) -> Answer:
        """Return the same exercise with more questions: `questions()` yields them."""
        return replace(self, questions=lambda: [*self.questions(), *questions()])

    def tried(self, verdict) -> str:
        """Return on how much a check has tried a right answer, in words."""
        return count_text(verdict.runs, "case")


def tensors(value):
    """All tensors in nested lists and tuples."""
    if hasattr(value, "numel"):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors(each)
