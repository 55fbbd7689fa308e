"""Logs as other tools write them, for tests. The layouts are theirs; the times are those of a published run."""

from __future__ import annotations

from ringtree import data

# 4 V100 of one node, all-reduce, out of place and in place: see ringtree/tables/runs.csv for the source.
PUBLISHED = dict(zip(*(each.tolist() for each in data.sweep("v100_n1_p4"))))
SIZES = [8, 1 << 20, 1 << 24]


def micro(size):
    return f"{PUBLISHED[size] * 1e6:.2f}"


def bandwidths(size, time_us, factor):
    return f"{size / float(time_us) / 1e3:.2f}", f"{size / float(time_us) / 1e3 * factor:.2f}"


def devices(count, old=False):
    group = "" if old else "Group  0 "
    bus = "0x{:02x}" if old else "0000:{:02x}:00"
    return [
        f"#  Rank {rank:2} {group}Pid {700 + rank:6} on      node1 device {rank:2} [{bus.format(rank)}] Tesla V100-SXM2-16GB"
        for rank in range(count)
    ]


def new_log(
    program="all_reduce",
    count=4,
    rows=SIZES,
    kind="float",
    redop="sum",
    root="-1",
    wrong="0",
    foot=True,
    head=True,
    factor=None,
):
    """As nccl-tests 2.17 prints."""
    factor = 2 * (count - 1) / count if factor is None else factor
    lines = (
        [
            "# nccl-tests version 2.17.6 nccl-headers=22809 nccl-library=22809",
            f"# Collective test starting: {program}_perf",
            "# nThread 1 nGpus 4 minBytes 8 maxBytes 16777216 step: 2(factor) warmup iters: 1 iters: 20 "
            "agg iters: 1 validation: 1 graph: 0 unalign: 0",
            "#",
            "# Using devices",
            *devices(count),
        ]
        if head
        else []
    )
    lines += [
        "#",
        "#                                                              out-of-place                       in-place          ",
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong ",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         ",
    ]
    for size in rows:
        time = micro(size)
        half = "  ".join([f"{time:>7}", *(f"{each:>6}" for each in bandwidths(size, time, factor)), f"{wrong:>6}"])
        lines.append(f"{size:>12}  {size // 4:>12}  {kind:>8}  {redop:>6}  {root:>6}  {half}  {half}")
    if foot:
        lines += [
            "# Out of bounds values : 0 OK",
            "# Avg bus bandwidth    : 1.25 ",
            "#",
            f"# Collective test concluded: {program}_perf",
            "#",
        ]
    return "\n".join(lines) + "\n"


def old_log(foot=True, rows=SIZES):
    """As nccl-tests 2.10 and before: no root, an error instead of #wrong."""
    lines = [
        "# nThread 1 nGpus 4 minBytes 8 maxBytes 16777216 step: 2(factor) warmup iters: 5 iters: 100 validation: 1 ",
        "#",
        "# Using devices",
        *devices(4, old=True),
        "#",
        "#                                                     out-of-place                       in-place          ",
        "#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error",
        "#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       ",
    ]
    for size in rows:
        half = " ".join([f"{micro(size):>8}", *(f"{each:>7}" for each in bandwidths(size, micro(size), 1.5)), "  2e-07"])
        lines.append(f"{size:>12} {size // 4:>13}   float     sum {half} {half}")
    if foot:
        lines += ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 1.25 ", "#"]
    return "\n".join(lines) + "\n"


def rooted_less_log():
    """An all-gather of nccl-tests 2.10: no operation and no root."""
    return "\n".join([
        "./build/all_gather_perf -b 1M -e 1M -g 4",
        *devices(4, old=True),
        "#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error",
        "     1048576         65536   float    50.00   20.97   15.73  0e+00    40.00   26.21   19.66  0e+00",
        "# Avg bus bandwidth    : 17.7",
        "",
    ])


def gathered(program="all_gather", redop="none"):
    """A collective on shards of nccl-tests 2.17, whose count is of one."""
    lines = []
    for line in new_log(program, redop=redop, factor=0.75).splitlines():
        words = line.split()
        lines.append(
            line.replace(f"  {words[1]:>12}", f"  {int(words[1]) // 4:>12}", 1)
            if line[:1] == " " and int(words[0]) > 8
            else line
        )
    return "\n".join(line for line in lines if not line.startswith("           8 ")) + "\n"


def osu(test="Allreduce", library="MPI", full=True, kind="MPI_FLOAT", version="7.4"):
    head = f"# Size       {'' if test in ('', 'Multi') else 'Avg '}Latency(us)" + (
        "   Min Latency(us)   Max Latency(us)  Iterations" if full else ""
    )
    rows = [
        f"{size:<10}{micro(size):>17}" + (f"{micro(size):>18}{'99.50':>18}{'1000':>12}" if full else "") for size in (8, 1024)
    ]
    return "\n".join([
        f"# OSU {library} {test}{' ' if test else ''}Latency Test v{version}",
        f"# Datatype: {kind}.",
        head,
        *rows,
        "",
    ])
