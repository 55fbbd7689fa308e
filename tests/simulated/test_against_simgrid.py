"""The simulator's clock against SimGrid's: random programs of messages and computing, whose makespans SimGrid found.

The programs were stored at g = α, the textbook's one port. In them no port has two messages under way at once, so their
makespans are the same at every g.
"""

import json
from pathlib import Path

import pytest

from ringtree.cost import Link

HERE = Path(__file__).parent
import random_programs

STORED = json.loads((HERE / "simgrid.json").read_text())
CASES = STORED["cases"]


@pytest.mark.parametrize("gap", [None, 0.0], ids=["g = alpha", "g = 0"])
@pytest.mark.parametrize("number", range(len(CASES)))
def test_the_makespan_is_simgrids(number, gap):
    case = CASES[number]
    run = random_programs.run(case["steps"], Link(STORED["alpha"], STORED["beta"], gap))
    assert run.makespan == pytest.approx(case["makespan"], rel=1e-12)


def test_the_stored_programs_have_all_that_they_are_to_try():
    steps = [step for case in CASES for rank in case["steps"] for step in rank]
    counts = {what: sum(step[0] == what for step in steps) for what in ("compute", "send", "recv", "start", "wait")}
    assert min(counts.values()) > 300, counts
    assert max(len(case["steps"]) for case in CASES) == random_programs.MOST_RANKS
    exchanges = [step for step in steps if step[0] == "start" and len(step[1]) > 1]
    assert len(exchanges) > 100
