"""The options of nccl-tests at our command: which mean the same here, and what is said to the others.

Whoever knows nccl-tests may write its options, short or long. Those that this command has under the same letter stand in
`__main__`; here are the rest. Source: nccl-tests 2.19, README.md and src/common.cu.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass

from ringtree.errors import UsageError


@dataclass(frozen=True)
class Option:
    """One option of nccl-tests. harmless: values that change nothing here; answer: what is said to any other.

    goes_on: whether the measurement goes on after that, for what is asked is so in any case.
    """

    letter: str
    name: str
    harmless: tuple[str, ...]
    answer: str
    goes_on: bool = False


ANSWERED = (
    Option("-m", "agg_iters", ("1",), "torch.distributed has no public call that aggregates several into one: leave it out"),
    Option("-N", "run_cycles", ("1",), "run the command again instead: a size is repeated here until its median is stable"),
    Option("-p", "parallel_init", ("0",), "every rank is a process of its own, and they start at the same time anyway", True),
    Option("-y", "stream_null", ("0",), "PyTorch runs collectives on a stream of its own: leave it out"),
    Option("-G", "cudagraph", ("0",), "nothing is captured in a CUDA graph here: times are those of calls from Python"),
    Option(
        "-C",
        "report_cputime",
        ("0",),
        "times here run until the result is there, and are never only the CPU's time to launch: leave it out",
    ),
    Option("-S", "report_timestamps", ("0",), "the table's head has the time of day, its rows have none", True),
    Option("-a", "average", ("3",), "the slowest rank's time counts, as with -a 3; each rank's own is by_rank in --csv FILE"),
    Option("-R", "local_register", ("0",), "buffers come from PyTorch's allocator and are not registered: leave it out"),
    Option("-x", "cta_policy", ("0",), "NCCL is set by its environment variables here, such as NCCL_MAX_CTAS: leave it out"),
    Option(
        "-D",
        "device_implementation",
        ("0",),
        "those kernels are nccl-tests' own: this command runs what torch.distributed calls",
    ),
    Option("-V", "device_cta_count", (), "it is for nccl-tests' own kernels: this command runs what torch.distributed calls"),
    Option("-M", "memory", ("0",), "nothing here reports memory: ask torch.cuda.memory_summary() in a program of your own"),
    Option("-u", "unalign", ("0",), "buffers are aligned as PyTorch aligns them: leave it out"),
    Option("-I", "per_iter_timing", ("0",), "every batch is timed: the table has an interval, --csv FILE quartiles", True),
    Option("-K", "per_iter_skip", ("0",), "give -w, the calls before those that count"),
)


def add_to(parser):
    """The options of nccl-tests that `__main__` does not have itself."""
    group = parser.add_argument_group("as nccl-tests counts ranks (its other options are answered in a sentence)")
    group.add_argument(
        "-g", "--ngpus", type=int, metavar="N", help="as --ranks: here every rank is a process, on a GPU if there are enough"
    )
    group.add_argument("-t", "--nthreads", type=int, metavar="N", help="times so many")
    for option in ANSWERED:
        group.add_argument(option.letter, f"--{option.name}", dest=f"answered_{option.name}", help=argparse.SUPPRESS)
    group.add_argument("-z", "--blocking", help=argparse.SUPPRESS)


def understood(options) -> list[str]:
    """Sentences on options that change nothing; UsageError on one that cannot be. Sets `options.ranks` and `options.calls`."""
    notes = []
    for option in ANSWERED:
        value = getattr(options, f"answered_{option.name}")
        if value is None or value in option.harmless:
            continue
        sentence = f"{option.letter} {value}: {option.answer}"
        if not option.goes_on:
            raise UsageError(sentence)
        notes.append(sentence)
    _blocking(options)
    _ranks(options)
    return notes


def _blocking(options):
    if options.blocking in (None, "0"):
        return
    if options.blocking not in ("1", "3"):
        raise UsageError(
            f"-z {options.blocking}: ranks meet before every batch here, so give -z 1, or -z 0 for calls back to back"
        )
    if options.calls not in (None, 1):
        raise UsageError(
            f"-z {options.blocking} times every call alone and -n {options.calls} times several together: give one of them"
        )
    options.calls = 1


def _ranks(options):
    """-t times -g ranks, as in one process of nccl-tests; inside torchrun each process is one."""
    if options.ngpus is None and options.nthreads is None:
        return
    for letter, value in (("-g", options.ngpus), ("-t", options.nthreads)):
        if value is not None and value < 1:
            raise UsageError(f"{letter} {value}: give how many, 1 or more")
    ranks = (options.ngpus or 1) * (options.nthreads or 1)
    if "WORLD_SIZE" in os.environ:
        if ranks != 1:
            raise UsageError(f"-t times -g are {ranks} and every process of torchrun is one rank: leave them out, or give -g 1")
        return
    if options.ranks not in (None, ranks):
        raise UsageError(f"-t times -g are {ranks} ranks and --ranks is {options.ranks}: give one of them")
    options.ranks = ranks
