"""Lab of chapter 16, "Measuring": a timing loop with six faults, two samples that may be one, and the size in busbw."""

import math
import random
import statistics

from ringtree.labs.comparing import is_number
from ringtree.labs.exercise import Answer, Question
from ringtree.units import bytes_text, seconds_text

TITLE = "Measuring"
CHAPTER = 16


# ---------------------------------------------------------------- a loop without faults


class World:
    """Rank 0 of a machine that does not exist: its clock is virtual, and what a call takes is known.

    A GPU works through what it is given while the host goes on. The first call loads a kernel. The other ranks come late
    unless a barrier has lined them up, and one of them takes longer than rank 0. Now and then a call meets a busy machine.
    """

    HOST, FIRST, BARRIER = 4e-6, 30e-3, 40e-6

    def __init__(self, call, slowest=1.25, seed=0):
        self._call, self._slowest = call, slowest
        self._now = self._free = 0.0  # the host's clock; when the GPU has done all that it was given
        self._late = self._first = True
        self._dice = random.Random(seed)
        self.calls = 0
        self._since = None  # what has happened since the last look at the clock; None before the first
        self._seen = set()  # what was between two looks with a call between them
        self._asked = False

    def clock(self) -> float:
        """Seconds, on the host of rank 0."""
        if self._since and "call" in self._since:
            self._seen |= self._since | ({"unfinished"} if self._free > self._now else set())
        self._since = set()
        return self._now

    def _note(self, *what):
        if self._since is not None:
            self._since.update(what)

    def call(self) -> None:
        """Start the collective: the host goes on at once."""
        self.calls += 1
        self._note("call", *["late"] * self._late)
        took = self._call * (1 + 0.04 * self._dice.random())
        if self._dice.random() < 0.08:
            took *= 12
        if self._first:
            took, self._first = took + self.FIRST, False
        if self._late:
            took += 3e-3 * self._dice.random()
        self._late = True
        self._now += self.HOST
        self._free = max(self._free, self._now) + took

    def synchronize(self) -> None:
        """Wait until the GPU has done all that it was given."""
        self._now = max(self._now, self._free)

    def barrier(self) -> None:
        """Wait until all ranks have come. Their GPUs are then done too."""
        self._note("barrier")
        self._now = max(self._now, self._free) + self.BARRIER
        self._late = False

    def from_all_ranks(self, seconds) -> list:
        """Return what the four ranks measured, where this one measured `seconds`."""
        self._asked = True
        return [seconds, seconds * 1.02, seconds * self._slowest, seconds * 0.98]

    def print(self, text) -> None:
        """Into the job's log, which takes its time."""
        self._note("print")
        self._now += 2e-3


WORLDS = {call: f"a call of {seconds_text(call)}" for call in (200e-6, 1.5e-3, 25e-6)}


def loop_questions():
    for seed, (call, says) in enumerate(WORLDS.items()):
        world = World(call, seed=seed)
        yield Question((world,), lambda answer, world=world: _off(answer, world), says)


def _off(answer, world):
    if not is_number(answer):
        return f"returned {answer!r}: return a number of seconds."
    if world.calls < 10:
        return f"made {world.calls} calls: a median of so few says nothing: make 10 or more."
    right = (world._call * 1.02 + world.HOST) * world._slowest
    ratio = answer / right
    if 0.93 <= ratio <= 1.07:
        return None
    says = f"says {seconds_text(answer)} where the median call of the slowest rank takes {seconds_text(right)}"
    return f"{says}. {_cause(ratio, world)}"


def _cause(ratio, world):
    """Return what is in it, or missing: from what the world has seen."""
    if any(0.93 <= ratio * unit <= 1.07 for unit in (1e-3, 1e-6, 1e-9)):
        return "That is right in another unit: return seconds."
    if "call" not in world._seen:
        return "No call was between two looks at world.clock()."
    if "unfinished" in world._seen:
        return "The clock was read when the call had been started: the GPU was still at it."
    if "print" in world._seen:
        return "Something was printed between the two looks at the clock."
    if "barrier" in world._seen:
        return "A barrier is in it: it comes before the clock starts."
    if "late" in world._seen:
        return "Some rank was late: line the ranks up before each call, and look at the clock for each."
    if ratio < 1:
        whom = "That is not the most that the four ranks saw" if world._asked else "That is what rank 0 saw"
        return f"{whom}: the call is over when the slowest rank is."
    return "Take the median of the calls: the first call, and the one in twelve that meets a busy machine, spoil a mean."


LOOP_HINTS = (
    "Six things are wrong in the loop: what it counts beside the call, when it stops the clock, which calls it counts, what it "
    "makes of them, whom it asks, and whether the others had arrived.",
    "Before the clock starts: a barrier, each time. Before it stops: synchronize. A few calls before you count any. The "
    "median, not the mean. And nothing is printed between the two looks at the clock.",
    "times = []; for number in range(40): world.barrier(); start = world.clock(); world.call(); world.synchronize(); "
    "times.append(max(world.from_all_ranks(world.clock() - start))). Leave the first few out, and return statistics.median.",
)


# ---------------------------------------------------------------- is it faster?


def verdict_questions():
    usual = [10.0, 10.1, 9.9, 10.2, 10.0, 9.8, 10.1, 10.0]
    cases = [
        (usual, [7.0, 7.1, 6.9, 7.2, 7.0, 6.8, 7.1, 7.0], "faster", "a third less, every time"),
        (usual, [10.1, 10.0, 9.9, 10.1, 9.8, 10.2, 10.0, 9.9], "cannot tell", "the same numbers in another order"),
        ([10.0] * 19 + [90.0], [10.4] * 20, "slower", "one of the old times met a busy machine"),
        (
            [8.0, 14.0, 9.0, 15.0, 10.0, 13.0, 11.0, 12.0],
            [7.5, 13.0, 8.5, 14.0, 9.5, 12.0, 10.5, 11.5],
            "cannot tell",
            "half a step better, and noise of seven",
        ),
        ([10.0, 10.1, 9.9, 10.2], [7.0, 7.1, 6.9, 7.2], "cannot tell", "four times each: no interval is 95 % sure"),
        (
            [12.0, 12.1, 11.9, 12.2, 12.0, 11.8, 12.1] * 2,
            [11.0, 11.1, 10.9, 11.2, 11.0, 10.8] * 2 + [55.0, 70.0],
            "faster",
            "a lower median and two bad days",
        ),
        (_evenly(100, 100.2, 12), _evenly(99, 99.2, 12), "faster", "one per cent less, every time"),
        (_evenly(10, 14, 40), _evenly(11.7, 15.7, 40), "slower", "noise of four, and forty times each"),
    ]
    for old, new, wanted, says in cases:
        says = f"old {_few(old)}, new {_few(new)} ({says})"
        yield Question((old, new), lambda answer, wanted=wanted: _not(answer, wanted), says)


def _evenly(low, high, count):
    return [low + (high - low) * each / count for each in range(count)]


def _few(times):
    return f"{len(times)} times around {statistics.median(times):g}"


def _not(answer, wanted):
    words = ("faster", "slower", "cannot tell")
    if answer not in words:
        return f"returned {answer!r}: say one of {', '.join(map(repr, words))}."
    if answer == wanted:
        return None
    return f"says {answer!r}, and {wanted!r} is right: compare the 95 % intervals of the two medians."


VERDICT_HINTS = (
    "Two medians always differ. The question is whether they differ by more than either of them is uncertain.",
    "`median_interval(times)` of the chapter gives (low, high), in which the true median lies with 95 %. For fewer than six "
    "times there is none.",
    "Faster: the new interval's high is below the old one's low. Slower: the other way round. Otherwise you cannot tell; and "
    "with fewer than six times in either you can never tell.",
)


# ---------------------------------------------------------------- busbw


def busbw_questions():
    for collective, passed, p, seconds, wanted, says in [
        ("all_reduce", 2**30, 8, 5e-3, 1.75 * 2**30 / 5e-3, "each of 8 ranks passes a tensor of 1 GiB"),
        ("all_gather", 2**27, 8, 3e-3, 7 * 2**27 / 3e-3, "each of 8 ranks passes a shard of 128 MiB"),
        (
            "reduce_scatter",
            2**30,
            16,
            4e-3,
            15 * 2**26 / 4e-3,
            "each of 16 ranks passes a tensor of 1 GiB, and keeps a sixteenth",
        ),
        ("broadcast", 2**28, 4, 2e-3, 2**28 / 2e-3, "the root passes 256 MiB to 4 ranks, itself among them"),
        ("reduce", 2**28, 4, 2e-3, 2**28 / 2e-3, "each of 4 ranks passes 256 MiB"),
        ("all_to_all", 2**26, 8, 1e-3, 7 * 2**23 / 1e-3, "each of 8 ranks passes 64 MiB, an eighth for each rank"),
    ]:
        says = f"{collective}, {says}, in {seconds_text(seconds)}"
        yield Question((collective, passed, p, seconds), lambda answer, wanted=wanted: _rate(answer, wanted), says)


def _rate(answer, wanted):
    if not is_number(answer):
        return f"returned {answer!r}: return a number of bytes a second."
    if math.isclose(answer, wanted, rel_tol=1e-6):
        return None
    ratio = answer / wanted
    asked = "is the size the whole vector, and the factor that of this collective?"
    if any(math.isclose(ratio, unit, rel_tol=1e-6) for unit in (1e-3, 1e-6, 1e-9, 2**-10, 2**-20, 2**-30)):
        asked = "that is the right rate in another unit, and bytes a second are wanted."
    return f"says {bytes_text(round(answer, 1))}/s where {wanted / 1e9:.1f} GB/s is right, {ratio:.3g} times that: {asked}"


BUSBW_HINTS = (
    "busbw is size over time, times a factor. Which size does the convention count: what a rank passes, or what there is in all?",
    "For an all-gather the size is the whole, p shards. For the others it is what was passed here.",
    "The factors: all-reduce 2(p−1)/p; all-gather, reduce-scatter and all-to-all (p−1)/p; broadcast and reduce 1.",
)


EXERCISES = {
    "is_it_faster": Answer(verdict_questions, VERDICT_HINTS),
    "seconds_a_call": Answer(loop_questions, LOOP_HINTS),
    "busbw": Answer(busbw_questions, BUSBW_HINTS),
}
