"""What a rank has received and holds in none of its arguments: a program may pass chunks on from buffers of its own."""

from __future__ import annotations

from ringtree.trace import Trace


def places_for_received(trace: Trace, sent, start, changes) -> int:
    """Return how many chunks a message brings at most, where some rank holds what it received in none of its arguments; else 0."""
    ever = [[_origins(content) for content in chunks] for chunks in start]
    for each in changes:
        for rank, _, content in each:
            ever[rank].append(_origins(content))
    aside = any(
        not any(_origins(content) <= held for held in ever[message.dst])
        for message, contents in zip(trace, sent)
        for content in contents
    )
    return max(map(len, sent)) if aside else 0


def with_received(trace: Trace, sent, changes, first: int, places: int) -> list[tuple]:
    """The changes, and with each message what it brought, in `places` places from `first` on: until the next one comes."""
    brought = [[*contents, *[()] * (places - len(contents))] for contents in sent]
    return [
        (*each, *((message.dst, first + place, content) for place, content in enumerate(contents)))
        for message, each, contents in zip(trace, changes, brought)
    ]


def _origins(content) -> set:
    return {origin[:2] for origin in content}
