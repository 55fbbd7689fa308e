"""How many ranks ran: a log's own bandwidths against what it lists and what the caller says."""

from __future__ import annotations

import random
import warnings

import pytest
from helpers.log_texts import devices, gathered, new_log, osu

from ringtree.collectives import bus_factor
from ringtree.measure import logs


def log_of(ranks, collective="all_reduce", largest=1 << 30, listed=None, seed=1):
    """A log whose bandwidths are those of so many ranks, at 300 GB/s or so, rounded as nccl-tests rounds."""
    draw, rows = random.Random(seed), []
    for size in (1 << power for power in range(20, largest.bit_length())):
        halves = []
        for _ in range(2):
            time = size / (draw.uniform(0.2, 1) * 200e3)
            algbw = size / time / 1e3
            halves.append(f"{time:7.2f} {algbw:.2f} {algbw * bus_factor(collective, ranks):.2f} 0")
        count = size // 4 // (ranks if collective in ("all_gather", "all_to_all") else 1)
        rows.append(f"{size} {count} float none -1 {' '.join(halves)}")
    return "\n".join([
        f"./{collective}_perf",
        *devices(ranks if listed is None else listed),
        *rows,
        "# Avg bus bandwidth : 1",
        "",
    ])


def silently(text, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return logs.read(text, **options)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8, 12, 16, 24, 64])
@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather"])
def test_the_factor_gives_the_ranks(ranks, collective):
    with pytest.warns(UserWarning, match=f"the bandwidths are those of {ranks} ranks?, which is used"):
        assert logs.read(log_of(ranks, collective, listed=0)).attrs["ranks"] == ranks
    assert silently(log_of(ranks, collective)).attrs["ranks"] == ranks


def test_a_list_of_devices_that_was_shortened_is_told_and_the_bandwidths_are_believed():
    with pytest.warns(UserWarning, match="the log lists 2 ranks, and the bandwidths are those of 16 ranks, which is used"):
        table = logs.read(log_of(16, listed=2))
    assert set(table["ranks"]) == {16} and table["busbw"].tolist() == (table["algbw"] * bus_factor("all_reduce", 16)).tolist()
    assert "nodes" in table.attrs and len(table.attrs["devices"]) == 2


def test_a_list_with_a_gap_in_the_middle_is_no_list_of_nodes():
    lines = [line for line in new_log().splitlines(True) if "Rank  1" not in line and "Rank  2" not in line]
    with pytest.warns(UserWarning, match="the log lists 2 ranks, and the bandwidths are those of 4 ranks, which is used"):
        assert "nodes" not in logs.read("".join(lines)).attrs


def test_a_number_of_ranks_that_is_given_against_the_bandwidths_is_not_believed():
    with pytest.warns(UserWarning, match="the caller says 8 ranks, and the bandwidths are those of 16 ranks, which is used"):
        assert set(logs.read(log_of(16), ranks=8)["ranks"]) == {16}
    assert set(silently(log_of(16, listed=4), ranks=16)["ranks"]) == {16}


def test_many_ranks_are_known_within_the_rounding():
    with pytest.warns(UserWarning, match=r"those of (\d+) to (\d+) ranks: give how many, with ranks=") as told:
        table = logs.read(log_of(1024, listed=8))
    low, high = (int(word) for word in str(told[0].message).split() if word.isdigit() and int(word) > 100)
    assert low < 1024 < high and table["ranks"].isna().all() and table["busbw"].notna().all(), "busbw is the log's own then"
    for near in (1024, 1020):
        assert set(silently(log_of(1024), ranks=near)["ranks"]) == {near}, "which the rounding does not tell apart"


def test_the_count_of_a_shard_gives_the_ranks_of_any_number():
    assert silently(log_of(1024, "all_gather")).attrs["ranks"] == 1024
    small = "\n".join(line for line in gathered().splitlines() if line[:1] == " " and "1048576" in line)
    with pytest.warns(UserWarning, match="4 ranks, which is used"):
        assert logs.read(f"./all_gather_perf\n{small}\n").attrs["ranks"] == 4


def test_ranks_in_groups_are_those_of_one_group():
    split = log_of(2, listed=0).replace(
        "./all_reduce_perf",
        "./all_reduce_perf\n"
        + "\n".join(line.replace("Group  0", f"Group  {rank // 2}") for rank, line in enumerate(devices(8))),
    )
    assert silently(split).attrs["ranks"] == 2


def test_a_factor_of_1_can_neither_confirm_nor_deny():
    for collective in ("broadcast", "reduce"):
        text = log_of(16, collective, listed=2).replace("none -1", "none 0")
        assert silently(text).attrs["ranks"] == 2
        assert silently(text, ranks=16).attrs["ranks"] == 16


def test_some_rows_that_are_wrong_do_not_change_the_ranks():
    lines = log_of(16).splitlines(True)
    at = [at for at, line in enumerate(lines) if line[:1].isdigit()]
    for which in at[::4]:
        words = lines[which].split()
        words[7] = str(float(words[7]) * 1.07)
        lines[which] = " ".join(words) + "\n"
    assert silently("".join(lines)).attrs["ranks"] == 16


def test_bandwidths_that_no_number_of_ranks_gives_are_told():
    text = log_of(16).replace("all_reduce_perf", "all_gather_perf")
    with pytest.warns(UserWarning, match="its busbw / algbw is one that all_gather does not have on any number of ranks"):
        assert logs.read(text).attrs["ranks"] == 16


def test_processes_that_found_nobody_are_alone():
    """nccl-tests that were built without MPI run alone in each process, and busbw is 0."""
    with pytest.warns(UserWarning, match="those of 1 rank, which is used"):
        assert logs.read(log_of(1, listed=8)).attrs["ranks"] == 1


def test_osu_prints_no_bandwidths_to_compare():
    assert silently(osu(), ranks=7).attrs["ranks"] == 7
