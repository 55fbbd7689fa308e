"""Answers to the lab "Ring or tree?"."""

MEET = """
import math

def crossover(size, link):
    a_ring, a_tree = 2 * (size - 1), 2 * math.ceil(math.log2(size))
    b_ring, b_tree = a_ring / size, a_tree
    return (a_ring - a_tree) * link.alpha / ((b_tree - b_ring) * link.beta)
"""
BISECT = """
def crossover(size, link):
    rounds = (size - 1).bit_length()
    low, high = 0.0, 1e12
    for _ in range(200):
        n = (low + high) / 2
        ring, tree = (size - 1) * link.time(n / size), rounds * link.time(n)
        low, high = (n, high) if tree < ring else (low, n)
    return low
"""
TIMES = '''
import math

def choose(size, nbytes, machine):
    """By predicted times: on equal links from the formulas, on nodes from rules."""
    if hasattr(machine, "ranks_per_node"):
        if nbytes >= 8e6 or size & (size - 1) and nbytes >= 1e6:
            return "hierarchical_ring_all_reduce"
        return "recursive_doubling_all_reduce"
    p, rounds, power = size, int(math.log2(size)), size & (size - 1) == 0
    extra = 0 if power else 2
    block = 2 ** rounds
    form = {
        "ring_all_reduce": (2 * (p - 1), 2 * (p - 1) / p),
        "recursive_doubling_all_reduce": (rounds + extra, rounds + extra),
        "rabenseifner_all_reduce": (2 * rounds + extra, 2 * (block - 1) / block + extra),
        "mst_all_reduce": (2 * math.ceil(math.log2(p)),) * 2,
    }
    return min(form, key=lambda name: form[name][0] * machine.alpha + form[name][1] * nbytes * machine.beta)
'''


def always(name):
    return f"def choose(size, nbytes, machine):\n    return {name!r}"


RIGHT = {"crossover": {"two straight lines": MEET, "by bisection": BISECT}, "choose": {"by formulas": TIMES}}

WRONG = {
    "crossover": {
        "1 MiB": ("def crossover(size, link):\n    return 2**20", "4 ranks, .*it returned 1 MB; there the ring takes"),
        "n½ alone": ("def crossover(size, link):\n    return link.half_size", "4 ranks, .*it returned 250 KB; there the ring"),
        "the logarithm not rounded up": (
            MEET.replace("math.ceil(math.log2(size))", "math.log2(size)"),
            "3 ranks, .*which is not the same",
        ),
        "the logarithm rounded down": (
            MEET.replace("math.ceil(math.log2(size))", "int(math.log2(size))"),
            "3 ranks, .*which is not the same",
        ),
        "against recursive doubling": (MEET.replace("2 * math.ceil", "math.ceil"), "4 ranks, .*which is not the same"),
        "the ring with n instead of n/p": (
            MEET.replace("a_ring / size", "a_ring"),
            "4 ranks, .*it returned -250000.*, and should return",
        ),
        "in whole KiB": (
            MEET.replace("return ", "return 1024 * round(").rstrip() + " / 1024)\n",
            "nearly the same: give it to a thousandth",
        ),
        "in KiB": (MEET.replace("return ", "return 1 / 1024 * "), "it returned 195 B; .*which is not the same"),
        "one link for all": (
            MEET.replace("link.alpha", "5e-6").replace("link.beta", "1 / 50e9"),
            "8 ranks, α 20 µs, 5 GB/s: .*which is not the same",
        ),
        "upside down": (
            MEET.replace("link.alpha / (", "link.beta / (").replace("* link.beta)", "* link.alpha)"),
            "which is not the same",
        ),
        "the link": ("def crossover(size, link):\n    return link", "and should return a number of bytes"),
        "a tensor": (
            "import torch\ndef crossover(size, link):\n    return torch.ones(99)",
            "it returned a Tensor that begins tensor",
        ),
    },
    "choose": {
        "the simple one": (
            "def choose(size, nbytes, machine):\n    return 'ring_all_reduce' if nbytes >= 2**20 else 'mst_all_reduce'",
            "the whole job: all calls together take",
        ),
        "always the ring": (always("ring_all_reduce"), "the whole job: all calls together take .* most is lost for"),
        "always MST": (always("mst_all_reduce"), "the whole job: all calls together take"),
        "always Rabenseifner": (
            always("rabenseifner_all_reduce"),
            "the whole job: all calls together take 1.* ms, and with a ring",
        ),
        "blind to nodes": (
            TIMES.replace('hasattr(machine, "ranks_per_node")', "False").replace(
                "    p, rounds", '    machine = getattr(machine, "between", machine)\n    p, rounds'
            ),
            "Not yet within the target: the whole job: on nodes all calls",
        ),
        "the border of one link for all": (
            TIMES.replace("machine.alpha", "5e-6").replace("machine.beta", "1 / 50e9"),
            "Not yet (within the target|at the bound): the whole job: on slow links .* most is lost for",
        ),
        "nodes by name, equal links too": (
            always("hierarchical_ring_all_reduce"),
            "this one needs nodes.*, and should return one of mst_all_reduce",
        ),
        "as if every p were a power of two": (
            TIMES.replace("size & (size - 1) == 0", "True"),
            "the whole job: all calls together take .* slow links: rabenseifner_all_reduce takes",
        ),
        "the formula's border alone": (
            TIMES.replace("nbytes >= 8e6 or size & (size - 1) and nbytes >= 1e6", "nbytes >= 1e5"),
            "Not yet (within the target|at the bound): the whole job: on nodes",
        ),
        "asks cost_of": (
            "from ringtree import cost_of\ndef choose(size, nbytes, machine):\n    return min(['ring_all_reduce', 'mst_all_reduce'], key=lambda name: cost_of(name, size, nbytes, machine).time)",
            "it calls cost_of or simulate or textbook_time: here you have to do without",
        ),
        "a function and no name": (
            "from ringtree.algorithms import ring_all_reduce\ndef choose(size, nbytes, machine):\n    return ring_all_reduce",
            "and should return one of",
        ),
        "a short name": (always("ring"), "it returned 'ring', and should return one of"),
        "nothing": ("def choose(size, nbytes, machine):\n    pass", "it returned None, and should return one of"),
    },
}
