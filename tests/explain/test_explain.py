"""`python -m ringtree.explain`: what it reads, what it says, and what it refuses to say."""

import re

import numpy as np
import pandas as pd
import pytest

from ringtree import Link, Machine, data, theory
from ringtree.command.explain import arguments, main
from ringtree.errors import UsageError
from ringtree.explain import Explanation, anomalies, explain, nearest, wires
from ringtree.explain.expectations import capability_of, expectation
from ringtree.explain.limits import limits
from ringtree.explain.reading import Sweep

V100 = ["v100_n1_p4", "v100_n2_p8", "v100_n4_p16", "v100_n8_p32", "v100_n16_p64"]
TITLES = [
    "What was read",
    "The fitted machine",
    "Measured, fitted, and NCCL's own model",
    "Where the library changed its way, and where it took a slow one",
    "busbw, and what it means on each wire",
    "The nearest published machine",
    "Twice and four times the nodes",
    "Which program is quickest, by the gap between messages",
    "What these logs cannot say",
]


def log_of(sizes, times, ranks, nodes, program="all_reduce", gpu="Tesla V100-SXM2-16GB", wrong=()):
    """The text that nccl-tests prints for such times."""
    cards = ranks // nodes
    devices = [
        f"#  Rank {rank:2} Group  0 Pid {700 + rank} on node{rank // cards} device {rank % cards} [0000:01:00] {gpu}"
        for rank in range(ranks)
    ]
    factor = 2 * (ranks - 1) / ranks if program == "all_reduce" else 1.0
    rows = []
    for size, time in zip(map(int, sizes), times):
        half = f"{time * 1e6:.2f} {size / time / 1e9:.2f} {size / time / 1e9 * factor:.2f} {3 if size in wrong else 0}"
        rows.append(f"{size:12} {size // 4:12} float sum -1 {half} {half}")
    return "\n".join([
        "# nccl-tests version 2.17.6 nccl-headers=22809 nccl-library=22809",
        f"# Collective test starting: {program}_perf",
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 33554432 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1",
        "# Using devices",
        *devices,
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)",
        *rows,
        "# Out of bounds values : 0 OK",
        "# Avg bus bandwidth    : 1.25",
        "",
    ])


def osu_log(sizes, times, test="Allreduce"):
    rows = [f"{int(size):<10} {time * 1e6:20.2f}" for size, time in zip(sizes, times)]
    return "\n".join([f"# OSU MPI {test} Latency Test v7.4", "# Size       Avg Latency(us)", *rows, ""])


@pytest.fixture
def logs(tmp_path):
    """The published V100 runs as logs of nccl-tests."""
    paths = []
    for name in V100:
        run = data.run(name)
        path = tmp_path / f"{name}.log"
        path.write_text(log_of(*data.sweep(name), run.ranks, run.nodes))
        paths.append(str(path))
    return paths


@pytest.fixture(scope="module")
def v100():
    return explain(*V100, nics=2)


def sweep_of(times, sizes=None, ranks=16, nodes=4, **more):
    sizes = 2.0 ** np.arange(3, 3 + len(times)) if sizes is None else sizes
    more = {"collective": "all_reduce", "tool": "nccl-tests", **more}
    return Sweep("a.log", ranks=ranks, nodes=nodes, sizes=np.array(sizes), times=np.array(times), **more)


# ---- the command


def test_the_command_prints_every_part_in_order_and_no_line_is_wider_than_100(logs, capsys):
    assert main([*logs, "--nics", "2"]) == 0
    text = capsys.readouterr().out
    assert [line for line in text.splitlines() if line in TITLES] == TITLES
    assert max(map(len, text.splitlines())) <= 100
    assert "v100_n16_p64.log" in text and re.search(r"64 +16 +V100-SXM2-16GB +nccl-tests 2.17.6 +2.28.9", text)


def test_long_names_and_many_worlds_stay_within_100(tmp_path):
    paths = []
    for name in ("gh200_n1_p4", "gh200_n2_p8", "gh200_n256_p1024", "gh200_n512_p2048"):
        run, path = data.run(name), tmp_path / f"a-job-with-a-long-name-and-a-number-{name}-0123456789.log"
        path.write_text(log_of(*data.sweep(name), run.ranks, run.nodes, gpu="NVIDIA GH200 120GB HBM3 with a long name"))
        paths.append(str(path))
    text = str(explain(*paths, nics=4))
    assert max(map(len, text.splitlines())) <= 100


def test_logs_say_the_same_as_the_published_runs_that_they_are_of(logs):
    mine, published = explain(*logs), explain(*V100)
    assert [(one.ranks, one.nodes, one.cards) for one in mine.sweeps] == [
        (one.ranks, one.nodes, one.cards) for one in published.sweeps
    ]
    for one, other in zip(mine.sweeps, published.sweeps):
        assert one.times == pytest.approx(other.times, rel=0.01)
    hop = [report.fits[0].machine.model.protocols[0].hop_between for report in (mine, published)]
    assert hop[0] == pytest.approx(hop[1], rel=0.05)


def test_without_logs_it_says_how_to_make_them(capsys):
    assert main([]) == 0
    text = capsys.readouterr().out
    for needed in (
        "mpirun -np 8 ",
        "mpirun -np 16 ",
        "mpirun -np 32 ",
        "srun -N 1 ",
        "srun -N 2 ",
        "srun -N 4 ",
        "osu_allreduce",
    ):
        assert needed in text
    assert max(map(len, text.splitlines())) <= 100
    published = next(line for line in text.splitlines() if "v100_n1_p4" in line)
    assert set(re.findall(r"v100_\w+", published)) <= set(data.runs())


def test_a_log_that_cannot_be_read_is_named_and_the_others_are_explained(logs, tmp_path, capsys):
    (tmp_path / "letter.log").write_text("Dear reader,\nthis is no log.\n")
    assert main([*logs[:2], str(tmp_path / "letter.log"), str(tmp_path / "none.log")]) == 2
    said = capsys.readouterr()
    assert "8 ranks on 2 nodes" in said.out and "letter.log could not be used" in said.out
    lines = said.err.splitlines()
    assert len(lines) == 2 and lines[0].startswith("letter.log") and lines[1].startswith("none.log")


@pytest.mark.parametrize(
    "options, sentence",
    [
        (["--nodes", "1,2"], "--nodes gives 2 numbers for 1 log"),
        (["--nodes", "3"], "as many ranks on every node"),
        (["--html", "no/such/folder/page.html"], "there is no folder"),
        (["--html", "."], "is a folder"),
        (["--nccl-log", "none.log"], "--nccl-log none.log cannot be read"),
        (["--collective", "all_shout"], "all_shout"),
        (["--ranks", "0"], "not a whole number"),
        (["--gap", "0.3"], "'0.3' is not a time below 1 ms: give one with its unit, such as 0.3us or 300ns"),
        (["--gap", "soon"], "'soon' is not a time below 1 ms"),
        (["--gap=-1us"], "'-1us' is not a time below 1 ms"),
        (["--gpus-per-node", "two"], "not a whole number"),
    ],
)
def test_what_is_given_wrongly_is_one_sentence_and_exit_code_2(logs, capsys, options, sentence):
    with pytest.raises(SystemExit) as left:
        main([logs[1], *options])
    assert left.value.code == 2
    said = capsys.readouterr()
    assert sentence in said.err and "Traceback" not in said.err and not said.out


def test_what_osu_does_not_say_is_asked_for_one_by_one(tmp_path, capsys):
    path = tmp_path / "osu.log"
    path.write_text(osu_log(*data.sweep("osu_vnode_host_allreduce_n4_p16")))
    for options, asked in (([], "--ranks"), (["--ranks", "16"], "--nodes or --gpus-per-node")):
        with pytest.raises(SystemExit):
            main([str(path), *options])
        assert asked in capsys.readouterr().err
    assert main([str(path), "--ranks", "16", "--gpus-per-node", "4"]) == 0
    assert "16 ranks on 4 nodes" in capsys.readouterr().out


def test_numbers_are_given_once_for_all_logs_or_once_for_each(tmp_path):
    paths = []
    for nodes in (2, 4):
        paths.append(str(tmp_path / f"{nodes}.log"))
        (tmp_path / f"{nodes}.log").write_text(osu_log(*data.sweep(f"osu_vnode_host_allreduce_n{nodes}_p{4 * nodes}")))
    report = explain(*paths, ranks=[8, 16], nodes=[2, 4])
    assert [(one.ranks, one.nodes) for one in report.sweeps] == [(8, 2), (16, 4)]
    assert [(one.ranks, one.nodes) for one in explain(*paths, ranks=[8, 16], gpus_per_node=8).sweeps] == [(8, 1), (16, 2)]


def test_a_page_is_not_overwritten_unless_asked_to(logs, tmp_path, capsys):
    page = tmp_path / "cluster.html"
    page.write_text("mine")
    with pytest.raises(SystemExit):
        main([logs[0], "--html", str(page)])
    assert page.read_text() == "mine" and "--overwrite" in capsys.readouterr().err
    assert main([logs[0], "--html", str(page), "--overwrite"]) == 0
    assert page.read_text().startswith("<!doctype html>")


# ---- what was read


def test_times_with_wrong_elements_are_left_out_and_said(tmp_path):
    sizes, times = data.sweep("v100_n2_p8")
    (tmp_path / "a.log").write_text(log_of(sizes, times, 8, 2, wrong=(1 << 20,)))
    report = explain(str(tmp_path / "a.log"))
    assert 1 << 20 not in report.sweeps[0].sizes and len(report.sweeps[0].sizes) == len(sizes) - 1
    assert "wrong elements at 1 MiB" in str(report)


def test_times_are_out_of_place_where_there_are_both():
    table = pd.DataFrame({
        "collective": "all_reduce",
        "ranks": 8,
        "size": [8, 8, 16, 16],
        "in_place": [False, True] * 2,
        "time": [1.0, 9.0, 2.0, 9.0],
    })
    assert explain(table, nodes=1).sweeps[0].times.tolist() == [1.0, 2.0]
    only = explain(table[table.in_place], nodes=1)
    assert only.sweeps[0].times.tolist() == [9.0, 9.0] and "in place" in str(only)


def test_rows_of_no_bytes_stop_nothing():
    table = pd.DataFrame({"collective": "all_reduce", "ranks": 8, "size": [0, 8, 16], "time": [1e-5, 1e-5, 0.0]})
    report = explain(table, nodes=1)
    assert report.sweeps[0].sizes.tolist() == [8] and "2 rows of 0 bytes or 0 seconds" in str(report)
    with pytest.raises(UsageError, match="no row is left"):
        explain(table[:1], nodes=1)


def test_times_of_processes_on_cpus_are_named_so():
    table = pd.DataFrame({"collective": "all_reduce", "ranks": 8, "size": 2 ** np.arange(3, 12), "time": 1e-5})
    assert "say nothing about a GPU" not in explain(table, nodes=1).part("read")
    table.attrs = {"backend": "gloo", "tool": "ringtree.measure", "nccl": "2.28.9"}
    report = explain(table, nodes=1)
    assert "say nothing about a GPU" in report.part("read") and "not NCCL's" in report.part("beside")


def test_types_of_one_log_are_sweeps_of_their_own(tmp_path):
    text = log_of(*data.sweep("v100_n2_p8"), 8, 2)
    (tmp_path / "a.log").write_text(text)
    rows = [line for line in text.splitlines() if re.match(r" +\d", line)]
    halves = "\n".join(line.replace("float", " half") for line in rows)
    (tmp_path / "b.log").write_text(text.replace("# Out of", f"{halves}\n# Out of"))
    assert len(explain(str(tmp_path / "a.log")).sweeps) == 1
    both = explain(str(tmp_path / "b.log")).sweeps
    assert [one.kind for one in both] == ["float", "half"] and both[1].name == "b.log half"
    assert "another draw" not in " ".join(explain(str(tmp_path / "b.log")).part("ways").split())


def test_the_cpus_time_to_launch_is_no_time_of_a_collective(tmp_path):
    path = tmp_path / "a.log"
    path.write_text(log_of(*data.sweep("v100_n2_p8"), 8, 2).replace("    time ", " cputime "))
    with pytest.raises(UsageError, match="CPU's time to launch"):
        explain(str(path))


def test_a_forced_algorithm_that_nccl_names_is_fitted_as_that_algorithm(tmp_path):
    path, said = tmp_path / "a.log", "node0:1:1 [0] NCCL INFO NCCL_ALGO set by environment to Tree"
    path.write_text(f"{said}\n{log_of(*data.sweep('l40s_p4_tree'), 4, 1)}")
    report = explain(str(path))
    assert report.sweeps[0].algorithm == "tree" and set(report.fits[0].machine.misses.algorithm) == {"tree"}
    path.write_text(f"{said},Ring\n{log_of(*data.sweep('l40s_p4_tree'), 4, 1)}")
    assert explain(str(path)).sweeps[0].algorithm == ""


def test_logs_of_one_name_are_told_apart(tmp_path):
    paths = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "run.log"
        path.write_text(log_of(*data.sweep("v100_n2_p8"), 8, 2))
        paths.append(str(path))
    report = explain(*paths)
    assert len({sweep.name for sweep in report.sweeps}) == 2 and len(report.fits[0].machine.misses) == 48


# ---- what has no latency


def test_a_broadcast_timed_back_to_back_is_refused_a_latency_with_the_reason(tmp_path):
    sizes = 2.0 ** np.arange(3, 26)
    (tmp_path / "a.log").write_text(log_of(sizes, np.maximum(5e-6, sizes / 20e9), 16, 4, program="broadcast"))
    report = explain(str(tmp_path / "a.log"), nics=2)
    [fit] = report.fits
    assert fit.machine is None and "the root runs ahead" in fit.why_not and "no latency" in fit.why_not
    assert "20 GB/s" in report.part("wires"), "its bandwidth stands"
    assert "5 µs" not in report.part("machine")
    assert not report.expectations["a.log"].choices and "back to back" in report.expectations["a.log"].basis


def test_a_broadcast_timed_one_by_one_is_fitted(tmp_path):
    sizes = 2.0 ** np.arange(3, 24)
    path = tmp_path / "a.log"
    path.write_text(osu_log(sizes, 20e-6 + sizes / 10e9, test="Broadcast"))
    [fit] = explain(str(path), ranks=16, nodes=4).fits
    assert fit.collective == "broadcast" and fit.machine is not None


def test_a_collective_without_a_closed_form_says_so():
    table = pd.DataFrame({"collective": "all_to_all", "ranks": 8, "size": 2 ** np.arange(5, 12), "time": 1e-5})
    report = explain(table, nodes=2)
    assert "no closed form for all_to_all" in report.fits[0].why_not and "all_to_all: not predicted" in str(report)


# ---- slow ways


def test_a_longer_message_that_is_faster_is_a_slow_way():
    [worst, *_] = anomalies.slow(*data.sweep("gh200_n2_p8"))
    assert (worst.worst, worst.longer) == (2**20, 2**21) and worst.times_as_long == pytest.approx(6.7, abs=0.05)
    assert worst.sizes == (2**17, 2**18, 2**19, 2**20)
    assert anomalies.slow(*data.sweep("v100_n4_p16")) == []


def test_a_twentieth_faster_is_noise():
    sizes = np.array([8.0, 16, 32])
    assert anomalies.slow(sizes, np.array([10, 9.5, 9.4])) == []
    [found] = anomalies.slow(sizes, np.array([10, 8.9, 9.4]))
    assert found.sizes == (8,) and found.longer == 16


def test_a_time_that_rises_faster_than_the_size_is_a_leap():
    sizes = np.array([8.0, 16, 32, 64])
    assert anomalies.leaps(sizes, np.array([1.0, 2, 4, 8])) == []
    assert anomalies.leaps(sizes, np.array([1.0, 2, 6, 12])) == [(16, 32, 3)]


def test_a_bend_stands_where_another_line_becomes_the_fastest():
    sizes = 2.0 ** np.arange(3, 28)
    times = np.minimum(5e-6 + sizes / 1e9, 40e-6 + sizes / 50e9)
    [(before, size)] = anomalies.bends(sizes, times)
    assert before < 36e-6 / (1e-9 - 1 / 50e9) < 2 * size
    assert anomalies.bends(sizes, 5e-6 + sizes / 1e9) == []


def test_two_logs_of_one_world_show_another_draw():
    table = pd.DataFrame({"collective": "all_reduce", "ranks": 8, "size": 2 ** np.arange(3, 12), "time": 1e-5})
    slower = table.assign(time=np.where(table["size"] == 64, 3e-5, 1e-5))
    text = explain(table, slower, nodes=2).part("ways")
    assert "1.00 times as long" in text and "3.0 times at 64 B" in " ".join(text.split())


# ---- wires


def test_rings_carry_busbw_out_of_a_node_and_share_it_among_its_cards():
    one = wires.load(sweep_of([1e-3], [1e7]), nics=4)
    busbw = 1e10 * 2 * 15 / 16
    assert (one.busbw, one.out_of_node, one.nic, one.inside) == pytest.approx((busbw, busbw, busbw / 4, busbw * 3 / 4))
    alone = wires.load(sweep_of([1e-3], [1e7], ranks=8, nodes=1), nics=4)
    assert alone.out_of_node is None and alone.nic is None and alone.inside == alone.busbw


def test_an_all_to_all_sends_what_is_not_for_its_own_node_from_every_card():
    one = wires.load(sweep_of([1e-3], [1e7], collective="all_to_all"), nics=4)
    to_each_other = 1e7 / 16 / 1e-3
    assert one.out_of_node == pytest.approx(4 * 12 * to_each_other) and one.inside == pytest.approx(3 * to_each_other)


def test_half_of_the_highest_busbw_is_counted_up_to_the_highest():
    one = wires.load(sweep_of([1, 1, 1, 1, 64], [8, 16, 32, 64, 128]))
    assert (one.size, one.half) == (64, 32)


def test_without_nics_the_report_asks_for_them():
    assert "--nics N" in explain("v100_n2_p8").part("wires")
    assert "--nics N" not in explain("v100_n2_p8", nics=2).part("wires")
    assert "--nics N" not in explain("h200_p8").part("wires"), "nothing leaves the node"


# ---- NCCL's own model


def test_the_table_that_nccl_printed_counts_first():
    says, off = "node1:1:1 [0] NCCL INFO ", f"{0.0:8.1f}/{0.0:6.1f} |"
    printed = "\n".join([
        f"{says}comm 0x55 rank 0 nRanks 16 nNodes 4 localRanks 4 localRank 0 MNNVL 0",
        f"{says}  Algorithm   |" + "".join(f" {'':14} {name:>14} {'':14} |" for name in ("Tree", "Ring")),
        f"{says}  Protocol    |" + 2 * "".join(f" {name:>14} |" for name in ("LL", "LL128", "Simple")),
        f"{says}    AllReduce |{off * 3}{50.0:8.1f}/{1.0:6.1f} |{off * 2}",
        f"{says}4 coll channels, 0 nvls channels",
    ])
    found = expectation(sweep_of([1e-4, 1e-4], [8, 1e6], gpu="V100"), printed)
    assert found.basis.startswith("the table that NCCL printed")
    assert [choice.seconds for choice in found.choices] == pytest.approx([50e-6 + 8e-9, 50e-6 + 1e6 / 1e9])
    report = explain("v100_n4_p16", "v100_n2_p8", nccl_log=printed)
    assert "the table that NCCL printed" in report.part("beside")
    with pytest.raises(UsageError, match="neither NCCL's table nor what its search found"):
        explain("v100_n4_p16", nccl_log="nothing of use")
    other = expectation(sweep_of([1e-4, 1e-4], [8, 1e6], gpu="V100", ranks=8, nodes=2), printed)
    assert "assumed" in other.basis, "another world's table is not this one's"


def test_a_published_run_and_a_log_of_the_same_gpu_get_the_same_model():
    published = expectation(explain("v100_n4_p16").sweeps[0])
    assumed = expectation(sweep_of(*reversed(data.sweep("v100_n4_p16")), gpu="Tesla V100-SXM2-16GB", nccl="2.8.4"))
    assert [one.seconds for one in published.choices] == [one.seconds for one in assumed.choices]
    assert "assumed: links like those of V100 nodes" in assumed.basis


@pytest.mark.parametrize(
    "more, sentence",
    [
        ({"gpu": "NVIDIA GH200 120GB"}, "link speeds of NVIDIA GH200 120GB are not known"),
        ({"gpu": None}, "link speeds of this machine are not known"),
        ({"tool": "OSU micro-benchmarks", "gpu": "V100"}, "not NCCL's"),
        ({"tool": "rccl-tests", "nccl": "2.22.3", "gpu": "AMD Instinct MI300X"}, "not NCCL's"),
        ({"collective": "all_to_all", "gpu": "V100"}, "has no all_to_all"),
    ],
)
def test_where_nccl_has_no_model_the_reason_is_given(more, sentence):
    found = expectation(sweep_of([1e-4, 1e-4], **more))
    assert not found.choices and sentence in found.basis


def test_a_gpu_is_known_by_the_longest_of_its_names():
    assert [capability_of(name) for name in ("NVIDIA GH200 120GB", "Tesla V100-SXM2", "NVIDIA L40S", "abacus", None)] == [
        90,
        70,
        89,
        None,
        None,
    ]


# ---- the nearest published machine


def test_the_v100_cluster_is_nearest_to_itself_and_without_itself_to_its_sister(v100):
    machine = v100.fits[0].machine
    itself, *others = nearest.near(machine)
    assert itself.cluster.startswith("V100") and itself.factor < 1.02
    without = nearest.near(machine, without=V100)
    assert all(not one.cluster.startswith("V100") for one in without)
    assert without[0].cluster.startswith("A100") and without[0].factor == pytest.approx(1.6, abs=0.1)
    ratio = [np.log(mine / theirs) for mine, theirs in without[0].shared.values()]
    assert without[0].factor == pytest.approx(np.exp(np.sqrt(np.mean(np.square(ratio)))))
    assert "aistabci" in without[0].sources[0]


@pytest.mark.parametrize("cluster", ["A100, 4 HDR a node", "8 H200", "B200, 8 EFA a node", "4 L40S over PCIe"])
def test_the_stored_numbers_of_published_machines_are_those_of_a_fit(cluster):
    anew, stored = nearest.fit_published(cluster).loc[cluster], nearest._stored().loc[cluster]
    assert anew.isna().equals(stored.isna())
    assert stored.dropna().to_numpy(dtype=float) == pytest.approx(anew.dropna().to_numpy(dtype=float), rel=0.02)


def test_every_published_collective_run_is_of_one_stored_machine():
    runs = [name for name, run in data.runs().items() if run.operation in theory.COLLECTIVES]
    of = {name: [cluster for cluster in nearest.CLUSTERS if name.startswith(nearest.CLUSTERS[cluster])] for name in runs}
    assert all(len(clusters) == 1 for clusters in of.values()), of
    assert list(nearest._stored().index) == list(nearest.CLUSTERS)


# ---- more nodes, and what stays open


def test_forecasts_are_the_models_with_its_interval(v100):
    [fit] = v100.fits
    found = v100.forecasts()
    assert sorted({(one.ranks, one.nodes) for one in found}) == [(128, 32), (256, 64)]
    for one in found:
        low, high = fit.machine.interval("all_reduce", one.size, one.ranks, one.nodes)
        assert one.time == fit.machine.model.time("all_reduce", one.size, one.ranks, one.nodes)[0]
        assert (one.low, one.high) == (low[0], high[0]) and one.low < one.time < one.high
    assert f"{100 * theory.HELD['three or more']:.0f} %" in v100.part("more")


def test_from_one_node_nothing_is_said_of_several():
    report = explain("v100_n1_p4")
    assert report.forecasts() == [] and "nothing is known about the network" in report.part("more")
    said = " ".join(limits(report.fits[0]))
    assert "One world size" in said and "No log comes from several nodes" in said


@pytest.mark.parametrize(
    "runs, sentence, absent",
    [
        (["v100_n2_p8"], "One number of nodes above 1 (2)", "No log comes from several nodes"),
        (["v100_n2_p8", "v100_n4_p16"], "No log comes from a single node", "One world size"),
        (V100, "Every world has 4 cards a node", "No log comes from a single node"),
        (["a100_n1_p4", "a100_n1_p8", "a100_n2_p16"], "One number of nodes above 1 (2)", "Every world has"),
    ],
)
def test_what_the_logs_cannot_say_follows_from_which_worlds_there_are(runs, sentence, absent):
    said = " ".join(limits(explain(*runs).fits[0]))
    assert sentence in said and absent not in said


def test_a_busbw_that_still_rises_at_the_largest_size_is_said():
    assert "busbw on 64 ranks on 16 nodes still rises" in " ".join(limits(explain("v100_n8_p32", "v100_n16_p64").fits[0]))
    assert "still rises" not in " ".join(limits(explain("gh200_n4_p16", "gh200_n8_p32").fits[0]))


def test_an_explanation_prints_as_its_report(v100):
    assert isinstance(v100, Explanation) and repr(v100) == str(v100)
    assert [each.title for each in v100.sections] == TITLES
    assert str(v100) == "\n".join(v100.part(each.name) for each in v100.sections)
    assert all(each.blocks for each in v100.sections), "no part is empty"
    with pytest.raises(UsageError, match="no part 'all': give one of read, machine,"):
        v100.part("all")


def test_nothing_given_is_one_sentence():
    with pytest.raises(UsageError, match="no log was given"):
        explain()
    with pytest.raises(UsageError, match="nics=0"):
        explain("v100_n2_p8", nics=0)
    with pytest.raises(UsageError, match="ranks="):
        explain("v100_n2_p8", ranks=[8, 0])


# ---- the gap between messages


@pytest.fixture(scope="module")
def four_nodes():
    return explain("v100_n4_p16")


def verdicts_of(report, collective):
    return next(one for found in report.verdicts for one in found if one.collective == collective)


@pytest.mark.parametrize("text, seconds", [("0.3us", 3e-7), ("300 ns", 3e-7), ("3e-7", 3e-7), (".5µs", 5e-7), ("0", 0.0)])
def test_a_gap_is_given_in_seconds_or_with_a_unit(text, seconds):
    assert arguments().parse_args(["a.log", "--gap", text]).gap == pytest.approx(seconds)


def test_the_report_says_where_the_gap_is_from(four_nodes):
    given, text = explain("v100_n4_p16", gap=0.5e-6), " ".join(four_nodes.part("gap").split())
    assert "100 ns inside a node and 300 ns between nodes: assumed, as for the wires that this book describes" in text
    assert "the logs hold no all_to_all or scatter: give one, since in rings and trees every step waits for an arrival" in text
    assert {gap.source for gap in given.gaps.values()} == {"given"}
    assert "500 ns between nodes, as given with --gap." in " ".join(given.part("gap").split())
    for wrong in (-1.0, 1e-3, "0.3us", float("nan")):
        with pytest.raises(UsageError, match="gap="):
            explain("v100_n4_p16", gap=wrong)


def test_a_verdict_stands_at_both_gaps_and_turns_between_them(four_nodes):
    one = verdicts_of(four_nodes, "all_to_all")
    assert (one.ranks, one.nodes, one.gap) == (8, 2, theory.CARD_GAP)
    short = one.each[0]
    assert (short.textbook[0], short.wire[0]) == ("node_leaders_all_to_all", "two_level_direct_all_to_all")
    assert one.band == four_nodes.fits[0].machine.model.error
    gaps, leaders, direct = zip(*short.curve)
    assert gaps[0] == one.gap < short.turns < gaps[-1]
    assert direct[0] < leaders[0] and direct[-1] > leaders[-1]
    below, above = ([first > second for g, first, second in short.curve if (g < short.turns) == side] for side in (True, False))
    assert all(below) and not any(above[1:])


def test_the_verdict_at_a_given_gap_is_the_races_on_the_fitted_machine():
    report = explain("v100_n4_p16", gap=0.2e-6)
    model, one = report.fits[0].machine.model, verdicts_of(report, "all_reduce")
    for verdict in one.each:
        [(_, index)] = model.choice("all_reduce", verdict.size, 8, 2)
        run = theory.race("all_reduce", 8, [verdict.size], model.protocols[index].machine(4, 0.2e-6, model.error))
        assert verdict.wire == (run.winner(verdict.size), run.first(verdict.size).options[0], run.first(verdict.size).time[0])


def test_the_network_cards_of_a_node_share_its_bandwidth(four_nodes):
    report = explain("v100_n4_p16", nics=4)
    model, one = report.fits[0].machine.model, verdicts_of(report, "all_to_all")
    for verdict, alone in zip(one.each, verdicts_of(four_nodes, "all_to_all").each):
        [(_, index)] = model.choice("all_reduce", verdict.size, 8, 2)
        inside, between = (lambda m: (m.inside, m.between))(model.machine(model.protocols[index], 4))
        machine = Machine(inside, Link(between.alpha, 4 * between.beta, between.gap), 4, cards_per_node=4)
        assert verdict.wire[2] == pytest.approx(theory.cost_of(verdict.wire[0], 8, verdict.size, machine).time)
        assert verdict.wire[2] < alone.wire[2]
    four, one = (" ".join(each.part("gap").split()) for each in (report, four_nodes))
    assert "with 4 network cards a node." in four and "with one network card a node (--nics N)." in one


def test_a_gap_of_alpha_turns_nothing():
    one = verdicts_of(explain("v100_n4_p16", gap=0.9e-3), "all_reduce")
    assert [each.turns for each in one.each] == [None] * 3 and all(each.textbook == each.wire for each in one.each)


def all_to_alls(groups=(4, 8, 16), gap=0.25e-6):
    link, sizes = Link.of(3e-6, bandwidth=50e9, gap=gap), [1 << k for k in range(8, 22, 2)]
    for ranks in groups:
        times = [5e-6 + theory.cost_of("direct_all_to_all", ranks, size, link).time for size in sizes]
        yield pd.DataFrame({"collective": "all_to_all", "ranks": ranks, "size": sizes, "time": times})


def test_a_gap_in_all_to_alls_of_three_groups_is_inferred_and_said_so():
    report = explain("h200_p8", *all_to_alls(), nodes=1)
    gap = report.gaps["inside"]
    assert gap.source == "inferred" and gap.seconds == pytest.approx(0.25e-6, rel=1e-6)
    text = " ".join(report.part("gap").split())
    assert "g inside a node is 250 ns (250 ns to 250 ns), inferred from the all_to_all on 4, 8, 16 ranks" in text
    assert verdicts_of(report, "all_reduce").gap == pytest.approx(0.25e-6, rel=1e-6)
    two = explain("h200_p8", *all_to_alls((4, 8)), nodes=1)
    assert two.gaps["inside"].source == "described" and "three group sizes or more" in " ".join(two.part("gap").split())


def test_where_there_is_no_verdict_the_reason_is_given():
    assert "all_to_all: no verdict: no machine is fitted" in explain(*all_to_alls(), nodes=1).part("gap")
    assert "two ranks have one program" in explain("osu_vnode_prc_latency").part("gap")
