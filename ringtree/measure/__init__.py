"""Measure messages and collectives honestly: warm up, repeat, keep the first call apart, check the results.

    from ringtree.measure import measure
    table = measure("all_reduce", sizes=[8, 2**10, 2**20])

times a collective on the ranks that `ringtree.start` started, prints the table that users of
nccl-tests know, and returns it as a pandas DataFrame.
`python -m ringtree.measure all_reduce --ranks 4` does the same from a shell, `ringtree.measure.logs.read`
reads what others measured, and `compare` sets tables side by side. `flight_recorder` reads what PyTorch noted on the ranks
of a job that hangs, `torch_profiler` what it noted of a step.

On the ranks of `ringtree.start` a kernel and a controller share the cores with what is timed, which shows
where the ranks are processes on a busy machine; `torchrun --nproc_per_node 4 -m ringtree.measure all_reduce`
has neither. For programs that already run on ranks, under `torchrun` or in a `%%px` cell, `time_collective`
measures one size, `ping_pong` plain messages, and `timed` whatever is called.

Columns of a table, a row a size, in seconds, bytes and bytes a second: collective, program, ranks; size (of the full
vector), count (elements that a rank passes), type, redop, root (-1: none), in_place; time (the
median over batches of the slowest rank's time for one call), algbw = size / time, busbw (see
`bus_factor`); min, q1, q3, max of those times; low, high (95 % interval of the median); wrong
(elements with a wrong value in the worst call, all ranks together; <NA>: not checked); first
(the first call, the slowest rank's); batches, calls; stable (whether the interval got narrow
enough before the budget was spent); by_rank (each rank's own median). `.attrs` says where it was
measured: backend, devices, versions, date.
"""

from ringtree.collectives import bus_factor
from ringtree.measure import flight_recorder, torch_profiler
from ringtree.measure.messages import POWERS_OF_TWO, ping_pong
from ringtree.measure.sweep import measure, sizes_between
from ringtree.measure.table import compare, frame, save, table_text
from ringtree.measure.timing import Timing, median_interval, stopwatch, time_collective, timed

__all__ = [
    "POWERS_OF_TWO",
    "Timing",
    "bus_factor",
    "compare",
    "flight_recorder",
    "frame",
    "measure",
    "median_interval",
    "ping_pong",
    "save",
    "sizes_between",
    "stopwatch",
    "table_text",
    "time_collective",
    "timed",
    "torch_profiler",
]
