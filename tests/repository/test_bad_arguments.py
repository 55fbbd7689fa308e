"""Every public function, called with one bad argument at a time: one line that names the argument, and no traceback."""

import importlib
import inspect

import numpy as np
import pytest
import torch

import ringtree
from ringtree import Link, data, draw, explain, labs, measure, simulate, theory
from ringtree.algorithms import ring_all_reduce
from ringtree.doctor import in_a_line, look
from ringtree.errors import UsageError
from ringtree.measure import logs

ROOMS = ["", ".data", ".doctor", ".draw", ".explain", ".labs", ".live", ".measure", ".measure.logs", ".simulated", ".theory"]
LINK = Link(1e-6, 1e-9)
INPUTS = [torch.ones(4), torch.ones(4)]
TRACE = simulate(ring_all_reduce, INPUTS, LINK).trace
SIZES, TIMES = np.array([8.0, 64.0, 512.0, 4096.0]), np.array([1e-6, 2e-6, 3e-6, 9e-6])
TABLE = measure.frame([])
NUMBER, WHOLE, WORD, FUNCTION = ["four", None, -1, float("nan")], ["four", 1.5, -1, True], [3, "nope"], [3, "nope"]
GAP = [each for each in NUMBER if each is not None]  # None is to leave it out
LIST, DICT, LINKS = [3, None], [3, [1]], ["fast", None, 3]


def never(*_):
    raise AssertionError("a bad argument went through")


# function: arguments that would do, and bad values for each argument that has a kind
CALLS = {
    ringtree.Link: (dict(alpha=1, beta=1), dict(alpha=NUMBER, beta=NUMBER, gap=GAP, error=GAP)),
    ringtree.Machine: (
        dict(inside=LINK, between=LINK, ranks_per_node=2),
        dict(inside=LINKS, between=["slow", 3], ranks_per_node=WHOLE, cards_per_node=WHOLE),
    ),
    ringtree.binary_text: (dict(nbytes=8), dict(nbytes=["much", None])),
    ringtree.bytes_text: (dict(nbytes=8), dict(nbytes=["much", None])),
    ringtree.seconds_text: (dict(seconds=1), dict(seconds=["long", None])),
    ringtree.compute: (dict(seconds=0), dict(seconds=NUMBER, work=FUNCTION)),
    ringtree.cost_of: (
        dict(program="ring_all_reduce", size=4, nbytes=64, machine=LINK),
        dict(program=WORD, size=WHOLE, nbytes=WHOLE, machine=LINKS, gamma=NUMBER, itemsize=WHOLE),
    ),
    ringtree.emulate: (dict(dist=None, link=LINK), dict(link=LINKS)),
    ringtree.follow: (
        dict(program=ring_all_reduce, inputs=INPUTS, machine=LINK),
        dict(program=FUNCTION, inputs=[3, None, []], machine=LINKS, chunks=WHOLE),
    ),
    labs.guess: (
        dict(what="steps", best=2, low=1, high=3),
        dict(best=["four", None, float("nan"), True], low=["four", None, 9], high=["four", None, 0]),
    ),
    ringtree.lower_bound: (dict(collective="all_reduce", size=4), dict(collective=WORD, size=WHOLE)),
    ringtree.shortest: (dict(dist=None, programs=[never]), dict(programs=[3, [3]], tries=WHOLE)),
    ringtree.simulate: (
        dict(program=ring_all_reduce, inputs=INPUTS, machine=LINK),
        dict(program=FUNCTION, inputs=[3, None, []], machine=LINKS, gamma=NUMBER, seconds=NUMBER, rules=WORD),
    ),
    ringtree.start: (
        dict(size=4),
        dict(size=WHOLE, backend=WORD, timeout=NUMBER, engines=WORD, ranks_per_node=["four", 3, 0]),
    ),
    ringtree.timed: (dict(call=never), dict(call=FUNCTION, warmup=WHOLE, budget=NUMBER, stable=NUMBER)),
    ringtree.Sketch: (dict(count=4), dict(count=WHOLE)),
    data.recording: (dict(name="order"), dict(name=WORD)),
    data.run: (dict(name=next(iter(data.runs()))), dict(name=WORD)),
    data.runs: ({}, dict(sizes=WHOLE)),
    data.sweep: (dict(name=next(iter(data.runs()))), dict(name=WORD)),
    in_a_line: (dict(ranks=4), dict(ranks=WHOLE)),
    look: (dict(ranks=4), dict(ranks=WHOLE)),
    draw.before_after: (
        dict(before=["a", "b"], after=["ab", "ab"]),
        dict(before=LIST, after=LIST, title=[3], alt=[3], by=["nope"]),
    ),
    draw.compare: (
        dict(rows=[("a", 1, 2)], names=("x", "y"), xlabel="s"),
        dict(rows=LIST, names=LIST, xlabel=[3, None], title=[3], alt=[3]),
    ),
    draw.curves: (
        dict(costs={"a": LINK.time}, low=8, high=64),
        dict(costs=DICT, low=["much", -1], high=["much", -1], label=[3], title=[3], alt=[3]),
    ),
    draw.holdings: (dict(rows=[("a", ["x", "y"])]), dict(rows=LIST, title=[3], alt=[3])),
    draw.model: (dict(link=LINK), dict(link=LINKS, low=NUMBER, high=NUMBER, title=[3], alt=[3])),
    draw.picture: (dict(fig=None, alt="x"), dict(alt=[3, "", "a\nb"])),
    draw.pipeline: (dict(traces=TRACE), dict(traces=[3, "nope"], title=[3])),
    draw.player: (
        dict(run=TRACE),
        dict(run=[3, "nope"], layout=WORD, together=["long", -1], title=[3], alt=[3, ""]),
    ),
    draw.rank_colour: (dict(rank=0), dict(rank=WHOLE)),
    draw.ranks_on_nodes: (dict(nodes=2, per_node=4), dict(nodes=WHOLE, per_node=WHOLE)),
    draw.ratios: (dict(panels={"a": {"b": (SIZES, TIMES)}}), dict(panels=[*DICT, {}], title=[3], alt=[3])),
    draw.residuals: (dict(sizes=SIZES, seconds=TIMES, fits={"a": LINK}), dict(fits=DICT, title=[3], alt=[3])),
    draw.shares: (dict(link=LINK, sizes=[8, 64]), dict(link=LINKS, sizes=LIST, title=[3], alt=[3])),
    draw.source: (dict(program=never), dict(program=FUNCTION)),
    draw.timeline: (dict(traces=TRACE), dict(traces=[3, "nope"], ranks=[3], title=[3])),
    draw.times: (
        dict(measured={"a": (SIZES, TIMES)}),
        dict(measured=DICT, fits=DICT, bands=DICT, title=[3], alt=[3], xlabel=[3, None]),
    ),
    draw.traffic: (dict(trace=TRACE), dict(trace=[3, "nope"], ranks_per_node=WHOLE, title=[3], alt=[3])),
    explain.explain: (
        dict(sources="Nowhere.log"),
        dict(sources=[3, "nowhere.log"], ranks=WHOLE, nodes=WHOLE, gpus_per_node=WHOLE, collective=WORD, nics=WHOLE),
    ),
    labs.open: (dict(name="reduce", ranks=None), dict(name=WORD, ranks=[None, 3], timeout=NUMBER)),
    logs.read: (dict(source="x"), dict(source=[3, "nowhere.log"], ranks=WHOLE, collective=WORD)),
    logs.read_all: (dict(source="x"), dict(source=[3, "nowhere.log"], ranks=WHOLE, collective=WORD)),
    measure.bus_factor: (dict(collective="all_reduce", ranks=4), dict(collective=WORD, ranks=WHOLE)),
    measure.compare: (dict(tables={"a": TABLE, "b": TABLE}), dict(tables=LIST)),
    measure.median_interval: (dict(times=[1.0]), dict(times=[3, "nope", []])),
    measure.ping_pong: ({}, dict(sizes=[[], [0], 3], repeats=WHOLE, warmup=WHOLE)),
    measure.save: (dict(table=TABLE, path="a.csv"), dict(table=[3], path=["a.txt", "nowhere/a.csv", 3])),
    measure.sizes_between: ({}, dict(smallest=WHOLE, largest=WHOLE, factor=WHOLE)),
    measure.table_text: (dict(table=TABLE), dict(table=[3])),
    theory.closed_form: (
        dict(collective="all_reduce", algorithm="ring", protocol=theory.Protocol(*[1] * 6), sizes=[8], ranks=4, nodes=1),
        dict(collective=WORD, algorithm=WORD, protocol=LINKS),
    ),
    theory.cost_table: (
        dict(programs={"ring": "ring_all_reduce"}, size=4, nbytes=64, link=LINK),
        dict(programs=DICT, size=WHOLE, nbytes=WHOLE, link=LINKS, gamma=NUMBER, itemsize=WHOLE),
    ),
    theory.fastest: (dict(links=LINK, sizes=SIZES), dict(links=[3, [], [3]], sizes=["much", None])),
    theory.find: (dict(program="ring_all_reduce"), dict(program=WORD)),
    theory.fit_gap: (dict(samples=TABLE), dict(samples=[3, "nope", []], nics=WHOLE)),
    theory.fit_line: (dict(sizes=SIZES, times=TIMES), dict(sizes=["much", None, 3], times=["long", None, 3], gap=GAP)),
    theory.fit_lines: (
        dict(sizes=SIZES, times=TIMES),
        dict(sizes=["much", None, 3], times=["long", None, 3], count=WHOLE, gap=GAP),
    ),
    theory.fit_machine: (dict(samples=TABLE), dict(samples=[3, "nope", []], gap=GAP)),
    theory.held_out: (dict(samples=TABLE), dict(samples=[3, "nope", []])),
    theory.misses: (dict(links=LINK, sizes=SIZES, times=TIMES), dict(links=[3, []], sizes=["much", 3], times=["long", 3])),
    theory.ring_share: (dict(collective="all_reduce", ranks=4), dict(collective=WORD, ranks=WHOLE, nodes=WHOLE)),
    theory.textbook_time: (
        dict(program="ring_all_reduce", size=4, nbytes=64, link=LINK),
        dict(program=WORD, size=WHOLE, nbytes=WHOLE, link=LINKS, gamma=NUMBER, itemsize=WHOLE),
    ),
    theory.race: (
        dict(collective="barrier", ranks=4, sizes=[4], machine=LINK),
        dict(
            collective=WORD,
            ranks=WHOLE,
            sizes=[3, ["much"], [-4]],
            machine=LINKS,
            gamma=NUMBER,
            itemsize=WHOLE,
            band=GAP,
            root=WHOLE,
        ),
    ),
    theory.card: ({}, dict(alpha=NUMBER, bandwidth=[*NUMBER, 0], gap=NUMBER)),
    theory.nvlink: ({}, dict(alpha=NUMBER, bandwidth=[*NUMBER, 0], gap=NUMBER)),
    theory.Protocol: (
        dict(zip(theory.Protocol.__dataclass_fields__, [1] * 6)),
        dict(start=NUMBER, hop_inside=NUMBER, bandwidth_between=[*NUMBER, 0]),
    ),
    theory.Model: (
        dict(protocols=(theory.Protocol(*[1] * 6),)),
        dict(protocols=[3, ()], ranks_per_node=WHOLE, gap=GAP, error=GAP),
    ),
}
CASES = [
    pytest.param(call, argument, value, id=f"{call.__name__}-{argument}-{value!r:.12}")
    for call, (_, bad) in CALLS.items()
    for argument, values in bad.items()
    for value in values
]


@pytest.mark.parametrize("call, argument, value", CASES)
def test_a_bad_argument_is_refused_in_one_line(call, argument, value):
    given = CALLS[call][0] | {argument: value}
    gathered = [name for name, each in inspect.signature(call).parameters.items() if each.kind == each.VAR_POSITIONAL]
    with pytest.raises(UsageError) as error:
        call(*[given.pop(name) for name in gathered if name in given], **given)
    (line,) = error.value._render_traceback_()
    assert "\n" not in line
    assert argument in line or argument[:-1] in line or str(value).split("/")[0] in line, (
        f"it does not say what was wrong: {line}"
    )


# Public names that are not in CALLS, and why.
PLAIN = "plain data, made by the package"
LEFT = {
    "Algorithm Bound Cost Fitted FittedGap Followed Picture Player Race Recording Run Simulation Timing Trace": PLAIN,
    "Explanation Finding Ranks Lab": PLAIN,
    "Answer Case Level Limit Program Question": "for authors of labs, whose tests try every exercise",
    "Deadlock ProgramError RankDied RankError RanksStuck CheckFailed": "errors",
    "current guesses names narrow node_links prose progress": "take nothing that can be wrong",
    "measure time_collective": "look for ranks first; tests/measure/test_measure.py tries them with ranks",
    "stopwatch": "the book shows its lines, and calling what is not a function is Python's own error",
    "figure styled": "hand their arguments to matplotlib, or are decorators",
    "traced": "takes any object that speaks like torch.distributed",
    "link_speeds model_memory topology_matrix samples frame": "take tables, which their own tests try",
}


def test_every_public_function_is_tried():
    public = {
        name: getattr(room, name)
        for room in (importlib.import_module(f"ringtree{each}") for each in ROOMS)
        for name in getattr(room, "__all__", dir(room))
    }
    public = {name for name, value in public.items() if callable(value) and value.__module__.startswith("ringtree")}
    tried, left = {call.__name__ for call in CALLS}, {name for names in LEFT for name in names.split()}
    assert public - tried - left == set()
    assert left - public == set() and not tried & left
