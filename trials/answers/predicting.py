"""Answers to the lab "Predicting"."""

LINK = """
import numpy as np
def link_of_rings(samples):
    m = np.array([n / p for p, n, _ in samples])
    t = np.array([seconds / (2 * (p - 1)) for p, _, seconds in samples])
    equations = np.column_stack([1 / t, m / t])
    return tuple(float(x) for x in np.linalg.lstsq(equations, np.ones(len(t)), rcond=None)[0])
"""
INTERVAL = (
    LINK
    + """
def intervals(samples, wanted):
    alpha, beta = link_of_rings(samples)
    def model(p, n):
        return 2 * (p - 1) * (alpha + n / p * beta)
    off = np.log([seconds / model(p, n) for p, n, seconds in samples])
    spread = 1.9 * off.std()
    return [(model(p, n) * np.exp(-spread), model(p, n) * np.exp(spread)) for p, n in wanted]
"""
)
RIGHT = {
    "link_of_rings": {
        "by the two ends": """
import statistics
def link_of_rings(samples):
    steps = sorted((n / p, seconds / (2 * (p - 1))) for p, n, seconds in samples)
    alpha = beta = 0.0
    for _ in range(200):
        alpha = statistics.mean(t - m * beta for m, t in steps[:8])
        beta = statistics.mean((t - alpha) / m for m, t in steps[-8:])
    return alpha, beta
""",
    },
    "intervals": {"by the standard deviation": INTERVAL},
}
WRONG = {
    "link_of_rings": {
        "n for n/p": (LINK.replace("[n / p for", "[n for"), "exact times: says"),
        "p for 2(p-1)": (LINK.replace("(2 * (p - 1))", "p"), "says α = "),
        "the short ones alone": (
            LINK.replace("    m = ", "    samples = samples[:3]\n    m = "),
            r"scatter by 3 %: (says β|returned)",
        ),
        "misses in seconds": (
            LINK.replace("np.column_stack([1 / t, m / t])", "np.column_stack([np.ones(len(t)), m])").replace(
                "np.ones(len(t)), rcond", "t, rcond"
            ),
            "scatter by 3 %: says α",
        ),
        "bandwidth for beta": (
            LINK.replace("tuple(float(x) for x in np", "(lambda pair: (float(pair[0]), float(1 / pair[1])))(np"),
            "says β = ",
        ),
        "a Link": (
            "from ringtree import Link\ndef link_of_rings(samples):\n    return Link(1e-5, 1e-9)",
            r"return \(alpha, beta\)",
        ),
    },
    "intervals": {
        "half again as wide": (
            INTERVAL.replace("1.9 * off.std()", "min(2.8 * off.std(), 0.5)"),
            "Not yet within the target: .*wide",
        ),
        "the prediction alone": (INTERVAL.replace("1.9 * off.std()", "0.0"), "holds 0 %|holds 0%"),
        "one standard deviation": (INTERVAL.replace("1.9 *", "0.9 *"), "and an interval of 90 % should hold"),
        "as wide as it may be, always": (
            INTERVAL.replace("1.9 * off.std()", "0.999 * np.log(2) / 2"),
            "scatter by 3%.*high is 2 times low in the middle, where 1.4",
        ),
        "wide enough for anything": (INTERVAL.replace("1.9 * off.std()", "1.0"), "is wide"),
        "a fifth, always": (INTERVAL.replace("1.9 * off.std()", "0.13"), "an interval of 90 % should hold|is wide"),
        "fitted to the whole call": (INTERVAL.replace("n / p * beta", "n * beta"), "holds"),
        "low above high": (
            INTERVAL.replace("np.exp(-spread), model(p, n) * np.exp(spread)", "np.exp(spread), model(p, n) * np.exp(-spread)"),
            "low not above high",
        ),
        "one pair": ("def intervals(samples, wanted):\n    return (1.0, 2.0)", "return a list of 42 pairs"),
    },
}
