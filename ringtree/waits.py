"""Who waits for whom, in words: the same words for live ranks and simulated ones."""

import re
from typing import NamedTuple

FINISHED = ", which has finished"  # what a rank that is waited for does


def name_ranks(ids):
    """`rank 2`, `ranks 0 and 2`, `ranks 0, 1 and 3`."""
    ids = list(ids)
    return f"rank{'' if len(ids) == 1 else 's'} {join_words(ids)}"


def join_words(things):
    """`4`, `4 and 3`, `4, 3 and 2`."""
    *most, last = map(str, things)
    return f"{', '.join(most)} and {last}" if most else last


def find_circle(waits):
    """Ranks that wait for each other in a circle, closed: [0, 1, 0]; or None.

    waits: a dict from a waiting rank to the one rank that it waits for.
    """
    for start in sorted(waits):
        path = [start]
        while (following := waits.get(path[-1])) is not None and following not in path:
            path.append(following)
        if following == start:
            return [*path, start]
    return None


def describe_circle(waits):
    """`they wait in a circle: rank 0 → rank 1 → rank 0`, or None where there is none."""
    circle = find_circle(waits)
    return circle and "they wait in a circle: " + " → ".join(f"rank {i}" for i in circle)


def message_wait(sends, peer, what_it_does=""):
    """`waits to receive from rank 0, which has finished`; peer None: from any rank."""
    verb = "send to" if sends else "receive from"
    return f"waits to {verb} any rank" if peer is None else f"waits to {verb} rank {peer}{what_it_does}"


def collective_wait(call, absent):
    """`waits in all_reduce for ranks 1 and 2, which have finished`.

    absent: from each rank that has not come to what it does, such as ", which has finished", or "". Where they do
    different things, those are told that have finished.
    """
    what = next(iter(absent.values()))
    if len(set(absent.values())) > 1:
        finished = [rank for rank, does in absent.items() if does == FINISHED]
        what = f", of which {name_ranks(finished)} {'has' if len(finished) == 1 else 'have'} finished" if finished else ""
    elif len(absent) > 1:
        what = what.replace("which has", "which have").replace("which waits", "which wait")
    return f"waits in {call} for {name_ranks(absent)}{what}"


def describe_place(steps):
    """`line 4: dist.recv(t, src=0)`, with the function it is in where that is not the cell itself.

    steps: (function, line number, source), outermost first. A line that goes on below ends in …
    """
    texts = [
        f"{'' if function == '<module>' else f'{function}, '}line {number}: {source}{'…' if source.endswith(('(', '[', '{')) else ''}"
        for function, number, source in steps
    ]
    return "  →  ".join(texts[:1] + texts[1:][-1:]) or "outside the program's own lines"


# -- read again ----------------------------------------------------------------


class Wait(NamedTuple):
    """What a report says of one rank that waits.

    call: "send", "recv" or the name of a collective. others: the ranks that it waits for. finished: those of them that have
    finished. place: what stands in the square brackets.
    """

    rank: int
    call: str
    others: tuple[int, ...]
    finished: tuple[int, ...]
    place: str


class Report(NamedTuple):
    """waits: a `Wait` for each waiting rank that waits for known ranks. circle: [2, 3, 2], or [] where there is none."""

    waits: list[Wait]
    circle: list[int]


RANKS = r"ranks? \d+(?:, \d+)*(?: and \d+)?"
WAIT = re.compile(
    rf"^ *rank (?P<rank>\d+) (?:has ended, and still )?waits (?:to (?P<way>send|receive) (?:to|from)|in (?P<call>\w+) for) "
    rf"(?P<others>{RANKS})(?:, (?:of which (?P<some>{RANKS}) ha(?:s|ve) finished|which (?P<doing>[^\[]*)))?  \[(?P<place>[^\n]*?)\]"
    r"(?=$|, called at|, and behind it)",
    re.MULTILINE,
)


def read_report(text):
    """Read a report of a deadlock, of live ranks or of the simulator, back into a `Report`."""
    waits = []
    for found in WAIT.finditer(text):
        others = _numbers(found["others"])
        finished = _numbers(found["some"] or "") or (others if (found["doing"] or "").endswith(" finished") else ())
        call = found["call"] or {"send": "send", "receive": "recv"}[found["way"]]
        waits.append(Wait(int(found["rank"]), call, others, finished, found["place"]))
    circle = re.search(r"they wait in a circle: (.*)", text)
    return Report(waits, list(_numbers(circle[1])) if circle else [])


def _numbers(text):
    return tuple(map(int, re.findall(r"\d+", text)))
