"""The labs' graders are graded: solutions pass, and everything else fails for the right reason, naming ranks."""

import itertools
import linecache
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import nbformat
import pytest
from live import kernel
from nbclient import NotebookClient

import ringtree
from ringtree import labs
from ringtree.errors import UsageError
from ringtree.labs.__main__ import main
from ringtree.labs.lab import _Folded
from ringtree.labs.release import release_all, without_solutions

LABS = Path(__file__).parent.parent / "labs"
SOURCES = sorted(LABS.glob("source/*/*.ipynb"))
CLINIC = LABS / "source" / "01-deadlock-clinic" / "deadlock-clinic.ipynb"
PATIENTS = ["shift", "hand_out", "average", "relay", "pipeline"]


def cells(path):
    return {cell.id: cell for cell in nbformat.read(path, as_version=4).cells}


def function_of(cell):
    """The function that a cell of the clinic defines, without the lines around it."""
    text = "\n".join(line for line in cell.source.split("\n") if not line.startswith("%%"))
    return text[: re.search(r"\n(?=\S)(?!def )|$", text).start()]


SOLUTION = {name: function_of(cells(CLINIC)[f"{name}-repair"]) for name in PATIENTS}
SICK = {name: function_of(cells(CLINIC)[f"{name}-sick"]) for name in PATIENTS}

_numbers = itertools.count()


class Notebook(dict):
    """Names of a notebook whose cells are run here: texts can be found again, as in a kernel."""

    def run(self, text):
        text = textwrap.dedent(text).strip("\n") + "\n"
        filename = f"<cell {next(_numbers)}>"
        linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
        exec(compile(text, filename, "exec"), self)


@pytest.fixture(scope="module")
def ranks():
    with ringtree.start(4, backend="gloo") as four:
        yield four


@pytest.fixture
def check(ranks):
    def check(name, *texts, timeout=10):
        notebook = Notebook()
        for text in texts:
            notebook.run(text)
        labs.open("deadlock-clinic", ranks, timeout=timeout, namespace=notebook).check(name)

    return check


def complaint(check, name, *texts, timeout=10):
    with pytest.raises(labs.CheckFailed) as failed:
        check(name, *texts, timeout=timeout)
    return str(failed.value)


# ---------------------------------------------------------------- what is right passes


@pytest.mark.parametrize("name", PATIENTS)
def test_the_solution_is_healthy(check, capsys, name):
    check(name, SOLUTION[name])
    assert re.fullmatch(rf"{name} is healthy: right in \d runs, on 4, 3 and 2 ranks\.\n", capsys.readouterr().out)


SHIFT = """
def shift(x, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    got = torch.empty_like(x)
"""
RELAY = SHIFT.replace("shift(x,", "relay(blocks,").replace("(x)", "(blocks)")


def after(head, body):
    return head + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")


OTHER_REPAIRS = {
    "rank 0 receives first": ("shift", after(SHIFT, """
        if rank == 0:
            dist.recv(got, left)
        dist.send(x, right)
        if rank > 0:
            dist.recv(got, left)
        return got""")),
    "even ranks send first": ("shift", after(SHIFT, """
        for turn in (0, 1):
            if rank % 2 == turn:
                dist.send(x, dst=right)
            else:
                dist.recv(got, src=left)
        return got""")),
    "isend, recv, wait": ("shift", after(SHIFT, """
        work = dist.isend(x, right)
        dist.recv(got, left)
        work.wait()
        return got""")),
    "a loop of sends": ("hand_out", """
        def hand_out(x, dist):
            if dist.get_rank() == 0:
                for dst in range(1, dist.get_world_size()):
                    dist.send(x, dst=dst)
            else:
                dist.recv(x, src=0)
            return x"""),
    "the bad ones are gathered and left out": ("average", """
        def average(gradient, dist):
            everyone = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, gradient)
            good = [each for each in everyone if each.isfinite().all()]
            return sum(good, torch.zeros_like(gradient)) / max(1, len(good))"""),
    "a box a message": ("relay", after(RELAY, """
        boxes = [block.clone() for block in blocks]
        works = [dist.isend(box, dst=right) for box in boxes]
        for each in got:
            dist.recv(each, src=left)
        for work in works:
            work.wait()
        return list(got)""")),
    "gradients are received before the next activation is sent": ("pipeline", SICK["pipeline"].replace(
        "dist.send(weight * x, dst=rank + 1)", "works.append(dist.isend(weight * x, dst=rank + 1))").replace(
        "kept, gradient = []", "works = []\n    kept, gradient = []").replace(
        "    return gradient", "    for work in works:\n        work.wait()\n    return gradient")),
}


@pytest.mark.parametrize("what", OTHER_REPAIRS)
def test_another_good_repair_is_healthy_too(check, what):
    name, text = OTHER_REPAIRS[what]
    check(name, text)


def test_helpers_modules_and_values_of_the_learner_travel_along(check):
    check("shift", "import functools as tools\nfrom functools import reduce\nSTEP = [1]", """
        def neighbours(dist):
            rank, size = dist.get_rank(), dist.get_world_size()
            return (rank + STEP[0]) % size, (rank - reduce(max, STEP)) % size
        """, """
        def shift(x, dist):
            right, left = neighbours(dist)
            got = torch.empty_like(x)
            start = tools.partial(dist.batch_isend_irecv)
            for work in start([dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, got, left)]):
                work.wait()
            return got""")


# ---------------------------------------------------------------- what is wrong fails, and says why


def test_the_stub_is_not_yet_written(check):
    for name in PATIENTS:
        stub = without_solutions(SOLUTION[name])
        assert complaint(check, name, stub).startswith(f"{name} is not yet written"), name


def test_the_stub_leaves_the_ranks_alone(check, ranks):
    before = [place.pid for place in ranks.places]
    complaint(check, "shift", without_solutions(SOLUTION["shift"]))
    assert [place.pid for place in ranks.places] == before


def test_a_function_that_is_not_there(check):
    assert complaint(check, "shift") == (
        "shift is not defined in this notebook: run its cell, which begins with `%%px --local`."
    )


SICK_REASONS = {
    "shift": [
        "after 2 s ranks 0, 1, 2 and 3 had not finished",
        "rank 2 waits to send to rank 3  [shift, line 5: dist.send(x, dst=right)]",
        "they wait in a circle: rank 0 → rank 1 → rank 2 → rank 3 → rank 0",
        "The ranks were restarted",
    ],
    "hand_out": [
        "rank 1 finished",
        "rank 2 waits to receive from rank 0, which has finished  [hand_out, line 6: dist.recv(got, src=0)]",
        "rank 3 waits to receive from rank 0, which has finished",
    ],
    "average": [
        "rank 0 waits in all_reduce for rank 2, which has finished  [average, line 3: dist.all_reduce(gradient)]",
        "rank 2 finished",
    ],
    "relay": ["rank 0 has [[33.0], [33.0], [33.0]] where [[31.0], [32.0], [33.0]] was expected: "
              "rank 0 wrote to the tensor of its isend to rank 1 before the wait()"],
    "pipeline": ["they wait in a circle: rank 2 → rank 3 → rank 2", "backward, line 20: dist.send(weight * g, dst=rank - 1)"],
}


@pytest.mark.parametrize("name", PATIENTS)
def test_the_sick_program_is_still_sick(check, name):
    said = complaint(check, name, SICK[name], timeout=2)
    for part in SICK_REASONS[name]:
        assert part in said
    check(name, SOLUTION[name])  # the ranks work after it


MEAN = """
def average(gradient, dist):
    good = gradient.isfinite().all()
    total = gradient.clone() if good else torch.zeros_like(gradient)
    count = good.float()
"""

GPIPE = SOLUTION["pipeline"].replace("ahead = min(last - rank, len(batches))", "ahead = len(batches)").replace(
    "dist.send(weight * x, dst=rank + 1)", "works.append(dist.isend(weight * x, dst=rank + 1))")

WRONG_REPAIRS = {
    "shift": {
        "no communication": ("def shift(x, dist):\n    return x.clone()",
            r"rank 0 has \[1.0\] where \[31.0\] was expected: it never received from rank 3\. \(ranks 0, 1, 2 and 3 are wrong"),
        "the wrong way round": (after(SHIFT, """
            for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, left), dist.P2POp(dist.irecv, got, right)]):
                work.wait()
            return got"""), r"rank 0 has \[11.0\] where \[31.0\] was expected: it never received from rank 3"),
        "right on two ranks": (after(SHIFT, """
            for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, rank ^ 1), dist.P2POp(dist.irecv, got, rank ^ 1)]):
                work.wait()
            return got"""), "rank 0 has .* it never received from rank 3"),
        "right on four ranks": (SOLUTION["shift"].replace("% size", "% 4"), "shift, on 3 ranks: "),
        "right for rank 0 alone": (after(SHIFT, """
            dist.broadcast(got.copy_(x), src=size - 1)
            return got"""), r"rank 1 has \[31.0\] where \[1.0\] was expected: that is what rank 3 was given"),
        "right for one number": (after(SHIFT, """
            got = torch.empty(1)
            for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x[:1], right), dist.P2POp(dist.irecv, got, left)]):
                work.wait()
            return got"""), r"rank 0 returned a tensor of shape \[1\] where \[5\] was expected"),
        "the first answer, learnt by heart": ("""
            def shift(x, dist):
                rank, size = dist.get_rank(), dist.get_world_size()
                return torch.tensor([10.0 * ((rank - 1) % size) + i + 1 for i in range(len(x))])""",
            "the numbers are right, but rank 0 sent nothing: one message, to rank 1, was wanted"),
        "nobody waits": (after(SHIFT, """
            dist.batch_isend_irecv([dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, got, left)])
            return got"""), r"rank 0 has \[nan\] where \[31.0\] was expected: rank 0 never waited for its isend to rank 1"),
        "only the receiver waits": (after(SHIFT, """
            dist.isend(x, right)
            dist.recv(got, left)
            return got"""), r"the numbers are right this time, but rank 0 never waited for its isend to rank 1"),
        "one tensor for both": (after(SHIFT, """
            for work in [dist.isend(x, right), dist.irecv(x, left)]:
                work.wait()
            return x"""), r"rank \d wrote to the tensor of its isend to rank \d before the wait\(\)"),
        "everything to everyone": (after(SHIFT, """
            everyone = [torch.empty_like(x) for _ in range(size)]
            dist.all_gather(everyone, x)
            return everyone[left]"""), "the numbers are right, but rank 0 used all_gather: one message, to rank 1"),
        "both ways round": (after(SHIFT, """
            other = torch.empty_like(x)
            for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, right), dist.P2POp(dist.isend, x, left),
                                                dist.P2POp(dist.irecv, got, left), dist.P2POp(dist.irecv, other, right)]):
                work.wait()
            return got"""), "rank 0 sent 2 messages, to ranks 1 and 3: one message, to rank 1, was wanted"),
        "nothing is returned": (SOLUTION["shift"].replace("return got", ""), "rank 0 returned None where a tensor was expected"),
        "a message too many": (SOLUTION["shift"].replace(
            "    return got", "    if rank == 1:\n        dist.isend(x, 0)\n    return got"), "never waited for its isend to rank 0"),
    },
    "hand_out": {
        "the others are sent home": (SICK["hand_out"].replace("    dist.recv", "    if dist.get_rank() == 1:\n        dist.recv"),
            r"rank 2 has \[nan\] where \[1.0\] was expected: it never received from rank 0\. \(ranks 2 and 3 are wrong"),
        "no communication": ("def hand_out(x, dist):\n    return x", r"rank 1 has \[11.0\] where \[1.0\].*never received from rank 0"),
        "a sum": ("def hand_out(x, dist):\n    dist.all_reduce(x)\n    return x", r"rank 0 has \[64.0\] where \[1.0\] was expected"),
        "the wrong root": (SOLUTION["hand_out"].replace("src=0", "src=1"), r"rank 0 has \[11.0\] .*: that is what rank 1 was given"),
        "three guests, always": ("""
            def hand_out(x, dist):
                if dist.get_rank() == 0:
                    for dst in (1, 2, 3):
                        dist.send(x, dst=dst)
                else:
                    dist.recv(x, src=0)
                return x""", r"hand_out, on 3 ranks: .*rank 0 "),
    },
    "average": {
        "everyone, bad ones too": ("""
            def average(gradient, dist):
                dist.all_reduce(gradient)
                return gradient / dist.get_world_size()""", r"rank 0 has \[nan\] where \[.*: what rank 2 was given got into the sum"),
        "divided by all": (after(MEAN, """
            dist.all_reduce(total)
            return total / dist.get_world_size()"""), "the sum was divided by 4, but only 3 gave something"),
        "no collective": ("def average(gradient, dist):\n    return gradient.nan_to_num(0, 0, 0)", r"rank 0 has \[1.0\] where .*that is what it was given"),
        "the count is not summed": (after(MEAN, """
            dist.all_reduce(total)
            return total / count.clamp(min=1)"""), r"rank 0 has \[43.0\] where \[14.3333\] was expected"),
        "number by number": ("""
            def average(gradient, dist):
                good = gradient.isfinite()
                total, count = torch.where(good, gradient, 0), good.float()
                dist.all_reduce(total)
                dist.all_reduce(count)
                return total / count.clamp(min=1)""", "average, on 4 ranks: rank 0 has"),
        "nothing for nobody": (after(MEAN, """
            dist.all_reduce(total)
            dist.all_reduce(count)
            return total / count"""), r"average, on 3 ranks: rank 0 has \[nan, nan\] where \[0.0, 0.0\] was expected"),
        "the bad rank keeps its own": (after(MEAN, """
            dist.all_reduce(total)
            dist.all_reduce(count)
            return total / count.clamp(min=1) if good else gradient"""), r"rank 2 has \[nan\]"),
    },
    "relay": {
        "wait after each isend": (SICK["relay"].replace("works.append(dist.isend(box, dst=right))", "dist.isend(box, dst=right).wait()"),
            "waits to send to rank 1 .*they wait in a circle"),
        "no barrier": (SICK["relay"].replace("    dist.barrier()\n", ""), r"wrote to the tensor of its isend"),
        "a box that is used twice": (after(RELAY, """
            boxes, works = [torch.empty_like(blocks[0]) for _ in range(2)], []
            for i, block in enumerate(blocks):
                works.append(dist.isend(boxes[i % 2].copy_(block), dst=right))
            for each in got:
                dist.recv(each, src=left)
            for work in works:
                work.wait()
            return got"""), r"wrote to the tensor of its isend"),
        "no communication": ("def relay(blocks, dist):\n    return blocks", "it never received from rank 3"),
        "read before the wait": (after(RELAY, """
            works = [dist.irecv(each, src=left) for each in got] + [dist.isend(block, dst=right) for block in blocks]
            copy = got.clone()
            for work in works:
                work.wait()
            return copy"""), r"rank 0 has \[\[nan\], \[nan\], \[nan\]\] .* nan marks memory"),
        "in one message": (after(RELAY, """
            for work in [dist.isend(blocks, dst=right), dist.irecv(got, src=left)]:
                work.wait()
            return got"""), "rank 0 sent 1 message: one for each of its 3 blocks, to rank 1, was wanted"),
        "the first block alone": (after(RELAY, """
            for work in [dist.isend(blocks[0], dst=right), dist.irecv(got[0], src=left)]:
                work.wait()
            return got"""), r"rank 0 has \[\[31.0\], \[nan\], \[nan\]\] where"),
    },
    "pipeline": {
        "no communication": ("""
            def pipeline(batches, weight, dist):
                return batches.sum(0)""", "rank [0-3] has .* where .* was expected"),
        "all forwards first": (GPIPE, "rank 0 had 6 micro-batches under way at once, .* one forward, one backward needs 4"),
        "one batch at a time": (SICK["pipeline"].replace("min(last - rank, len(batches))", "0"),
            "rank 0 never had more than 1 micro-batch under way"),
        "gradients stay at home": (SICK["pipeline"].replace("            dist.send(weight * g, dst=rank - 1)", "            pass").replace(
            "            dist.recv(g, src=rank + 1)", "            pass"), "rank 0 has .* where"),
        "nobody waits": (SOLUTION["pipeline"].replace("work.wait()", "pass"), "right this time, but rank 1 never waited for its isend to rank 0"),
        "one box for all gradients": (SOLUTION["pipeline"].replace("works = []", "works, box = [], torch.empty_like(weight)").replace(
            "dist.isend(weight * g,", "dist.isend(box.copy_(weight * g),"), r"rank \d wrote to the tensor of its isend"),
        "the activations are dropped": (SICK["pipeline"].replace("            dist.send(weight * x, dst=rank + 1)", "            pass"),
            "rank 1 waits to receive from rank 0"),
    },
}


@pytest.mark.parametrize(("name", "what"), [(name, what) for name, wrong in WRONG_REPAIRS.items() for what in wrong])
def test_a_wrong_repair_is_found_out(check, name, what):
    text, reason = WRONG_REPAIRS[name][what]
    said = complaint(check, name, text, timeout=2 if "waits" in reason else 10)
    assert re.search(reason, said, re.DOTALL), said
    assert said.startswith((f"{name}, on ", f"{name} "))


def test_there_are_at_least_two_wrong_repairs_a_patient():
    assert all(len(WRONG_REPAIRS[name]) >= 2 for name in PATIENTS)


def test_an_error_names_rank_and_line(check):
    said = complaint(check, "shift", after(SHIFT, """
        if rank == 1:
            got = got + missing
        return got"""))
    assert "rank 1 raised NameError: name 'missing' is not defined" in said
    assert "shift, line 6: got = got + missing" in said


def test_what_a_failing_function_printed_is_shown(check, capsys):
    complaint(check, "shift", "def shift(x, dist):\n    print('got', x.tolist())\n    return x")
    assert capsys.readouterr().out == "".join(f"[rank {rank}] got [{10.0 * rank + 1}]\n" for rank in range(4))


def test_the_ranks_cannot_be_parted(check):
    said = complaint(check, "shift", "def shift(x, dist):\n    dist.destroy_process_group()")
    assert "ranks 0, 1, 2 and 3 raised RuntimeError: the ranks are joined already" in said
    check("shift", SOLUTION["shift"])


def test_a_loop_without_end_is_named(check):
    said = complaint(check, "shift", "def shift(x, dist):\n    while True:\n        pass", timeout=3)
    assert re.search(r"rank 3 is still running  \[shift, line [23]: ", said), said
    check("shift", SOLUTION["shift"])


def test_a_death_is_survived(check):
    said = complaint(check, "shift", after(SHIFT, """
        if rank == 2:
            __import__("os")._exit(3)
        dist.recv(got, left)"""))
    assert "rank 2 died: its process exited with code 3" in said
    check("shift", SOLUTION["shift"])


def test_what_a_wrong_repair_left_behind_reaches_nobody(check):
    """Messages of an earlier run that were never received must not be taken for those of the next."""
    for _ in range(3):
        complaint(check, "shift", after(SHIFT, """
            dist.isend(x.fill_(-1), right)
            return x"""))
        check("shift", SOLUTION["shift"])


def test_writing_to_the_input_changes_no_expectation(check):
    said = complaint(check, "shift", after(SHIFT, """
        x.zero_()
        dist.all_reduce(x)
        return x"""))
    assert "rank 0 has [0.0] where [31.0] was expected" in said


def test_the_check_leaves_the_readers_names_alone(check, ranks):
    ranks.push({"shift": 7, "x": 8})
    check("shift", SOLUTION["shift"])
    assert ranks.pull("shift") == [7] * 4
    ranks.view.execute("found = dist.__name__, torch.get_deterministic_debug_mode()")
    assert ranks.pull("found") == [("torch.distributed", 0)] * 4


# ---------------------------------------------------------------- opening, hints


def test_the_room_is_light_until_a_lab_is_opened():
    code = "import sys; from ringtree.labs import CheckFailed, Exercise; sys.exit(bool({'torch', 'IPython', 'ipyparallel'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_opening_a_lab(ranks):
    with pytest.raises(UsageError, match="no lab called 'clinic'; these there are: deadlock-clinic"):
        labs.open("clinic", ranks)
    lab = labs.open("deadlock-clinic", ranks, namespace=Notebook())
    with pytest.raises(UsageError, match="nothing called 'shft'; it has shift, hand_out"):
        lab.check("shft")
    assert repr(lab).splitlines()[:2] == ["Deadlock clinic: 0 of 5", "· shift"]


def test_hints_unfold_one_by_one(ranks, capsys):
    lab = labs.open("deadlock-clinic", ranks, namespace=Notebook())
    for name in PATIENTS:
        lab.hint(name, 1)
        first = capsys.readouterr().out
        lab.hint(name, 3)
        assert first and capsys.readouterr().out != first
    with pytest.raises(UsageError, match="3 hints: ask for one from 1 to 3, not 4"):
        lab.hint("shift", 4)
    folded = _Folded("shift", ("a < b", "c"))
    assert repr(folded) == '2 hints; lab.hint("shift", 1) prints the first'
    assert folded._repr_html_().count("<details>") == 2
    assert "a &lt; b" in folded._repr_html_()


# ---------------------------------------------------------------- source and release


def test_release_is_what_the_sources_make():
    assert SOURCES and release_all(LABS, write=False) == []
    assert main(["release", "--labs", str(LABS), "--check"]) == 0


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_release_tells_no_solution(path):
    release = (LABS / "release" / path.relative_to(LABS / "source")).read_text(encoding="utf-8")
    assert "SOLUTION" not in release
    source = nbformat.read(path, as_version=4)
    told = nbformat.reads(release, as_version=4)
    shown = "\n".join(cell.source for cell in told.cells)
    for cell in source.cells:
        if "solution" in cell.metadata.get("tags", []):
            assert cell.source not in shown
        inside = re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", cell.source, re.DOTALL)
        assert not any(text.strip() in shown for text in inside)
    for cell in told.cells:
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None
    nbformat.validate(told)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_source_stores_text_only(path):
    for cell in nbformat.read(path, as_version=4).cells:
        for output in cell.get("outputs", []):
            assert set(output.get("data", {})) <= {"text/plain"}


def test_solutions_become_stubs_of_the_same_indentation():
    text = "def f():\n    a = 1\n    ### BEGIN SOLUTION\n    b = 2\n    ### END SOLUTION\n    return b"
    stub = "def f():\n    a = 1\n    # YOUR CODE HERE\n    raise NotImplementedError\n    return b"
    assert without_solutions(text) == stub
    for broken in ("### BEGIN SOLUTION\n1", "1\n### END SOLUTION", "### BEGIN SOLUTION\n### BEGIN SOLUTION"):
        with pytest.raises(ValueError, match="cell-7: .*SOLUTION"):
            without_solutions(broken, "cell-7")


def test_an_out_of_date_release_is_noticed_and_made_again(tmp_path):
    (tmp_path / "source" / "x").mkdir(parents=True)
    (tmp_path / "source" / "x" / "clinic.ipynb").write_bytes(CLINIC.read_bytes())
    assert main(["release", "--labs", str(tmp_path), "--check"]) == 1
    assert main(["release", "--labs", str(tmp_path)]) == 0
    assert main(["release", "--labs", str(tmp_path), "--check"]) == 0


def test_the_release_runs_and_its_checks_fail_in_one_sentence():
    path = LABS / "release" / CLINIC.relative_to(LABS / "source")
    notebook = nbformat.read(path, as_version=4)
    keep = re.compile("start$|-repair$|-check$|-hint$|state$")
    notebook.cells = [cell for cell in notebook.cells if keep.search(cell.id)]
    NotebookClient(notebook, timeout=60, kernel_name="python3", allow_errors=True).execute()
    found = {cell.id: cell.outputs for cell in notebook.cells}
    for name in PATIENTS:
        (error,) = [output for output in found[f"{name}-check"] if output.output_type == "error"]
        assert error.ename == "CheckFailed"
        assert error.evalue == f"{name} is not yet written: replace `raise NotImplementedError` by your repair."
        assert error.traceback == [f"CheckFailed: {error.evalue}"]
    assert found["state"][0].data["text/plain"].startswith("Deadlock clinic: 0 of 5")


def test_a_hung_check_in_a_kernel_and_then_a_repair():
    with kernel() as live:
        answer = live.run(cells(CLINIC)["start"].source)
        assert answer.error is None, answer.traceback
        live.run("%%px --local\n" + SICK["shift"])
        answer = live.run('lab.check("shift")')
        assert answer.error == "CheckFailed" and "they wait in a circle" in answer.message
        live.run("%%px --local\n" + SOLUTION["shift"])
        assert live.run('lab.check("shift")').text.startswith("shift is healthy")
        live.run("ranks = ringtree.start(4)")  # other ranks, same lab
        assert live.run('lab.check("shift")').text.startswith("shift is healthy")
        live.run("ranks.stop()")
        assert live.run('lab.check("shift")').error == "UsageError"


def test_labs_name_no_machine_and_no_path():
    for path in [*SOURCES, *LABS.glob("release/*/*.ipynb")]:
        assert not re.search(r"/(home|root|tmp|Users)/", path.read_text(encoding="utf-8"))
