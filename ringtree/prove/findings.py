"""Make a finding: on which meshes, since which step, with the calls beside it."""

from __future__ import annotations

import itertools

from ringtree.prove import patterns
from ringtree.prove.report import Finding


def finding_of(seen, kind, found, wrong, right, inferred=None):
    names, every = [name for name, _ in found], [pattern for _, pattern in found]
    step = min(seen.differs[number].step for number in wrong)
    at = min(number for number in wrong if seen.differs[number].step == step)
    kinds = "parameters" if kind == "weights" else kind
    return Finding(
        kind=kind,
        names=names,
        of=len(seen.names(at, step, kinds)),
        step=step,
        where=where(seen, wrong, right),
        meshes=[seen.plan.says(number) for number in wrong],
        sentence=patterns.together(every),
        inferred=inferred or every[0].inferred,
        calls=calls_of(seen, at, step),
        calls_on=seen.plan.says(at),
    )


def where(seen, wrong, right) -> str:
    """On which meshes: "wherever tensor > 1", "on each mesh", or their names."""
    axes = seen.plan.axes
    if not right and len(wrong) > 1 and len(axes) == 1:
        return "on each mesh"
    for count in range(1, len(axes) + 1):
        for some in itertools.combinations(axes, count):
            for test, word in ((any, " or "), (all, " and ")):

                def holds(number, some=some, test=test):
                    return test(seen.sizes[number][axis] > 1 for axis in some)

                if right and all(map(holds, wrong)) and not any(map(holds, right)):
                    return "wherever " + word.join(f"{axis} > 1" for axis in some)
    return "on each mesh" if not right and len(wrong) > 1 else "on " + ", on ".join(seen.plan.says(number) for number in wrong)


def calls_of(seen, number, step) -> dict[str, dict[str, str]]:
    """{axes: {"all_reduce": "3 forward, 2 backward"}} of one step on one mesh; "0 to 2" where ranks call unequally often."""
    ranks = seen.found[number]["steps"][step]["calls"]
    found: dict = {axis: {} for axis in seen.plan.axes if seen.sizes[number][axis] > 1}
    for axes, operation, passing in sorted({key for each in ranks for key in each}):
        if axes == "one rank":
            continue
        counts = sorted({each.get((axes, operation, passing), 0) for each in ranks})
        told = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        one = found.setdefault(axes, {})
        one[operation] = (one[operation] + ", " if operation in one else "") + f"{told} {passing}"
    return found
