"""The step player: a run of a rank program, replayed step by step in the page."""

from __future__ import annotations

import hashlib
import html
import json
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from ringtree.draw.player_places import LAYOUTS, cells, geometry, layout_of
from ringtree.draw.player_received import places_for_received, with_received
from ringtree.draw.player_words import ChunkNames, caption, change_text, message_text, start_text
from ringtree.draw.style import rank_colour
from ringtree.errors import UsageError
from ringtree.given import number, one_line, optional, takes, text
from ringtree.trace import Message, Trace
from ringtree.units import count_text

if TYPE_CHECKING:  # what makes a Followed needs torch, which takes its time to load
    from ringtree.simulated.following import Followed


@dataclass(frozen=True)
class Player:
    """A figure that can be played; as text it is the one stable line `Figure: <alt>`, as a `Picture` is."""

    html: str = field(repr=False)
    alt: str

    def __repr__(self) -> str:
        return f"Figure: {self.alt}"

    def _repr_html_(self) -> str:
        return self.html

    def save(self, path) -> None:
        """Write a page of its own, which any browser shows without a network."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(
                f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{html.escape(self.alt)}</title>\n'
                '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">\n'
                f"<body>{self.html}</body></html>\n"
            )


@takes(together=optional(number()), title=text, alt=optional(one_line))
def player(
    run: Trace | Followed,
    followed: Followed | None = None,
    *,
    layout: str | None = "ring",
    parents: Sequence[int | None] | None = None,
    together: float | None = None,
    title: str = "",
    alt: str | None = None,
) -> Player:
    """Replay a run: the ranks, the messages between them, and what each rank holds after each step.

    run: a `Trace`, or what `follow` found out about a program. followed: with the trace of a
    live run, what `follow` found out about the same program, so that chunks can be shown;
    without it the player shows how many bytes each rank has sent and received. Where a program passes chunks on that
    never lie in its arguments, a last column shows what each rank's last message brought.
    layout: the ranks in a "ring", a "row", a "tree" or a "grid"; None for the one that shows the ways of this run best. parents: for a tree, the rank above
    each rank, None for the root; left out, each rank hangs below the one it first received
    from or first sent to.
    together: seconds within which messages count as starting together, and so as one step; left
    out, a quarter of the shortest message. A rank sends one message a step and receives one.
    title: a line above. alt: one sentence that says what is shown.

    The figure needs no kernel, no network and no library.
    Keys: arrows step, space plays, Home and End go to either end.

    Raises UsageError for a run without messages, for another layout, and where the trace and
    `followed` are not of the same program.
    """
    if layout not in (None, *LAYOUTS):
        raise UsageError(f"player() got layout={layout!r}: give one of {', '.join(map(repr, LAYOUTS))}, or None")
    if not isinstance(run, Trace):
        if not hasattr(run, "changes"):
            raise UsageError(
                f"player() was given {run!r}: give a trace, such as simulate(…).trace, or what follow(program, inputs) found"
            )
        run, followed = run.trace, run
    if not run:
        raise UsageError("player() was given a trace without messages: run something that sends first")
    layout = layout or layout_of(run)
    sent, changes = _aligned(run, followed) if followed else _bytes_only(run)
    received = places_for_received(run, sent, followed.start, changes) if followed else 0
    names = ChunkNames(run, followed, received)
    if received:
        changes = with_received(run, sent, changes, names.columns[-1][2], received)
    steps = list(_steps(run, together))
    records = [_record(run, step, sent, changes, names) for step in steps]
    data = {
        **geometry(run, layout, parents),
        **cells(names),
        "colours": [rank_colour(rank) for rank in range(run.size)],
        "start": [[names.number(content) for content in chunks] for chunks in names.start],
        "contents": names.contents,
        "steps": records,
    }
    rows = [("before", "", start_text(names)), *_rows(run, steps, sent, changes, names)]
    alt = (alt or _alt(run, layout, title)).strip()
    return Player(_page(data, rows, title, alt, bool(followed)), alt)


def _record(trace: Trace, step: list[int], sent, changes, names: ChunkNames) -> dict:
    """A step as the page's program reads it: its caption, its messages, and what they changed."""
    return {
        "t": caption([trace[index] for index in step], trace.label),
        "m": [[trace[index].src, trace[index].dst, [names.number(content) for content in sent[index]]] for index in step],
        "c": [[rank, place, names.number(content)] for index in step for rank, place, content in changes[index]],
    }


def _rows(trace: Trace, steps, sent, changes, names: ChunkNames):
    """Each step as a row of the table: its number, its messages and what they changed, in words."""
    for count, step in enumerate(steps, 1):
        said = ";\n".join(message_text(trace[index], sent[index], names) for index in step)
        yield str(count), said, change_text([each for index in step for each in changes[index]], names)


# -- steps ---------------------------------------------------------------------


def _steps(trace: Trace, together: float | None):
    """The indices of the messages of each step: those that start together, none of which can have led to another."""
    shortest = min(message.end - message.start for message in trace)
    if shortest <= 0:
        raise UsageError("player() was given messages that take no time, so none comes before another: give a link with α")
    together = shortest / 4 if together is None else together
    step, senders, receivers = [], set(), {}
    for index, message in enumerate(trace):
        if step and (
            message.start - trace[step[0]].start > together
            or message.src in senders
            or message.dst in receivers
            or receivers.get(message.src, math.inf) <= message.start
        ):
            yield step
            step, senders, receivers = [], set(), {}
        step.append(index)
        senders.add(message.src)
        receivers[message.dst] = message.end
    yield step


def _aligned(trace: Trace, followed: Followed):
    """Return what `followed` says of each message, in the order of the trace: the k-th from one rank to another is the k-th."""
    if followed.trace is trace:
        return followed.sent, followed.changes
    queues = defaultdict(list)
    for index, message in enumerate(followed.trace):
        queues[message.src, message.dst, message.tag].append(index)
    if Counter(map(_channel, trace)) != {channel: len(queue) for channel, queue in queues.items()}:
        raise UsageError(
            f"player() was given a trace of {len(trace)} messages and a follow() of another program "
            f"({len(followed.trace)} messages, or between other ranks): follow the program that was run, on as many ranks"
        )
    order = [queues[_channel(message)].pop(0) for message in trace]
    return [followed.sent[index] for index in order], [followed.changes[index] for index in order]


def _channel(message: Message):
    return message.src, message.dst, message.tag


def _bytes_only(trace: Trace):
    """In place of chunks, how many bytes each rank has sent and received so far."""
    moved = [[0, 0] for _ in range(trace.size)]
    changes = []
    for message in trace:
        moved[message.src][0] += message.nbytes
        moved[message.dst][1] += message.nbytes
        changes.append([(message.src, 0, moved[message.src][0]), (message.dst, 1, moved[message.dst][1])])
    return [()] * len(trace), changes


# -- the page ------------------------------------------------------------------

_BUTTONS = (
    ("first", "First step", '<path d="M2 2h2v12H2zM14 2v12L5 8z"/>'),
    ("back", "Step back", '<path d="M11 2v12L2 8z"/><path d="M12 2h2v12h-2z"/>'),
    ("play", "Play", '<path class="rt-go" d="M3 1v14l11-7z"/><path class="rt-pause" d="M3 2h4v12H3zM9 2h4v12H9z"/>'),
    ("next", "Step forward", '<path d="M5 2v12l9-6z"/><path d="M2 2h2v12H2z"/>'),
    ("last", "Last step", '<path d="M2 2v12l9-6zM12 2h2v12h-2z"/>'),
)


_LEGEND = {
    "sum": "One stripe for each rank whose numbers are in the chunk. Heavy frame: just changed. ",
    "move": "The number is the rank that a chunk comes from. Heavy frame: just changed. ",
    "text": "",
}


@cache
def _asset(name: str) -> str:
    """A file beside this one, without its indents, comments and line ends where they do nothing."""
    lines = (line.strip() for line in files(__package__).joinpath(name).read_text(encoding="utf-8").splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))


def _page(data: dict, rows, title: str, alt: str, chunks: bool) -> str:
    words = html.escape
    buttons = "".join(
        f'<button type="button" class="rt-{do}" data-do="{do}" aria-label="{label}" title="{label}">'
        f'<svg viewBox="0 0 16 16" aria-hidden="true">{path}</svg></button>'
        for do, label, path in _BUTTONS
    )
    heads = ("step", "messages", "then" if chunks else "so far")
    table = "".join("<tr>" + "".join(f"<td>{words(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    name = hashlib.sha256((text + table).encode()).hexdigest()[:12]
    above = f'<p class="rt-title"><strong>{words(title)}</strong></p>\n' if title else ""
    return (
        f'<figure class="rt-player" data-ringtree="{name}" role="group" tabindex="0" aria-label="{words(alt)}">\n'
        f"<style>{_asset('player.css')}</style>\n{above}"
        f'<div class="rt-stage"></div>\n'
        f'<div class="rt-controls"><div class="rt-bar">{buttons}'
        f'<input type="range" min="0" max="{len(data["steps"])}" step="any" value="0" aria-label="Step"></div>\n'
        '<p class="rt-caption"></p></div><p class="rt-hint">'
        f'{_LEGEND[data["mode"]]}<span class="rt-keys">Keys: ← → step, space plays.</span></p>\n'
        '<p class="rt-spoken" aria-live="polite"></p>\n'
        '<div class="rt-paper" aria-hidden="true"></div>\n'
        f"<details open><summary>The steps in words</summary>\n<table><thead><tr>"
        f"{''.join(f'<th scope=col>{head}</th>' for head in heads)}</tr></thead>\n<tbody>{table}</tbody></table></details>\n"
        f'<script type="application/json">{text}</script>\n'
        f'<script>{_asset("player.js").rstrip().rstrip(";")}("{name}")</script>\n'
        "</figure>"
    )


def _alt(trace: Trace, layout: str, title: str) -> str:
    """Counts are of the program, not of the machine, so the sentence stays the same on every run."""
    shape = {"ring": "in a ring", "row": "in a row", "tree": "as a tree", "grid": "on a grid"}[layout]
    what = title.strip().rstrip(".:")
    return (
        f"{what + ': ' if what else ''}{trace.size} ranks {shape} exchange {count_text(len(trace), 'message')}, step by step."
    )
