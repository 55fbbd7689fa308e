"""Reading logs as people have them: prefixed, quoted, coloured, cut, without heads, several in one file."""

from __future__ import annotations

import json
import warnings

import pytest
from helpers.log_texts import PUBLISHED, SIZES, bandwidths, devices, gathered, new_log, old_log, osu, rooted_less_log

from ringtree import measure
from ringtree.errors import UsageError
from ringtree.measure import logs

COLUMNS = ["collective", "ranks", "size", "count", "type", "redop", "root", "in_place", "time", "algbw", "busbw", "wrong"]


def unsaid():
    return pytest.warns(
        UserWarning, match="nothing says how many ranks ran: the bandwidths are those of 4 ranks, which is used"
    )


def same(table, other, columns=COLUMNS):
    return [table[name].astype(str).tolist() for name in columns] == [other[name].astype(str).tolist() for name in columns]


def silently(text, **options):
    """What is read, where nothing is odd about it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return logs.read(text, **options)


def rows_of(text):
    return "\n".join(line for line in text.splitlines() if line.strip()[:1].isdigit()) + "\n"


# ---------------------------------------------------------------- what stands before and around lines


BEFORE = {
    "mpirun --tag-output": "[1,0]<stdout>:",
    "Open MPI 5": "[prterun-node1-4242@1,0]<stdout>: ",
    "mpirun with times": "Sun Nov 22 08:37:31 2026[1,0]<stdout>:",
    "srun -l": " 0: ",
    "srun -l of many": "000: ",
    "pdsh": "node-01.cluster: ",
    "Hydra -l": "[0] ",
    "torchrun --tee": "[default0]:",
    "kubectl logs --prefix": "[pod/nccl-tests-launcher-x7k2p/mpi-launcher] ",
    "kubectl logs --timestamps": "2026-01-31T12:00:00.123456789Z ",
    "docker compose": "nccl-tests-1  | ",
    "Ray": "(RayTrainWorker pid=1234, ip=10.0.0.7) ",
    "GitHub's runners": "2026-01-31T12:00:00.1234567Z \x1b[36m",
    "Python's logging": "2026-01-31 12:00:00,123 INFO - ",
    "syslog": "Jan 31 12:00:00 node1 nccl[4242]: ",
    "a quote": "> ",
    "a quote of a quote": "> > ",
    "a list in markdown": "    ",
    "stern": "nccl-launcher-x7k2p mpi ",
}


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
def test_what_launchers_and_quotes_put_before_each_line_is_taken_off(before):
    for log, options in ((new_log(), {}), (old_log(), {"collective": "all_reduce"}), (gathered(), {}), (osu(), {"ranks": 4})):
        if "OSU" in log and before.strip() in (
            "2026-01-31 12:00:00,123 INFO -",
            BEFORE["syslog"].strip(),
            BEFORE["stern"].strip(),
        ):
            continue  # a row of OSU is two numbers: words before them make it another line
        prefixed = "".join(before + line for line in log.splitlines(True))
        assert same(silently(prefixed, **options), silently(log, **options))


def test_colours_fences_tabs_and_line_ends_do_not_matter():
    log = new_log()
    for changed in (
        "Here is what I get:\n\n```console\n$ ./run.sh\n" + log + "```\n\nIs this normal?\n",
        log.replace("float", "\x1b[1;32mfloat\x1b[0m"),
        "\ufeff" + log,
        log.replace("\n", "\r\n"),
        log.replace("\n", "\r"),
        log.replace("    ", "\t"),
        log.replace("    ", " \xa0 "),
    ):
        assert same(silently(changed), silently(log))


def test_files_are_read_in_the_encodings_that_shells_write(tmp_path):
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):  # PowerShell's > writes the last
        (tmp_path / "run.log").write_bytes(new_log().encode(encoding))
        assert same(silently(tmp_path / "run.log"), silently(new_log()))


def test_a_table_in_markdown_or_with_commas_is_one():
    head, *rows = [
        line.replace("#wrong", "wrong").replace("#", " ").split()
        for line in new_log().splitlines()
        if "count" in line or line[:4] == "    "
    ]
    markdown = "\n".join(["## all_reduce", *("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)), ""])
    commas = "./all_reduce_perf\n" + "\n".join(",".join(row) for row in (head, *rows)) + "\n"
    for text in (markdown, commas):
        with pytest.warns(UserWarning):  # the end is missing, and the number of ranks
            assert same(logs.read(text), silently(new_log()))


# ---------------------------------------------------------------- without heads, or with half of one


def test_rows_without_a_head_are_read_by_the_number_and_kind_of_their_words():
    for log in (new_log(), old_log()):
        with pytest.warns(
            UserWarning, match="nothing says how many ranks ran: the bandwidths are those of 4 ranks, which is used"
        ):
            table = logs.read(rows_of(log))
        assert same(table, silently(log)), "an all-reduce, as no other has a busbw larger than its algbw"
    for log in (rooted_less_log(), gathered(), gathered("reduce_scatter", redop="sum")):
        whole = silently(log)
        with pytest.warns(UserWarning, match="4 ranks, which is used"):
            assert same(logs.read(rows_of(log), collective=whole["collective"][0]), whole)


def test_the_numbers_of_words_that_nccl_tests_prints():
    size, time = 1 << 24, "200.0"
    half = ["200.0", *bandwidths(size, time, 1.5)]
    for words, root, places in (
        (half, None, 1),
        (["-1", *half], -1, 1),
        ([*half, "0"], None, 1),
        (["-1", *half, "0"], -1, 1),
        (half * 2, None, 2),
        (["-1", *half, *half], -1, 2),
        ([*half, "N/A"] * 2, None, 2),
        (["-1", *([*half, "0"] * 2)], -1, 2),
        (["-1", *([*half, "0", "190.0", "210.0", "209.0", "5.00"] * 2)], -1, 2),
    ):
        for redop in (["sum"], []):
            text = " ".join([str(size), str(size // 4), "float", *redop, *words]) + "\n"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                table = logs.read(text, ranks=4, collective="all_reduce")
            assert table["time"].tolist() == [200e-6] * places and table["in_place"].tolist() == [False, True][:places]
            assert (table["root"].dropna().tolist() or [None])[0] == root, words


def test_a_head_without_its_hashes_and_rows_behind_hashes_are_read():
    table = silently(new_log())
    assert same(silently(new_log().replace("#", "")), table)
    assert same(silently("".join("#" + line.lstrip("# ") for line in new_log().splitlines(True))), table)


def test_a_log_without_its_beginning_is_read_from_its_rows():
    whole = new_log()
    with pytest.warns(UserWarning, match="nothing says how many ranks ran"):
        table = logs.read(whole[whole.index("     1048576") :])
    assert table["size"].tolist() == [1 << 20, 1 << 20, 1 << 24, 1 << 24] and set(table["collective"]) == {"all_reduce"}
    assert "truncated" not in table.attrs, "its foot is there"


def test_rows_that_were_broken_at_the_margin_are_put_together():
    wide = [line for line in new_log().splitlines() if line.strip()]
    narrow = "\n".join(line if line.startswith("#") else f"{line[:80]}\n{line[80:]}" for line in wide) + "\n"
    assert same(silently(narrow), silently(new_log()))


def test_lines_of_nccl_go_through_every_gap_of_a_row():
    says = "node7:880:910 [3] NCCL INFO Connected all rings\nnode7:880:911 [4] misc/ibvwrap.cc:63 NCCL WARN Failed\n"
    for gap in ("      -1", "       0"):
        row = next(line for line in new_log().splitlines() if line.strip().startswith("8 "))
        cut = row.index(gap) + len(gap)
        noisy = new_log().replace(row, row[:cut] + says + row[cut:])
        assert same(silently(noisy), silently(new_log())), gap


def test_the_tables_of_2017_are_in_milliseconds():
    lines = ["nThread 1 nGpus 4 minBytes 8 maxBytes 33554432 step: 2(factor) warmup iters: 5 iters: 20 validation: 1 "]
    lines += ["#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res"]
    for size in (1 << 20, 1 << 24):
        time = f"{PUBLISHED[size] * 1e3:.3f}"
        algbw = size / float(time) / 1e6
        lines.append(
            f"{size:>12}  {size // 4:>12}   float     sum" + f"    {time}  {algbw:.2f}  {algbw * 1.5:.2f}    2e-07" * 2
        )
    with unsaid(), pytest.warns(UserWarning, match="its times are in ms"):
        table = logs.read("\n".join([*lines, " Out of bounds values : 0 OK", " Avg bus bandwidth    : 90.1", ""]))
    assert table["time"].tolist()[::2] == pytest.approx([PUBLISHED[1 << 20], PUBLISHED[1 << 24]], rel=5e-3)
    assert table["wrong"].isna().all() and set(table["ranks"]) == {4}


def test_before_2020_shards_were_counted_without_ones_own():
    """algbw was (p−1)/p of size / time then, and busbw the same: Source: nccl-tests, commit ec1b5e2."""
    size, time = 1 << 24, 400.0
    apart = f"{size / time / 1e3 * 0.75:.2f}"
    row = f"{size:>12} {size // 16:>12}   float   {time:.1f}   {apart}   {apart}  0e+00   {time:.1f}   {apart}   {apart}  0e+00"
    text = rooted_less_log().splitlines()
    with pytest.warns(UserWarning, match="its algbw is not size / time, and is computed again"):
        table = logs.read("\n".join([*text[:-2], row, row, row, *text[-2:]]) + "\n")
    large = table[table["size"] == size]
    assert large["algbw"].tolist() == pytest.approx([size / 400e-6] * 6)
    assert large["busbw"].tolist() == pytest.approx([0.75 * size / 400e-6] * 6), "as it is counted today"


def test_a_row_that_contradicts_itself_is_left_out_and_named():
    text = new_log().replace(f"{1 << 20:>12}  {(1 << 20) // 4:>12}", f"{1 << 21:>12}  {(1 << 20) // 4:>12}")
    with pytest.warns(UserWarning, match="line 1[0-9] left out, where the time and the bandwidth contradict each other"):
        assert logs.read(text)["size"].tolist() == [8, 8, 1 << 24, 1 << 24]


def test_rows_of_which_one_half_was_cut_off_are_read_out_of_place():
    text = "".join(line if line[:1] == "#" else line[:85].rstrip() + "\n" for line in new_log().splitlines(True))
    with pytest.warns(UserWarning, match="no row has its second half"):
        table = logs.read(text)
    assert table["in_place"].tolist() == [False] * 3 and table["time"].tolist() == silently(new_log())["time"].tolist()[::2]


# ---------------------------------------------------------------- which collective


def test_a_table_takes_its_collective_from_where_it_can(tmp_path):
    rows = rows_of(gathered())
    for above in ("$ mpirun -np 4 ./build/all_gather_perf -b 8\n", "### All-Gather, 4 x V100\n"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert set(logs.read(above + rows)["collective"]) == {"all_gather"}
    path = tmp_path / "allgather_4.txt"
    path.write_text(rows)
    with unsaid(), pytest.warns(UserWarning, match="it is taken for all_gather, which its path names"):
        assert set(logs.read(path)["collective"]) == {"all_gather"}
    with pytest.raises(
        UsageError, match=r"the text: nothing says which collective the table from line 1 timed: .*collective='all_gather'"
    ):
        logs.read(rows)


def test_a_root_and_a_factor_of_1_are_a_broadcast_and_a_root_and_a_sum_a_reduce():
    for redop, collective in (("none", "broadcast"), ("sum", "reduce")):
        text = "\n".join(devices(4)) + "\n" + rows_of(new_log("broadcast", redop=redop, root="0", factor=1.0))
        assert set(silently(text)["collective"]) == {collective}


def test_a_collective_that_is_given_where_several_tables_are_is_for_those_without_a_name():
    text = new_log() + "# nThread 1 nGpus 4 minBytes 8\n" + "\n".join(devices(4)) + "\n" + rows_of(gathered())
    tables = logs.read_all(text, collective="all_gather")
    assert [table["collective"][0] for table in tables] == ["all_reduce", "all_gather"]


def test_a_program_that_times_no_collective_here_is_left_out_and_named():
    text = new_log() + new_log("hypercube", redop="none")
    with pytest.warns(UserWarning, match=r"left out: hypercube_perf \(line \d+\) times no collective"):
        assert set(logs.read(text)["collective"]) == {"all_reduce"}
    with pytest.raises(UsageError, match="hypercube_perf"):
        logs.read(new_log("hypercube", redop="none"))


# ---------------------------------------------------------------- several tables


def test_processes_that_print_at_once_are_told_apart():
    pairs = zip(new_log().splitlines(), new_log("broadcast", redop="none", root="0", factor=1.0).splitlines())
    text = "".join(f"node1: {one}\nnode2: {other}\n" for one, other in pairs)
    one, other = logs.read_all(text)
    assert same(one, silently(new_log())) and set(other["collective"]) == {"broadcast"} and len(other) == 6


def test_two_runs_of_one_program_are_two_tables_and_one_run_with_all_types_is_one():
    tables = logs.read_all(new_log() + new_log())
    assert [len(table) for table in tables] == [6, 6] and [table.attrs["ranks"] for table in tables] == [4, 4]
    rows = rows_of(new_log())
    every = new_log().replace(rows, rows + rows.replace("float", " half").replace("  sum", "  max"))
    assert len(logs.read_all(every)) == 1


def test_tables_pasted_below_each_other_begin_where_the_sizes_do():
    first, second = logs.read_all(rows_of(new_log()) + rows_of(new_log()), ranks=4)
    assert len(first) == len(second) == 6


def test_what_one_run_says_is_not_said_of_the_next():
    with unsaid():
        first, second = logs.read_all(new_log() + rows_of(old_log()))
    assert first.attrs["version"] == "2.17.6" and first.attrs["avg_busbw"] == 1.25e9 and first.attrs["nodes"] == 1
    assert not {"version", "avg_busbw", "devices", "settings", "nodes"} & set(second.attrs)


def test_warnings_name_the_table_they_are_of():
    with pytest.warns(UserWarning, match=r"the text, \[1\] all_reduce on 4 ranks, 6 rows: nothing says how many ranks ran"):
        tables = logs.read_all(new_log() + rows_of(new_log()))
    assert tables[0].attrs["warnings"] == [] and len(tables[1].attrs["warnings"]) == 1
    assert "nothing says how many ranks ran" in measure.table_text(tables[1])


def test_of_a_suite_of_osu_what_is_supported_is_taken_and_the_rest_is_listed():
    bandwidth = "# OSU MPI Bandwidth Test v7.4\n# Datatype: MPI_CHAR.\n# Size      Bandwidth (MB/s)\n1    0.9\n2    1.8\n"
    overlap = "# OSU MPI Non-blocking Allreduce Latency Test v7.4\n\n# Size  Overall(us)\n4  3.0\n"
    put = "# OSU MPI_Put Latency Test v5.6\n# Window creation: MPI_Win_allocate\n# Size          Latency (us)\n0    0.02\n"
    suite = bandwidth + osu() + overlap + put + osu("Allgather") + osu("Broadcast")
    with pytest.warns(UserWarning) as told:
        tables = logs.read_all(suite)
    assert [table["collective"][0] for table in tables] == ["all_reduce", "broadcast"]
    sentence = str(told[0].message)
    for left in (
        "Bandwidth test",
        "Non-blocking Allreduce Latency test",
        "MPI_Put Latency test",
        "size of all_gather per rank",
        "ranks=8",
    ):
        assert left in sentence
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [table["collective"][0] for table in logs.read_all(suite, ranks=4)] == ["all_reduce", "all_gather", "broadcast"]


def test_the_command_says_how_many_ranks_osu_had():
    table = silently("$ mpirun -np 8 -hostfile hosts osu_allgather -f\n\n" + osu("Allgather"))
    assert set(table["ranks"]) == {8} and table["size"].tolist() == [64, 8192]


@pytest.mark.parametrize("library", ["MPI", "MPI-CUDA", "MPI-ROCM", "NCCL-CUDA", "RCCL-ROCM"])
def test_columns_and_lines_that_osu_prints_on_demand_do_not_confuse(library):
    text = "#Using NCCL\n" + osu(library=library).replace(
        "Iterations", "Iterations  P50 Tail Lat(us)  P99 Tail Lat(us)"
    ).replace("1000\n", "1000  4.00  5.00\n")
    text = text.replace(
        "# Size", "[1678205653.8] [node7:903  :0]        ucc_coll.c:255  UCC_COLL INFO  coll_init: Barrier\n# Size"
    ).replace("# ", "\\# ")
    table = silently(text, ranks=4)
    assert table["time"].tolist() == silently(osu(), ranks=4)["time"].tolist() and table["calls"].tolist() == [1000, 1000]


def test_a_row_of_0_bytes_is_a_row():
    text = osu("", full=False, kind="MPI_CHAR").replace("\n8 ", "\n0                      1.00\n8 ")
    assert silently(text)["size"].tolist() == [0, 8, 1024]
    zero = new_log(rows=[8]).replace(f"{8:>12}  {2:>12}", f"{0:>12}  {0:>12}")
    assert silently(zero)["size"].tolist() == [0, 0] and silently(zero)["algbw"].tolist() == [0, 0]


# ---------------------------------------------------------------- rccl-tests, and what we print ourselves


def test_rccl_tests_are_told_from_nccl_tests():
    text = new_log().replace("# nccl-tests version 2.17.6 nccl-headers=22809 nccl-library=22809\n", "").replace(
        "# Using devices", "rccl-tests: Version develop:83d38d9\n# Using devices"
    ).replace("# Out of", "# Errors with asterisks indicate errors that have exceeded the maximum threshold.\n# Out of") + (
        "RCCL version : 2.22.3-develop:d2e4b7a\n"
    )
    table = silently(text)
    assert (table.attrs["tool"], table.attrs["version"], table.attrs["nccl"]) == ("rccl-tests", "develop:83d38d9", "2.22.3")


def test_calls_that_were_timed_one_by_one_are_told_from_calls_back_to_back():
    says = "# Blocking Enabled: wait and barrier after each inner iteration (-m) \n#\n# Using devices"
    assert (
        silently(new_log().replace("# Using devices", says)).attrs["blocking"].startswith("Blocking Enabled: wait and barrier")
    )
    assert "blocking" not in silently(new_log()).attrs


def test_csv_and_json_of_rccl_tests_are_read():
    head = "numCycle,collective,nodes,ranks,ranksPerNode,gpusPerRank,size,type,redop,inplace,time,algbw,busbw,#wrong"
    rows = [
        f"0,{name},1,8,8,1,{size},float,sum,{place},100.0,{size / 1e5},{size / 1e5 * factor},0"
        for name, factor in (("AllReduce", 1.75), ("AllGather", 0.875))
        for size in SIZES
        for place in (0, 1)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reduced, gathered_ = logs.read_all("\n".join([head, *rows, ""]))
        names = [each.strip("#") for each in head.split(",")]
        records = [dict(zip(names, row.split(","))) for row in rows]
        assert same(logs.read_all(json.dumps(records, indent=1))[1], gathered_)
    assert set(reduced["ranks"]) == {8} and reduced.attrs["tool"] == "rccl-tests"
    assert gathered_["collective"].tolist() == ["all_gather"] * 6 and gathered_["in_place"].tolist() == [False, True] * 3
    assert gathered_["busbw"][4] == pytest.approx(gathered_["algbw"][4] * 0.875)


def test_what_measure_prints_is_read_back():
    rows = [
        {
            "collective": "all_reduce",
            "program": "all_reduce",
            "ranks": 4,
            "size": size,
            "count": size // 4,
            "type": "float",
            "redop": "sum",
            "root": -1,
            "in_place": place,
            "time": 2e-4,
            "algbw": size / 2e-4,
            "busbw": size / 2e-4 * 1.5,
            "wrong": 0,
            "low": 1.5e-4,
            "high": 2.5e-4,
            "first": 1e-3,
            "batches": 12,
            "calls": 20,
            "stable": True,
        }
        for size in SIZES
        for place in (False, True)
    ]
    attrs = {
        "tool": "ringtree.measure",
        "ranks": 4,
        "clock": "monotonic clock",
        "backend": "gloo",
        "hosts": 1,
        "torch": "2.13.0",
    }
    table = measure.frame(rows, attrs)
    back = silently(measure.table_text(table) + "\n")
    assert same(back, table) and back["low"].tolist() == pytest.approx(table["low"].tolist())
    assert back["in_place"].tolist() == [False, True] * 3


def test_processes_that_print_into_each_other_without_a_prefix_cannot_be_told_apart():
    both = "".join(f"{one}\n{other}\n" for one, other in zip(new_log().splitlines(), new_log().splitlines()))
    with pytest.raises(UsageError, match="from line .* several processes printed into each other, .*: build it with MPI=1"):
        logs.read(both)


def test_a_table_that_nothing_names_does_not_keep_the_others_from_being_read():
    unnamed = "# nThread 1 nGpus 4 minBytes 8\n" + rows_of(gathered()) + "# Avg bus bandwidth : 1\n"
    with pytest.warns(UserWarning, match=r"left out: nothing says which collective the table from line \d+ timed"):
        assert set(logs.read(new_log() + unnamed)["collective"]) == {"all_reduce"}


def test_nccl_says_how_many_ranks_it_has_where_the_list_is_missing():
    says = "node1:798:810 [0] NCCL INFO comm 0x55a7be5601c0 rank 0 nranks 16 cudaDev 0 busId 18000 - Init COMPLETE\n"
    text = "./broadcast_perf\n" + says + rows_of(new_log("broadcast", redop="none", root="0", factor=1.0))
    assert set(silently(text)["ranks"]) == {16}
