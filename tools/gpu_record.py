"""Record what only NCCL on a GPU shows: `make gpu-record`, or `python tools/gpu_record.py`, on a machine with an NVIDIA GPU.

It says what it found, starts four ranks (one GPU each, or sharing where there are fewer GPUs), runs every notebook against
its stored outputs over NCCL, measures, and writes a small file for each part into ringtree/data/tables/recordings, from where
the pages take them. A file that is there already is never replaced unasked. Without a GPU it says so and writes nothing;
--dry runs the same lines over Gloo on CPUs into a temporary folder, for a trial, and marks them so that no page takes them.

Exits with 0 when every part was recorded, 1 when a part failed (the others are written), 2 for what cannot be, 130 when
interrupted.
"""

import argparse
import contextlib
import datetime
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT)]

if lacking := [name for name in ("torch", "pandas", "ipyparallel", "psutil", "nbval") if find_spec(name) is None]:
    print(f"{', '.join(lacking)} cannot be imported: install requirements.txt first, as `make` does", file=sys.stderr)
    sys.exit(2)

import normalise
import on_gpu
import pandas
import pytest
import torch

from ringtree.data import recordings
from ringtree.errors import UsageError
from ringtree.live.reports.deadline import RankError

NBVAL = ("--nbval", "--nbval-cell-timeout", "300", "--nbval-sanitize-with", str(ROOT / "tests" / "nbval_sanitize.cfg"))
QUIET = ("-q", "--tb=no", "--no-header", "--no-summary", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"))
QUIET += ("-W", "default")  # such a machine may have other packages, and a warning of theirs says nothing of a cell
REPORT_LENGTH = 2000
INTERRUPTED = "by an interrupt"
# The notebooks come first: a recording that is already there would change what their cells print.
NAMES = ("notebooks", *on_gpu.PARTS)


def arguments():
    parser = argparse.ArgumentParser(prog=recordings.COMMAND, description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="PART", help=f"only these parts, of {', '.join(NAMES)}")
    parser.add_argument("--notebooks", nargs="+", type=Path, metavar="FILE", help="only these (every chapter and lab source)")
    parser.add_argument("--overwrite", action="store_true", help="replace recordings that are there already")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="how many notebooks to run at a time (%(default)s)")
    parser.add_argument("--commit", metavar="HASH", help="the commit of this tree, if its git history is on another machine")
    parser.add_argument(
        "--within", type=float, metavar="SECONDS", help="stop the notebooks after this time and record the cells that ran"
    )
    parser.add_argument("--dry", action="store_true", help="a trial with small sizes over Gloo on CPUs: no recording")
    return parser


def main(given=None) -> int:
    options = arguments().parse_args(given)
    try:
        return run(options, look(options))
    except (UsageError, RankError, RuntimeError) as error:
        print(f"{recordings.COMMAND}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: the parts that were done are kept", file=sys.stderr)
        return 130


def look(options) -> dict:
    """What is here before anything runs: gpus (how many PyTorch sees), driver, commit, changed (the tree since then).

    UsageError, unless the run is a dry one, where there is no GPU or no NCCL, and for what is recorded already.
    """
    there = [name for name in options.only or NAMES if recordings.path_of(name, recordings.FOLDER).exists()]
    gpus, driver = 0 if options.dry else torch.cuda.device_count(), driver_version()
    if not (options.dry or gpus and torch.distributed.is_nccl_available()):
        raise UsageError(
            f"a recording needs an NVIDIA GPU and a PyTorch with CUDA and NCCL, and this PyTorch, {torch.__version__}, sees "
            f"{gpus} GPUs with {f'driver {driver}' if driver else 'no driver'}; nothing was written (--dry tries it on CPUs)"
        )
    if there and not (options.dry or options.overwrite):
        raise UsageError(
            f"recorded already: {', '.join(there)}; nothing was done: give --overwrite to record again, or --only for others"
        )
    commit, changed = (options.commit, "unknown") if options.commit else history()
    return {"gpus": gpus, "driver": driver or ("unknown" if gpus else None), "commit": commit, "changed": changed}


def said_by(command):
    """What a command prints, "" where it cannot."""
    try:
        return subprocess.check_output(shlex.split(command), cwd=ROOT, text=True, stderr=subprocess.DEVNULL, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ""


def driver_version():
    """The NVIDIA driver's version as its own tool or the kernel says it; None where there is none."""
    said = said_by("nvidia-smi --query-gpu=driver_version --format=csv,noheader") or said_by("cat /proc/driver/nvidia/version")
    return next(iter(re.findall(r"\d+\.[\d.]+", said)), None)


def history():
    """(commit, whether the tree differs from it), both said to be unknown where git or this folder's history is not."""
    git = f"git --git-dir={shlex.quote(str(ROOT / '.git'))}"  # never that of a folder above
    commit = said_by(f"{git} rev-parse HEAD").strip()
    return (commit, said_by(f"{git} status --porcelain") != "") if commit else ("unknown (no git history here)", "unknown")


def provenance(stage, settings, options, found) -> dict:
    """All of `recordings.PROVENANCE`, from what the ranks of a part said of themselves, and what `look` found."""
    first, devices = stage.found[0], {each["device"]: each["gpu"] for each in stage.found if each["gpu"]}
    words = ["--only", *options.only] if options.only else []
    words += ["--notebooks", *(path.name for path in options.notebooks)] if options.notebooks else []
    words += ["--dry"] if options.dry else []
    return {
        "kind": recordings.GPU if first["backend"] == "nccl" else recordings.DRY,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": f'{recordings.COMMAND} ARGS="{shlex.join(words)}"' if words else recordings.COMMAND,
        "ranks": len(stage.found),
        "shared": 0 < len(devices) < len(stage.found),
        "gpus": list(devices.values()),
        **{key: found[key] for key in ("driver", "commit", "changed")},
        **{key: first[key] for key in ("backend", "cuda", "torch", "nccl")},
        "settings": settings | {"environment": first["environment"]},
    }


def run(options, found) -> int:
    """Record part after part, each written as soon as it is done; returns the exit code."""
    os.environ |= {"CUDA_VISIBLE_DEVICES": ""} if options.dry else {}  # a notebook must not take a GPU that is there
    folder = tempfile.mkdtemp(prefix="ringtree-dry-run-") if options.dry else recordings.FOLDER
    with (first := on_gpu.Stage(found["gpus"])).start():
        pass  # ranks that cannot start are told before anything else
    told = provenance(first, {}, options, found)
    versions = ", ".join(f"{key} {told[key]}" for key in ("driver", "cuda", "torch", "nccl", "commit") if told[key])
    print(f"Found {recordings.where(told)}; {versions}." + " A dry run says nothing of a GPU." * options.dry, flush=True)
    made, failed = [], []
    for name in [name for name in NAMES if name in (options.only or NAMES)]:
        print(f"{name}: …", flush=True)
        began, stage = time.monotonic(), first if name == "notebooks" else on_gpu.Stage(found["gpus"])
        try:
            rows, settings = notebooks(stage, options) if name == "notebooks" else on_gpu.PARTS[name](stage, options.dry)
            recordings.write(name, rows, provenance(stage, settings, options, found), folder, options.overwrite)
            if str(settings.get("stopped")).startswith(INTERRUPTED):
                raise KeyboardInterrupt
        except Exception as error:  # the other parts are worth having
            if isinstance(error, RankError) and error.report.startswith("interrupted"):
                raise KeyboardInterrupt from error
            failed.append(name)
            print(f"{name}: not recorded: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        else:
            made.append(name)
            print(f"{name}: {len(rows)} rows in {time.monotonic() - began:.0f} s", flush=True)
    print(f"{'Tried' if options.dry else 'Recorded'}: {', '.join(made) or 'nothing'}; in {folder}")
    if made and not options.dry:
        print("Run `make notebooks` next: it stores what the pages' cells print now.")
    return 1 if failed else 0


# -- the notebooks ---------------------------------------------------------------------


def notebooks(stage, options) -> tuple[list[dict], dict]:
    """Run the notebooks with nbval against their stored outputs; returns a row a cell (see `Cells`), and the settings.

    They start their own ranks, in the same way as the stage.
    """
    os.environ["RINGTREE_SHARE_GPUS"] = "1" if stage.share_gpus else "0"
    paths, cells = [str(path.resolve()) for path in options.notebooks or normalise.stored_notebooks()], Cells(options.within)
    several = ["-n", str(options.workers), "--dist", "loadfile"] if options.workers > 1 else []
    with cells.until_stopped():
        try:
            ended = pytest.main([*QUIET, *NBVAL, *several, *paths], plugins=[cells])
        except (KeyboardInterrupt, pytest.exit.Exception):
            ended = pytest.ExitCode.INTERRUPTED
        except Exception:  # what is stopped in the middle of something may raise anything
            if not (cells.interrupted or cells.stopped):
                raise
            ended = pytest.ExitCode.INTERRUPTED
    whole = ended in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not cells.interrupted
    if not (whole or cells.stopped):
        cells.stopped = INTERRUPTED if cells.interrupted or ended == pytest.ExitCode.INTERRUPTED else f"by pytest: {ended!r}"
        if not (options.within and cells.rows):
            raise (
                KeyboardInterrupt if cells.stopped == INTERRUPTED else RuntimeError(f"stopped {cells.stopped}: see `make test`")
            )
    rows = sorted(cells.rows, key=lambda row: (row["notebook"], row["cell"]))
    print(recordings.rows_text("notebooks", pandas.DataFrame(rows)), flush=True)
    stopped = {"stopped": f"{cells.stopped}, before all had run"} if cells.stopped else {}
    return rows, {"notebooks": len(paths), "compared": "with the stored outputs, by nbval"} | stopped


class Cells:
    """A pytest plugin that notes how each cell came out: rows with notebook, cell (from 0), outcome as pytest calls it, report.

    report: what nbval says of a cell that differs or raises, and why one was not run; None of one that passed.
    within: seconds after which pytest is stopped, or None; stopped: how it was, or None.
    """

    def __init__(self, within=None):
        self.rows, self.within, self.stopped, self.interrupted = [], within, None, False

    @contextlib.contextmanager
    def until_stopped(self):
        """Stop pytest, whatever it waits for, when the time is up or at an interrupt, and note which."""

        def stop(*_):
            self.stopped = f"after {self.within:.0f} s"
            pytest.exit("the time is up", returncode=pytest.ExitCode.INTERRUPTED)

        def interrupt(*_):
            self.interrupted = True
            raise KeyboardInterrupt

        handlers = {signal.SIGALRM: stop}
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as of what runs in the background
            handlers[signal.SIGINT] = interrupt
        before = {signum: signal.signal(signum, handler) for signum, handler in handlers.items()}
        signal.setitimer(signal.ITIMER_REAL, self.within or 0)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or not report.passed:
            said = normalise.without_paths(report.longreprtext)
            told = (said.partition("Traceback:")[2].strip() or said)[:REPORT_LENGTH]
            path, cell = report.location[0], report.nodeid.rpartition("::Cell ")[2]
            which = {"notebook": Path(path).name, "cell": int(cell)}
            self.rows.append({**which, "outcome": report.outcome, "report": None if report.passed else told or None})
            if not report.passed:
                print(f"\n{path} cell {cell}: {told}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
