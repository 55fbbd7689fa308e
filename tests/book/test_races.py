"""Who is first is asked of a race over the whole table: every cell that times a list of its own stands here with its reason."""

import nbformat
import pytest
import routes
from helpers.races import beside_each_other

COUNTED = "counts rounds and bytes of programs that the chapter explains"
DRAWN = "draws messages over time to explain two programs"
RESULTS = "compares results, not times"
LIVE = "shows prediction beside live times of the programs that were run"
TRAFFIC = "counts the bytes that leave a node, or pass a wire"
EXACT = "shows that simulation and formula agree"
NAMED = "compares programs that its text names, and says that it is of these alone"

# By page, its cells and why each needs no race.
REASONS = {
    "00-first-evening": {"sixty-four": NAMED},
    "02-alpha-beta": {"gap-scatter": "shows one program that feels the gap and one that does not"},
    "04-wires": {"rails": "one ring beside eight", "answer-1": "one ring beside eight", "cards-used-code": TRAFFIC},
    "05-broadcast": {
        "count": COUNTED,
        "families-counted": COUNTED,
        "space-time": DRAWN,
        "ring-rounds": COUNTED,
        "ring-times": "a claim's two programs; a race follows",
        "root-counted": COUNTED,
        "live-root": LIVE,
        "measured-table": LIVE,
        "answer-flat": NAMED,
        "answer-late": "shows which ranks are late",
    },
    "06-reduce": {
        "count-core": COUNTED,
        "our-remains": RESULTS,
        "count": COUNTED,
        "answer-six": COUNTED,
        "space-time": DRAWN,
        "order-of-adding": RESULTS,
        "order-double": RESULTS,
        "measured-table": LIVE,
    },
    "07-scatter-gather": {
        "count-six": COUNTED,
        "count": COUNTED,
        "links": COUNTED,
        "space-time": DRAWN,
        "measured-table": LIVE,
        "answer-small": NAMED,
    },
    "08-all-gather": {
        "cost-core": COUNTED,
        "cost-table": COUNTED,
        "spacetime": DRAWN,
        "claim-17-count": "a claim's two ways beside the quickest of a race",
        "measured-table": LIVE,
        "answer-circle": TRAFFIC,
    },
    "09-reduce-scatter": {
        "cost-table": COUNTED,
        "cost-function": "a claim's program beside one of the chapter's",
        "gamma-check": COUNTED,
        "claim-11-count": "a program beside the half of it",
        "spacetime": DRAWN,
        "measured-table": LIVE,
    },
    "10-ring-all-reduce": {"count-simulated": COUNTED, "measured-table": LIVE, "question-2": COUNTED},
    "11-tree-all-reduce": {
        "cost-core": COUNTED,
        "nodes-core": TRAFFIC,
        "chunks": "one program in chunks of several lengths; a race follows",
        "nodes-times": "shows the programs of the core's race, and how far behind each is",
        "own-cards-times": "shows the programs of the core's race, and how far behind each is",
        "own-cards-ideal": EXACT,
        "count-table": COUNTED,
        "more-ranks": "shows how two terms grow; a race follows",
        "nodes-two-levels-agree": RESULTS,
        "nodes-bytes": TRAFFIC,
        "emulated-read": LIVE,
        "rounding-four": RESULTS,
        "rounding-many": RESULTS,
        "dealt-out": "shows one program in two orders of its ranks, twice",
        "question-3": TRAFFIC,
    },
    "12-ring-or-tree": {
        "simulated-code": "checks the crossing of two formulas",
        "curves": NAMED,
        "shared-curves": "draws the winners of the race above",
        "live-table": LIVE,
        "claim-two-nodes": TRAFFIC,
    },
    "13-all-to-all": {"cost-table": COUNTED, "measured-table": LIVE},
    "15-order": {"cost-code": COUNTED},
    "16-measuring": {
        "n-p-link-2-26-8-link-of-1e-6-bandwidth-2": "shows what busbw says of programs that move more bytes",
        "nodes-machine-link-of-2e-6-bandwidth-200": "shows what busbw says of programs that move fewer bytes",
    },
    "17-what-training-sends": {"def-error-result-exact": RESULTS},
    "18-predicting": {"c008": EXACT, "c015": LIVE},
    "19-scale": {
        "scale-015": EXACT,
        "scale-024": EXACT,
        "scale-032": NAMED,
    },
    "first-evening": {"sixty-four": NAMED},
    "ring-or-tree": {"look": "gives a learner one look at two programs"},
}
PAGES = sorted([*(routes.ROOT / "notebooks").glob("*.ipynb"), *(routes.ROOT / "labs" / "source").glob("*/*.ipynb")])


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_cell_that_times_a_list_of_its_own_stands_here_with_its_reason(path):
    found, known = beside_each_other(path), REASONS.get(path.stem, {})
    new = {cell: names for cell, names in found.items() if cell not in known}
    assert not new, f"take the field from theory.race, or give a reason here: {new}"
    assert known.keys() <= found.keys(), f"these cells time no list any more: {sorted(known.keys() - found.keys())}"


def test_every_page_that_is_named_is_there():
    assert REASONS.keys() <= {path.stem for path in PAGES}


# ---- the finder of such cells


def found_in(tmp_path, *sources):
    cells = [nbformat.v4.new_code_cell(source, id=f"cell-{number}") for number, source in enumerate(sources)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "a.ipynb")
    return beside_each_other(tmp_path / "a.ipynb")


TWO = ["mst_all_reduce", "ring_all_reduce"]


@pytest.mark.parametrize(
    "cell",
    [
        "cost_of(ring_all_reduce, 8, 8, link), cost_of(mst_all_reduce, 8, 8, link)",
        "for name in 'ring_all_reduce', 'mst_all_reduce':\n    print(cost_of(name, 8, 8, link).time)",
        "ways = {'ring': ring_all_reduce, 'tree': mst_all_reduce}\nfor each in ways.values():\n    simulate(each, x, link)",
        "%time 1\nprint(cost_table({'a': ring_all_reduce, 'b': theory.find('mst_all_reduce').program}, 8, 8, link))",
        "from ringtree.algorithms import ring_all_reduce as a, mst_all_reduce as b\n[cost_of(each, 8, 8, link) for each in (a, b)]",
        "def mine(tensor, dist):\n    mst_all_reduce(tensor, dist)\n\n[simulate(each, x, link) for each in (mine, ring_all_reduce)]",
    ],
)
def test_a_list_in_a_cell_is_found(tmp_path, cell):
    assert found_in(tmp_path, cell) == {"cell-0": TWO}


def test_a_list_and_a_timing_function_of_earlier_cells_are_found(tmp_path):
    cells = (
        "WAYS = [ring_all_reduce, mst_all_reduce]",
        "def time(f):\n    return cost_of(f, 8, 8, link).time",
        "map(time, WAYS)",
    )
    assert found_in(tmp_path, *cells) == {"cell-2": TWO}


@pytest.mark.parametrize(
    "cell",
    [
        "cost_of(ring_all_reduce, 8, 8, link), cost_of(ring_all_reduce, 64, 8, link)",
        "run = race('all_reduce', 8, [8], link)\nprint(cost_of(ring_all_reduce, 8, 8, link), mst_all_reduce)",
        "print(ring_all_reduce, mst_all_reduce)",
        "%%px\nring_all_reduce(x, dist), mst_all_reduce(x, dist), cost_of",
        "def both(tensor, dist):\n    ring_all_reduce(tensor, dist)\n    mst_all_reduce(tensor, dist)\n\nsimulate(both, x, link)",
    ],
)
def test_other_cells_are_not(tmp_path, cell):
    assert found_in(tmp_path, cell) == {}
