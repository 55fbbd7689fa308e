"""Read the Flight Recorder of every rank of a job that hangs, and say where the ranks part.

    Path(folder, f"rank{rank}").write_bytes(torch._C._distributed_c10d._dump_fr_trace())     # on every rank, from a thread
    records = flight_recorder.read(folder)
    for place in flight_recorder.partings(records):
        print(place)

PyTorch notes every collective that a rank calls: https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html
"""

import json
import pickle
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ringtree.errors import UsageError
from ringtree.waits import name_ranks

INSIDE = re.compile(r"/(torch/distributed|ringtree/live)/")  # what stands between a call and who made it
ALIKE = {"all_reduce", "broadcast", "reduce", "reduce_scatter", "_reduce_scatter_base", "all_gather", "_all_gather_base"}
UNCHANGED = 1  # times that a rank writes the same again before it counts as still


@dataclass(frozen=True)
class Entry:
    """A collective that a rank has called.

    number: of the collective in its group, from 1. elements: that the rank gave. done: whether it has ended. callers: the
    functions that it was called from, innermost first.
    """

    group: str
    number: int
    operation: str
    elements: int
    done: bool
    callers: tuple[str, ...]

    @property
    def must_agree(self):
        """Return what the ranks of a group must have in common. (Others than these may give as much as each likes.)"""
        return self.operation, self.elements if self.operation in ALIKE else None

    def __str__(self):
        of = f" of {self.elements:,}" if self.elements else ""
        return f"{self.operation}{of}{' in ' + self.callers[0] if self.callers else ''}"


@dataclass(frozen=True)
class Parting:
    """Where the ranks of a group part. calls: by rank the `Entry` of this number, None for who has not called it."""

    group: str
    number: int
    calls: dict[int, Entry | None]

    def __str__(self):
        alike = {}
        for rank, call in self.calls.items():
            alike.setdefault(str(call) if call else "not called", []).append(rank)
        told = "; ".join(f"{name_ranks(ranks)}: {what}" for what, ranks in alike.items())
        return f"collective {self.number} of group {self.group}: {told}"


def read(folder) -> dict[int, list[Entry]]:
    """By rank, the entries of its dump, oldest first. A file's name ends with the rank, perhaps before a suffix.

    Reads what PyTorch writes: a pickle (of your own job, for a pickle can run code), or JSON in a file that ends in .json.
    Raises UsageError where there is no dump.
    """
    records = {}
    for path in sorted(Path(folder).iterdir()):
        if found := re.search(r"(\d+)$", path.stem):
            dump = json.loads(path.read_text()) if path.suffix == ".json" else pickle.loads(path.read_bytes())
            records[int(found[1])] = entries_of(dump)
    if not records:
        raise UsageError(
            f"{folder} has no dump of a Flight Recorder: expected a file for each rank whose name ends with its number"
        )
    return dict(sorted(records.items()))


def when_still(folder, size, patience=1.0, timeout=60.0) -> dict[int, list[Entry]]:
    """The records of `size` ranks, once all have called something and none has grown for `patience` seconds.

    The ranks write their records again and again. Each must have written the same one more than once, because the record of
    a rank without a core does not grow either. Raises TimeoutError after `timeout` seconds.
    """
    before, changed, written, times = {}, time.monotonic(), {}, Counter()
    until = changed + timeout
    while (now_is := time.monotonic()) < until:
        last, written = written, {path: path.stat().st_mtime_ns for path in Path(folder).iterdir() if path.stem[-1].isdigit()}
        now = read(folder) if written else {}
        if now != before or len(now) < size or not all(now.values()):
            before, changed = now, now_is
            times.clear()
        times.update(path for path, at in written.items() if at != last.get(path))
        if now_is - changed >= patience and len(times) >= size and min(times.values()) > UNCHANGED:
            return now
        time.sleep(0.1)
    raise TimeoutError(f"after {timeout:g} s the ranks were still at work, or not all of the {size} were writing their records")


def entries_of(dump) -> list[Entry]:
    """The collectives in one rank's dump, as `read` gives them; sends and receives are left out, for they have no number."""
    return [
        Entry(
            each["process_group"][0],
            each["collective_seq_id"],
            each["profiling_name"].partition(":")[2],
            sum(_product(sizes) for sizes in each["input_sizes"]),
            each["retired"],
            tuple(frame["name"] for frame in each.get("frames", []) if not INSIDE.search(frame["filename"])),
        )
        for each in dump.get("entries", [])
        if not each["is_p2p"]
    ]


def _product(sizes):
    count = 1
    for size in sizes:
        count *= size
    return count


def partings(records) -> list[Parting]:
    """For each group, the first collective that its ranks did not call alike, or that has not ended on all; in no group, [].

    records: as `read` gives them. The recorder forgets its oldest entries: it is read from where all ranks still know.
    """
    groups = {}
    for rank, record in records.items():
        for each in record:
            calls = groups.setdefault(each.group, {}).setdefault(rank, {})
            if each.number in calls:  # the group was made anew under its name, and counts from 1 again
                calls.clear()
            calls[each.number] = each
    found = (first_parting(group, by_rank) for group, by_rank in sorted(groups.items()))
    return [each for each in found if each]


def first_parting(group, by_rank) -> Parting | None:
    """by_rank: of each rank the calls in this group by their number."""
    first = max(min(calls) for calls in by_rank.values())
    last = max(max(calls) for calls in by_rank.values())
    for number in range(first, last + 1):
        met = {rank: calls.get(number) for rank, calls in by_rank.items()}
        alike = len({call and call.must_agree for call in met.values()}) == 1
        if not alike or not all(call is None or call.done for call in met.values()):
            return Parting(group, number, met)
    return None
