"""Answers to the lab "Measuring"."""

LOOP = """
import statistics
def seconds_a_call(world):
    for _ in range(5):
        world.call()
    times = []
    for _ in range(40):
        world.barrier()
        start = world.clock()
        world.call()
        world.synchronize()
        times.append(max(world.from_all_ranks(world.clock() - start)))
    return statistics.median(times)
"""
VERDICT = """
from ringtree.measure import median_interval
def is_it_faster(old, new):
    if min(len(old), len(new)) < 6:
        return "cannot tell"
    (low, high), (new_low, new_high) = median_interval(old), median_interval(new)
    return "faster" if new_high < low else "slower" if new_low > high else "cannot tell"
"""
BUSBW = """
def busbw(collective, passed, p, seconds):
    factor = {"all_reduce": 2 * (p - 1) / p, "broadcast": 1, "reduce": 1}.get(collective, (p - 1) / p)
    size = p * passed if collective == "all_gather" else passed
    return size / seconds * factor
"""
RIGHT = {
    "seconds_a_call": {
        "the slowest of the medians": """
def seconds_a_call(world):
    def once():
        world.barrier()
        start = world.clock()
        world.call()
        world.synchronize()
        return world.clock() - start
    times = sorted([once() for _ in range(60)][4:])
    return max(world.from_all_ranks(times[len(times) // 2]))
""",
    },
    "is_it_faster": {
        "by ranks in the sorted samples": """
import math
def is_it_faster(old, new):
    def interval(times):
        times, n = sorted(times), len(times)
        for k in range(n // 2, 0, -1):
            if 2 * sum(math.comb(n, i) for i in range(k)) / 2**n <= 0.05:
                return times[k - 1], times[n - k]
    a, b = interval(old), interval(new)
    if a is None or b is None:
        return "cannot tell"
    return "faster" if b[1] < a[0] else "slower" if b[0] > a[1] else "cannot tell"
""",
    },
    "busbw": {
        "by the book's table": """
from ringtree.measure import bus_factor
def busbw(collective, passed, p, seconds):
    return passed * (p if collective == "all_gather" else 1) / seconds * bus_factor(collective, p)
""",
    },
}
WRONG = {
    "seconds_a_call": {
        "no synchronize": (
            LOOP.replace("        world.synchronize()\n", ""),
            "The clock was read when the call had been started",
        ),
        "no barrier": (LOOP.replace("        world.barrier()\n", ""), "Some rank was late: line the ranks up"),
        "a barrier in the clock": (
            LOOP.replace(
                "        world.barrier()\n        start = world.clock()\n",
                "        world.synchronize()\n        start = world.clock()\n        world.barrier()\n",
            ),
            "A barrier is in it",
        ),
        "rank 0 alone": (
            LOOP.replace("max(world.from_all_ranks(world.clock() - start))", "world.clock() - start"),
            "That is what rank 0 saw",
        ),
        "the mean": (LOOP.replace("statistics.median", "statistics.mean"), "Take the median of the calls"),
        "the first call in the mean of few": (
            LOOP
            .replace("range(5)", "range(0)")
            .replace("range(40)", "range(12)")
            .replace("statistics.median", "statistics.mean"),
            "says .* where the median call",
        ),
        "printing in the clock": (
            LOOP.replace("        world.synchronize()\n", "        world.synchronize()\n        world.print('done')\n"),
            "Something was printed between",
        ),
        "the mean of the ranks": (
            LOOP.replace("max(world", "statistics.mean(world"),
            "That is not the most that the four ranks saw",
        ),
        "in microseconds": (LOOP.replace("return ", "return 1e6 * "), "right in another unit: return seconds"),
        "the host's own clock": (
            LOOP.replace("import statistics", "import statistics, time").replace("world.clock()", "time.perf_counter()"),
            r"No call was between two looks at world.clock\(\)",
        ),
        "one call": (LOOP.replace("range(40)", "range(1)").replace("range(5)", "range(2)"), "made 3 calls"),
        "nothing": ("def seconds_a_call(world):\n    world.call()", "returned None: return a number of seconds"),
        "the fastest": (LOOP.replace("statistics.median", "0.9 * min"), "says .* where the median call"),
    },
    "is_it_faster": {
        "the medians alone": (
            "import statistics\ndef is_it_faster(old, new):\n    a, b = map(statistics.median, (old, new))\n    return 'faster' if b < a else 'slower' if b > a else 'cannot tell'",
            "'cannot tell' is right",
        ),
        "the means alone": (
            "import statistics\ndef is_it_faster(old, new):\n    a, b = map(statistics.mean, (old, new))\n    return 'faster' if b < 0.98 * a else 'slower' if b > 1.02 * a else 'cannot tell'",
            "says 'faster', and 'slower' is right|'cannot tell' is right|says 'slower'",
        ),
        "the fastest": (
            "def is_it_faster(old, new):\n    return 'faster' if min(new) < min(old) else 'slower'",
            "'cannot tell' is right",
        ),
        "eight per cent": (
            "import statistics\ndef is_it_faster(old, new):\n    times = statistics.median(new) / statistics.median(old)\n    return 'cannot tell' if min(len(old), len(new)) < 6 else 'faster' if times < 0.92"
            " else 'slower' if times > 1.035 else 'cannot tell'",
            "one per cent less, every time.*'faster' is right",
        ),
        "the quartiles": (
            VERDICT.replace(
                "median_interval(old), median_interval(new)", "[statistics.quantiles(x)[::2] for x in (old, new)]"
            ).replace("\ndef", "\nimport statistics\ndef", 1),
            "forty times each.*'slower' is right",
        ),
        "never sure": ("def is_it_faster(old, new):\n    return 'cannot tell'", "says 'cannot tell', and 'faster' is right"),
        "four are enough": (
            VERDICT.replace("< 6", "< 4").replace(
                "median_interval(old), median_interval(new)", "[(min(x), max(x)) for x in (old, new)]"
            ),
            "is right",
        ),
        "another word": ("def is_it_faster(old, new):\n    return True", "returned True: say one of"),
    },
    "busbw": {
        "algbw": ("def busbw(collective, passed, p, seconds):\n    return passed / seconds", "is the size the whole vector"),
        "the all-reduce's factor for all": (
            "def busbw(collective, passed, p, seconds):\n    return passed / seconds * 2 * (p - 1) / p",
            "all_gather",
        ),
        "a shard for the whole": (
            BUSBW.replace('p * passed if collective == "all_gather" else passed', "passed"),
            "0.125 times that",
        ),
        "the whole, twice": (
            BUSBW.replace('if collective == "all_gather"', 'if collective in ("all_gather", "reduce_scatter")'),
            "reduce_scatter.* 16 times that",
        ),
        "broadcast as a ring": (BUSBW.replace('"broadcast": 1, ', ""), "broadcast"),
        "in GB/s": (BUSBW.replace("return ", "return 1e-9 * "), "the right rate in another unit"),
        "reduce as a ring": (BUSBW.replace(', "reduce": 1', ""), "reduce, each of 4 ranks .*0.75 times that"),
        "in bits": (BUSBW.replace("size / seconds", "8 * size / seconds"), "8 times that"),
        "text": ("def busbw(collective, passed, p, seconds):\n    return '5 GB/s'", "return a number of bytes a second"),
    },
}
