"""Reading what other tools measured. The layouts are theirs; the times are those of ringtree's table of published runs."""

from __future__ import annotations

import json
import warnings

import pytest
from helpers.log_texts import PUBLISHED, SIZES, devices, micro, new_log, old_log, osu, rooted_less_log

from ringtree import measure
from ringtree.errors import UsageError
from ringtree.measure import logs

# ---------------------------------------------------------------- nccl-tests


def test_each_row_of_nccl_tests_is_one_out_of_place_and_one_in_place():
    table = logs.read(new_log())
    assert table["size"].tolist() == [each for size in SIZES for each in (size, size)]
    assert table["in_place"].tolist() == [False, True] * 3
    assert set(table["collective"]) == {"all_reduce"} and set(table["ranks"]) == {4}
    assert set(table["type"]) == {"float"} and set(table["redop"]) == {"sum"} and set(table["root"]) == {-1}
    assert table["wrong"].tolist() == [0] * 6
    for _, row in table.iterrows():
        assert row["time"] == pytest.approx(PUBLISHED[row["size"]], rel=1e-3)
        assert row["count"] == row["size"] // 4
        assert row["algbw"] == row["size"] / row["time"], "in full, where the log has two decimals"
        assert row["busbw"] == row["algbw"] * 1.5
    assert table.attrs["ranks"] == 4 and table.attrs["devices"] == ["Tesla V100-SXM2-16GB"] * 4
    assert table.attrs["version"] == "2.17.6" and table.attrs["nccl"] == "2.28.9"
    assert table.attrs["avg_busbw"] == 1.25e9 and table.attrs["settings"].startswith("nThread 1 nGpus 4 minBytes 8")
    assert "truncated" not in table.attrs


def test_the_old_layout_without_root_and_with_errors_is_read_alike():
    old, new = logs.read(old_log(), collective="all_reduce"), logs.read(new_log())
    for name in ("collective", "size", "count", "type", "redop", "in_place", "time", "algbw", "busbw"):
        assert old[name].tolist() == new[name].tolist()
    assert old["wrong"].isna().all() and old["root"].isna().all(), "an error bound is no count of wrong elements"


def test_a_log_without_an_operation_column_takes_its_program_from_the_command():
    table = logs.read(rooted_less_log())
    assert table["collective"].tolist() == ["all_gather"] * 2 and table["time"].tolist() == [50e-6, 40e-6]
    assert table["busbw"][0] == pytest.approx((1 << 20) / 50e-6 * 0.75)
    assert table["redop"].isna().all()


def test_what_was_not_checked_is_missing_and_what_was_wrong_is_counted():
    assert logs.read(new_log(wrong="N/A"))["wrong"].isna().all()
    assert logs.read(new_log(wrong="3e+06"))["wrong"].tolist() == [3_000_000] * 6


def test_many_types_and_operations_in_one_log_keep_theirs():
    text = (
        new_log(foot=False, rows=[8])
        + "\n".join(
            line for line in new_log(kind="half", redop="max", rows=[8]).splitlines() if not line.startswith("#  Rank")
        ).split("#wrong \n")[-1]
    )
    table = logs.read(text)
    assert list(zip(table["type"], table["redop"])) == [("float", "sum")] * 2 + [("half", "max")] * 2
    assert "truncated" not in table.attrs


def test_several_programs_in_one_log_are_tables_of_their_own():
    text = new_log() + new_log("broadcast", count=2, redop="none", root="0")
    reduced, broadcast = logs.read_all(text)
    assert reduced["collective"].tolist() == ["all_reduce"] * 6 and broadcast["collective"].tolist() == ["broadcast"] * 6
    assert reduced["ranks"].tolist() == [4] * 6 and broadcast["ranks"].tolist() == [2] * 6
    assert set(broadcast["root"]) == {0} and len(reduced.attrs["devices"]) == 4 and len(broadcast.attrs["devices"]) == 2
    assert broadcast["busbw"].tolist() == broadcast["algbw"].tolist()
    with pytest.raises(UsageError) as caught:
        logs.read(text)
    listed = "2 tables: [0] all_reduce on 4 ranks, 6 rows; [1] broadcast on 2 ranks, 6 rows"
    assert listed in str(caught.value) and "read_all" in str(caught.value)


@pytest.mark.parametrize("tag", ["[1,0]<stdout>:", "0: "])
def test_what_a_launcher_puts_before_each_line_is_taken_off(tag):
    tagged = "".join(tag + line for line in new_log().splitlines(True))
    assert logs.read(tagged)["time"].tolist() == logs.read(new_log())["time"].tolist()


def test_lines_of_nccl_in_between_are_passed_over():
    lines = new_log().splitlines(True)
    noise = "node1:880:880 [0] NCCL INFO Channel 00/24 : 0 1 2 3\n"
    noisy = noise + noise.join(lines) + "NCCL version 2.20.5+cuda12.4\n"
    assert logs.read(noisy)["time"].tolist() == logs.read(new_log())["time"].tolist()
    assert logs.read(noisy).attrs["nccl"] == "2.20.5"


def test_a_row_that_nccl_interrupted_is_put_together_again():
    head, row = new_log(rows=[8], foot=False).rsplit("      -1", 1)
    noisy = head + "      -1" + "3c67box:880:910 [3] NCCL INFO Connected all rings\n" + row + "# Avg bus bandwidth : 1\n"
    table = logs.read(noisy)
    assert table["time"].tolist() == logs.read(new_log(rows=[8]))["time"].tolist()
    assert table["root"].tolist() == [-1, -1] and "truncated" not in table.attrs


def test_a_log_that_ends_in_the_middle_gives_the_rows_so_far_and_says_so():
    whole = new_log(foot=False)
    half_a_line = whole[: whole.rindex("  ", 0, len(whole) - 30)]
    for text, rows in ((whole, 6), (half_a_line, 5)):
        with pytest.warns(UserWarning) as told:
            table = logs.read(text)
        said = " ".join(str(each.message) for each in told)
        assert "the log ends in the middle" in said and ("line 16 cut off: the rows before are taken" in said) == (rows == 5)
        assert len(table) == rows and "rows so far" in table.attrs["truncated"]
        assert "ends in the middle" in measure.table_text(table)


def test_a_complete_log_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for text in (new_log(), old_log(), rooted_less_log(), osu()):
            logs.read(text)


def test_a_line_that_cannot_be_read_is_named():
    lines = new_log().splitlines()
    at = next(i for i, line in enumerate(lines) if line.strip().startswith(str(1 << 20)))
    lines[at] = "     1048576        262144     float     sum"
    with pytest.warns(UserWarning, match=f"line {at + 1} could not be read and were left out"):
        table = logs.read("\n".join(lines) + "\n")
    assert table["size"].tolist() == [8, 8, 1 << 24, 1 << 24]


def test_times_of_the_cpu_are_told_from_times_of_the_collective():
    assert logs.read(new_log().replace("     time", "  cputime")).attrs["clock"].startswith("cputime")


def test_per_iteration_columns_and_timestamps_do_not_confuse():
    text = "\n".join([
        "# Collective test starting: all_reduce_perf",
        *devices(2),
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong"
        "    i_min    i_max    i_p99    i_cv%"
        "     time   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%           timestamp",
        "        1024           256     float     sum      -1    10.00    0.10    0.10       0"
        "     9.00    12.00    11.90     5.00"
        "    20.00    0.05    0.05       0    19.00    22.00    21.90     5.00  2026-01-31 12:00:00",
        "# Avg bus bandwidth    : 0.1",
        "",
    ])
    table = logs.read(text)
    assert table["time"].tolist() == [10e-6, 20e-6]
    assert table["min"].tolist() == pytest.approx([9e-6, 19e-6]) and table["max"].tolist() == pytest.approx([12e-6, 22e-6])


def test_json_of_nccl_tests_is_read():
    half = {"time": 10.0, "alg_bw": 0.1, "bus_bw": 0.1, "nwrong": 0.0}
    found = {
        "version": 3,
        "start_time": "2026-01-31 12:00:00",
        "args": ["./build/all_reduce_perf", "-g", "2"],
        "nccl_version": 22809,
        "config": {"devices": [{"rank": 0, "device_info": "A"}, {"rank": 1, "device_info": "A"}]},
        "results": [
            {
                "size": 1024,
                "count": 256,
                "type": "float",
                "redop": "sum",
                "root": "    -1",
                "out_of_place": half,
                "in_place": half | {"nwrong": None},
            }
        ],
        "average_bus_bandwidth": {"bandwidth": 0.1, "okay": "unchecked"},
    }
    table = logs.read(json.dumps(found, indent=1))
    assert table["time"].tolist() == [10e-6] * 2 and table["in_place"].tolist() == [False, True]
    assert table["wrong"].isna().tolist() == [False, True] and table["root"].tolist() == [-1, -1]
    assert (table["collective"][0], table["ranks"][0], table.attrs["nccl"]) == ("all_reduce", 2, "2.28.9")


def test_versions_of_nccl():
    assert [logs.nccl_tests.version_of(code) for code in (2708, 2804, 21003, 22809)] == ["2.7.8", "2.8.4", "2.10.3", "2.28.9"]


# ---------------------------------------------------------------- OSU


def test_osu_is_read_with_its_extremes():
    table = logs.read(osu(), ranks=4)
    assert table["size"].tolist() == [8, 1024] and table["count"].tolist() == [2, 256]
    assert table["time"].tolist() == pytest.approx([PUBLISHED[8], PUBLISHED[1024]], rel=1e-3)
    assert table["max"].tolist() == pytest.approx([99.5e-6] * 2) and table["calls"].tolist() == [1000] * 2
    assert table["busbw"][1] == table["algbw"][1] * 1.5
    assert table.attrs["version"] == "7.4" and table.attrs["tool"].startswith("OSU")


def test_osu_without_extremes_and_without_ranks():
    table = logs.read(osu(full=False, library="MPI-CUDA"))
    assert table["time"].tolist() == pytest.approx([PUBLISHED[8], PUBLISHED[1024]], rel=1e-3)
    assert table["min"].isna().all() and table["busbw"].isna().all(), "no bus bandwidth without the number of ranks"
    assert table.attrs["library"] == "MPI-CUDA"


@pytest.mark.parametrize("test", ["", "Multi"])
def test_osu_messages_are_between_two(test):
    table = logs.read(osu(test, full=False, kind="MPI_CHAR"))
    assert (
        set(table["collective"]) == {"send_recv"}
        and table["busbw"].dropna().tolist() == table["algbw"][table["busbw"].notna()].tolist()
    )


@pytest.mark.parametrize(
    ("test", "collective"),
    [
        ("Allgather", "all_gather"),
        ("Scatter", "scatter"),
        ("Gather", "gather"),
        ("All-to-All Personalized Exchange", "all_to_all"),
    ],
)
def test_osu_sizes_per_rank_become_full_vectors(test, collective):
    table = logs.read(osu(test), ranks=4)
    assert table["collective"].tolist() == [collective] * 2
    assert table["size"].tolist() == [32, 4096] and table["count"].tolist() == [2, 256]
    with pytest.raises(UsageError, match="does not say how many ran"):
        logs.read(osu(test))


def test_osu_validation_and_barrier():
    text = (
        "# OSU MPI Broadcast Latency Test v7.5\n# Size       Avg Latency(us)        Validation\n"
        "1                       3.00              Pass\n2                       3.00              Fail\n"
    )
    assert logs.read(text)["wrong"].isna().tolist() == [False, True]
    barrier = logs.read("# OSU MPI Barrier Latency Test v5.8\n# Avg Latency(us)\n            12.57\n")
    assert barrier["time"].tolist() == [pytest.approx(12.57e-6)] and barrier["collective"][0] == "barrier"


def test_an_osu_line_that_is_cut_off_is_left_out():
    with pytest.warns(UserWarning, match="middle of a line"):
        table = logs.read(osu()[:-40])
    assert table["size"].tolist() == [8]


# ---------------------------------------------------------------- what cannot be read


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("hello\nworld\n", "cannot be read: expected output of nccl-tests"),
        ("\n", "cannot be read"),
        (new_log(rows=[], foot=False), "the head of an nccl-tests table and no row"),
        (new_log().replace(micro(8), "nan", 1), "the time is 'nan', which is not a finite number"),
        (new_log().replace(micro(8), "inf", 1), "the time is 'inf'"),
        (new_log().replace(micro(8), "-1.0", 1), "the time is '-1.0'"),
        (osu().replace(micro(8), "nan"), "line 4: the time is 'nan'"),
        (
            "# OSU MPI Bandwidth Test v7.5\n# Size      Bandwidth (MB/s)\n1    0.9\n",
            "Bandwidth test, which does not time a single operation",
        ),
        ("{\n", "begins like JSON and is not"),
        ('{"a":\n 1}', "is JSON of something else"),
        ("# ringtree.measure\nsize,time\n8,nan\n", "line 3: the time is missing or not finite"),
        ("# ringtree.measure\nsize,time\nx,1\n", "line 3: size is 'x', which is not possible"),
        ("# ringtree.measure\na,b\n1,2\n", "no columns size and time"),
        ("# ringtree.measure\nsize,time\n", "a table without rows"),
        ("# ringtree.measure\n# warnings: 3\nsize,time\n8,1e-6\n", "its warnings are 3, which is not possible"),
        ('{"ringtree.measure": 1,\n "rows": [{"size": 8, "time": "1"}]}', "row 1: time is '1', which is not possible"),
        ('{"ringtree.measure": 1,\n "rows": 7}', "has no list of rows"),
        ("# ringtree.measure\nsize,time,min\n8,1,1e999\n", "line 3: min is infinite"),
        ("# ringtree.measure\nsize,time\n99999999999999999999,1\n", "size is '99999999999999999999', which is not possible"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_sentence(text, sentence):
    with pytest.raises(UsageError) as caught, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logs.read(text)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_a_path_is_read_and_a_missing_one_is_named(tmp_path):
    path = tmp_path / "run.log"
    path.write_bytes(new_log().replace("\n", "\r\n").encode())
    assert len(logs.read(path)) == len(logs.read(str(path))) == 6
    with pytest.raises(UsageError, match="nowhere.log' cannot be read .No such file"):
        logs.read(tmp_path / "nowhere.log")
    (tmp_path / "binary.log").write_bytes(bytes(range(256)))
    with pytest.raises(UsageError, match="'binary.log' cannot be read"):
        logs.read(tmp_path / "binary.log")
    with pytest.raises(UsageError, match="ranks=0"):
        logs.read(path, ranks=0)
    given, odd = "the log calls it all_reduce, and all_gather was given, which is used", "is it another collective"
    with pytest.warns(UserWarning, match=given), pytest.warns(UserWarning, match=odd):
        assert set(logs.read(path, collective="all-gather")["collective"]) == {"all_gather"}
    with pytest.raises(UsageError, match="collective='sort'"):
        logs.read(path, collective="sort")


def test_a_log_that_was_read_and_saved_keeps_what_was_odd_about_it(tmp_path):
    with pytest.warns(UserWarning):
        table = logs.read(new_log(foot=False).replace("#  Rank  3", "#"))
    assert len(table.attrs["warnings"]) == 2
    for name in ("odd.csv", "odd.json"):
        ends = pytest.warns(UserWarning, match="the log ends in the middle of a table: these are the rows so far")
        with ends, pytest.warns(UserWarning, match="the log lists 3 ranks"):
            assert logs.read(measure.save(table, tmp_path / name)).attrs == table.attrs


def test_a_csv_of_ours_that_was_cut_off_gives_the_rows_before():
    text = "# ringtree.measure\n# ranks: 4\n# a remark\nsize,time,wrong\n8,1e-6,0\n16,2e"
    with pytest.warns(UserWarning, match="middle of a line"):
        table = logs.read(text)
    assert table["size"].tolist() == [8] and table.attrs["ranks"] == 4
