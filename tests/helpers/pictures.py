"""A picture of each kind, as pages draw them."""

from ringtree import data, draw, theory
from ringtree.cost import Link

LINK = Link.of(10e-6, bandwidth=450e9)


SWEEP = data.sweep("v100_n2_p8")


FITS = {"one line": theory.fit_line(*SWEEP), "smaller of two": theory.fit_lines(*SWEEP)}


def half_to_twice(sizes):
    return LINK.time(sizes) / 2, LINK.time(sizes) * 2


def all_pictures():
    return {
        "shares": draw.shares(LINK, [1024, 1e6, 1e9]),
        "model": draw.model(LINK),
        "times": draw.times({"measured": SWEEP}, FITS, title="Eight"),
        "machines": draw.times({name: data.sweep(name) for name in ("h200_p8", "l40s_p4_ring", "v100_n1_p4")}),
        "bands": draw.times({"measured": SWEEP}, {"forecast": LINK.time}, bands={"forecast": half_to_twice}),
        "residuals": draw.residuals(*SWEEP, FITS),
        "ratios": draw.ratios({
            "4 ranks": {"one": ([8, 64], [0.5, 1.1]), "two": ([8, 64], [3, 1])},
            "8 ranks": {"one": ([8, 64], [1, 1])},
        }),
        "compare": draw.compare([("a", 20, 5), ("b", 10, 9)], ("one", "two"), "miss, %"),
        "before_after": draw.before_after([[1], [2], [4]], [[7], [7], [7]], title="A sum", by="all_reduce"),
        "holdings": draw.holdings([("then", [[1, 2]] * 8), ("now", [["a", None]] * 8)]),
    }
