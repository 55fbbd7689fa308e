"""`python -m ringtree.measure all_reduce --ranks 4 --min 8 --max 64M`: time a collective from a shell."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import re
import sys
from types import SimpleNamespace

from ringtree.collectives import call_names
from ringtree.errors import UsageError
from ringtree.measure import sweep, table
from ringtree.measure.call import OPERATIONS, TYPES, describe

POWERS = {"": 0, "K": 10, "M": 20, "G": 30}


def arguments():
    parser = argparse.ArgumentParser(
        prog="python -m ringtree.measure",
        description="Time a collective on ranks of this machine, one size after another. Inside torchrun it joins "
        "that group instead, and rank 0 prints.",
        epilog="In sizes K, M and G mean 2^10, 2^20 and 2^30 bytes, as in nccl-tests. torchrun takes --max for "
        "an option of its own: write -e there.",
    )
    add = parser.add_argument
    add("collective", help=f"{', '.join(call_names())}; or an algorithm of this package, such as ring_all_reduce")
    add("--program", metavar="MODULE:FUNCTION", help="a rank program of your own, which is that collective")
    add("--ranks", type=int, metavar="N", help="how many ranks to start (4)")
    add("--backend", choices=["nccl", "gloo"], help="NCCL where there are as many GPUs as ranks, else Gloo, unless given")
    add("-b", "--min", metavar="SIZE", help="smallest size (8, or one element a rank)")
    add("-e", "--max", default="64M", metavar="SIZE", help="largest size (64M)")
    add("-f", "--step-factor", type=int, default=2, metavar="N", help="each size is so many times the one before (2)")
    add("-d", "--dtype", default="float", help=f"{', '.join(TYPES)} (float)")
    add("-o", "--op", help=f"{', '.join(OPERATIONS)} (sum)")
    add("-r", "--root", type=int, default=0, help="(0)")
    add("--in-place", action=argparse.BooleanOptionalAction, help="what the call is by nature, unless given")
    add("--check", action=argparse.BooleanOptionalAction, default=True, help="check the results (yes)")
    add("-w", "--warmup", type=int, default=5, metavar="N", help="calls after the first that do not count (5)")
    add("-n", "--calls", type=int, metavar="N", help="calls timed together (as many as fill 5 ms, 20 at most; 1 with a root)")
    add("--budget", type=float, default=1.0, metavar="S", help="seconds of timing for a size (1)")
    add("--stable", type=float, default=0.05, metavar="PART", help="stop when the median is as sure as this (0.05)")
    add(
        "--timeout",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds before ranks that have not finished a size are stuck (60)",
    )
    add("--csv", metavar="FILE", help="write the table as CSV too")
    add("--json", metavar="FILE", help="write the table as JSON too")
    add("--overwrite", action="store_true", help="let FILE be one that exists")
    return parser


def main(given=None) -> int:
    """Returns the exit code: 0; 1 where a result was wrong; 2 for what cannot be; 3 where ranks failed; 130 interrupted."""
    parser = arguments()
    options = parser.parse_args(given)
    try:
        return _run(options)
    except UsageError as error:
        first = os.environ.get("RANK", "0") == "0"  # inside torchrun every rank finds the same
        parser.exit(2, f"{parser.prog}: {error}\n" if first else None)
    except KeyboardInterrupt:
        return 130


def _run(options):
    for name in ("csv", "json"):
        if path := getattr(options, name):
            if not path.endswith(f".{name}"):
                raise UsageError(f"--{name} {path}: give a name that ends in .{name}")
            table.path_to_write(path, options.overwrite)
    what = _program(options.program) if options.program else options.collective
    settings = {
        name: getattr(options, name)
        for name in ("op", "dtype", "root", "in_place", "check", "warmup", "calls", "budget", "stable")
    } | {"of": options.collective if options.program else None, "link": None}
    planned = SimpleNamespace(size=int(os.environ.get("WORLD_SIZE", options.ranks or 4)), backend=options.backend)
    _sizes(what, options, planned, settings)  # most mistakes show before any rank has started
    with _group(options) as (crew, speaks):
        sizes = _sizes(what, options, crew, settings)
        return _measured(what, sizes, crew, speaks, settings, options)


def _measured(what, sizes, crew, speaks, settings, options):
    from ringtree.live.deadline import RankError

    attrs = crew.provenance() | {"settings": sweep.settings_in_words(settings)}
    rows, code = [], 0
    try:
        for row in sweep.sweep(crew, what, sizes, {}, **settings):
            if speaks and not rows:
                print("\n".join(table.head_lines(table.frame([row], attrs))), flush=True)
            rows.append(row)
            if speaks:
                print(table.line(row), flush=True)
    except RankError as error:
        print(error.report, file=sys.stderr)
        code = 3
    except KeyboardInterrupt:
        code = 130
    finally:
        if speaks and rows:
            _write(table.frame(rows, attrs), options)
    if len(rows) < len(sizes) and code == 0:
        code = 130
    return code or int(any(row["wrong"] for row in rows))


def _write(measured, options):
    for path in (options.csv, options.json):
        if path:
            print(f"# written: {table.save(measured, path, options.overwrite)}")


def _sizes(what, options, crew, settings):
    smallest = None if options.min is None else byte_count(options.min, "--min")
    largest = byte_count(options.max, "--max")
    wish = {name: settings[name] for name in ("of", "op", "dtype", "root", "in_place")}
    call = describe(what, **wish, ranks=crew.size, backend=crew.backend)
    if call.empty:
        return sweep.sizes_to_measure(what, None, crew, **settings, options={})
    if smallest is None:
        smallest = max(sweep.SMALLEST, call.size(1, crew.size))
    if smallest > largest:
        raise UsageError(f"--min is {smallest} bytes and --max {largest}: give a --max of {smallest} or more")
    sizes = sweep.sizes_between(smallest, largest, options.step_factor)
    return sweep.sizes_to_measure(what, sizes, crew, **settings, options={})


def byte_count(text: str, name: str) -> int:
    """8, 64K, 1M, 2G: bytes, where the letters are powers of two."""
    found = re.fullmatch(r"(\d+)([KMG]?)B?", text.strip(), re.IGNORECASE)
    if not found:
        raise UsageError(f"{name} {text}: give a number of bytes, such as 8, 64K, 1M or 2G")
    return int(found[1]) << POWERS[found[2].upper()]


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
        yield sweep.LiveRanks(ranks), True


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
    return sweep.Fellows(), dist.get_rank() == 0


if __name__ == "__main__":
    sys.exit(main())
