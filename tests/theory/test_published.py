"""The published measurements."""

import numpy as np
import pytest

from ringtree import data
from ringtree.collectives import bus_factor
from ringtree.errors import UsageError


def test_there_are_33_runs_each_with_its_source():
    runs = data.runs()
    assert len(runs) == 33
    for name, run in runs.items():
        assert run.name == name
        assert run.source and run.tool and run.gpu and run.operation
        assert run.ranks >= 2 and 1 <= run.nodes <= run.ranks


def test_28_more_give_a_single_size_and_are_asked_for_by_name():
    single = {name: run for name, run in data.runs(1).items() if name not in data.runs()}
    assert len(single) == 28
    for name, run in single.items():
        (size,), (seconds,) = data.sweep(name)
        assert size in (2**32, 2**33, 2**34) and 0.01 < seconds < 0.1
        assert data.run(name) is run and run.source.startswith("stas00/ml-engineering")
    assert not set(single) & set(data.samples().run)


# As they are printed in the source, GB/s of busbw.
PRINTED = {
    "h200_8gib_p4": 363.3,
    "h200_8gib_p8": 473.1,
    "h200_8gib_p8_ring": 365.6,
    "b200_8gib_p5": 677.8,
    "b200_8gib_p6": 778.2,
    "b200_8gib_p6_ring": 677.8,
    "h200_16gib_p8": 480.0,
    "h200_16gib_p8_ring": 367.2,
    "h200_16gib_p8_all_gather": 361.4,
    "h200_16gib_p8_reduce_scatter": 362.9,
    "h200_p8_ring": 367.61,
    "h200_n4_p32": 364.87,
    "h200_n4_p32_nvlstree": 310.07,
}


@pytest.mark.parametrize("name", PRINTED)
def test_a_single_size_gives_the_printed_busbw(name):
    run, (size,), (seconds,) = data.run(name), *data.sweep(name)
    assert bus_factor(run.operation, run.ranks) * size / seconds / 1e9 == pytest.approx(PRINTED[name], rel=1e-5)


def test_nvls_gains_from_five_h200_and_from_six_b200_and_more_with_each():
    for gpu, first in ("h200", 5), ("b200", 6):
        gains = {p: data.sweep(f"{gpu}_8gib_p{p}_ring")[1][0] / data.sweep(f"{gpu}_8gib_p{p}")[1][0] for p in range(4, 9)}
        assert all(abs(gains[p] - 1) < 2e-3 for p in gains if p < first)
        assert [gains[p] for p in range(first, 9)] == sorted(gains[p] for p in range(first, 9)) and gains[first] > 1.13
        picked = {p: data.run(f"{gpu}_8gib_p{p}").note.split(";")[0].split(",")[0] for p in gains}
        assert picked == {p: f"NCCL picked {'NVLS' if p >= first else 'Ring'}" for p in gains}


def test_labels_are_short_and_differ():
    labels = [run.label for run in data.runs().values()]
    assert len(set(labels)) == len(labels)
    assert max(map(len, labels)) < 40
    assert data.run("h200_p8").label == "8 × H200"
    assert data.run("h100_aws_n2_p16").label == "16 × H100, 2 nodes"
    assert data.run("gh200_n512_p2048").label == "2048 × GH200, 512 nodes"


@pytest.mark.parametrize("name", data.runs())
def test_sweeps_are_in_bytes_and_seconds_smallest_first(name):
    sizes, times = data.sweep(name)
    assert len(sizes) == len(times) >= 18
    assert sizes.dtype == np.int64 and np.all(np.diff(sizes) > 0)
    assert np.all(times > 1e-7) and np.all(times < 10)


def test_numbers_that_the_facts_name():
    sizes, times = data.sweep("v100_n2_p8")
    assert times[sizes == 8][0] == pytest.approx(17.93e-6)
    ring, tree = data.sweep("l40s_p4_ring"), data.sweep("l40s_p4_tree")
    mebibyte = ring[0] == 2**20
    assert tree[1][mebibyte][0] / ring[1][mebibyte][0] == pytest.approx(2.8, abs=0.1)
    sizes, times = data.sweep("h200_p8")
    assert (1.75 * sizes / times).max() == pytest.approx(482e9, rel=0.01)


def test_the_readers_copy_is_her_own():
    data.runs().clear()
    data.sweep("h200_p8")[1][:] = 0
    assert len(data.runs()) == 33 and data.sweep("h200_p8")[1].min() > 0


def test_an_unknown_run_is_answered_with_the_nearest_names():
    for ask in (data.run, data.sweep):
        with pytest.raises(UsageError, match="h200_p8"):
            ask("h200")
        with pytest.raises(UsageError, match="data.runs"):
            ask("no such thing at all")


def test_samples_hold_each_runs_sweep_with_its_world():
    table = data.samples("v100_n4_p16", "l40s_p4_tree", "osu_vnode_gpu_latency")
    assert table.run.unique().tolist() == ["v100_n4_p16", "l40s_p4_tree", "osu_vnode_gpu_latency"]
    for name, rows in table.groupby("run"):
        sizes, times = data.sweep(name)
        assert rows["size"].tolist() == sizes.tolist() and rows.time.tolist() == times.tolist()
    first = table.drop_duplicates("run").set_index("run")
    assert first.collective.tolist() == ["all_reduce", "all_reduce", "send_recv"]
    assert first.algorithm.tolist() == ["", "tree", ""]
    assert first[["ranks", "nodes"]].to_numpy().tolist() == [[16, 4], [4, 1], [2, 2]]


def test_without_names_all_runs_are_sampled():
    assert data.samples().run.unique().tolist() == list(data.runs())


def test_a_sample_of_no_run_names_the_nearest():
    with pytest.raises(UsageError, match="v100_n4_p16"):
        data.samples("v100_n4_p17")
