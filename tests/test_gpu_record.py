"""Recordings of NCCL on a GPU: what makes them, on CPUs as a dry run, and what pages take from them."""

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "book"))

import gpu_record  # noqa: E402

from ringtree.data import recorded
from ringtree.data.recorded import PROVENANCE, RECORDINGS, recording  # noqa: E402
from ringtree.errors import UsageError  # noqa: E402
from ringtree.live.deadline import RanksStuck  # noqa: E402
from ringtree.measure import record
from ringtree.theory import nccl  # noqa: E402

MEASURED = [name for name in gpu_record.NAMES if name != "nccl_log"]  # in a dry run


# -- a dry run, end to end ----------------------------------------------------------


def notebook(path, *cells):
    """Write a notebook of code cells (source, stored text, tags)."""
    made = nbformat.v4.new_notebook(metadata={"kernelspec": gpu_record.normalise.KERNEL})
    for source, text, *tags in cells:
        cell = nbformat.v4.new_code_cell(source, execution_count=1, metadata={"tags": tags})
        cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)]
        made.cells += [nbformat.v4.new_markdown_cell("said"), cell]
    nbformat.write(made, path)
    return path


@pytest.fixture(scope="module")
def dry(tmp_path_factory):
    """All parts, once, with two ranks and a notebook whose second cell has another output than the stored one."""
    folder = tmp_path_factory.mktemp("dry")
    small = notebook(
        folder / "small.ipynb", ("print(1 + 1)", "2\n"), ("print(3)", "4\n"), ("print(5)", "6\n", "nbval-ignore-output")
    )
    words = ["--dry", "--ranks", "2", "--notebooks", str(small), "--out", str(folder / "out")]
    ended = subprocess.run([sys.executable, "book/gpu_record.py", *words], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return SimpleNamespace(folder=folder / "out", said=ended.stdout, small=small)


def rows_of(dry, name):
    return recorded.read(recorded.path_of(name, dry.folder))[0]


def test_a_dry_run_goes_through_every_part_that_needs_no_nccl(dry):
    assert sorted(path.stem for path in dry.folder.iterdir()) == sorted(MEASURED)
    assert "Found 2 ranks on CPUs" in dry.said and "nccl_log: left out" in dry.said


@pytest.mark.parametrize("name", MEASURED)
def test_every_file_has_its_columns_and_says_where_it_comes_from(dry, name):
    rows, told = recorded.read(recorded.path_of(name, dry.folder))
    assert rows and all(list(row) == list(RECORDINGS[name][1]) for row in rows)
    assert sorted(told) == sorted(PROVENANCE)
    assert told["kind"] == "dry run" and told["backend"] == "gloo" and told["gpus"] == [] and not told["shared"]
    assert told["torch"] == torch.__version__ and told["cores"] >= 1 and told["settings"]
    assert told["command"] == 'make gpu-record ARGS="--ranks 2 --notebooks small.ipynb --dry"', "and no folder of this machine"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", told["date"])


@pytest.mark.parametrize("name", MEASURED)
def test_no_page_takes_a_dry_run_for_a_gpu(dry, name):
    with pytest.raises(UsageError, match=f"{name}.csv is of kind 'dry run', not measured on a GPU: delete it"):
        recording(name, dry.folder)


def test_cells_that_differ_are_told_from_those_that_do_not(dry):
    assert [row["outcome"] for row in rows_of(dry, "notebooks")] == ["same", "differs", "ran"]
    same, differs, ran = rows_of(dry, "notebooks")
    assert same["report"] is None and ran["report"] is None
    assert "'4\\n' == '3\\n'" in differs["report"] and str(ROOT) not in differs["report"]
    assert "small.ipynb: 3 cells, 1 differs, 1 ran, 1 same" in dry.said and "cell 1: differs" in dry.said


def test_every_collective_has_a_first_call_in_both_orders(dry):
    rows = rows_of(dry, "first_calls")
    forwards, backwards = ([row["collective"] for row in rows if row["order"] == way] for way in ("forwards", "backwards"))
    assert forwards == backwards[::-1] and {"all_reduce", "reduce", "broadcast", "barrier"} <= set(forwards)
    assert [row["place"] for row in rows] == [*range(1, len(forwards) + 1)] * 2
    assert all(0 < row["fastest"] <= row["later"] and row["first"] > 0 for row in rows)


def test_reduce_and_all_reduce_are_timed_in_both_orders_and_nothing_too(dry):
    rows = rows_of(dry, "order")
    assert {(row["order"], row["inside"], row["when"]) for row in rows} == {
        (order, inside, when)
        for order in ("reduce then all_reduce", "all_reduce then reduce", "nothing then nothing")
        for inside in ("tensor, call and print", "the call alone")
        for when in ("first", "warm")
    }
    for first, second in zip(rows[::2], rows[1::2]):
        assert first["order"] == second["order"] == f"{first['collective']} then {second['collective']}"


def test_gloo_makes_the_host_wait_in_the_call_and_an_asynchronous_call_in_wait(dry):
    late = {row["case"]: row for row in rows_of(dry, "streams") if row["late"]}
    seconds = late["all_reduce()"]["late"]
    for case in ("all_reduce()", "barrier()", "all_reduce(), then .item()"):
        assert late[case]["returned"] >= seconds / 2, "the call holds the host until the late rank has come"
        assert late[case]["waited"] is None and late[case]["events"] is None
    later = late["all_reduce(async_op=True), then wait()"]
    assert later["returned"] < later["waited"] and later["waited"] >= seconds / 2 and later["completed"] is True


def test_results_are_checked_and_what_only_nccl_tells_stays_empty(dry):
    for row in rows_of(dry, "choices"):
        assert row["wrong"] == 0 and 0 < row["low"] <= row["time"] <= row["high"]
        assert (row["algorithm"], row["protocol"], row["channels"], row["expected"]) == (None,) * 4


def test_a_step_of_the_ring_is_the_time_over_its_steps(dry):
    rows = rows_of(dry, "time_slice")
    assert {row["ranks"] for row in rows} == {2} and {row["steps"] for row in rows} == {2}
    assert all(row["per_step"] == pytest.approx(row["time"] / 2, rel=1e-4) for row in rows)


def test_loops_are_timed_with_and_without_an_all_reduce(dry):
    rows = rows_of(dry, "synchronize")
    assert {(row["loop"], row["size"] > 0) for row in rows} == {(loop, talks) for loop in record.LOOPS for talks in (True, False)}
    assert all(row["time"] > 0 for row in rows)


# -- what cannot be ------------------------------------------------------------------


def refused(capsys, *words):
    """The one sentence with which the command refuses, before anything runs."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(gpu_record, "run", lambda *_: pytest.fail("it went on"))
        gpu_record.main(list(words))
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    return said.err


def test_without_a_gpu_one_sentence_says_so_and_nothing_is_written(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gpu_record, "driver_version", lambda: None)
    said = refused(capsys, "--out", str(tmp_path / "out"))
    assert "needs an NVIDIA GPU that PyTorch can use, and none is here; nothing was written" in said
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(gpu_record, "driver_version", lambda: "580.65.06")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "was built without CUDA: install PyTorch's build for CUDA" in refused(capsys)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert "it sees none, though the driver 580.65.06 is installed" in refused(capsys)


def test_what_is_recorded_is_not_replaced_unasked(capsys, tmp_path):
    recorded.write("streams", [], told("streams"), tmp_path)
    before = recorded.path_of("streams", tmp_path).read_text()
    said = refused(capsys, "--dry", "--out", str(tmp_path))
    assert "streams is recorded already, and nothing was done: give --overwrite" in said
    with pytest.raises(UsageError, match="streams.csv was recorded already"):
        recorded.write("streams", [], told("streams", date="2031-01-01"), tmp_path)
    assert recorded.path_of("streams", tmp_path).read_text() == before
    recorded.write("streams", [], told("streams", date="2031-01-01"), tmp_path, overwrite=True)
    assert recorded.path_of("streams", tmp_path).read_text() != before


def test_mistakes_show_before_anything_runs(capsys, tmp_path):
    assert "--ranks 1: give 2 ranks or more" in refused(capsys, "--dry", "--ranks", "1")
    assert "there is no such notebook" in refused(capsys, "--dry", "--notebooks", str(tmp_path / "none.ipynb"))


def test_a_dry_run_has_no_place_among_the_recordings(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(recorded, "FOLDER", tmp_path)
    assert "--dry makes no recordings" in refused(capsys, "--dry", "--out", str(tmp_path))
    with pytest.raises(UsageError, match="a dry run has no place among the recordings"):
        recorded.write("streams", [], told("streams", kind="dry run"), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_part_that_fails_does_not_take_the_others_with_it(capsys, monkeypatch, tmp_path):
    def fails(stage, quick):
        raise RuntimeError("the GPU fell off the bus")

    def works(stage, quick):
        return [{"line": "NCCL version 2.29.7"}], {}

    monkeypatch.setattr(gpu_record, "introduce", lambda stage, found: None)
    monkeypatch.setattr(gpu_record, "provenance", lambda *_: told("nccl_log"))
    monkeypatch.setattr(gpu_record.record, "PARTS", {"streams": fails, "nccl_log": works})
    options = gpu_record.arguments().parse_args(["--only", "streams", "nccl_log"])
    code = gpu_record.run((["streams", "nccl_log"], tmp_path, []), options, {"gpus": 1, "driver": "1"})
    assert code == 1 and [path.name for path in tmp_path.iterdir()] == ["nccl_log.csv"]
    assert "streams: not recorded: RuntimeError: the GPU fell off the bus" in capsys.readouterr().err


def test_an_interrupt_ends_the_run_and_keeps_what_was_done(capsys, monkeypatch, tmp_path):
    def interrupted(stage, quick):
        raise RanksStuck("interrupted while ranks 0 and 1 had not finished.")

    parts = {"nccl_log": lambda stage, quick: ([{"line": "NCCL version 2.29.7"}], {}), "streams": interrupted, "order": None}
    monkeypatch.setattr(gpu_record, "introduce", lambda stage, found: None)
    monkeypatch.setattr(gpu_record, "look", lambda dry: {"gpus": 1})
    monkeypatch.setattr(gpu_record, "provenance", lambda *_: told("nccl_log"))
    monkeypatch.setattr(gpu_record, "NAMES", tuple(parts))
    monkeypatch.setattr(gpu_record.record, "PARTS", parts)
    assert gpu_record.main(["--out", str(tmp_path)]) == 130
    assert [path.name for path in tmp_path.iterdir()] == ["nccl_log.csv"]
    assert "the parts that were done are kept" in capsys.readouterr().err


def test_every_order_is_timed_on_fresh_ranks_first():
    done = []

    def call(function, names, dressed):
        done.append("timed")
        return [[1.0, 2.0], [1.5, 1.0]]

    ranks = SimpleNamespace(call=call, restart=lambda: done.append("fresh"))
    rows, _ = record.order(SimpleNamespace(start=lambda: contextlib.nullcontext(ranks)))
    runs = " ".join(done).split("fresh")
    assert len(runs) == 6 and {len(run.split()) for run in runs} == {21}, "on fresh ranks once first, then 20 times warm"
    assert len(rows) == 24 and {row["time"] for row in rows} == {1.5, 2.0}, "the slowest rank counts"


def test_half_a_sweep_is_no_recording(monkeypatch):
    from ringtree import measure

    monkeypatch.setattr(measure, "measure", lambda *_, **__: [{"size": 8}])
    with pytest.raises(KeyboardInterrupt):
        record._sweep(None, [8, 16], quick=True)


# -- where it was made -----------------------------------------------------------------


def rank_on(gpu, device):
    return {
        "backend": "nccl", "gpu": gpu, "device": device, "capability": 90, "cuda": "13.0", "nccl": "2.29.7", "torch": "2.13.0",
        "python": "3.12.3", "system": "Linux x86_64", "cores": 16, "environment": {"NCCL_ALGO": "Ring"},
    }  # fmt: skip


def stage_on(*devices):
    return SimpleNamespace(found=[rank_on("NVIDIA H100", device) for device in devices], environment={"NCCL_ALGO": "Ring"})


def test_provenance_counts_gpus_and_says_whether_ranks_shared_one():
    found = {"gpus": 1, "driver": "580.65.06", "commit": "0" * 40, "changed": False}
    one = gpu_record.provenance(stage_on(0, 0, 0, 0), {"repeats": 5}, "make gpu-record", found)
    assert sorted(one) == sorted(PROVENANCE) and one["kind"] == "GPU"
    assert (one["ranks"], one["gpus"], one["shared"]) == (4, ["NVIDIA H100"], True)
    assert one["environment"] == {"NCCL_ALGO": "Ring"} and one["settings"] == {"repeats": 5}
    four = gpu_record.provenance(stage_on(0, 1, 2, 3), {}, "make gpu-record", found)
    assert one["driver"] == "580.65.06" and one["commit"] == "0" * 40 and one["changed"] is False
    assert (len(four["gpus"]), four["shared"]) == (4, False)
    assert recorded.where(one) == "4 ranks that share 1 NVIDIA H100"
    assert recorded.where(four) == "4 ranks, one on each of 4 NVIDIA H100"


def test_the_commit_is_git_s_and_none_where_there_is_no_git(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_record, "ROOT", tmp_path)
    assert gpu_record.commit_here() == (None, None)
    for words in ("init -q", "-c user.name=n -c user.email=e commit -q --allow-empty -m m"):
        subprocess.run(["git", "-C", str(tmp_path), *shlex.split(words)], check=True)
    commit, changed = gpu_record.commit_here()
    assert re.fullmatch(r"[0-9a-f]{40}", commit) and changed is False
    (tmp_path / "new").touch()
    assert gpu_record.commit_here() == (commit, True)


def test_the_driver_is_read_from_what_the_kernel_says():
    said = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\nGCC version: gcc 12"
    assert gpu_record.driver_in(said) == "580.65.06"
    assert gpu_record.driver_in("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12") == "535.183.01"
    assert gpu_record.driver_in("nothing") is None


def test_the_command_is_told_without_this_machine_s_folders():
    options = gpu_record.arguments().parse_args(["--out", "/scratch/me", "--only", "streams", "order", "--overwrite"])
    assert gpu_record.command_of(options) == 'make gpu-record ARGS="--only streams order"'
    assert gpu_record.command_of(gpu_record.arguments().parse_args([])) == "make gpu-record"


def test_ranks_get_a_part_s_environment_before_anything_reads_it():
    stage = record.Stage(2, "gloo")
    with stage.start(NCCL_ALGO="Ring", NCCL_DEBUG_FILE="/here/nccl.%p") as ranks:
        assert ranks.call(os.getenv, "NCCL_ALGO") == ["Ring", "Ring"]
        ranks.restart()
        assert ranks.call(os.getenv, "NCCL_DEBUG_FILE") == ["/here/nccl.%p"] * 2
    assert stage.environment == {"NCCL_ALGO": "Ring"}, "no folder of this machine is told"
    with stage.start() as ranks:
        assert ranks.call(os.getenv, "NCCL_ALGO") == [None, None]


# -- notebooks ---------------------------------------------------------------------------


def test_notebooks_run_with_the_settings_that_make_test_uses():
    made = re.search(r"^NBVAL := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    assert made == [str(word).removeprefix(f"{ROOT}/") for word in gpu_record.NBVAL]


def test_cells_without_a_result_were_not_run(tmp_path):
    path = notebook(tmp_path / "three.ipynb", ("1", ""), ("2", ""), ("3", ""))
    xml = """<testsuites><testsuite><testcase name="Cell 0"><failure message="m">Notebook cell execution failed
Cell 0: Cell execution caused an exception

Traceback:
#x1B[0;31mValueError#x1B[0m: no</failure></testcase><testcase name="Cell 1"><skipped message="Previous cell timed out"/>
</testcase></testsuite></testsuites>"""
    assert [(row["cell"], row["outcome"], row["report"]) for row in gpu_record.outcomes(path, xml, "ended after 1 s")] == [
        (0, "failed", "ValueError: no"), (1, "not run", "Previous cell timed out"), (2, "not run", "ended after 1 s"),
    ]  # fmt: skip
    assert {row["outcome"] for row in gpu_record.outcomes(path, None, "pytest ended with 4")} == {"not run"}


def test_a_notebook_that_never_ends_is_ended_with_what_it_started(monkeypatch, tmp_path):
    path = notebook(tmp_path / "endless.ipynb", ("import time\ntime.sleep(600)", ""))
    monkeypatch.setattr(gpu_record, "NOTEBOOK_SECONDS", 3)
    assert gpu_record._pytest(path, tmp_path / "cells.xml", None) == "pytest was ended after 3 s"
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert str(path) not in left


# -- NCCL's log ---------------------------------------------------------------------------

HOST = "somehost:4711:4712 [0] NCCL INFO "
CELL, CELLS = "{:8.1f}/{:8.1f} |", [(26, 0.3), (48, 0), (64, 0.6), (22, 0.4), (38, 0), (92, 0.8)]
LOG = "\n".join(
    [
        "somehost:4711:4711 [0] NCCL INFO Bootstrap: Using lo:127.0.0.1<0>",
        "somehost:4711:4711 [0] NCCL INFO NCCL version 2.29.7+cuda13.0",
        HOST + "NCCL_SOCKET_IFNAME set by environment to lo",
        HOST + "comm 0x5581 rank 0 nRanks 4 nNodes 4 localRanks 1 localRank 0 MNNVL 0",
        HOST + "Pattern 4, crossNic 0, nChannels 1, bw 1.200000/1.200000, type LOC/PHB, sameChannels 1",
        HOST + "  Algorithm   |                            Tree                           |                            Ring |",
        HOST + "  Protocol    |      LL |   LL128 |  Simple |      LL |   LL128 |  Simple |",
        HOST + "  AllReduce | " + " ".join(CELL.format(*cell) for cell in CELLS),
        HOST + "2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer",
        HOST + "AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}",
        HOST + "AllReduce: 1024 Bytes -> Algo TREE proto SIMPLE channel{Lo..Hi}={0..0}",
        HOST + "AllReduce: 4194304 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}",
        HOST + "Broadcast: 64 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}",
    ]
)  # fmt: skip


def test_choices_are_read_from_nccl_s_log():
    lines = record.nccl_lines(LOG)
    assert "somehost" not in "\n".join(lines) and "127.0.0.1" not in "\n".join(lines)
    assert lines[0] == "NCCL version 2.29.7+cuda13.0" and len(lines) == 11
    found = record.choices_in("\n".join(lines), [8, 64, 1024, 4194304], capability=90)
    assert found == record.choices_in(LOG, [8, 64, 1024, 4194304], capability=90), "the kept lines say as much as the log"
    assert list(found) == [8, 1024, 4194304], "64 B was a broadcast's"
    assert found[8] == {"algorithm": "ring", "protocol": "LL", "channels": 1, "expected": pytest.approx(22e-6 + 8 / 0.4e9)}
    # What NCCL was forced to is not what it expects to be fastest; a tree of 1 KiB reaches 0.9 of its bandwidth.
    assert found[1024]["expected"] == pytest.approx(64e-6 + 1024 / (0.9 * 0.6e9))
    # Between nodes NCCL counts 1.4 times the latency of a long ring of the Simple protocol.
    assert found[4194304]["expected"] == pytest.approx(1.4 * 92e-6 + 4194304 / 0.8e9)
    assert found[4194304]["channels"] == 2


def test_what_is_kept_of_the_log_describes_the_machine():
    platform = nccl.read_platform("\n".join(record.nccl_lines(LOG)), capability=90)
    assert (platform.nodes, platform.ranks, platform.ring.channels, platform.inter) == (4, 4, 1, "PHB")


@pytest.fixture
def nccl_stage(monkeypatch):
    """A stage that says NCCL and starts two ranks over Gloo: what comes before and after NCCL, without a GPU."""
    gloo = record.Stage(2, "gloo")
    stage = SimpleNamespace(size=2, backend="nccl", start=gloo.start, environment={}, found=[rank_on("NVIDIA H100", 0)] * 2)
    stage.logs = []

    def log_of(stage, sizes):
        stage.environment = nccl.DEBUG
        return stage.logs.pop()

    monkeypatch.setattr(record, "_log_of", log_of)
    return stage


def test_times_are_taken_without_the_log_and_choices_with_it(nccl_stage):
    said = "\n".join(f"{HOST}AllReduce: {size} Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..0}}" for size in (8, 512))
    nccl_stage.logs = ["an NCCL of another time", said]
    rows, settings = record.choices(nccl_stage, quick=True)
    chosen = [(row["size"], row["algorithm"], row["channels"]) for row in rows]
    assert chosen == [(8, "ring", 1), (512, "ring", 1), (32768, None, None)]
    assert nccl_stage.environment == {}, "the log's settings are not the times'"
    rows, settings = record.choices(nccl_stage, quick=True)
    assert all(row["time"] > 0 and row["algorithm"] is None for row in rows), "a log that nobody can read costs no times"
    assert settings["choice"].startswith("not read: read_tuning found neither")


# -- what pages take -----------------------------------------------------------------------


def told(name, **others):
    """The provenance of an invented recording, for tests alone."""
    return {
        "kind": "GPU", "date": "2030-02-03T04:05:06+00:00", "command": "make gpu-record", "ranks": 4, "backend": "nccl",
        "shared": True, "gpus": ["a GPU"], "capability": 90, "driver": "1.2", "cuda": "13.0", "torch": "2.13.0", "nccl": "2.29.7",
        "python": "3.12.3", "system": "Linux x86_64", "cores": 8, "ringtree": "0.1.0", "commit": None, "changed": None,
        "environment": {}, "settings": {"of": name}, **others,
    }  # fmt: skip


ROWS = [
    {
        "case": "all_reduce()", "size": 65536, "late": 0.5, "returned": 2e-5, "waited": None, "completed": None,
        "events": 0.501, "done": 0.502,
    },
    {
        "case": "async, then wait()", "size": 65536, "late": 0.0, "returned": 2e-5, "waited": 3e-5, "completed": False,
        "events": 1e-3, "done": 2e-3,
    },
]  # fmt: skip


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recording_that_is_still_to_be_made_says_so_in_one_sentence(tmp_path, name):
    missing = recording(name, tmp_path)
    assert not missing and missing.rows == [] and missing.provenance == {}
    about = RECORDINGS[name][0]
    made_by = "`make gpu-record` on a machine with an NVIDIA GPU"
    assert str(missing) == f"{about}:\nthis recording is still to be made, by {made_by}."
    assert list(missing.frame()) == list(RECORDINGS[name][1]) and len(missing.frame()) == 0


def test_a_recording_prints_its_source_and_its_rows_with_units(tmp_path):
    recorded.write("streams", ROWS, told("streams"), tmp_path)
    made = recording("streams", tmp_path)
    assert made and made.rows == ROWS and made.provenance == told("streams")
    assert str(made).splitlines() == [
        "What the host waits for, and what the stream, over NCCL. Recorded 2030-02-03 with 4 ranks that share 1 a GPU, "
        "NCCL 2.29.7, PyTorch 2.13.0, CUDA 13.0, driver 1.2, by `make gpu-record`.",
        "case                  size    late  returned  waited  completed  events    done",
        "all_reduce()        64 KiB  500 ms     20 µs       -          -  501 ms  502 ms",
        "async, then wait()  64 KiB    0 ns     20 µs   30 µs         no    1 ms    2 ms",
    ]
    assert list(made.frame()["case"]) == [row["case"] for row in ROWS]
    assert [name for name, each in recorded.recordings(tmp_path).items() if each] == ["streams"]


WORDS = [
    "plain", "with, comma", 'a "quote"', "'", "two\nlines", "\u2028\x85\r", "# a comment: 1", "12", "null", "true", "NaN", "", " x ", "é→",
]  # fmt: skip


@pytest.mark.parametrize("text", WORDS)
def test_words_come_back_from_a_file_as_they_were(tmp_path, text):
    rows = [{"line": text}, {"line": "after"}]
    recorded.write("nccl_log", rows, told("nccl_log"), tmp_path)
    assert recording("nccl_log", tmp_path).rows == rows


def test_numbers_and_yes_and_no_come_back_from_a_file(tmp_path):
    rows = [{**ROWS[0], "returned": 1.23456789e-05, "completed": True, "size": 2**40}]
    recorded.write("streams", rows, told("streams"), tmp_path)
    [row] = recording("streams", tmp_path).rows
    assert row["returned"] == 1.23457e-05 and row["completed"] is True and row["size"] == 2**40 and row["waited"] is None


def test_a_file_that_is_no_recording_of_nccl_on_a_gpu_is_refused(tmp_path):
    def refuses(pattern, **others):
        recorded.write("streams", ROWS, told("streams", **others), tmp_path, overwrite=True)
        with pytest.raises(UsageError, match=pattern):
            recording("streams", tmp_path)

    refuses("not measured on a GPU", kind="dry run")
    refuses("ran over gloo", backend="gloo")
    refuses("does not say gpus,", gpus=[])
    for key in recorded.FROM_A_GPU:
        refuses(f"does not say {key}", **{key: None})
    path = recorded.path_of("streams", tmp_path)
    recorded.write("streams", ROWS, told("streams"), tmp_path, overwrite=True)
    path.write_text(path.read_text().replace("# driver:", "# drover:"))
    with pytest.raises(UsageError, match="does not say driver"):
        recording("streams", tmp_path)
    recorded.write("streams", ROWS, told("streams"), tmp_path, overwrite=True)
    path.write_text(path.read_text().replace("returned", "came"))
    with pytest.raises(UsageError, match="lacks some of the columns"):
        recording("streams", tmp_path)
    path.write_text("size,time\n8,1\n")
    with pytest.raises(UsageError, match="does not begin with"):
        recording("streams", tmp_path)


def test_unknown_names_and_rows_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(UsageError, match="there is no recording 'stream': give one of notebooks, first_calls"):
        recording("stream")
    with pytest.raises(ValueError, match="a row of streams has the columns line"):
        recorded.write("streams", [{"line": "x"}], told("streams"), tmp_path)
    short = told("streams")
    del short["driver"]
    with pytest.raises(ValueError, match="lacks, or does not know, driver"):
        recorded.write("streams", ROWS, short, tmp_path)


def test_the_recorded_log_is_nccl_s_own_lines(tmp_path):
    rows = [{"line": line} for line in record.nccl_lines(LOG)]
    recorded.write("nccl_log", rows, told("nccl_log"), tmp_path)
    text = recording("nccl_log", tmp_path).text
    assert [call["bytes"] for call in nccl.read_tuning(text).calls] == [8, 1024, 4194304, 64]


def test_every_recording_that_is_here_can_be_shown():
    here = {path.stem for path in recorded.FOLDER.glob("*")}
    assert here <= set(RECORDINGS), "only recordings lie in their folder"
    for name, each in recorded.recordings().items():
        assert bool(each) == (name in here) and str(each)


def test_a_new_recording_makes_the_pages_run_their_cells_again(monkeypatch, tmp_path):
    import pages

    monkeypatch.setattr(pages, "ROOT", tmp_path)
    before = pages.what_cells_depend_on()
    recorded.write("streams", ROWS, told("streams"), tmp_path / recorded.FOLDER.relative_to(ROOT))
    assert pages.what_cells_depend_on() != before


def test_what_is_recorded_and_what_is_measured_have_the_same_names():
    assert list(RECORDINGS) == list(gpu_record.NAMES)
    assert json.loads(json.dumps(told("x"))).keys() == set(PROVENANCE)
