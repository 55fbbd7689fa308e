"""Answers to the lab "Alpha and beta"."""

FIT = """
import numpy as np

def fit(samples):
    n = np.array(list(samples), float)
    t = np.array([np.median(times[1:]) / 2 for times in samples.values()])
    columns = np.stack([1 / t, n / t], axis=1)
    alpha, beta = np.linalg.lstsq(columns, np.ones(len(n)), rcond=None)[0]
    return alpha, beta
"""
BY_HAND = '''
def fit(samples):
    """Weighted least squares, by the normal equations."""
    rows = [(n, min(times) / 2) for n, times in samples.items()]
    a = sum(1 / t**2 for _, t in rows)
    b = sum(n / t**2 for n, t in rows)
    c = sum(n * n / t**2 for n, t in rows)
    d, e = sum(1 / t for _, t in rows), sum(n / t for n, t in rows)
    det = a * c - b * b
    return (c * d - b * e) / det, (a * e - b * d) / det
'''
PREDICT = """
def predict(nbytes, lines, channels):
    times = []
    for alpha, beta in lines:
        times.append(alpha + nbytes * beta / channels)
    return sorted(times)[0]
"""
BUY = """
def buy(messages, now, offers):
    count = sum(each for _, each in messages)
    total = sum(nbytes * each for nbytes, each in messages)
    after = {name: count * alpha + total * beta for name, (alpha, beta) in offers.items()}
    best = min(after, key=after.get)
    return best, (count * now[0] + total * now[1]) / after[best]
"""
TAKEN_APART = """
def buy(messages, now, offers):
    count = total = 0
    while messages:
        nbytes, each = messages.pop()
        count, total = count + each, total + nbytes * each
    best, least = None, float("inf")
    while offers:
        name, (alpha, beta) = offers.popitem()
        if count * alpha + total * beta < least:
            best, least = name, count * alpha + total * beta
    return best, (count * now[0] + total * now[1]) / least
"""

RIGHT = {
    "fit": {
        "medians, in parts": FIT,
        "minima, by hand": BY_HAND,
        "an array": FIT.replace("alpha, beta = np", "return np").replace("    return alpha, beta\n", ""),
    },
    "predict": {
        "a sorted list": PREDICT,
        "the list is taken apart": "def predict(nbytes, lines, channels):\n    best = float('inf')\n    while lines:\n        alpha, beta = lines.pop()\n        best = min(best, alpha + nbytes / channels * beta)\n    return best",
    },
    "buy": {
        "all messages and all bytes": BUY,
        "the offers are taken apart": TAKEN_APART,
    },
}

WRONG = {
    "fit": {
        "kilobytes": (
            FIT.replace("float)", "float) / 1000"),
            "beta is .* a thousand times too long, as if bytes or seconds were counted in another unit",
        ),
        "α there and back": (
            FIT.replace("return alpha, beta", "return 2 * alpha, beta"),
            "alpha is .* that is twice too long, as if the way back",
        ),
        "milliseconds": (
            FIT.replace("return alpha, beta", "return alpha * 1e3, beta"),
            "alpha is 5.* ms .* that is in milliseconds",
        ),
        "it ends Python": ("def fit(samples):\n    raise SystemExit(1)", "SystemExit: 1"),
        "misses in seconds": (
            FIT.replace("[1 / t, n / t]", "[np.ones(len(n)), n]").replace("np.ones(len(n)), rcond", "t, rcond"),
            "alpha is .* the long messages have decided",
        ),
        "the mean": (FIT.replace("np.median", "np.mean"), "alpha is .* and should be 5 µs, .*take the median or the fastest"),
        "the first call alone": (FIT.replace("np.median(times[1:])", "times[0]"), "alpha is .* ms and should be 5 µs"),
        "a mean with the first call": (
            FIT.replace("np.median(times[1:])", "np.mean(sorted(times)[: len(times) // 2] + times[:1])"),
            "alpha is .* and should be 5 µs",
        ),
        "the slowest": (FIT.replace("np.median(times[1:])", "max(times[1:])"), "alpha is|beta is"),
        "there and back": (FIT.replace(" / 2 for", " for"), "both are twice too long, as if the way back"),
        "bits": (FIT.replace("return alpha, beta", "return alpha, beta / 8"), "beta is .* between bits and bytes"),
        "the wrong way round": (FIT.replace("return alpha, beta", "return beta, alpha"), "the wrong way round"),
        "the bandwidth": (FIT.replace("return alpha, beta", "return alpha, 1 / beta"), "that is the bandwidth"),
        "microseconds": (FIT.replace("return alpha, beta", "return alpha * 1e6, beta"), "that is in microseconds"),
        "two messages alone": (
            "def fit(samples):\n    first, *_, last = samples\n    return min(samples[first]) / 2, min(samples[last]) / 2 / last",
            "Not yet within the target: times of an InfiniBand card: alpha is",
        ),
        "nothing": ("def fit(samples):\n    pass", "returned nothing and should return two numbers"),
        "text": ("def fit(samples):\n    return '5 µs, 50 GB/s'", "returned a str and should return two numbers"),
        "three numbers": (
            FIT.replace("return alpha, beta", "return alpha, beta, alpha / beta"),
            r"a tuple of 3, \(.*\), and should return two numbers",
        ),
        "nan": (
            FIT.replace("return alpha, beta", "return float('nan'), beta"),
            r"a tuple of 2, \(nan, .*\), and should return two numbers",
        ),
        "a tensor": (
            FIT.replace("return alpha, beta", "return torch.tensor([alpha, beta])"),
            "a Tensor and should return two numbers",
        ),
    },
    "predict": {
        "α is cut too": (
            PREDICT.replace("alpha + nbytes * beta / channels", "(alpha + nbytes * beta) / channels"),
            "0 B on 4 channels.*says 1.3 µs and should say 5 µs",
        ),
        "channels forgotten": (PREDICT.replace(" / channels", ""), "1 MB on 4 channels"),
        "one α for each channel": (
            PREDICT.replace("alpha + nbytes", "channels * alpha + nbytes"),
            "0 B on 4 channels.*says 20 µs",
        ),
        "the protocol of the whole": (
            "def predict(nbytes, lines, channels):\n    alpha, beta = min(lines, key=lambda line: line[0] + nbytes * line[1])\n    return alpha + nbytes / channels * beta",
            "800 KB on 8 channels",
        ),
        "the slowest protocol": (PREDICT.replace("[0]\n", "[-1]\n"), "8 B on 1 channel, 2 protocols"),
        "the first protocol": (PREDICT.replace("sorted(times)[0]", "times[0]"), "64 MB on 1 channel, 2 protocols"),
        "the quickest start and the widest way": (
            "def predict(nbytes, lines, channels):\n    return min(line[0] for line in lines) + nbytes / channels * min(line[1] for line in lines)",
            "on 1 channel, 2 protocols",
        ),
        "α alone": ("def predict(nbytes, lines, channels):\n    return min(lines)[0]", "1 MB on 1 channel"),
        "a list": (
            PREDICT.replace("sorted(times)[0]", "times"),
            r"a list of 1, \(2.5e-05\), and should return a number of seconds",
        ),
        "nothing": (
            "def predict(nbytes, lines, channels):\n    pass",
            "returned nothing and should return a number of seconds",
        ),
    },
    "buy": {
        "rounded": (
            BUY.replace(
                "return best, (count * now[0] + total * now[1]) / after[best]",
                "return best, round((count * now[0] + total * now[1]) / after[best], 2)",
            ),
            "it makes the step 1.999872 times as fast, not 2 times",
        ),
        "the best for the middle message": (
            BUY.replace(
                "    best =",
                "    middle = sorted(nbytes for nbytes, each in messages for _ in range(each))[count // 2]\n    best =",
            ).replace("key=after.get", "key=lambda name: offers[name][0] + middle * offers[name][1]"),
            "it buys 'latency', and 'bandwidth' makes the step 1.80 times as fast",
        ),
        "counts forgotten": (
            BUY.replace("each for _, each in messages", "1 for _, each in messages").replace("nbytes * each for", "nbytes for"),
            "many short ones and a long one",
        ),
        "the longest message": (
            BUY.replace("    count =", "    messages = [max(messages)]\n    count ="),
            "many short ones and a long one",
        ),
        "the most frequent message": (
            BUY.replace("    count =", "    messages = [max(messages, key=lambda each: each[1])]\n    count ="),
            "it makes the step 1.551 times as fast, not 1.984",
        ),
        "α once a step": (BUY.replace("sum(each for _, each in messages)", "1"), "many short ones"),
        "by the largest saving in α": (
            "def buy(messages, now, offers):\n    return min(offers, key=offers.get), 1.0",
            "'latency' is right, but it makes the step 2 times as fast, not 1 times",
        ),
        "the time instead of the factor": (
            BUY.replace("return best, (count * now[0] + total * now[1]) / after[best]", "return best, after[best]"),
            "'latency' is right, but it makes the step 2 times as fast, not 2.5e-06",
        ),
        "the slower offer": (BUY.replace("min(after", "max(after"), "it buys 'bandwidth', and 'latency' makes the step"),
        "the name alone": (
            BUY.replace("return best, (count", "return best or (count"),
            "returned a str and should return the name of an offer and a number",
        ),
        "the factor alone": (BUY.replace("return best, (", "return ("), "should return the name of an offer and a number"),
        "nothing": ("def buy(messages, now, offers):\n    pass", "returned nothing and should return the name"),
    },
}
