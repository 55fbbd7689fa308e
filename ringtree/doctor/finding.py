"""What was seen, whether it is well, and what to do where it is not."""

from dataclasses import dataclass

FINE, NOTE, WRONG = "fine", "note", "wrong"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    topic: what, in a word or two. state: "fine", "note" (it works, and could be better or may surprise), or "wrong" (ranks
    will fail or be far too slow). seen: what there is, in a sentence without a full stop. do: what to do, "" where it is fine.
    """

    topic: str
    state: str
    seen: str
    do: str = ""

    def __post_init__(self):
        assert self.state in (FINE, NOTE, WRONG)
        assert bool(self.do) == (self.state != FINE), f"{self.topic}: {self.state}, and what to do is {self.do!r}"


def fine(topic, seen):
    return Finding(topic, FINE, seen)


def note(topic, seen, do):
    return Finding(topic, NOTE, seen, do)


def wrong(topic, seen, do):
    return Finding(topic, WRONG, seen, do)
