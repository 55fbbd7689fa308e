"""Lab of chapter 12, "Ring or tree?": where two programs cost the same, and a chooser for three machines."""

from functools import cache

from ringtree import theory
from ringtree.cost import Link, Machine
from ringtree.labs.comparing import is_number, short
from ringtree.labs.exercise import Answer, Level, Question
from ringtree.simulated import simulate
from ringtree.theory import cost_of, textbook_time
from ringtree.units import binary_text, bytes_text, seconds_text

TITLE = "Ring or tree?"
CHAPTER = 12


# ---------------------------------------------------------------- where they meet


def _ring(size, nbytes, link):
    return 2 * (size - 1) * link.time(nbytes / size)


def _tree(size, nbytes, link):
    return 2 * (size - 1).bit_length() * link.time(nbytes)


def _off(answer, size, link):
    if not is_number(answer) or answer < 0:
        return f"it returned {short(answer)}, and should return a number of bytes, 0 or more"
    below, above = max(0.0, 0.999 * answer - 1), 1.001 * answer + 1
    if _tree(size, below, link) <= _ring(size, below, link) and _ring(size, above, link) <= _tree(size, above, link):
        return None  # the tree is ahead just below it, and the ring just above
    ring, tree = (seconds_text(time(size, float(answer), link)) for time in (_ring, _tree))
    same = "nearly the same: give it to a thousandth" if ring == tree else "not the same"
    given = bytes_text(round(answer, 1)) if answer >= 1 else f"{answer:.3g} B"
    return f"it returned {given}; there the ring takes {ring} and the tree {tree}, which is {same}"


def crossover_questions():
    fast, slow = Link.of(5e-6, bandwidth=50e9), Link.of(20e-6, bandwidth=5e9)
    sizes = [4, 8, 16, 1024, 3, 7], [8, 64, 6, 2]
    for size, link in [*((size, fast) for size in sizes[0]), *((size, slow) for size in sizes[1])]:
        yield Question((size, link), lambda answer, size=size, link=link: _off(answer, size, link), f"{size} ranks, {link}")


CROSSOVER_HINTS = (
    "Write down the time of each as a·α + b·β·n. Which two numbers are a and b for the ring, and which for the tree?",
    "Ring: a = 2(p − 1), b = 2(p − 1)/p. Tree: a = 2⌈lg p⌉, b = a. They take the same where the difference of the two a, "
    "times α, is the difference of the two b, times βn.",
    "`rounds = math.ceil(math.log2(size))`; n = (size − 1 − rounds) / (rounds − (size − 1) / size) · α / β, and α / β is "
    "`link.half_size`.",
)


# ---------------------------------------------------------------- the chooser

EVERYWHERE = ("mst_all_reduce", "ring_all_reduce", "recursive_doubling_all_reduce", "rabenseifner_all_reduce")
ON_NODES = ("hierarchical_ring_all_reduce",)
FAST, SLOW = Link.of(5e-6, bandwidth=50e9), Link.of(20e-6, bandwidth=1e9)
NODES = Machine(theory.nvlink(2e-6, bandwidth=400e9), theory.card(10e-6), ranks_per_node=4, cards_per_node=4)
MACHINES = {  # each with the numbers of ranks on it
    "fast links": (FAST, (6, 8, 24)),
    "slow links": (SLOW, (6, 8, 24)),
    "nodes": (NODES, (8, 12)),
}
CALLS = {2**10: 1000, 2**17: 500, 2**20: 200, 2**23: 50, 2**26: 8}  # of a job, by size in bytes: each size takes about as long


def ring_from_one_mebibyte(size, nbytes, machine):
    """The chooser to beat."""
    return "ring_all_reduce" if nbytes >= 2**20 else "mst_all_reduce"


def names_for(machine):
    return EVERYWHERE + ON_NODES if isinstance(machine, Machine) else EVERYWHERE


@cache
def seconds(name, size, nbytes, machine):
    """Of all calls of this size in the job."""
    options = {"ranks_per_node": machine.ranks_per_node} if name in ON_NODES else {}
    return CALLS[nbytes] * cost_of(name, size, nbytes, machine, **options).time


def _best(size, nbytes, machine):
    return min(seconds(name, size, nbytes, machine) for name in names_for(machine))


class _Job:
    """What a chooser has chosen so far, for each call of a job on these machines."""

    def __init__(self, machines):
        self.machines, self.chosen = machines, {}

    def take(self, answer, cell):
        _, size, nbytes, machine = cell
        if not isinstance(answer, str) or answer not in names_for(machine):
            node = " (this one needs nodes)" if isinstance(answer, str) and answer in ON_NODES else ""
            return f"it returned {short(answer)}{node}, and should return one of {', '.join(names_for(machine))}"
        self.chosen[cell] = seconds(answer, size, nbytes, machine), answer
        return None

    def beats_the_simple_one(self, answer, cell):
        if wrong := self.take(answer, cell):
            return wrong
        mine = sum(time for time, _ in self.chosen.values())
        simple = sum(seconds(ring_from_one_mebibyte(*each[1:]), *each[1:]) for each in self.chosen)
        if mine < 0.999 * simple:
            return None
        return (
            f"all calls together take {1e3 * mine:.0f} ms, and with a ring from 1 MiB on and MST below {1e3 * simple:.0f} ms"
            f"{self._worst()}"
        )

    def within(self, part):
        def wrong(answer, cell):
            if wrong := self.take(answer, cell):
                return wrong
            for label in self.machines:
                cells = [each for each in self.chosen if each[0] == label]
                mine, best = sum(self.chosen[each][0] for each in cells), sum(_best(*each[1:]) for each in cells)
                if mine > part * best:
                    return (
                        f"on {label} all calls take {1e3 * mine:.0f} ms, where the best choices take {1e3 * best:.0f} ms"
                        f"{self._worst(label)}"
                    )
            return None

        return wrong

    def _worst(self, label=None):
        """Return where most is lost."""
        cells = [each for each in self.chosen if label in (None, each[0])]
        worst = max(cells, key=lambda each: self.chosen[each][0] - _best(*each[1:]))
        where, size, nbytes, _ = worst
        time, name = self.chosen[worst]
        times = time / _best(*worst[1:])
        place = f"{binary_text(nbytes)} on {size} ranks{'' if label else f', {where}'}"
        return f"; most is lost for {place}: {name} takes {times:.1f} times the best"


def chooser_questions(machines=MACHINES):
    job = _Job(machines)
    cells = [
        (label, size, nbytes, machine) for label, (machine, sizes) in machines.items() for size in sizes for nbytes in CALLS
    ]
    for cell in cells:
        says = f"{binary_text(cell[2])} on {cell[1]} ranks, {cell[0]}"
        yield Question(cell[1:], lambda answer, cell=cell: job.take(answer, cell), says)
    last = cells[-1]
    yield Question(last[1:], lambda answer: job.beats_the_simple_one(answer, last), "the whole job")
    for level, part in enumerate(PARTS, 1):
        yield Question(last[1:], lambda answer, wrong=job.within(part): wrong(answer, last), "the whole job", level)  # noqa: B008


PARTS = 1.15, 1.01

CHOOSER_HINTS = (
    "Read the check's message: it names the size, the ranks and the machine where most is lost. Draw up your own table: "
    "cost_of(name, size, nbytes, machine).time for the names on one machine. (In a cell of its own; the chooser has to do without it.)",
    "On a link: recursive doubling for short vectors; for long ones Rabenseifner where p is a power of two, otherwise the "
    "ring. Where is the border? Set two times equal as in the first exercise: it is a number times machine.half_size, not a "
    "number of bytes.",
    "Recursive doubling up to about 2 n½. From there Rabenseifner, for powers of two always, otherwise up to about "
    "(p − 2 − ⌊lg p⌋) n½; beyond that the ring. On nodes (isinstance(machine, Machine)) the long vectors go to "
    "hierarchical_ring_all_reduce: from 1 MiB on, or, where p is a power of two, from 8.",
)


EXERCISES = {
    "crossover": Answer(crossover_questions, CROSSOVER_HINTS),
    "choose": Answer(
        chooser_questions,
        CHOOSER_HINTS,
        (Level("within the target"), Level("at the bound")),
        without=(cost_of, simulate, textbook_time),
    ),
}
