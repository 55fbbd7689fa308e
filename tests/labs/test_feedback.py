"""What a check says: of a common mistake it says what leads to the repair, and what it shows stands below the sentence."""

import re

import pytest
import torch
from helpers.live import kernel
from verdicts import ANSWERS, Notebook, learners_cells

from ringtree import Link, simulate
from ringtree.errors import UsageError
from ringtree.labs import CheckFailed, marks
from ringtree.labs.comparing import factor, factor_text, given_text
from ringtree.labs.error_text import error_text
from ringtree.labs.judging import judge, program_of
from ringtree.labs.lab import Lab, _Folded, _picture, module_of

EVERY = {
    "not divided, by the group": ("ranks-and-groups", "group_mean", "the sum"),
    "divided by the world": ("ranks-and-groups", "group_mean", "divided by the world"),
    "divided by all": ("deadlock-clinic", "average", "divided by all"),
    "not divided, in buckets": ("data-parallel", "average", "the sum for the mean"),
    "not divided, while the backward pass goes on": ("data-parallel", "overlapped", "the sum for the mean"),
    "isend, recv, wait": ("deadlock-clinic", "shift", "isend, then a blocking recv"),
    "the same in a pipeline": ("pipeline", "pipeline", "an isend for the gradient"),
    "buckets started as they fill": ("data-parallel", "overlapped", "as they get full"),
    "buckets from the front": ("data-parallel", "average", "from the front"),
    "the mean of one's own": ("data-parallel", "fair_loss", "the mean of one's own"),
    "the sum over the number, not times p": ("data-parallel", "fair_loss", "the share of the sum"),
    "a mean of times": ("alpha-beta", "fit", "the mean"),
}
SAYS = {
    "not divided, by the group": r"everything is twice what it should be; there are 2 ranks, so perhaps you multiply by their number, or do not divide by it",
    "divided by the world": r"is 1/3 of what it should be; there are 3 ranks|is 2/3 of what it should be; there are 3 ranks",
    "divided by all": r"everything is half of what it should be; there are 2 ranks, so perhaps you divide by their number once too often",
    "not divided, in buckets": r"everything is twice what it should be; there are 2 ranks, so perhaps you multiply by their number, or do not divide by it",
    "not divided, while the backward pass goes on": r"layer 0 in step 1 .*: this is twice what it should be; there are 2 ranks",
    "isend, recv, wait": r"rank 1's receive  \[shift, line 7: .*\] waits in the queue behind its own isend to rank 0  \[shift, line 6:",
    "the same in a pipeline": r"rank 1's receive  .* behind its own isend to rank 0 .* or let one of two ranks receive first",
    "buckets started as they fill": r"rank 0's 1st all-reduce of a step was the bucket of layer 3, and rank 1's that of layer 2: all "
    "ranks must send their buckets in one order",
    "buckets from the front": "the buckets begin with the first gradient: begin with the last, which a backward pass has first",
    "the mean of one's own": r"a row counts 1/2 on rank 0, 1/6 on rank 1, and should count 1/4 everywhere",
    "the sum over the number, not times p": r"everything is half of what it should be; there are 2 ranks",
    "a mean of times": r"a mean also takes in the first call .*; take the median or the fastest of each size",
}


def found(lab, name, text):
    return judge(name, Notebook().run(text)[name], module_of(lab).EXERCISES[name])


@pytest.mark.parametrize("mistake", EVERY)
def test_a_common_mistake_is_told_what_leads_to_its_repair(mistake):
    lab, name, what = EVERY[mistake]
    assert re.search(SAYS[mistake], found(lab, name, ANSWERS[lab].WRONG[name][what][0]).fault, re.DOTALL)


PER_PARAMETER = """
def overlapped(parameters, nbytes, parts, dist):
    works, came = [], {}
    def filled(parameter):
        came[parameter] = came.get(parameter, 0) + 1
        if came[parameter] == parts:
            came[parameter] = 0
            works.append((parameter, dist.all_reduce(parameter.grad, async_op=True)))
    def finish():
        for parameter, work in works:
            work.wait()
            parameter.grad /= dist.get_world_size()
        works.clear()
    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(filled)
    return finish
"""


def test_all_reduces_of_single_parameters_in_other_orders_are_named_too():
    said = found("data-parallel", "overlapped", PER_PARAMETER).fault
    assert "rank 0's 1st all-reduce of a step was the bucket of layer 3, and rank 1's that of layer 2" in said


FAIR = {
    "sum / n": ("losses.sum() / dist.get_world_size()", "everything is 1/3 of what it should be; there are 3 ranks"),
    "the loss itself, all-reduced": (
        "dist.all_reduce(loss := losses.sum()) or loss",
        "a row counts 1/2 on rank 0, 1/2 on rank 1, and should count 1/4 everywhere",
    ),
}


@pytest.mark.parametrize("what", FAIR)
def test_a_loss_that_is_not_fair_is_told_how_rows_count(what):
    code, says = FAIR[what]
    assert says in found("data-parallel", "fair_loss", f"def fair_loss(losses, dist):\n    return {code}").fault


@pytest.mark.parametrize("count", ["[float(len(losses))]", "float(len(losses))", "float(len(losses)), dtype=torch.float64"])
def test_a_right_loss_is_not_refused_for_the_type_of_its_count(count):
    text = f"def fair_loss(losses, dist):\n    count = torch.tensor({count})\n    dist.all_reduce(count)\n"
    verdict = found("data-parallel", "fair_loss", f"{text}    return losses.sum() * dist.get_world_size() / count")
    assert (verdict.fault, verdict.level) == ("", 2)


# -- a new tensor where one should change


def test_a_result_that_is_dropped_is_named():
    text = """
def group_mean(x, dist, groups):
    total = x.clone()
    for group in groups:
        made = dist.new_group(list(group))
        if dist.get_rank() in group:
            dist.all_reduce(total, group=made)
            total.div(len(group))
    return total
"""
    said = found("ranks-and-groups", "group_mean", text).fault
    assert (
        "`total.div(len(group))`  [group_mean, line 7] makes a new tensor, and nothing keeps it: total is unchanged. " in said
    )
    assert "Write `total.div_(len(group))`." in said and said.index("Write") < said.index("given:")


def test_only_a_line_whose_repair_makes_the_case_right_is_named():
    others = [
        ("ring-all-reduce", "ring_all_reduce", "the mean"),
        ("ring-all-reduce", "ring_all_reduce", "once round alone"),
        ("ring-all-reduce", "ring_all_reduce", "added twice"),
        ("order", "agree", "compared with the left neighbor alone"),
    ]
    for lab, name, what in others:
        said = found(lab, name, ANSWERS[lab].WRONG[name][what][0]).fault
        assert said and "`" not in said


def test_what_the_repaired_function_prints_is_not_printed(capsys):
    text, _ = ANSWERS["ring-all-reduce"].WRONG["ring_all_reduce"]["a sum under the same name"]
    text = text.replace("    total = x.clone()", "    print('begins')\n    total = x.clone()")
    assert "Write `mine += " in found("ring-all-reduce", "ring_all_reduce", text).fault
    assert capsys.readouterr().out == "begins\n" * 2  # the one run of two ranks


MEAN_LOSS = """
def mean_loss(loss, dist):
    total = loss.clone()
    {}
    return total / dist.get_world_size()
"""
SHIFT = """
def shift(x, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % size, (rank + 1) % size
    got = torch.empty_like(x)
    if rank % 2:
        dist.send(x, left)
        got = dist.recv(got, right)
    else:
        {}
        dist.send(x, left)
    return got
"""


@pytest.mark.parametrize(
    ("lab", "name", "text", "says"),
    [
        (
            "first-evening",
            "mean_loss",
            MEAN_LOSS.format("total = dist.all_reduce(total)"),
            "`dist.all_reduce(total)`  [mean_loss, line 3] returns None, and its result is in total. "
            "Write it on a line of its own, and then use `total`.",
        ),
        (
            "first-evening",
            "mean_loss",
            MEAN_LOSS.format("return dist.all_reduce(total) / dist.get_world_size()"),
            "returns None",
        ),
        (
            "deadlock-clinic",
            "shift",
            SHIFT.format("dist.recv(got, right)"),
            "`dist.recv(got, right)`  [shift, line 7] returns the sender's number, and its result is in got. ",
        ),
    ],
)
def test_a_call_that_fills_its_argument_and_returns_none_is_named(lab, name, text, says):
    assert says in re.sub(r"\s*\n\s*", " ", found(lab, name, text).fault)


def test_no_such_call_is_named_where_it_is_not_to_blame():
    said = found("first-evening", "mean_loss", MEAN_LOSS.format("total = dist.reduce(total, 0)")).fault
    assert "NoneType" in said and "returns None" not in said


def test_an_argument_that_was_changed_is_named_beside_the_wrong_answer():
    said = found("first-evening", "mean_loss", MEAN_LOSS.format("dist.all_reduce(loss)")).fault
    assert "it has also changed what it was given" in said
    assert "also changed" not in found("first-evening", "mean_loss", MEAN_LOSS.format("pass")).fault


def test_of_several_blanks_the_line_of_the_first_is_named():
    said = found("first-evening", "mean_loss", MEAN_LOSS.format("dist.all_reduce(total)\n    raise NotImplementedError")).fault
    assert said.endswith("replace `raise NotImplementedError` in mean_loss, line 4.")


# -- one factor, and what was given


def test_a_factor_is_named_only_where_it_is_one_and_simple():
    ones, wanted = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 4.0])
    assert factor([ones, ones], [wanted, wanted], 2) == 1 / 2
    assert factor([{"a": ones}], [{"a": wanted, "b": None}], 2) is None
    assert factor([[ones]], [[wanted]], 3) == 1 / 2
    for other in (torch.tensor([1.0, 3.0]), wanted, torch.zeros(2), wanted * 0.37, ones[:1]):
        assert factor([other], [wanted], 2) is None
    # one number alone may be twice another by chance
    assert factor([ones[:1]], [wanted[:1]], 4) is None
    assert factor([ones[:1]], [wanted[:1]], 2) == 1 / 2
    assert factor([], [], 2) is None
    assert factor_text(factor([wanted], [ones], 3), 3) == "everything is twice what it should be; there are 3 ranks"


def test_what_each_rank_was_given_is_shown_and_shortened():
    assert given_text(((torch.tensor([1.0, 2.5]),), (torch.tensor([3, 4]),))) == "given: rank 0 [1, 2.5], rank 1 [3, 4]"
    assert given_text((([torch.ones(1), torch.zeros(2)], 8),)) == "given: rank 0 (([1], [0, 0]), 8)"
    many = given_text(tuple((torch.arange(100.0),) for _ in range(64)))
    assert many.startswith("given: rank 0 [0, 1, 2, 3, 4, 5, 6, 7, …], rank 1 ") and many.endswith(", …") and len(many) < 500
    said = found("deadlock-clinic", "hand_out", "def hand_out(x, dist):\n    return x").fault
    assert said.endswith("is there and should not be.\n  given: rank 0 [0], rank 1 [10]")


# -- what is drawn


def drawn(lab, name, text=None, size=4):
    names, exercise = Notebook().run(text) if text else learners_cells(lab), module_of(lab).EXERCISES[name]
    case = next(case for case in exercise.cases() if case.size == size and case.nbytes)
    return _picture(program_of(names[name], case, exercise), case, exercise, "a title")


DRAWN = {
    ("ring-all-reduce", "ring_all_reduce"): ("4 ranks in a ring exchange 24 messages", "rank 0: c of all"),
    ("broadcast", "tree_broadcast"): ("4 ranks as a tree exchange 3 messages", "rank 1: x of 0"),
    ("broadcast", "chain_broadcast"): ("4 ranks in a row exchange", "rank 3: "),
    ("grids", "halo"): ("4 ranks on a grid exchange 8 messages", "rank 0: 6 = a of 1"),
    ("deadlock-clinic", "shift"): ("4 ranks in a ring exchange 4 messages", "rank 0: x of 1"),
}


@pytest.mark.parametrize(("lab", "name"), DRAWN)
def test_the_player_shows_what_is_returned_in_the_shape_of_its_ways(lab, name):
    figure, (shape, says) = drawn(lab, name), DRAWN[lab, name]
    assert shape in repr(figure) and says in figure.html
    assert ">received<" not in figure.html and '"received"' not in figure.html


def test_activations_that_were_multiplied_are_seen_to_travel():
    text = ANSWERS["pipeline"].WRONG["pipeline"]["all forwards first"][0]
    figure = drawn("pipeline", "pipeline", text, size=2)
    assert "0 → 1: ae of 0" in figure.html and "nothing" not in figure.html.split("<tbody>")[1].split("<tr>", 2)[2]


NOTHING = {
    "torch's own messages": ("deadlock-clinic", "average", "divided by all"),
    "a training without computing": ("data-parallel", "fair_loss", "the mean of one's own"),
}


@pytest.mark.parametrize("what", NOTHING)
def test_where_nothing_of_the_learners_own_travels_nothing_is_drawn(what):
    lab, name, answer = NOTHING[what]
    assert drawn(lab, name, ANSWERS[lab].WRONG[name][answer][0]) is None


def test_what_a_function_replaces_is_put_back_after_it_was_drawn():
    before = torch.equal
    text = ANSWERS["ring-all-reduce"].WRONG["ring_all_reduce"]["another equality"][0]
    assert drawn("ring-all-reduce", "ring_all_reduce", text) is None
    assert torch.equal is before


# -- the same case again, and marks


class NoRanks:
    running, size = True, 4


@pytest.fixture
def clinic(tmp_path, monkeypatch):
    """The deadlock clinic without live ranks, whose checks are those of the simulator."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Lab, "_live", lambda *given: None)
    return Lab("deadlock-clinic", module_of("deadlock-clinic"), NoRanks, 10.0, Notebook())


WRONG_WAY = ANSWERS["deadlock-clinic"].WRONG["shift"]["the wrong way round"][0]
RIGHT = ANSWERS["deadlock-clinic"].BATCH


def test_again_runs_the_case_that_failed_and_its_prints_have_their_ranks(clinic, capsys):
    with pytest.raises(UsageError, match="no case to run again"):
        clinic.again()
    clinic._namespace.run(WRONG_WAY)
    with pytest.raises(CheckFailed) as first:
        clinic.check("shift")
    clinic._namespace.run(WRONG_WAY.replace("    return got", "    print('got', got.tolist())\n    return got"))
    with pytest.raises(CheckFailed) as second:
        clinic.again()
    assert str(first.value) == f"{second.value}\n  lab.again() runs this case once more."  # so it has the same numbers
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 3 and all(re.fullmatch(r"\[rank [0-2]\] got \[-?\d+\.0, -?\d+\.0\]", line) for line in printed)
    clinic._namespace.run(RIGHT)
    clinic.again()
    assert capsys.readouterr().out == 'shift is right on this case. Run lab.check("shift") for all of them.\n'
    clinic.check("shift")
    with pytest.raises(UsageError, match="no case to run again"):
        clinic.again()


def test_again_asks_a_question_once_more(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lab = Lab("alpha-beta", module_of("alpha-beta"), NoRanks, 10.0, Notebook())
    lab._namespace.run("def predict(nbytes, lines, channels):\n    print(nbytes)\n    return 0.0")
    for call in (lambda: lab.check("predict"), lab.again):
        with pytest.raises(CheckFailed, match="it says 0 s and should say"):
            call()
    with pytest.raises(UsageError, match='the lab "alpha-beta" gives nothing to work with; lab.again'):
        print(lab.given)


def test_a_mark_says_its_level_and_does_not_outlive_the_cell(clinic):
    def line():
        return repr(clinic).splitlines()[1]

    clinic._namespace.run(RIGHT)
    assert line() == "· shift"
    clinic.check("shift")
    assert line() == "✓ shift: right"
    clinic._namespace.run(RIGHT + "\n# changed")  # the same function in a cell of another text
    assert line() == "✓ shift: right"
    clinic._namespace.run(WRONG_WAY)
    assert line() == "✓ shift: once right, but not as the cell stands"
    clinic._namespace.run(RIGHT)
    assert line() == "✓ shift: right"
    clinic._namespace.run(WRONG_WAY)
    with pytest.raises(CheckFailed):
        clinic.check("shift")
    clinic._namespace.run(RIGHT)
    assert line() == "✓ shift: once right, but not as the cell stands"
    del clinic._namespace["shift"]  # a new kernel
    assert line() == "✓ shift: once right, but not as the cell stands"
    assert marks.read("deadlock-clinic") == {"shift": 0}


def test_levels_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lab = Lab("ring-all-reduce", module_of("ring-all-reduce"), NoRanks, 10.0, {})
    said = []
    for level in (0, 2, 1):
        marks.note("ring-all-reduce", "ring_all_reduce", level, "a text")
        said.append(repr(lab).splitlines()[1])
    assert said == [
        "✓ ring_all_reduce: right",
        "✓ ring_all_reduce: at the bound",
        "✓ ring_all_reduce: within the target, once at the bound",
    ]


def test_a_mark_without_the_text_of_its_cell_stands_for_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / marks.FILE).write_text('{"ring-all-reduce": {"ring_all_reduce": 2}}')
    lab = Lab("ring-all-reduce", module_of("ring-all-reduce"), NoRanks, 10.0, {"ring_all_reduce": max})
    assert repr(lab).splitlines()[1] == "✓ ring_all_reduce: at the bound"
    for text in ('{"as the cells stand": 3}', '{"as the cells stand": {"ring-all-reduce": {"ring_all_reduce": 3}}}'):
        (tmp_path / marks.FILE).write_text(text)
        assert marks.standing("ring-all-reduce") == {}
    marks.note_failed("ring-all-reduce", "ring_all_reduce")
    assert marks.standing("ring-all-reduce") == {}, "what was never right has no mark to lose"


# -- the order on the screen


def test_in_a_notebook_the_sentence_stands_above_the_picture(tmp_path):
    with kernel() as live:
        live.run(f"import os; os.chdir({str(tmp_path)!r})")
        live.run("import ringtree, torch\nfrom ringtree import labs\nranks = ringtree.start(4, backend='gloo')")
        live.run('lab = labs.open("deadlock-clinic", ranks)')
        live.run(WRONG_WAY)
        answer = live.run('lab.check("shift")')
        assert answer.error == "CheckFailed" and answer.order == ["error", "display_data"]
        assert answer.shown[0].startswith("Figure: Your program, on 3 ranks")
        assert live.run("None").order == []  # it is drawn once


def test_hints_look_clickable_and_their_code_is_code():
    page = _Folded("shift", ("Put `mine += got` in the < blank.",))._repr_html_()
    assert "list-style: revert" in page and "`" not in page
    assert re.search(r"<code[^>]*nowrap[^>]*>mine \+= got</code> in the &lt; blank", page)


@pytest.mark.parametrize("call", ["P2POp(dist.isend, x, dst=1)", "isend(x, to=1)", "recv(x, 0, 1, 2, 3, 4, 5)", "irecv()"])
def test_a_call_with_wrong_arguments_is_named_as_the_learner_wrote_it(call):
    program = {}
    exec(f"def program(x, dist):\n    dist.{call}", program)
    with pytest.raises(TypeError) as caught:
        simulate(program["program"], [torch.ones(1)] * 2, Link(1, 1))
    assert f" dist.{call.partition('(')[0]}() " in error_text("program", caught.value)
