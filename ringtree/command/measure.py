"""`ringtree measure all_reduce --ranks 4 --min 8 --max 64M`: time a collective from a shell."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import os
import re
import sys

from ringtree.collectives import call_names
from ringtree.command import launching
from ringtree.errors import UsageError
from ringtree.live.processes.engine import LAUNCHERS
from ringtree.measure import crews, nccl_options, sweep, table
from ringtree.measure.call import describe
from ringtree.operations import FP8, LACKS, OPERATIONS, TYPES
from ringtree.units import count_text, size_text

POWERS = {"": 0, "K": 10, "M": 20, "G": 30}


class Parser(argparse.ArgumentParser):
    """One that says what is wrong in one sentence, and not how all the rest is used."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}: see --help\n")


def arguments(prog="ringtree measure"):
    parser = Parser(
        prog=prog,
        allow_abbrev=False,
        description="Time a collective on ranks of this machine, one size after another, out of place and in place where both "
        "are there. Inside torchrun it joins that group instead, and rank 0 prints.",
        epilog="In sizes K, M and G mean 2^10, 2^20 and 2^30 bytes, as in nccl-tests, whose options are understood or "
        "answered. torchrun takes --max for an option of its own: write -e there.",
    )
    add = parser.add_argument
    add("collective", help=f"{', '.join(call_names())}; or an algorithm of this package, such as ring_all_reduce")
    add("--program", metavar="MODULE:FUNCTION", help="a rank program of your own, which is that collective")
    add("--ranks", type=int, metavar="N", help="how many ranks to start (4)")
    add("--backend", choices=["nccl", "gloo"], help="the default is NCCL where there are as many GPUs as ranks, otherwise Gloo")
    add("-b", "--min", "--minbytes", metavar="SIZE", help="smallest size (8, or one element a rank)")
    add("-e", "--max", "--maxbytes", default="64M", metavar="SIZE", help="largest size (64M)")
    add("-f", "--step-factor", "--stepfactor", type=int, metavar="N", help="each size is this many times the one before (2)")
    add("-i", "--step-bytes", "--stepbytes", metavar="SIZE", help="or is this much larger than the one before")
    add("-d", "--dtype", "--datatype", default="float", help=f"{', '.join(TYPES)}, with NCCL {', '.join(FP8)}; or all (float)")
    add("-o", "--op", help=f"{', '.join(OPERATIONS)}; or all that NCCL has too (sum)")
    add("-r", "--root", default="0", help="a rank, or all one after another (0)")
    add(
        "--in-place",
        action=argparse.BooleanOptionalAction,
        help="time only in place, or only out of place (both; a rank program has one form only)",
    )
    add("-c", "--check", type=int, nargs="?", const=1, default=1, metavar="0/1", help="check the results (1)")
    add("--no-check", dest="check", action="store_const", const=0, help="as -c 0")
    add(
        "-w", "--warmup", "--warmup_iters", type=int, default=5, metavar="N", help="calls after the first that do not count (5)"
    )
    few = "as many as fill 5 ms, at most 20; 1 with a root"
    add("-n", "--calls", "--iters", type=int, metavar="N", help=f"calls timed together ({few})")
    add("--budget", type=float, default=1.0, metavar="S", help="seconds of timing for a size (1)")
    add("--stable", type=float, default=0.05, metavar="PART", help="stop when the median is as sure as this (0.05)")
    late = "seconds before ranks that have not finished a size are stuck (60)"
    add("-T", "--timeout", type=float, default=60.0, metavar="S", help=late)
    add("--csv", metavar="FILE", help="write the table as CSV too")
    add("-J", "--json", "--output_file", metavar="FILE", help="write the table as JSON too")
    add("--overwrite", action="store_true", help="replace FILE if it exists")
    nccl_options.add_to(parser)
    return parser


def main(given=None, prog="ringtree measure") -> int:
    """Returns the exit code: 0; 1 where a result was wrong; 2 for what cannot be; 3 where ranks failed; 130 interrupted."""
    given = sys.argv[1:] if given is None else given
    parser = arguments(prog)
    options = parser.parse_args(given)
    try:
        return _run(options, given)
    except UsageError as error:
        parser.exit(2, f"{parser.prog}: {error}\n" if _first() else None)  # inside torchrun every rank finds the same
    except KeyboardInterrupt:
        return 130


def _run(options, given):
    for name in ("csv", "json"):
        if path := getattr(options, name):
            if not path.endswith(f".{name}"):
                raise UsageError(f"--{name} {path}: give a name that ends in .{name}")
            table.path_to_write(path, options.overwrite)
    notes = nccl_options.understood(options)
    what = _program(options.program) if options.program else options.collective
    settings = {name: getattr(options, name) for name in ("warmup", "calls", "budget", "stable")} | {
        "check": options.check != 0,
        "of": options.collective if options.program else None,
        "link": None,
    }
    planned = _Planned(options)
    jobs = _jobs(what, options, planned, settings)  # most mistakes show before any rank has started
    _tell([*notes, f"{planned} for {_plan(jobs)}"])
    if not planned.joins and not _can_start():
        return launching.under_torchrun(planned.size, "ringtree.measure", given)
    with _group(options) as (crew, speaks):
        return _measured(what, _jobs(what, options, crew, settings), crew, speaks, settings, options)


def _can_start():
    """Return whether `ringtree.start` has what it needs, which the extra `live` brings."""
    return all(importlib.util.find_spec(name) for name in ("IPython", "ipykernel", "ipyparallel"))


class _Planned:
    """The ranks that there will be, before they have started."""

    def __init__(self, options):
        self.joins = "WORLD_SIZE" in os.environ
        copies = (
            []
            if self.joins
            else [int(os.environ[size]) for size in LAUNCHERS.values() if size and os.environ.get(size, "").isdecimal()]
        )
        if max(copies, default=1) > 1:
            raise UsageError(
                f"{max(copies)} copies of this command were started, and each would start ranks of its own: "
                "let torchrun start them, or start one and say --ranks"
            )
        if options.ranks is not None and options.ranks < 1:
            raise UsageError(f"--ranks {options.ranks}: give how many, 1 or more")
        self.size = int(os.environ.get("WORLD_SIZE", 4 if options.ranks is None else options.ranks))
        self.backend = options.backend
        if self.backend is None and not self.joins:
            self.backend = "nccl" if _gpus() >= self.size else "gloo"

    def __str__(self):
        backend = {"nccl": " over NCCL", "gloo": " over Gloo", None: ""}[self.backend]
        return f"{'joining' if self.joins else 'starting'} {count_text(self.size, 'rank')}{backend}"


def _gpus():
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _plan(jobs):
    """48 measurements of 24 sizes, 8 B to 64 MiB."""
    sizes = sorted({size for size, _ in jobs})
    ends = dict.fromkeys(map(size_text, (sizes[0], sizes[-1])))
    spread = f" of {count_text(len(sizes), 'size')}, {' to '.join(ends)}"
    return f"{count_text(len(jobs), 'measurement')}{spread if sizes[-1] else ''}"


def _first():
    """Return whether this process is the one that speaks, of those that a launcher started."""
    return next((os.environ[name] for name in ("RANK", *LAUNCHERS) if name in os.environ), "0") == "0"


def _tell(sentences):
    """Return what somebody who waits wants to know, apart from the table; inside torchrun one rank says it."""
    if _first():
        for sentence in sentences:
            print(f"# {sentence}", file=sys.stderr, flush=True)


def _measured(what, jobs, crew, speaks, settings, options):
    attrs = crew.provenance() | {"settings": sweep.settings_in_words(settings)}
    for own in {own.get("op"): own for _, own in jobs}.values():
        attrs |= sweep.notes_on(own.get("op"), crew)
    rows, code = [], 0
    try:
        for row in sweep.sweep(crew, what, jobs, {}, **settings):
            if speaks and not rows:
                print("\n".join(table.head_lines(table.frame([row], attrs))), flush=True)
            rows.append(row)
            if speaks:
                print(table.line(row), flush=True)
    except crew.failures as error:
        print(error.report, file=sys.stderr)
        code = 3
    except KeyboardInterrupt:
        code = 130
    finally:
        if speaks and rows:
            _write(table.frame(rows, attrs), options)
    if len(rows) < len(jobs) and code == 0:
        code = 130
    return code or int(any(row["wrong"] for row in rows))


def _write(measured, options):
    for path in (options.csv, options.json):
        if path:
            print(f"# written: {table.save(measured, path, options.overwrite)}")


def _jobs(what, options, crew, settings):
    """Return what to measure one after another, as nccl-tests orders it: [(size, {type, operation, root, in place or not})]."""
    jobs = []
    for wish in _wishes(what, options, crew, settings["of"]):
        sizes = _sizes(what, options, crew, settings, wish)
        places = _places(what, options, crew, settings["of"], wish)
        jobs += [(size, wish | {"in_place": place}) for size in sizes for place in places]
    return jobs


def _wishes(what, options, crew, of):
    """Every type, operation and root that is asked for; of "all" those that go together."""
    types, operations = [options.dtype], [options.op]
    if options.dtype == "all":
        types = [*TYPES, *(FP8 if crew.backend == "nccl" and _has_fp8() else ())]
    if options.op == "mulsum":
        raise UsageError(
            "-o mulsum multiplies by a number of each rank's own, which torch.distributed does not do: give another"
        )
    if options.op == "all":
        operations = [each for each in OPERATIONS if each not in LACKS["nccl"]]
    roots = range(crew.size) if options.root == "all" else [_whole(options.root, "-r")]
    found = []
    for dtype, op, root in itertools.product(types, operations, roots):
        wish = {"dtype": dtype, "op": op, "root": root}
        try:
            describe(what, of=of, **wish, ranks=crew.size, backend=crew.backend)
        except UsageError:
            if "all" not in (options.dtype, options.op):
                raise
            continue
        found.append(wish)
    if not found:
        describe(what, of=of, dtype=types[0], op=operations[0], root=roots[0], ranks=crew.size, backend=crew.backend)
    return found


def _has_fp8():
    import torch

    return torch.cuda.get_device_capability() >= (9, 0)


def _places(what, options, crew, of, wish):
    """Out of place and in place, where torch's own call has both; a rank program as it is by nature."""
    wish = wish | {"ranks": crew.size, "backend": crew.backend, "of": of}
    if options.in_place is not None or (call := describe(what, **wish)).program is not None or call.empty:
        return [options.in_place]
    try:
        describe(what, **wish, in_place=True)
    except UsageError:
        return [False]
    return [False, True]


def _sizes(what, options, crew, settings, wish):
    wish = wish | {"in_place": options.in_place}
    call = describe(what, of=settings["of"], **wish, ranks=crew.size, backend=crew.backend)
    if call.empty:
        return sweep.sizes_to_measure(what, None, crew, **settings, **wish, options={})
    largest = byte_count(options.max, "--max")
    smallest = max(sweep.SMALLEST, call.size(1, crew.size)) if options.min is None else byte_count(options.min, "--min")
    if smallest > largest:
        raise UsageError(f"--min is {smallest} bytes and --max {largest}: give a --max of {smallest} or more")
    sizes = _steps(options, smallest, largest)
    return sweep.sizes_to_measure(what, sizes, crew, **settings, **wish, options={})


def _steps(options, smallest, largest):
    if options.step_bytes is not None:
        if options.step_factor is not None:
            raise UsageError("-i and -f were given: give one of them, because sizes grow by steps or by a factor")
        step = byte_count(options.step_bytes, "-i")
        if step < 1:
            raise UsageError(f"-i {options.step_bytes}: give a step of 1 byte or more")
        return list(range(smallest, largest + 1, step))
    factor = 2 if options.step_factor is None else options.step_factor
    if factor < 2:
        raise UsageError(f"-f {factor}: sizes would not grow: give a factor of 2 or more, or steps of equal size with -i")
    return sweep.sizes_between(smallest, largest, factor)


def _whole(text, name):
    if not text.isdecimal():
        raise UsageError(f"{name} {text}: give the number of a rank, or all")
    return int(text)


def byte_count(text: str, name: str) -> int:
    """8, 64K, 1M, 2G: bytes, where the letters are powers of two."""
    found = re.fullmatch(r"(\d{1,15})(\.\d{1,9})?([KMG]?)B?", text.strip(), re.IGNORECASE)
    if not found:
        raise UsageError(f"{name} {text}: give a number of bytes, such as 8, 64K, 1M or 2G")
    power = POWERS[found[3].upper()]
    return (int(found[1]) << power) + int(float(found[2] or 0) * (1 << power))


def _program(name):
    module, _, function = name.partition(":")
    if not (module and function):
        raise UsageError(f"--program {name}: give a module and a function in it, such as rings:my_ring_all_reduce")
    try:
        return getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        raise UsageError(f"--program {name}: there is no module {error.name!r} here or on PYTHONPATH") from error
    except AttributeError as error:
        raise UsageError(f"--program {name}: module {module} has no {function!r}") from error


@contextlib.contextmanager
def _group(options):
    """The ranks to measure on: those of the torchrun that started this process, or new ones, ended in the end."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        yield _joined(options)
        import torch.distributed as dist

        dist.destroy_process_group()  # only where all went well: else other ranks may be inside a collective
        return
    from ringtree.live import cluster

    count = 4 if options.ranks is None else options.ranks
    with cluster.start(count, backend=options.backend, timeout=options.timeout) as ranks:
        yield crews.LiveRanks(ranks), True


def _joined(options):
    import torch
    import torch.distributed as dist

    size = int(os.environ["WORLD_SIZE"])
    if options.ranks not in (None, size):
        raise UsageError(f"--ranks {options.ranks} inside a torchrun of {size}: leave --ranks out")
    local, here = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", size))
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    backend = options.backend or ("nccl" if gpus >= here else "gloo")
    if backend == "nccl" and gpus < here:
        raise UsageError(
            f"--backend nccl needs a GPU for each of the {here} ranks on this host, and PyTorch sees {gpus}: use gloo"
        )
    if backend == "nccl":
        torch.cuda.set_device(local)
    dist.init_process_group(backend)
    return crews.AmongRanks(), dist.get_rank() == 0
