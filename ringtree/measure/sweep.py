"""Measure a collective for one size after another, from a notebook or a script, or on ranks."""

from __future__ import annotations

import sys

from ringtree import late
from ringtree.errors import UsageError
from ringtree.measure.call import check_link, describe, sendable
from ringtree.measure.crews import ranks_to_time
from ringtree.measure.progress import interrupted_late, progress
from ringtree.measure.timing import check_settings, time_collective

SMALLEST, LARGEST = 8, 1 << 24  # bytes of a sweep that says nothing else


def measure(
    what="all_reduce",
    sizes=None,
    *,
    of=None,
    op=None,
    dtype="float",
    root=0,
    in_place=None,
    check=True,
    warmup=5,
    calls=None,
    budget=1.0,
    stable=0.05,
    link=None,
    ranks=None,
    show=True,
    timeout=None,
    **options,
):
    """Time a collective for one size after another, print the table, and return it as a DataFrame.

    what: a collective of torch.distributed ("all_reduce", "all_gather_into_tensor", …), one of
        `ringtree.algorithms` ("ring_all_reduce" or the function), or a rank program of your own.
    sizes: bytes of the full vector, whole numbers in rising order, rounded down to whole elements (and whole
        shards); left out: powers of two from 8 B to 16 MiB. `sizes_between` makes such lists.
    of: which collective a program of your own is. It is called as the algorithms are: program(tensor, dist),
        with root= where that is not 0 and op= where that is no sum; an all-to-all as
        program(outputs, inputs, dist).
    op: "sum", "prod", "min", "max", "avg", "band", "bor" or "bxor", where something is reduced.
    dtype: "float", "half", "bfloat16", "double", "int8", "uint8", "int32", "int64", or a torch.dtype; NCCL has "f8e4m3"
        and "f8e5m2" too.
    in_place: whether the result replaces the input. Left out: what the call is by nature. torch has
        all_reduce, broadcast and reduce in place alone: out of place they are a copy and
        then the call, both timed (NCCL itself, as nccl-tests times it, needs no copy).
    check: compare results with what they must be; the numbers are exact in every type.
    warmup: calls after the first that do not count. calls: calls back to back that are timed together;
        left out: as many as fill 5 ms, 20 at most, and 1 for collectives with a root.
    budget: seconds that the timed batches of a size may take, so far as 6 batches allow. stable: stop
        sooner when the 95 % interval of the median is within this part of it.
    link: a `ringtree.Link` to emulate between the ranks, for rank programs.
    ranks: what `ringtree.start` returned; left out: the ranks of this kernel. Where there are none and this
        is itself a rank (`torchrun`, a `%%px` cell), all ranks call `measure` together, and rank 0 prints.
    show: print the table. timeout: seconds before ranks that have not finished a size count as stuck,
        by default the ranks' own timeout. options: further arguments for a rank program.

    The table's columns are explained in `help(ringtree.measure)`. An interrupt ends the sweep after the size that
    runs, and the table has the sizes before: nothing is lost. A second one ends it at once, as in `%%px`. Where
    ranks hang or raise, the error carries the rows so far as `error.measured`. Raises UsageError on arguments
    that cannot be.
    """
    settings = dict(
        of=of,
        op=op,
        dtype=dtype,
        root=root,
        in_place=in_place,
        check=check,
        warmup=warmup,
        calls=calls,
        budget=budget,
        stable=stable,
        link=link,
    )
    from ringtree.measure.table import frame, table_text

    late.need("ringtree.measure", "torch")
    crew, speaks = ranks_to_time(ranks, timeout)
    sizes = sizes_to_measure(what, sizes, crew, **settings, options=options)
    rows, attrs = [], crew.provenance(link) | {"settings": settings_in_words(settings)} | notes_on(op, crew)
    try:
        for row in sweep(crew, sendable(what), [(size, {}) for size in sizes], options, **settings):
            rows.append(row)
    except BaseException as error:
        error.measured = frame(rows, attrs)
        if rows and show and speaks:
            print(table_text(error.measured))
        raise
    table = frame(rows, attrs)
    if show and speaks:
        print(table_text(table))
    return table


def sweep(crew, what, jobs, options, **settings):
    """Yield the row of each job, (size, its own settings), with a progress bar; an interrupt ends it after the one that runs."""
    with progress(what, jobs, crew) as tell, interrupted_late(crew) as interrupted:
        for done, (size, own) in enumerate(jobs):
            tell(done, size)
            row = crew.call(time_collective, what, size, **(settings | own), options=options)
            tell(done + 1)  # the row may be printed on the same terminal
            yield row
            if interrupted:
                print(f"interrupted: {done + 1} of {len(jobs)} sizes were measured, and the table has them.", file=sys.stderr)
                return


def settings_in_words(settings):
    """The settings that a reader of the table must know and that no column has, as plain data."""
    return {name: settings[name] for name in ("warmup", "budget", "stable")}


def notes_on(op, crew):
    """Return what a reader of the table must know of an operation on this backend, as an attr."""
    averaged = op == "avg" and crew.backend == "gloo"
    note = "an average on Gloo is a sum, then a division by the number of ranks: both are timed"
    return {"warnings": [note]} if averaged else {}


def sizes_between(smallest=SMALLEST, largest=LARGEST, factor=2) -> list[int]:
    """Bytes from the smallest size to the largest, each `factor` times the one before."""
    for name, value, least in (("smallest", smallest, 1), ("largest", largest, 1), ("factor", factor, 2)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UsageError(f"sizes_between got {value!r} for {name}: give a whole number, {least} or more")
    if largest < smallest:
        raise UsageError(f"sizes_between got {smallest} to {largest} bytes: give the smallest size first")
    sizes = [smallest]
    while sizes[-1] * factor <= largest:
        sizes.append(sizes[-1] * factor)
    return sizes


def sizes_to_measure(what, sizes, crew, warmup, calls, budget, stable, check, link, options, **wishes):
    """The sizes to measure; UsageError unless they, and all that is wished, can be."""
    check_settings(warmup, calls, budget, stable)
    call = describe(what, **wishes, ranks=crew.size, backend=crew.backend, options=options)
    check_link(call, link)
    if call.empty:
        if sizes is not None and list(sizes) != [0]:
            raise UsageError(f"a {call.collective.name} has no size and got sizes={sizes!r}: leave sizes out")
        return [0]
    if sizes is None:
        return sizes_between(max(SMALLEST, call.size(1, crew.size)))
    sizes = [sizes] if isinstance(sizes, int) else list(sizes)
    for size in sizes:
        if isinstance(size, bool) or not hasattr(size, "__index__") or size < 1:
            raise UsageError(f"a size is {size!r}: give whole numbers of bytes, at least 1")
    sizes = [int(size) for size in sizes]
    if not sizes:
        raise UsageError("measure got no sizes: give at least one number of bytes, or leave sizes out")
    for before, after in zip(sizes, sizes[1:]):
        if after <= before:
            raise UsageError(f"sizes are out of order, {after} comes after {before}: give them in rising order, each once")
    call.count(sizes[0], crew.size)
    return sizes
