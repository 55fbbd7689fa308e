"""`python -m ringtree.measure`: what it takes, in nccl-tests' words too, what it says, and what it writes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ringtree import measure
from ringtree.command import measure as command
from ringtree.errors import UsageError
from ringtree.measure import call, logs, nccl_options


def shell(*arguments, **options):
    return subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=60, **options)


def test_the_command_starts_ranks_prints_and_writes(tmp_path):
    import pandas

    (tmp_path / "rings.py").write_text("def mine(tensor, dist):\n    dist.all_reduce(tensor)\n")
    done = shell(
        "ringtree.measure",
        "all_reduce",
        "--program",
        "rings:mine",
        "--ranks",
        "2",
        "--min",
        "8",
        "--max",
        "1K",
        "--step-factor",
        "4",
        "--budget",
        "0.02",
        "--csv",
        "t.csv",
        "--json",
        "t.json",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    found = logs.read(tmp_path / "t.csv")
    assert found["size"].tolist() == [8, 32, 128, 512] and set(found["program"]) == {"mine"}
    pandas.testing.assert_frame_equal(found, logs.read(tmp_path / "t.json"), check_exact=True)
    printed = [line for line in done.stdout.splitlines() if not line.startswith("# written")]
    assert "\n".join(printed) == measure.table_text(found)
    assert json.loads((tmp_path / "t.json").read_text())["attrs"]["ranks"] == 2


def test_inside_torchrun_the_command_joins_the_group():
    done = shell(
        "torch.distributed.run",
        "--nproc_per_node",
        "2",
        "-m",
        "ringtree.measure",
        "broadcast",
        "-e",
        "16",
        "--budget",
        "0.02",
        "--root",
        "1",
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    expected = [(size, "1", place) for size in ("8", "16") for place in ("out", "in")]
    assert [(each[0], each[4], each[5]) for each in rows] == expected, "one rank prints"
    assert done.stderr.count("# joining 2 ranks for 4 measurements of 2 sizes, 8 B to 16 B") == 1


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["all_reduce", "--min", "1X"], "--min 1X: give a number of bytes, such as 8, 64K"),
        (["all_reduce", "--program", "mine"], "give a module and a function"),
        (["all_reduce", "--program", "no_such_module:mine"], "there is no module 'no_such_module'"),
        (["all_reduce", "--program", "math:mine"], "module math has no 'mine'"),
        (["all_reduce", "--csv", "table.txt"], "--csv table.txt: give a name that ends in .csv"),
    ],
)
def test_the_command_refuses_in_one_sentence_with_exit_code_2(given, sentence, capsys):
    with pytest.raises(SystemExit) as caught:
        command.main(given)
    assert caught.value.code == 2
    assert sentence in capsys.readouterr().err


def test_letters_of_the_command_are_powers_of_two():
    assert [command.byte_count(text, "--max") for text in ("8", "64K", "1m", "2G")] == [8, 1 << 16, 1 << 20, 1 << 31]


# ---------------------------------------------------------------- in nccl-tests' words


def planned(*given):
    """The jobs that a command line makes, and what it says before."""
    options = command.arguments().parse_args(given)
    notes = nccl_options.understood(options)
    settings = {"warmup": options.warmup, "calls": options.calls, "budget": options.budget, "stable": options.stable}
    settings |= {"check": options.check != 0, "of": None, "link": None}
    return command._jobs(options.collective, options, command._Planned(options), settings), options, notes


def test_sizes_grow_by_a_factor_or_by_steps():
    for given, sizes in (
        (["-b", "8", "-e", "128"], [8, 16, 32, 64, 128]),
        (["--minbytes", "1K", "--maxbytes", "1M", "--stepfactor", "32"], [1 << 10, 1 << 15, 1 << 20]),
        (["-b", "1K", "-e", "4K", "-i", "1K"], [1024, 2048, 3072, 4096]),
        (["-b", "1.5K", "-e", "2K", "--stepbytes", "256"], [1536, 1792, 2048]),
    ):
        assert list(dict.fromkeys(size for size, _ in planned("all_reduce", *given)[0])) == sizes


def test_each_size_is_measured_out_of_place_and_in_place_where_both_are_there():
    for what, places in (
        ("all_reduce_perf", [False, True]),
        ("all_gather_into_tensor", [False, True]),
        ("all_gather", [False]),
        ("all_to_all_single", [False]),
        ("ring_all_reduce", [None]),
        ("barrier", [None]),
    ):
        jobs, _, _ = planned(what, *([] if what == "barrier" else ["-e", "64", "-b", "32"]))
        assert [own["in_place"] for _, own in jobs] == places * (1 if what == "barrier" else 2), what
    assert [own["in_place"] for _, own in planned("all_reduce", "-e", "8", "--no-in-place")[0]] == [False]


def test_all_types_and_operations_that_go_together():
    jobs, _, _ = planned("all_reduce", "-d", "all", "-o", "all", "-b", "8", "-e", "8", "--in-place")
    pairs = [(own["dtype"], own["op"]) for _, own in jobs]
    floats = ("half", "bfloat16", "float", "double")
    assert set(pairs) == {
        (dtype, op) for dtype in call.TYPES for op in ("sum", "prod", "min", "max", "avg") if op != "avg" or dtype in floats
    }
    assert [own["root"] for _, own in planned("broadcast", "-r", "all", "-e", "8", "--in-place")[0]] == [0, 1, 2, 3]


def test_numbers_of_ranks_calls_and_checks_mean_the_same():
    for given, wanted in (
        (["-g", "3"], ("ranks", 3)),
        (["-t", "2", "-g", "4"], ("ranks", 8)),
        (["-c", "0"], ("check", 0)),
        (["-c", "20"], ("check", 20)),
        (["--check"], ("check", 1)),
        (["--no-check"], ("check", 0)),
        (["--iters", "7"], ("calls", 7)),
        (["-z", "1"], ("calls", 1)),
        (["-w", "0"], ("warmup", 0)),
        (["--warmup_iters", "3"], ("warmup", 3)),
        (["-T", "9"], ("timeout", 9.0)),
        (["-J", "x.json"], ("json", "x.json")),
        (["--root", "2"], ("root", "2")),
        (["--op", "max"], ("op", "max")),
    ):
        options = command.arguments().parse_args(["reduce", *given])
        nccl_options.understood(options)
        assert getattr(options, wanted[0]) == wanted[1], given


@pytest.mark.parametrize("option", nccl_options.ANSWERED, ids=lambda option: option.name)
def test_every_other_option_of_nccl_tests_is_answered_in_one_sentence(option):
    for name in (option.letter, f"--{option.name}"):
        for value in option.harmless:
            assert nccl_options.understood(command.arguments().parse_args(["all_reduce", name, value])) == []
        options = command.arguments().parse_args(["all_reduce", name, "7"])
        if option.goes_on:
            said = nccl_options.understood(options)[0]
        else:
            with pytest.raises(UsageError) as caught:
                nccl_options.understood(options)
            said = str(caught.value)
        assert said.startswith(f"{option.letter} 7: ") and "\n" not in said


# Every option of nccl-tests 2.19: src/common.cu, longopts.
OF_NCCL_TESTS = """t nthreads g ngpus b minbytes e maxbytes i stepbytes f stepfactor n iters m agg_iters w warmup_iters
N run_cycles p parallel_init c check o op d datatype r root z blocking y stream_null T timeout G cudagraph C report_cputime
S report_timestamps J output_file a average R local_register x cta_policy D device_implementation V device_cta_count M memory
u unalign I per_iter_timing K per_iter_skip h help""".split()


def test_no_option_of_nccl_tests_is_unknown():
    known = {name for action in command.arguments()._actions for name in action.option_strings}
    assert {f"-{each}" if len(each) == 1 else f"--{each}" for each in OF_NCCL_TESTS} <= known


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["-f", "1"], "-f 1: sizes would not grow: give a factor of 2 or more, or steps of equal size with -i"),
        (["-f", "x"], "argument -f/--step-factor/--stepfactor: invalid int value: 'x'"),
        (["-i", "0"], "-i 0: give a step of 1 byte or more"),
        (["-i", "8", "-f", "2"], "-i and -f were given: give one of them"),
        (["-b", "1M", "-e", "1K"], "--min is 1048576 bytes and --max 1024"),
        (["-o", "mulsum"], "-o mulsum multiplies"),
        (["-d", "f8e4m3", "--backend", "gloo"], "gloo has no f8e4m3"),
        (["-d", "uint128"], "dtype='uint128' cannot be measured: give one of int8"),
        (["-r", "first"], "-r first: give the number of a rank, or all"),
        (["-r", "1"], "all_reduce has no root"),
        (["-g", "8", "--ranks", "4"], "-t times -g are 8 ranks and --ranks is 4"),
        (["-g", "0"], "-g 0: give how many, 1 or more"),
        (["--ranks", "0"], "--ranks 0: give how many, 1 or more"),
        (["-z", "2"], "-z 2: ranks meet before every batch here"),
        (["-z", "1", "-n", "5"], "-z 1 times every call alone and -n 5"),
        (["-G", "1"], "-G 1: nothing is captured in a CUDA graph here"),
        (["--no-such"], "unrecognized arguments: --no-such: see --help"),
    ],
)
def test_what_cannot_be_asked_is_answered_in_one_line(given, sentence, capsys):
    with pytest.raises(SystemExit) as caught:
        command.main(["all_reduce", *given])
    said = capsys.readouterr().err
    assert caught.value.code == 2 and sentence in said and said.count("\n") == 1


def test_copies_that_a_launcher_starts_are_told_to_use_torchrun(monkeypatch, capsys):
    for rank, size in command.LAUNCHERS.items():
        for mine in "01" if size else "":
            with monkeypatch.context() as patch, pytest.raises(SystemExit) as caught:
                patch.setenv(rank, mine)
                patch.setenv(size, "8")
                command.main(["all_reduce"])
            said = capsys.readouterr().err
            assert caught.value.code == 2
            assert said.count("8 copies of this command were started") == (mine == "0"), "one of them says it"


def test_inside_torchrun_a_process_is_one_rank_as_with_g_1(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    options = command.arguments().parse_args(["all_reduce", "-g", "1"])
    assert nccl_options.understood(options) == [] and options.ranks is None
    with pytest.raises(UsageError, match="-t times -g are 8 and every process of torchrun is one rank"):
        nccl_options.understood(command.arguments().parse_args(["all_reduce", "-g", "8"]))


def test_it_says_what_it_is_doing_before_the_ranks_are_up():
    running = subprocess.Popen(
        [sys.executable, "-m", "ringtree.measure", "all_reduce", "-g", "2", "-e", "16", "-p", "1", "--budget", "0.02"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    said = [running.stderr.readline(), running.stderr.readline()]
    assert said == [
        "# -p 1: every rank is a process of its own, and they start at the same time anyway\n",
        "# starting 2 ranks over Gloo for 4 measurements of 2 sizes, 8 B to 16 B\n",
    ]
    printed, _ = running.communicate(timeout=60)
    assert running.returncode == 0
    table = logs.read(printed)
    assert table["in_place"].tolist() == [False, True] * 2 and table["size"].tolist() == [8, 8, 16, 16]
