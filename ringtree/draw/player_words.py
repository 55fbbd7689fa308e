"""What the step player says: names for chunks and their contents, and each step in words."""

from __future__ import annotations

from collections import defaultdict
from string import ascii_lowercase
from typing import TYPE_CHECKING

from ringtree.trace import Message, Trace
from ringtree.units import bytes_text, count_text, seconds_text

if TYPE_CHECKING:  # what makes a Followed needs torch, which takes its time to load
    from ringtree.simulated.following import Followed


class ChunkNames:
    """Names for chunks and numbers for contents, so that each content is written down once."""

    def __init__(self, trace: Trace, followed: Followed | None, received: int = 0):
        """received: places for what came and lies in no argument; 0 for no such column."""
        self.size = trace.size
        self.contents, self._numbers = [], {}
        if followed is None:
            self.columns, self.mode, self.slots = [("sent", ["sent"], 0), ("received", ["received"], 1)], "text", []
            self.start = [[0, 0] for _ in range(trace.size)]
            return
        self.start = followed.start
        self.columns, self.letters, first = [], {}, 0
        several = len(followed.sources) > 1
        for _, count in followed.sources:
            # where arguments are left out, a letter must say by itself which chunk it is
            before = len(self.letters) if followed.own and several else 0
            names = _letters_of(before + count, count > 1 or several)[before:]
            self.letters.update(enumerate(names, len(self.letters)))
        self.source = followed.sources[0][0]
        arguments = followed.columns[: len(followed.columns) - followed.own]
        for index, (name, count) in enumerate(followed.columns):
            several = count > 1 or index < len(arguments) > 1
            letters = _letters_of(count, several)
            if index >= len(arguments) and several and count not in {of_one for _, of_one in followed.sources}:
                letters = [str(number) for number in range(1, count + 1)]  # its parts are no argument's chunks
            self.columns.append((name, letters, first))
            first += count
        self.first_of_their_own = sum(count for _, count in arguments)
        filled = [sum(bool(held[place]) for held in self.start if place < len(held)) for place in range(first)]
        # What is full at the start stands left of what gets filled.
        self.columns.sort(key=lambda column: -sum(filled[column[2] : column[2] + len(column[1])]))
        if received:
            self.columns.append(("received", [str(place) for place in range(1, received + 1)], first))
            self.start = [[*held, *[()] * (first + received - len(held))] for held in self.start]
        every = [content for held in self.start for content in held]
        every += [content for changed in followed.changes for *_, content in changed]
        every += [content for contents in followed.sent for content in contents]
        every = [_by_rank(content) for content in every]
        self.slots = sorted({rank for content in every for rank, _ in content})
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
        return [letters, [list(each) for each in _by_rank(content)]]

    def name(self, content) -> str:
        """The chunk's letter; of a mixture of chunks, all their letters."""
        return "".join(sorted({self.letters[chunk] for _, chunk, _ in content}))

    def place(self, place: int) -> str:
        """Return where a chunk lies, in words."""
        name, letters, first = next(each for each in self.columns if each[2] <= place < each[2] + len(each[1]))
        return f"{name} {letters[place - first]}".strip() if len(self.columns) > 1 else letters[place - first]

    def at_home(self, place: int, content) -> bool:
        """Return whether all that is in a place came from the chunks of its letter: its own, or in a tensor of the program's own."""
        if self.first_of_their_own == len(self.letters):
            return all(chunk == place for _, chunk, _ in content)
        _, letters, first = next(each for each in self.columns if each[2] <= place < each[2] + len(each[1]))
        return len(letters) > 1 and self.name(content) == letters[place - first]

    def say(self, contents) -> str:
        """Contents in words: those of the same ranks together."""
        by_ranks = defaultdict(list)
        for content in contents:
            by_ranks[_by_rank(content)].append(self.name(content))
        return ", ".join(
            f"{_letters(names) or self.source} of {self.ranks(ranks)}" if ranks else "nothing"
            for ranks, names in by_ranks.items()
        )

    def ranks(self, ranks) -> str:
        """Whose numbers: all, or the ranks, with neighbors as a range and what is in there twice as 2×."""
        if len(ranks) == len(self.slots) > 1 and all(times == 1 for _, times in ranks):
            return "all"
        parts = []
        for rank, times in ranks:
            if parts and times == parts[-1][2] == 1 and rank == parts[-1][1] + 1:
                parts[-1][1] = rank
            else:
                parts.append([rank, rank, times])
        return "+".join(f"{times}×{first}" if times > 1 else _neighbors(first, last) for first, last, times in parts)


def _by_rank(content) -> tuple[tuple[int, int], ...]:
    """(rank, how often) of each rank that is in a content, whichever of its chunks it is."""
    times = {}
    for rank, _, often in content:
        times[rank] = max(often, times.get(rank, 0))
    return tuple(sorted(times.items()))


def _neighbors(first: int, last: int) -> str:
    if first == last:
        return f"{first}"
    return f"{first}–{last}" if last > first + 1 else f"{first}+{last}"


def _letter(index: int) -> str:
    return ascii_lowercase[index] if index < 26 else ascii_lowercase[index // 26 - 1] + ascii_lowercase[index % 26]


def _letters_of(count: int, several: bool) -> list[str]:
    return [_letter(index) for index in range(count)] if several else [""] * count


def _letters(names: list[str]) -> str:
    run = "".join(names)
    if len(names) > 2 and run in ascii_lowercase:
        return f"{names[0]}–{names[-1]}"
    return " ".join(names)


def message_text(message: Message, contents, names: ChunkNames) -> str:
    said = names.say(contents) if contents else bytes_text(message.nbytes)
    return f"{message.src} → {message.dst}: {said}"


def change_text(changes, names: ChunkNames) -> str:
    last = {(rank, place): content for rank, place, content in changes}
    by_rank = defaultdict(list)
    for (rank, place), content in sorted(last.items()):
        if names.mode == "text":
            by_rank[rank].append(f"{bytes_text(content)} {names.columns[place][0]}")
        else:
            by_rank[rank].append((place, content))
    if names.mode == "text":
        return ";\n".join(f"rank {rank}: {', '.join(said)}" for rank, said in by_rank.items())
    return ";\n".join(f"rank {rank}: {_places(held, names)}" for rank, held in by_rank.items())


def _places(held, names: ChunkNames) -> str:
    """Places and what is in them, column by column; chunks in their own place are said together."""
    held, said = dict(held), []
    for name, letters, first in names.columns:
        here = [(place, held[place]) for place in range(first, first + len(letters)) if place in held]
        at_home = [content for place, content in here if content and names.at_home(place, content)]
        prefix = f"{name} " if len(names.columns) > 1 and letters[0] else ""
        if at_home:
            said.append(prefix + names.say(at_home))
        for place, content in here:
            if content not in at_home:
                said.append(f"{names.place(place)} = {names.say([content])}".removeprefix(" = "))
    return ", ".join(said)


def start_text(names: ChunkNames) -> str:
    if names.mode == "text":
        return ""
    held = [[(place, content) for place, content in enumerate(each) if content] for each in names.start]
    return ";\n".join(f"rank {rank}: {_places(each, names) if each else 'nothing'}" for rank, each in enumerate(held))


def caption(messages: list[Message], label: str) -> str:
    sizes = {message.nbytes for message in messages}
    count = count_text(len(messages), "message")
    each = "" if len(messages) == 1 else " each"
    size = f"{bytes_text(sizes.pop())}{each}" if len(sizes) == 1 else f"{bytes_text(min(sizes))} to {bytes_text(max(sizes))}"
    begin, end = min(message.start for message in messages), max(message.end for message in messages)
    return f"{count}, {size} · {seconds_text(begin) if begin else 0} to {seconds_text(end)}" + (f", {label}" if label else "")
