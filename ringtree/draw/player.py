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
from string import ascii_lowercase
from typing import TYPE_CHECKING

from ..trace import Message, Trace
from ..units import bytes_text, seconds_text
from .style import rank_colour

if TYPE_CHECKING:  # what makes a Followed needs torch, which takes its time to load
    from ..simulated.following import Followed

LAYOUTS = ("ring", "row", "tree")


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


def player(
    run: Trace | Followed,
    followed: Followed | None = None,
    *,
    layout: str = "ring",
    parents: Sequence[int | None] | None = None,
    together: float | None = None,
    title: str = "",
    alt: str | None = None,
) -> Player:
    """Replay a run: the ranks, the messages between them, and what each rank holds after each step.

    run: a `Trace`, or what `follow` found out about a program. followed: with the trace of a
    live run, what `follow` found out about the same program, so that chunks can be shown;
    without it the player shows how many bytes each rank has sent and received.
    layout: the ranks in a "ring", a "row" or a "tree". parents: for a tree, the rank above
    each rank, None for the root; left out, each rank hangs below the one it first received
    from or first sent to.
    together: seconds within which messages count as starting together, and so as one step; left
    out, a quarter of the shortest message. A rank sends one message a step and receives one.
    title: a line above. alt: one sentence that says what is shown.

    The figure needs no kernel, no network and no library.
    Keys: arrows step, space plays, Home and End go to either end.

    Raises ValueError for a run without messages, for another layout, and where the trace and
    `followed` are not of the same program.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"player() got layout={layout!r}; give one of {', '.join(map(repr, LAYOUTS))}.")
    if not isinstance(run, Trace):
        run, followed = run.trace, run
    if not run:
        raise ValueError("player() was given a trace without messages; run something that sends first.")
    sent, changes = _aligned(run, followed) if followed else _bytes_only(run)
    shown = _Shown(run, followed)
    steps = list(_steps(run, together))
    records, rows = [], [("before", "", _start_text(shown))]
    for number, step in enumerate(steps, 1):
        messages = [run[index] for index in step]
        records.append({
            "t": _caption(messages, run.label),
            "m": [[run[index].src, run[index].dst, [shown.number(content) for content in sent[index]]] for index in step],
            "c": [[rank, place, shown.number(content)] for index in step for rank, place, content in changes[index]],
        })  # fmt: skip
        said = ";\n".join(_message_text(run[index], sent[index], shown) for index in step)
        rows.append((str(number), said, _change_text([each for index in step for each in changes[index]], shown)))
    start = [[shown.number(content) for content in chunks] for chunks in shown.start]
    data = {
        **_geometry(run, layout, parents),
        **shown.look(),
        "colours": [rank_colour(rank) for rank in range(run.size)],
        "start": start,
        "contents": shown.contents,
        "steps": records,
    }
    alt = (alt or _alt(run, layout, title)).strip()
    if not alt or "\n" in alt:
        raise ValueError(f"player() got alt={alt!r}; give one line that says what the figure shows.")
    return Player(_page(data, rows, title, alt, bool(followed)), alt)


# -- steps ---------------------------------------------------------------------


def _steps(trace: Trace, together: float | None):
    """The indices of the messages of each step: those that start together, none of which can have led to another."""
    shortest = min(message.end - message.start for message in trace)
    if shortest <= 0:
        raise ValueError("player() was given messages that take no time, so none comes before another; give a link with α.")
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
    """What `followed` says of each message, in the order of the trace: the k-th from one rank to another is the k-th."""
    if followed.trace is trace:
        return followed.sent, followed.changes
    queues = defaultdict(list)
    for index, message in enumerate(followed.trace):
        queues[message.src, message.dst, message.tag].append(index)
    if Counter(map(_channel, trace)) != {channel: len(queue) for channel, queue in queues.items()}:
        raise ValueError(
            f"player() was given a trace of {len(trace)} messages and a follow() of another program "
            f"({len(followed.trace)} messages, or between other ranks): follow the program that was run, on as many ranks."
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


# -- what is shown -------------------------------------------------------------


class _Shown:
    """Names for chunks and numbers for contents, so that each content is written down once."""

    def __init__(self, trace: Trace, followed: Followed | None):
        self.size = trace.size
        self.contents, self._numbers = [], {}
        if followed is None:
            self.columns, self.mode, self.slots = [("sent", ["sent"], 0), ("received", ["received"], 1)], "text", []
            self.start = [[0, 0] for _ in range(trace.size)]
            return
        self.start = followed.start
        self.columns, self.letters, first = [], {}, 0
        for name, count in followed.columns:
            letters = [_letter(index) for index in range(count)] if count > 1 or len(followed.columns) > 1 else [""]
            self.letters.update(enumerate(letters, first))
            self.columns.append((name, letters, first))
            first += count
        filled = [sum(bool(held[place]) for held in self.start if place < len(held)) for place in range(first)]
        # What is full at the start stands left of what gets filled.
        self.columns.sort(key=lambda column: -sum(filled[column[2] : column[2] + len(column[1])]))
        every = [content for held in self.start for content in held]
        every += [content for changed in followed.changes for *_, content in changed]
        every += [content for contents in followed.sent for content in contents]
        self.slots = sorted({rank for content in every for rank, *_ in content})
        self.mode = "sum" if any(len(content) > 1 for content in every) else "move"

    def number(self, content) -> int:
        if content not in self._numbers:
            self._numbers[content] = len(self.contents)
            self.contents.append(self._described(content))
        return self._numbers[content]

    def _described(self, content):
        if self.mode == "text":
            return [bytes_text(content), []]
        letters = self.name(content)
        if self.mode == "move" and content:
            letters = f"{content[0][0]}{letters}"
        return [letters, [[rank, times] for rank, _, times in content]]

    def name(self, content) -> str:
        """The chunk's letter; of a mixture of chunks, all their letters."""
        return "".join(sorted({self.letters[chunk] for _, chunk, _ in content}))

    def place(self, place: int) -> str:
        """Where a chunk lies, in words."""
        name, letters, first = next(each for each in self.columns if each[2] <= place < each[2] + len(each[1]))
        return f"{name} {letters[place - first]}".strip() if len(self.columns) > 1 else letters[place - first]

    def say(self, contents) -> str:
        """Contents in words: those of the same ranks together."""
        by_ranks = defaultdict(list)
        for content in contents:
            by_ranks[tuple((rank, times) for rank, _, times in content)].append(self.name(content))
        return ", ".join(
            f"{_letters(names) or self.columns[0][0]} of {self.ranks(ranks)}" if ranks else "nothing"
            for ranks, names in by_ranks.items()
        )

    def ranks(self, ranks) -> str:
        """Whose numbers: all, or the ranks, with neighbours as a range and what is in there twice as 2×."""
        if len(ranks) == len(self.slots) > 1 and all(times == 1 for _, times in ranks):
            return "all"
        parts = []
        for rank, times in ranks:
            if parts and times == parts[-1][2] == 1 and rank == parts[-1][1] + 1:
                parts[-1][1] = rank
            else:
                parts.append([rank, rank, times])
        return "+".join(
            f"{first}–{last}" if last > first + 1 else f"{first}+{last}" if last > first else f"{times}×{first}" if times > 1 else f"{first}"
            for first, last, times in parts
        )

    def look(self) -> dict:
        count = sum(len(letters) for _, letters, _ in self.columns)
        room = 344 - (74 if self.size > 10 else 64) - 12 * (len(self.columns) - 1)
        cell = 100 if self.mode == "text" else max(16, min(44, room // count))
        columns = [[name, [""] * len(letters) if self.mode == "text" else letters, first] for name, letters, first in self.columns]
        return {"mode": self.mode, "slots": self.slots, "columns": columns, "cell": cell, "row": 32 if self.size <= 10 else 25}


def _letter(index: int) -> str:
    return ascii_lowercase[index] if index < 26 else ascii_lowercase[index // 26 - 1] + ascii_lowercase[index % 26]


def _letters(names: list[str]) -> str:
    run = "".join(names)
    if len(names) > 2 and run in ascii_lowercase:
        return f"{names[0]}–{names[-1]}"
    return " ".join(names)


def _message_text(message: Message, contents, shown: _Shown) -> str:
    said = shown.say(contents) if contents else bytes_text(message.nbytes)
    return f"{message.src} → {message.dst}: {said}"


def _change_text(changes, shown: _Shown) -> str:
    last = {(rank, place): content for rank, place, content in changes}
    by_rank = defaultdict(list)
    for (rank, place), content in sorted(last.items()):
        if shown.mode == "text":
            by_rank[rank].append(f"{bytes_text(content)} {shown.columns[place][0]}")
        else:
            by_rank[rank].append((place, content))
    if shown.mode == "text":
        return ";\n".join(f"rank {rank}: {', '.join(said)}" for rank, said in by_rank.items())
    return ";\n".join(f"rank {rank}: {_places(held, shown)}" for rank, held in by_rank.items())


def _places(held, shown: _Shown) -> str:
    """Places and what is in them, column by column; chunks in their own place are said together."""
    held, said = dict(held), []
    for name, letters, first in shown.columns:
        here = [(place, held[place]) for place in range(first, first + len(letters)) if place in held]
        at_home = [content for place, content in here if content and all(chunk == place for _, chunk, _ in content)]
        prefix = f"{name} " if len(shown.columns) > 1 else ""
        if at_home:
            said.append(prefix + shown.say(at_home))
        for place, content in here:
            if content not in at_home:
                said.append(f"{shown.place(place)} = {shown.say([content])}".removeprefix(" = "))
    return ", ".join(said)


def _start_text(shown: _Shown) -> str:
    if shown.mode == "text":
        return ""
    held = [[(place, content) for place, content in enumerate(each) if content] for each in shown.start]
    return ";\n".join(f"rank {rank}: {_places(each, shown) if each else 'nothing'}" for rank, each in enumerate(held))


def _caption(messages: list[Message], label: str) -> str:
    sizes = {message.nbytes for message in messages}
    count = "1 message" if len(messages) == 1 else f"{len(messages)} messages"
    each = "" if len(messages) == 1 else " each"
    size = f"{bytes_text(sizes.pop())}{each}" if len(sizes) == 1 else f"{bytes_text(min(sizes))} to {bytes_text(max(sizes))}"
    begin, end = min(message.start for message in messages), max(message.end for message in messages)
    return f"{count}, {size} · {seconds_text(begin) if begin else 0} to {seconds_text(end)}" + (f", {label}" if label else "")


# -- where the ranks are -------------------------------------------------------


def _geometry(trace: Trace, layout: str, parents) -> dict:
    """Places of the ranks, and the ways between them; up to 16 ranks in a drawing that fits a phone."""
    size, width = trace.size, 340
    wires = sorted({(message.src, message.dst) for message in trace})
    both = any((dst, src) in wires for src, dst in wires)
    radius = 20 if size <= 8 else 15 if size <= 16 else 10
    if layout == "ring":
        reach = (width - 2 * radius) / 2 - (30 if size > 4 else 16)
        middle, height = (width / 2, reach + radius + 18), 2 * (reach + radius) + 36
        turns = [2 * math.pi * rank / size for rank in range(size)]
        places = [(middle[0] + reach * math.sin(turn), middle[1] - reach * math.cos(turn)) for turn in turns]
    elif layout == "row":
        width = max(width, 21 * size)
        step = (width - 2 * radius - 8) / max(1, size - 1)
        radius = min(radius, max(8, step / 2 - 3))
        longest = max(abs(src - dst) for src, dst in wires) * step
        rise = min(0.31 * longest, 110) + 16
        height = 2 * max(rise, radius + 8)
        places = [(radius + 4 + rank * step, height / 2) for rank in range(size)]
        # The curve is drawn through a point twice as far aside as the curve itself goes.
        height = round(height)
    else:
        above = _parents(trace) if parents is None else list(parents)
        if len(above) != size or above.count(None) != 1 or not set(above) <= {None, *range(size)}:
            raise ValueError(f"player() got parents={parents!r}; give one rank for each of {size} ranks, None for the root alone.")
        width = max(width, 21 * len(set(range(size)) - set(above)))
        places, height, radius = _tree(above, width, radius)
    return {
        "layout": layout, "width": width, "height": round(height), "radius": round(radius, 1), "both": both,
        "places": [[round(x, 1), round(y, 1)] for x, y in places], "wires": wires,
    }  # fmt: skip


def _parents(trace: Trace) -> list[int | None]:
    """Each rank below the one that it first received from; or, where that is no tree, first sent to."""
    received, sent = {}, {}
    for message in trace:
        received.setdefault(message.dst, message.src)
        sent.setdefault(message.src, message.dst)
    for peers in (received, sent):
        # In an all-reduce the root sends too, but begins after all others.
        for root in [rank for rank in range(trace.size) if rank not in peers] or list(peers)[-1:]:
            above = [None if rank == root else peers.get(rank) for rank in range(trace.size)]
            if above.count(None) == 1 and all(_reaches(above, rank, root) for rank in range(trace.size)):
                return above
    raise ValueError("player() finds no tree in this run: give parents=, the rank above each rank, or another layout.")


def _reaches(above, rank, root) -> bool:
    for _ in above:
        if rank == root:
            return True
        rank = above[rank]
    return False


def _tree(above, width, radius):
    """Places of a tree: leaves side by side, each other rank over the middle of those below it."""
    below = defaultdict(list)
    for rank, parent in enumerate(above):
        below[parent].append(rank)
    (root,) = below[None]
    leaves = [rank for rank in range(len(above)) if not below[rank]]
    step = width / len(leaves)
    x, depth, used = {}, {root: 0}, []

    def set_out(rank):
        for child in below[rank]:
            depth[child] = depth[rank] + 1
            set_out(child)
        if below[rank]:
            x[rank] = (x[below[rank][0]] + x[below[rank][-1]]) / 2
        else:
            x[rank] = (len(used) + 0.5) * step
            used.append(rank)

    set_out(root)
    if len(depth) != len(above):
        raise ValueError(f"player() got parents={above!r}, in which some ranks hang below each other in a circle.")
    radius = min(radius, max(8, step / 2 - 3))
    rise = max(2 * radius + 30, min(92, 250 / max(1, max(depth.values()))))
    places = [(x[rank], radius + 6 + rise * depth[rank]) for rank in range(len(above))]
    return places, rise * max(depth.values()) + 2 * radius + 12, radius


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
        f'<div class="rt-bar">{buttons}'
        f'<input type="range" min="0" max="{len(data["steps"])}" step="any" value="0" aria-label="Step"></div>\n'
        '<p class="rt-caption"></p><p class="rt-hint">'
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
    shape = {"ring": "in a ring", "row": "in a row", "tree": "as a tree"}[layout]
    what = title.strip().rstrip(".:")
    return f"{what + ': ' if what else ''}{trace.size} ranks {shape} exchange {len(trace)} messages, step by step."
