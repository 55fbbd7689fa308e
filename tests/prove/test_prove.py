"""`ringtree prove` on small steps: what is wrong is named by its pattern, and what is right is called right.

Without RINGTREE_NIGHTLY each step runs on a few meshes of two and three ranks, and of the steps with faults there is a sample.
"""

import importlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from ringtree import prove
from ringtree.command import prove as command
from ringtree.errors import UsageError

HERE = Path(__file__).parent
NIGHTLY = bool(os.environ.get("RINGTREE_NIGHTLY"))
sys.path.insert(0, str(HERE))

# name: (axes, what the findings say, what they must not say)
FACTOR = r"times too|times the right one"
CASES = {
    "accum_last_only": ("outer,inner", "each gradient has the same wrong value at every size of outer.*a micro-batch", FACTOR),
    "bf16_reduce": ("data", "each gradient has only the digits of bfloat16.*precision is lost", FACTOR + "|sum over"),
    "bias_each_rank": (
        "data,tensor",
        "wherever tensor > 1: the loss is wrong.*follows from the loss",
        FACTOR + "|1.fc2.bias is",
    ),
    "experts_ep_times": (
        "data,expert",
        "wherever expert > 1: each gradient of w1 and w2 is expert times too large",
        "proj|router",
    ),
    "frozen_decay": (
        "data",
        "step 2.*encoder.weight and encoder.bias has no gradient and does not move in one process, but moves here: it is 0.999",
        FACTOR + "|head|step 1",
    ),
    "fsdp_no_divide": ("data", "each gradient is data times too large", "differ|precision"),
    "init_after_split": (
        "replica,shard",
        "wherever replica > 1: each weight has copies along replica that differ before the first step; right on replica=0 only",
        FACTOR + "|each gradient",
    ),
    "local_token_mean": ("data", "the loss is wrong.*a count of its own", FACTOR),
    "no_f": (
        "tensor",
        "each gradient of embed, mixer.scale and mixer.weight has copies along tensor that differ; neither their sum nor their "
        "mean is right.*all that is wrong stands before gate.weight",
        FACTOR,
    ),
    "norm_counts_copies": (
        "data,tensor",
        "wherever tensor > 1: the norm counts a gradient.*once for each copy",
        "each gradient|weight",
    ),
    "qkv_contiguous": ("data,tensor", "wherever tensor > 1: the loss is wrong", FACTOR + "|missing"),
    "smoothing_local": (
        "tensor",
        "the loss differs along tensor.*; the mean over tensor is right",
        "times too large \\(",
    ),
    "sp_norm_unsummed": (
        "tensor",
        "each gradient of final.weight and final.bias has copies along tensor that differ; their sum over tensor is right",
        FACTOR + "|layer",
    ),
    "tied_unsummed": (
        "pipe",
        "the gradient of embed has copies along pipe that differ .held by.*; their sum over pipe is right",
        FACTOR + "|block",
    ),
    "world_scale": ("data,tensor", "wherever tensor > 1: each gradient is tensor times too large", "differ|is missing"),
}
CORRECT = {
    "ok_fsdp_tp": "data,tensor",
    "ok_mean_each_micro": "replica,data",
    "ok_qkv_grouped": "data,tensor",
    "ok_sp_norm": "data,tensor",
    "ok_token_accum": "data",
    "ok_zero_gradients": "data,tensor",
}
SAMPLE = {
    "own": "loss_summed auxiliary_tensor_times one_hook_missing divided_by_world norms_added rate_by_data not_zeroed "
    "clipped_by_own_norm",
    "others": "vocabulary_shift gathered_too_early",
    "ours": "summed_at_each_part no_sum_at_entry tied_not_added experts_not_divided",
    "torchs": "ddp_accumulates",
}
NIGHTLY_ONLY = "without_sequence recomputed counted single dtensor_whole_sequence ddp_of_world hybrid".split()


def steps(module):
    return importlib.import_module(f"steps.{module}")


def proved(place, axes, **options):
    """The report, on few meshes where time is short."""
    if not NIGHTLY:
        first, *rest = axes.split(",")
        if rest:
            options["meshes"] = [f"{axis}={size}" for axis in (first, *rest) for size in (2, 3)]
        else:
            options["ranks"] = 3
    return prove.prove(place, axes, **options)


def findings(report):
    text = "\n".join(str(report).splitlines()[len(report.rows) + 1 :])
    return " ".join(text.split("calls of step")[0].split())


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_step_is_named_by_its_pattern(name):
    axes, wanted, never = CASES[name]
    report = proved(f"{HERE}/cases/{name}.py:step", axes)
    assert report.status == 1
    told = findings(report)
    assert re.search(wanted, told), told
    assert not re.search(never, told), told


@pytest.mark.parametrize("name", CORRECT)
def test_a_right_step_that_looks_wrong_is_right(name):
    report = proved(f"{HERE}/cases/{name}.py:step", CORRECT[name])
    assert report.status == 0, report


def wrong_steps():
    for module in ("own", "others", "ours", "torchs"):
        for name in steps(module).WRONG:
            if NIGHTLY or name in SAMPLE[module].split():
                yield module, name


@pytest.mark.parametrize(("module", "name"), list(wrong_steps()))
def test_a_fault_that_is_put_in_is_found(module, name):
    own, file = steps(module), HERE / "steps" / f"{module}.py"
    wanted = own.WRONG[name][0] if module == "own" else own.WRONG[name][-1]
    reference = getattr(own, "REFERENCE", {}).get(name)
    report = proved(
        f"{file}:wrong_{name}",
        getattr(own, "AXES", {}).get(name, "data,tensor"),
        reference=f"{file}:{reference}" if reference else None,
    )
    assert report.status == 1
    assert re.search(wanted, findings(report)), report
    if module == "own" and own.WRONG[name][1]:
        assert not re.search(own.WRONG[name][1], findings(report)), report


def right_steps():
    yield "own", "step", "data,tensor"
    for module in ("others", "ours", "torchs"):
        for name, axes in steps(module).RIGHT.items():
            if NIGHTLY or name not in NIGHTLY_ONLY:
                yield module, name, axes


@pytest.mark.parametrize(("module", "name", "axes"), list(right_steps()))
def test_no_false_alarm(module, name, axes):
    reference = getattr(steps(module), "REFERENCE", {}).get(name)
    file = HERE / "steps" / f"{module}.py"
    report = proved(f"{file}:{name}", axes, reference=f"{file}:{reference}" if reference else None)
    assert report.status == 0, report


def bad(name, **options):
    return prove.prove(f"{HERE}/steps/bad.py:{name}", **({"meshes": "data=2"} | options))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "hangs",
            r"not finished after 8 s: rank 0 in barrier \(bad.py, line \d+\); rank 1 in its own code \(bad.py, line \d+\)",
        ),
        ("raises", r"rank 1: ValueError: 12 rows for 5 ranks \(bad.py, line \d+\)"),
        ("killed", "rank 1 was ended by SIGKILL"),
        ("leaves", "rank 1 left with exit status 7"),
        ("unequal_counts", "does not yield equally often .rank 0: 2, rank 1: 3, one process: 2"),
        ("no_entry", r"gradient w is \(2, 3\) on a rank, and \(4, 3\) in one process: .*layout={'w': {'data': Shard\(0\)}}"),
        ("even_cut_without_entry", r"layout={'w': {'data': Shard\(0\)}}"),
        ("wrong_dimension", r"gradient w is \(2, 12\) when put together, and \(4, 6\) in one process: correct its layout"),
        ("function_fails", r"gradient w: its parts along data are .*IndexError.*correct its layout"),
        ("other_name", "parameter w2 is on data=2 and not in one process"),
    ],
)
def test_what_cannot_be_judged_is_said_in_one_sentence(name, told):
    started = time.monotonic()
    before = set(psutil.Process().children(recursive=True))
    report = bad(name, timeout=8 if name == "hangs" else 60)
    assert report.status == 2
    (why,) = report.failed.values()
    assert re.search(told, why), why
    assert "\n" not in why and time.monotonic() - started < 60
    left = set(psutil.Process().children(recursive=True)) - before
    ranks = [each for each in left if each.parent() != psutil.Process()]  # children of the process that they are forked from
    assert not psutil.wait_procs(ranks, timeout=10)[1]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("not_callable", "'not_callable' in bad.py is an int: name a function"),
        ("absent", "bad.py has no 'absent': name a function"),
        ("not_a_generator", "not_a_generator returns a Step: write a generator"),
        ("nothing", "nothing yields nothing: yield a Step"),
        ("not_a_step", "yields an int without 'gradients'"),
        ("unknown_words", "loss_is is 'the mean': give 'mean over data'"),
        ("unknown_axis", "there is no axis 'model': name one of data"),
        ("layout_axis", "names an axis 'model': the axes are data"),
        ("layout_name", "fits no parameter: write a pattern of names such as 'w'"),
        ("layout_placement", "layout of w: 0 along data: give Shard"),
        ("layout_is_no_dictionary", "give {axis: placement}"),
        ("stray_gradient", "gradient v belongs to no parameter"),
        ("a_list_of_tensors", "yields gradients whose names are a Tensor: give {name: tensor}"),
        ("loss_of_many", "yields a Tensor as its loss: give a number"),
        ("not_finite_in_one_process", "w is not finite in one process"),
    ],
)
def test_a_step_that_does_not_run_in_one_process_is_refused(name, told):
    with pytest.raises(UsageError, match=re.escape(told)) as refused:
        bad(name)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"step": "steps.py"}, "give a file and a function in it"),
        ({"step": "nowhere.py:step"}, "there is no file 'nowhere.py'"),
        ({"step": "nowhere_at_all:step"}, "there is no module 'nowhere_at_all'"),
        ({"step": 3}, "step is an int"),
        ({"step": lambda mesh: None}, "which ranks cannot import"),
        ({"axes": "data,data"}, "give each axis once"),
        ({"axes": "data-axis"}, "give names such as data,tensor"),
        ({"ranks": "many"}, "give a number such as 4"),
        ({"ranks": 1}, "give a whole number from 2 to 32"),
        ({"steps": 0}, "give a whole number, 2 or more"),
        ({"timeout": -1}, "give seconds"),
        ({"meshes": "model=2"}, "give sizes of data"),
        ({"meshes": "data=1"}, "has 1 ranks: give 2 to 32"),
        ({"ranks": [30, 32], "axes": "a,b,c,d,e"}, "give fewer ranks or axes"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(options, told):
    with pytest.raises(UsageError, match=re.escape(told)) as refused:
        prove.prove(**({"step": f"{HERE}/steps/bad.py:right"} | options))
    assert "\n" not in str(refused.value)


def test_the_command_prints_a_table_and_returns_the_status(capsys, monkeypatch):
    monkeypatch.chdir(HERE / "cases")
    assert command.main(["world_scale.py:step", "--axes", "data,tensor", "--mesh", "data=2", "--mesh", "tensor=2"]) == 1
    table = capsys.readouterr().out
    assert re.search(r"^data=1 tensor=2 +right +right +3 of 3 +×2 +WRONG at step 1$", table, re.M)
    assert "  tensor: all_reduce 1 backward, 2 forward" in table
    assert command.main(["../steps/bad.py:right", "--mesh", "data=2"]) == 0
    assert capsys.readouterr().out.endswith("RIGHT: equal to one process on 1 mesh, over 2 steps.\n")
    assert command.main(["../steps/bad.py:raises", "--mesh", "data=2"]) == 2
    assert "NOT JUDGED: 1 of 1 meshes." in capsys.readouterr().out
    with pytest.raises(SystemExit) as left:
        command.main(["nowhere.py:step"])
    assert left.value.code == 2 and capsys.readouterr().err.count("\n") == 1


def test_json_has_all_that_the_table_has(capsys):
    assert (
        command.main([f"{HERE}/cases/experts_ep_times.py:step", "--axes", "data,expert", "--mesh", "expert=2", "--json"]) == 1
    )
    found = json.loads(capsys.readouterr().out)
    (finding,) = found["findings"]
    assert found["verdict"] == "wrong" and finding["names"] == ["w1", "w2"] and finding["meshes"] == ["data=1 expert=2"]
    assert found["meshes"][0]["cells"]["gradients"] == "2 of 5"
    assert finding["calls"]["expert"]["all_gather"] == "1 backward, 2 forward"


def test_the_helper_for_pytest_raises_with_the_report():
    from cases import ok_token_accum, world_scale

    assert prove.assert_equal_to_one(ok_token_accum.step, "data", meshes="data=2").status == 0
    with pytest.raises(AssertionError, match=r"(?s)each gradient is data or tensor times|tensor times too large"):
        prove.assert_equal_to_one(world_scale.step, "data,tensor", meshes="tensor=2")


def test_shards_of_a_flat_buffer_by_name():
    import torch

    tensors = {"a": torch.zeros(2, 2), "b": torch.zeros(5)}
    shards = [prove.flat_shards(tensors, torch.arange(4.0) + 4 * rank, rank, 3) for rank in range(3)]
    assert [shard["a"].tolist() for shard in shards] == [[0, 1, 2, 3], [], []]
    assert [shard["b"].tolist() for shard in shards] == [[], [4, 5, 6, 7], [8]]
    with pytest.raises(UsageError, match="cannot hold 9"):
        prove.flat_shards(tensors, torch.zeros(2), 0, 3)


def test_every_factorization_is_run():
    from ringtree.prove.proving import _factorizations, _worlds

    assert _factorizations(_worlds(4), 2) == [(1, 3), (3, 1), (1, 4), (2, 2), (4, 1)]
    assert all(math.prod(sizes) == 6 for sizes in _factorizations([6], 3)) and len(_factorizations([6], 3)) == 9


def test_ranks_end_with_the_process_that_proves():
    code = f"if __name__ == '__main__':\n    from ringtree import prove\n    prove.prove({str(HERE / 'steps' / 'bad.py')!r} + ':hangs', meshes='data=2')\n"
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "proves.py")
        script.write_text(code)
        proving = subprocess.Popen([sys.executable, str(script)])
        process, deadline = psutil.Process(proving.pid), time.monotonic() + 60
        while len(ranks := process.children(recursive=True)) < 4 and time.monotonic() < deadline:
            time.sleep(0.2)  # a tracker of resources, the process that forks, and two ranks
        proving.kill()
        proving.wait()
        assert len(ranks) >= 3
        _, alive = psutil.wait_procs(ranks, timeout=60)
        assert alive == []
