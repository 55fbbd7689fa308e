"""One run of a learner's function: what went in, what came out, what moved, and in one sentence what is wrong."""

import math
from collections import Counter

from ringtree.labs.exercise import complain
from ringtree.units import count_text
from ringtree.waits import name_ranks

SHOWN = 6  # numbers of an answer that a message shows


class Trial:
    """One run: by rank, what went in, what came out and what moved.

    inputs: by rank, the arguments. answers: by rank, nested lists, or None where it was no
    tensor. calls: by rank, the notes of its calls, in order (see `watched.Watched`).
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
                return f"rank {src} sent {count_text(out, 'message')} to rank {dst}, which received {in_}"
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
