"""Who waits for whom, in words: the same words for live ranks and simulated ones."""


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


def describe_place(steps):
    """`line 4: dist.recv(t, src=0)`, with the function it is in where that is not the cell itself.

    steps: (function, line number, source), outermost first. A line that goes on below ends in …
    """
    texts = [
        f"{'' if function == '<module>' else f'{function}, '}line {number}: {source}{'…' if source.endswith(('(', '[', '{')) else ''}"
        for function, number, source in steps
    ]
    return "  →  ".join(texts[:1] + texts[1:][-1:]) or "outside the program's own lines"
