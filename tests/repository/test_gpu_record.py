"""Recordings of NCCL on a GPU: what makes them, on CPUs as a dry run, and what pages take from them."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pandas
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
import executed
import gpu_record
import on_gpu
import pairing

from ringtree import tables
from ringtree.data import recordings
from ringtree.data.recordings import PROVENANCE, RECORDINGS, recording
from ringtree.errors import UsageError
from ringtree.live.reports.deadline import RanksStuck
from ringtree.theory import nccl

PROGRAMS = {**pairing.PROGRAMS, **pairing.ALONE}
TOLD = {
    "kind": "GPU",
    "date": "2030-02-03T04:05:06+00:00",
    "command": "make gpu-record",
    "ranks": 4,
    "backend": "nccl",
    "shared": True,
    "gpus": ["a GPU"],
    "driver": "1.2",
    "cuda": "13.0",
    "torch": "2.13.0",
    "nccl": "2.29.7",
    "commit": "unknown",
    "changed": "unknown",
    "settings": {},
}
ROWS = [
    {"case": "all_reduce()", "size": 65536, "late": 0.5, "returned": 2e-5, "events": 0.501, "done": 0.502},
    {"case": "async, then wait()", "size": 65536, "late": 0.0, "returned": 2e-5, "waited": 3e-5, "events": 1e-3, "done": 2e-3},
]


def write_notebook(path, *cells):
    """cells: (source, what it printed when it was stored, tags …)."""
    made = nbformat.v4.new_notebook(metadata={"kernelspec": gpu_record.normalise.KERNEL})
    for source, text, *tags in cells:
        cell = nbformat.v4.new_code_cell(source, execution_count=1, metadata={"tags": tags})
        cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)]
        made.cells += [nbformat.v4.new_markdown_cell("said"), cell]
    nbformat.write(made, path)


# -- a dry run, end to end ----------------------------------------------------------

nightly = pytest.mark.skipif("RINGTREE_NIGHTLY" not in os.environ, reason="takes half a minute: set RINGTREE_NIGHTLY=1")


@pytest.fixture(scope="module")
def dry(tmp_path_factory):
    """All parts, once, with a notebook whose second cell has another output than the stored one."""
    folder = tmp_path_factory.mktemp("dry")
    cells = ("print(1 + 1)", "2\n"), ("print(3)", "4\n"), ("print(5)", "6\n", "nbval-ignore-output"), ("1 / 0", "")
    write_notebook(folder / "small.ipynb", *cells)
    ended = subprocess.run(
        [sys.executable, "tools/gpu_record.py", "--dry", "--notebooks", str(folder / "small.ipynb")],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    [out] = folder.glob("ringtree-dry-run-*")
    read = {path.stem: tables.parse(path.read_text(), recordings.KIND, path.name, recordings.TYPES) for path in out.iterdir()}
    return SimpleNamespace(folder=out, said=ended.stdout, read=read, rows=lambda name: read[name][0].to_dict("records"))


@nightly
def test_a_dry_run_goes_through_every_part_and_says_where_it_was(dry):
    assert sorted(dry.read) == sorted(RECORDINGS) == sorted(gpu_record.NAMES)
    assert "Found 4 ranks on CPUs" in dry.said and "A dry run says nothing of a GPU" in dry.said
    for name, (frame, told) in dry.read.items():
        assert len(frame) and list(frame) == RECORDINGS[name][1].split()
        assert list(told) == list(PROVENANCE) and told["settings"] and told["torch"] == torch.__version__
        assert (told["kind"], told["backend"], told["gpus"], told["shared"]) == ("dry run", "gloo", [], False)
        assert told["command"] == 'make gpu-record ARGS="--notebooks small.ipynb --dry"', "and no folder of this machine"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", told["date"])
        with pytest.raises(
            UsageError,
            match=f"{name}.csv has the kind 'dry run', which is not measured on a GPU: it is not a recording, so delete it",
        ):
            recording(name, dry.folder)


@nightly
def test_cells_that_differ_are_told_from_those_that_do_not(dry):
    same, differs, ignored, raises = rows = dry.rows("notebooks")
    assert [(row["cell"], row["outcome"]) for row in rows] == [(0, "passed"), (1, "failed"), (2, "passed"), (3, "failed")]
    assert same["report"] is None and ignored["report"] is None and "ZeroDivisionError" in raises["report"]
    assert "'4\\n' == '3\\n'" in differs["report"] and str(ROOT) not in differs["report"]
    assert "small.ipynb: 4 cells, 2 failed, 2 passed\n  cell 1: failed\n  cell 3: failed" in dry.said


@nightly
def test_reduce_and_all_reduce_are_timed_in_both_orders_and_nothing_too(dry):
    orders = ("reduce then all_reduce", "all_reduce then reduce", "nothing then nothing")
    insides, whens = ("tensor, call and print", "the call alone"), ("first", "warm")
    assert [(row["order"], row["inside"], row["when"], row["collective"]) for row in dry.rows("order")] == [
        (order, inside, when, name)
        for inside in insides
        for order in orders
        for when in whens
        for name in order.split(" then ")
    ]


@nightly
def test_gloo_makes_the_host_wait_in_the_call_and_an_asynchronous_call_in_wait(dry):
    late = {row["case"]: row for row in dry.rows("streams") if row["late"]}
    seconds = late["all_reduce()"]["late"]
    for case in ("all_reduce()", "barrier()", "all_reduce(), then .item()"):
        assert late[case]["returned"] >= seconds / 2, "the call holds the host until the late rank has come"
        assert pandas.isna(late[case]["waited"]) and pandas.isna(late[case]["events"])
    later = late[on_gpu.ASYNC]
    assert later["returned"] < later["waited"] and later["waited"] >= seconds / 2


@nightly
def test_the_other_parts_measure_and_what_only_nccl_tells_stays_empty(dry):
    for row in dry.rows("choices"):
        assert row["wrong"] == 0 and 0 < row["low"] <= row["time"] <= row["high"]
        assert all(pandas.isna(row[name]) for name in ("algorithm", "protocol", "channels", "expected"))
    loops = {(row["loop"], row["size"] > 0) for row in dry.rows("synchronize") if row["time"] > 0}
    assert loops == {(loop, talks) for loop in on_gpu.LOOPS for talks in (True, False)}
    [row] = dry.rows("hangs")
    assert "rank 0 waits to receive from rank 1, which has finished  [_unpaired, line" in row["report"]


@nightly
def test_programs_of_the_pairing_rules_are_tried_and_a_hang_is_told(dry):
    ends, hangs = dry.rows("pairing")
    assert (ends["program"], ends["way"], ends["numbers"], ends["verdict"]) == ("ring: one batch", "lazy", 1, "ends")
    assert ends["ranks"] == "0: done, has [[4.0]]; 1: done, has [[1.0]]; 2: done, has [[2.0]]; 3: done, has [[3.0]]"
    assert (hangs["program"], hangs["verdict"]) == ("recv without a send, first call", "hangs")
    assert hangs["ranks"] == "0: held in recv; 1, 2, 3: done, has [[0.0]]"


# -- a run that is cut short ---------------------------------------------------------


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=nightly)])
def test_an_interrupt_keeps_the_cells_that_were_run_within_a_time(tmp_path, workers):
    for name in "ab":
        write_notebook(tmp_path / f"{name}.ipynb", ("print(1)", "differs\n"), ("import time; time.sleep(300)", ""))
    words = ["--dry", "--only", "notebooks", "--workers", str(workers), "--within", "200"]
    notebooks = ["--notebooks", str(tmp_path / "a.ipynb"), str(tmp_path / "b.ipynb")]
    command, env = [sys.executable, "tools/gpu_record.py", *words, *notebooks], {**os.environ, "TMPDIR": str(tmp_path)}
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # tests that run in the background may have it ignored
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=env, preexec_fn=heard, **pipes) as going:
        try:
            assert next(line for line in going.stderr if "cell 0: " in line)
            going.send_signal(signal.SIGINT)
            _, said = going.communicate(timeout=60)
        finally:
            going.kill()
    assert going.returncode == 130 and "the parts that were done are kept" in said, said
    [path] = tmp_path.glob("ringtree-dry-run-*/notebooks.csv")
    frame, told = tables.parse(path.read_text(), recordings.KIND, path.name, recordings.TYPES)
    assert "failed" in list(frame["outcome"]) and told["settings"]["stopped"] == "by an interrupt, before all had run"


def cut_short(monkeypatch, main, *words):
    monkeypatch.setattr(pytest, "main", main)
    options = gpu_record.arguments().parse_args(["--notebooks", "a.ipynb", *words])
    return gpu_record.notebooks(SimpleNamespace(share_gpus=False), options)


def one_row(plugins):
    plugins[0].rows.append({"notebook": "a.ipynb", "cell": 0, "outcome": "passed", "report": None})


@pytest.mark.parametrize("ends", ["raises", "goes on"])
def test_an_interrupt_that_pytest_makes_something_else_of_is_one(monkeypatch, ends):
    def main(arguments, plugins):
        one_row(plugins)
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        except KeyboardInterrupt:
            if ends == "raises":
                raise TypeError("in the middle of something") from None
            return pytest.ExitCode.TESTS_FAILED

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        rows, settings = cut_short(monkeypatch, main, "--within", "100")
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(rows) == 1 and settings["stopped"] == "by an interrupt, before all had run"


def test_when_the_time_is_up_the_notebooks_stop_whatever_they_wait_for(monkeypatch):
    def main(arguments, plugins):
        one_row(plugins)
        time.sleep(60)

    rows, settings = cut_short(monkeypatch, main, "--within", "0.2")
    assert len(rows) == 1 and settings["stopped"] == "after 0 s, before all had run"


def test_cells_that_were_run_are_kept_when_pytest_fails_and_a_time_was_given(monkeypatch):
    def main(arguments, plugins):
        one_row(plugins)
        return pytest.ExitCode.INTERNAL_ERROR

    rows, settings = cut_short(monkeypatch, main, "--within", "60")
    assert len(rows) == 1 and "INTERNAL_ERROR" in settings["stopped"]
    with pytest.raises(RuntimeError, match="INTERNAL_ERROR"):
        cut_short(monkeypatch, main)


def test_several_notebooks_run_at_a_time_if_you_ask(monkeypatch):
    given = []

    def main(arguments, plugins):
        one_row(plugins)
        given.append(shlex.join(arguments))
        return pytest.ExitCode.OK

    cut_short(monkeypatch, main)
    cut_short(monkeypatch, main, "--workers", "4")
    assert " -n " not in given[0] and " -n 4 --dist loadfile " in given[1]


# -- what cannot be ------------------------------------------------------------------


def refused(capsys, *words):
    """The one sentence with which the command refuses, before anything runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_record, "run", lambda *_: pytest.fail("it went on"))
        assert gpu_record.main(list(words)) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    return said.err


def test_without_a_gpu_one_sentence_says_so(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(gpu_record, "driver_version", lambda: None)
    assert "needs an NVIDIA GPU" in (said := refused(capsys)) and "0 GPUs with no driver; nothing was written" in said
    monkeypatch.setattr(gpu_record, "driver_version", lambda: "580.65.06")
    assert f"this PyTorch, {torch.__version__}, sees 0 GPUs with driver 580.65.06" in refused(capsys)


def test_without_its_packages_one_sentence_says_so():
    ended = subprocess.run([sys.executable, "-S", "tools/gpu_record.py"], cwd=ROOT, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert re.match("torch, pandas, .* cannot be imported: install requirements.txt", ended.stderr)


def test_what_is_recorded_is_not_replaced_unasked(capsys, monkeypatch, tmp_path):
    path = recordings.write("streams", ROWS, TOLD, tmp_path)
    monkeypatch.setattr(recordings, "FOLDER", tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    assert "recorded already: streams; nothing was done: give --overwrite" in refused(capsys)
    before = path.read_text()
    with pytest.raises(FileExistsError):
        recordings.write("streams", [], TOLD, tmp_path)
    assert path.read_text() == before
    recordings.write("streams", [], TOLD, tmp_path, overwrite=True)
    assert path.read_text() != before


def test_a_dry_run_has_no_place_among_the_recordings(monkeypatch, tmp_path):
    monkeypatch.setattr(recordings, "FOLDER", tmp_path)
    with pytest.raises(UsageError, match="a dry run has no place among the recordings"):
        recordings.write("streams", ROWS, TOLD | {"kind": "dry run"}, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (RuntimeError("the GPU fell off the bus"), 1, "streams: not recorded: RuntimeError: the GPU fell off the bus"),
        (RanksStuck("interrupted while ranks 0 and 1 had not finished."), 130, "the parts that were done are kept"),
    ],
)
def test_a_part_that_fails_or_is_interrupted_does_not_take_the_others_with_it(capsys, monkeypatch, tmp_path, error, code, said):
    def fails(stage, quick):
        raise error

    monkeypatch.setattr(on_gpu.Stage, "start", lambda stage: contextlib.nullcontext())
    monkeypatch.setattr(gpu_record, "look", lambda options: {"gpus": 1})
    monkeypatch.setattr(gpu_record, "provenance", lambda *_: TOLD)
    monkeypatch.setattr(recordings, "FOLDER", tmp_path)
    monkeypatch.setattr(recordings.write, "__defaults__", (tmp_path, False))
    monkeypatch.setattr(on_gpu, "PARTS", {"order": lambda stage, quick: ([{"order": "x"}], {}), "streams": fails})
    assert gpu_record.main(["--only", "streams", "order"]) == code
    assert [path.name for path in tmp_path.iterdir()] == ["order.csv"]
    assert said in capsys.readouterr().err


def test_every_order_is_timed_on_fresh_ranks_first():
    done = []
    call = lambda *_: done.append("timed") or [[1.0, 2.0], [1.5, 1.0]]  # noqa: E731
    ranks = SimpleNamespace(call=call, restart=lambda: done.append("fresh"))
    rows, _ = on_gpu.order(SimpleNamespace(start=lambda: contextlib.nullcontext(ranks)))
    runs = " ".join(done).split("fresh")
    assert len(runs) == 6 and {len(run.split()) for run in runs} == {21}, "on fresh ranks once first, then 20 times warm"
    assert len(rows) == 24 and {row["time"] for row in rows} == {1.5, 2.0}, "the slowest rank counts"


def test_half_a_sweep_is_no_recording(monkeypatch):
    monkeypatch.setattr("ringtree.measure.measure", lambda *_, **__: [{"size": 8}])
    with pytest.raises(KeyboardInterrupt):
        on_gpu._sweep(SimpleNamespace(start=lambda: contextlib.nullcontext()), [8, 16], 0.1)


# -- where it was made -----------------------------------------------------------------


def test_provenance_counts_gpus_and_says_whether_ranks_shared_one():
    known = {"backend": "nccl", "gpu": "NVIDIA H100", "cuda": "13.0", "nccl": "2.29.7", "torch": "2.13.0"}
    found = {"gpus": 1, "driver": "580.65.06", "commit": "0" * 40, "changed": False}
    options = gpu_record.arguments().parse_args([])

    def told(*devices):
        ranks = [known | {"device": device, "environment": {"NCCL_ALGO": "Ring"}} for device in devices]
        return gpu_record.provenance(SimpleNamespace(found=ranks), {"repeats": 5}, options, found)

    one, four = told(0, 0, 0, 0), told(0, 1, 2, 3)
    assert sorted(one) == sorted(PROVENANCE) and one["kind"] == "GPU" and one["command"] == "make gpu-record"
    assert (one["driver"], one["commit"], one["changed"]) == ("580.65.06", "0" * 40, False)
    assert one["settings"] == {"repeats": 5, "environment": {"NCCL_ALGO": "Ring"}}
    assert recordings.where(one) == "4 ranks that share 1 NVIDIA H100"
    assert recordings.where(four) == "4 ranks, one on each of 4 NVIDIA H100"


def test_the_commit_is_this_folder_s_and_unknown_without_history(monkeypatch, tmp_path):
    for words in ("init -q", "-c user.name=n -c user.email=e commit -q --allow-empty -m m"):
        subprocess.run(["git", "-C", str(tmp_path), *shlex.split(words)], check=True)
    monkeypatch.setattr(gpu_record, "ROOT", tmp_path)
    commit, changed = gpu_record.history()
    assert re.fullmatch(r"[0-9a-f]{40}", commit) and changed is False
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "new").touch()
    assert gpu_record.history() == (commit, True)
    monkeypatch.setattr(gpu_record, "ROOT", tmp_path / "copy")
    assert gpu_record.history() == ("unknown (no git history here)", "unknown")


def test_the_commit_of_a_copy_without_history_can_be_given(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    found = gpu_record.look(gpu_record.arguments().parse_args(["--only", "notebooks", "--commit", "c0ffee"]))
    assert (found["commit"], found["changed"]) == ("c0ffee", "unknown")


def test_the_driver_is_read_from_its_tool_or_else_from_what_the_kernel_says(monkeypatch):
    kernel = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\nGCC version: gcc 12.1"
    for said, in_kernel, version in (("570.1.2\n570.1.2\n", kernel, "570.1.2"), ("", kernel, "580.65.06"), ("", "", None)):
        monkeypatch.setattr(gpu_record, "said_by", lambda command: in_kernel if command.startswith("cat") else said)
        assert gpu_record.driver_version() == version


def test_ranks_get_a_part_s_environment_before_anything_reads_it():
    stage = on_gpu.Stage(gpus=0, size=2)
    with stage.start(NCCL_ALGO="Ring", NCCL_DEBUG_FILE="/here/nccl.%p") as ranks:
        assert ranks.call(os.getenv, "NCCL_ALGO") == ["Ring", "Ring"]
        ranks.restart()
        assert ranks.call(os.getenv, "NCCL_DEBUG_FILE") == ["/here/nccl.%p"] * 2
    assert stage.found[0]["environment"] == {"NCCL_ALGO": "Ring"}, "no folder of this machine is told"
    assert [(each.backend, each.share_gpus) for each in map(on_gpu.Stage, (1, 4))] == [("nccl", True), ("nccl", False)]


def test_notebooks_run_with_the_settings_that_make_test_uses():
    made = re.search(r"^NBVAL := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    assert made == [str(word).removeprefix(f"{ROOT}/") for word in gpu_record.NBVAL]


# -- NCCL's log ---------------------------------------------------------------------------

HOST = "somehost:4711:4712 [0] NCCL INFO "
CELL, CELLS = "{:8.1f}/{:8.1f} |", [(26, 0.3), (48, 0), (64, 0.6), (22, 0.4), (38, 0), (92, 0.8)]
LOG = "\n".join([
    "somehost:4711:4711 [0] NCCL INFO NCCL version 2.29.7+cuda13.0",
    HOST + "comm 0x5581 rank 0 nRanks 4 nNodes 4 localRanks 1 localRank 0 MNNVL 0",
    HOST + "  Algorithm   |                            Tree                           |                            Ring |",
    HOST + "  Protocol    |      LL |   LL128 |  Simple |      LL |   LL128 |  Simple |",
    HOST + "  AllReduce | " + " ".join(CELL.format(*cell) for cell in CELLS),
    HOST + "2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer",
    HOST + "AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}",
    HOST + "AllReduce: 1024 Bytes -> Algo TREE proto SIMPLE channel{Lo..Hi}={0..0}",
    HOST + "AllReduce: 4194304 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}",
    HOST + "Broadcast: 64 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}",
])


def test_choices_are_read_from_nccl_s_log():
    found = on_gpu.choices_in(LOG, [8, 64, 1024, 4194304], capability=90)
    assert list(found) == [8, 1024, 4194304], "64 B was a broadcast's"
    assert found[8] == {"algorithm": "ring", "protocol": "LL", "channels": 1, "expected": pytest.approx(22e-6 + 8 / 0.4e9)}
    # What NCCL was forced to is not what it expects to be fastest; a tree of 1 KiB reaches 0.9 of its bandwidth.
    assert found[1024]["expected"] == pytest.approx(64e-6 + 1024 / (0.9 * 0.6e9))
    # Between nodes NCCL counts 1.4 times the latency of a long ring of the Simple protocol.
    assert found[4194304]["expected"] == pytest.approx(1.4 * 92e-6 + 4194304 / 0.8e9)
    assert found[4194304]["channels"] == 2
    assert on_gpu.choices_in(LOG[LOG.index(HOST + "AllReduce: 8 ") :], [8], capability=90)[8]["expected"] is None


def test_times_are_taken_without_the_log_and_choices_with_it(monkeypatch):
    table = pandas.DataFrame({"size": [8, 512], "time": 1e-5, "low": 9e-6, "high": 2e-5, "wrong": 0})
    table.attrs["settings"] = "as ever"
    logs, sweeps = ["an NCCL of another time", LOG], []

    def sweep(stage, sizes, budget, NCCL_DEBUG_FILE=None, **environment):
        sweeps.append(environment)
        if NCCL_DEBUG_FILE:
            Path(NCCL_DEBUG_FILE.replace("%p", "4711")).write_text(logs.pop())
        return table

    monkeypatch.setattr(on_gpu, "_sweep", sweep)
    stage = SimpleNamespace(backend="nccl", found=[{"capability": 90}])
    rows, settings = on_gpu.choices(stage)
    assert [(row["size"], row["time"], row.get("algorithm")) for row in rows] == [(8, 1e-5, "ring"), (512, 1e-5, None)]
    assert sweeps == [{}, nccl.DEBUG] and settings["choice"] == "of a second run, with NCCL's log on"
    rows, settings = on_gpu.choices(stage)
    assert all(row["time"] > 0 and "algorithm" not in row for row in rows), "a log that nobody can read costs no times"
    assert settings["choice"].startswith("not read: read_tuning found neither")


# -- what pages take -----------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recording_that_is_still_to_be_made_says_so_in_one_sentence(tmp_path, name):
    missing = recording(name, tmp_path)
    made_by = "`make gpu-record` on a machine with an NVIDIA GPU"
    assert not missing and str(missing) == f"{RECORDINGS[name][0]}:\nthis recording is still to be made, by {made_by}."


def test_a_recording_prints_its_source_and_its_rows_with_units(tmp_path):
    recordings.write("streams", ROWS, TOLD, tmp_path)
    made = recording("streams", tmp_path)
    assert made and made.provenance == TOLD and made.frame["done"].tolist() == [0.502, 2e-3]
    assert str(made).splitlines() == [
        "What the host waits for, and what the stream, over NCCL.",
        "Recorded 2030-02-03 with 4 ranks that share 1 a GPU, NCCL 2.29.7, PyTorch 2.13.0, CUDA",
        "13.0, driver 1.2, by `make gpu-record`.",
        "              case   size   late returned waited events   done",
        "      all_reduce() 64 KiB 500 ms    20 µs      - 501 ms 502 ms",
        "async, then wait() 64 KiB   0 ns    20 µs  30 µs   1 ms   2 ms",
    ]


def test_the_pairing_programs_are_shown_a_line_each_and_fit_on_a_page():
    lines = str(recording("pairing")).splitlines()
    assert ["program", "lazy", "eager", "connected"] in [line.split() for line in lines]
    assert max(map(len, lines)) <= 95, "what a page of 1,280 pixels shows of a line"
    assert "in both calls" in lines[[line.split()[:2] for line in lines].index(["batch", "meets"])]
    told = {
        name: re.split(" {2,}", line.removeprefix(name).strip())
        for line in lines
        for name in PROGRAMS
        if line.startswith(name + "  ")
    }
    assert list(told) == list(PROGRAMS)
    assert told["ring: send, then recv"] == ["in send", "in send", "ends"]
    assert told["swap: isend and irecv, not batched"] == ["fails", "in isend", "ends"]
    assert told["two tags, received in the other order"] == ["wrong data"] * 3
    assert told["two groups in two orders, used before"] == ["ends or in barrier", "ends", "ends"]
    assert told["4 numbers sent, 2 received"] == ["at the read", "at the read", "-"]
    assert "Messages of 64 MiB, 15 cases: the same for the programs that were run." in lines


def test_a_long_message_that_came_out_otherwise_is_told(tmp_path):
    rows = [
        {"program": "p", "way": "lazy", "numbers": n, "verdict": v, "ranks": "0: at the read"}
        for n, v in ((1, "ends"), (256, "hangs"))
    ]
    recordings.write("pairing", rows, TOLD, tmp_path)
    assert "Messages of 1 KiB, 1 case: the same but for p, lazy: at the read." in str(recording("pairing", tmp_path))


def test_a_file_that_is_no_recording_of_nccl_on_a_gpu_is_refused(tmp_path):
    whole = recordings.write("streams", ROWS, TOLD, tmp_path).read_text()

    def refuses(pattern, old, new):
        assert old in whole
        recordings.path_of("streams", tmp_path).write_text(whole.replace(old, new))
        with pytest.raises(UsageError, match=pattern):
            recording("streams", tmp_path)

    refuses("not measured on a GPU", '# kind: "GPU"', '# kind: "dry run"')
    refuses("ran over gloo", '"nccl"', '"gloo"')
    refuses("does not say gpus:", '["a GPU"]', "[]")
    for key in PROVENANCE[1:]:
        refuses(f"does not say {key}:", f"# {key}: ", f"# {key}? ")
        refuses(f"does not say {key}:", re.search(f"# {key}: .*", whole)[0], f"# {key}: null")
    refuses("has other columns", "returned", "came")
    refuses("the file ends in the middle of a line", "0.002\n", "0.0")
    refuses("line 18: late is 'x'", "0.0,", "x,")
    refuses("does not begin with the line '# ringtree recording'", "# ringtree recording\n", "")
    with pytest.raises(UsageError, match="there is no recording 'stream': give one of notebooks, order"):
        recording("stream")


def test_every_recording_that_is_here_can_be_shown():
    here = {path.stem for path in recordings.FOLDER.glob("*")}
    assert here <= set(RECORDINGS), "only recordings lie in their folder"
    for name in RECORDINGS:
        assert bool(recording(name)) == (name in here) and str(recording(name))


def test_a_new_recording_makes_the_pages_run_their_cells_again(monkeypatch, tmp_path):
    monkeypatch.setattr(executed, "ROOT", tmp_path)
    before = executed.reached(tmp_path / "a run that reached nothing")
    recordings.write("streams", ROWS, TOLD, tmp_path / recordings.FOLDER.relative_to(ROOT))
    assert executed.reached(tmp_path / "a run that reached nothing") != before
