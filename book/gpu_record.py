"""Record what only NCCL on a GPU shows: `make gpu-record`, or `python book/gpu_record.py`, on a machine with an NVIDIA GPU.

It says what it found, starts ranks (one GPU each, or sharing where there are fewer GPUs), runs every notebook against its
stored outputs over NCCL, measures, and writes a small file for each part into ringtree/tables/recordings, from where the
pages take them. A file that is there already is never replaced unasked. Without a GPU it says so and writes nothing; --dry
runs the same lines over Gloo on CPUs into another folder, for a trial, and marks them so that no page takes them.

Exits with 0 when every part was recorded, 1 when a part failed (the others are written), 2 for what cannot be, 130 when
interrupted.
"""

import argparse
import contextlib
import datetime
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "book"), str(ROOT)]

import nbformat  # noqa: E402
import normalise  # noqa: E402
import psutil  # noqa: E402

from ringtree.data import recorded
from ringtree.errors import UsageError  # noqa: E402
from ringtree.live.deadline import RankError  # noqa: E402
from ringtree.measure import record  # noqa: E402

NBVAL = ("--nbval", "--nbval-cell-timeout", "300", "--nbval-sanitize-with", str(ROOT / "tests" / "nbval_sanitize.cfg"))
NOTEBOOK_SECONDS = 1800
NOTEBOOK_RANKS = 4  # every notebook starts so many
REPORT_LENGTH = 2000
COLOUR = re.compile(r"(?:#x1B|\x1b)\[[0-9;]*m")  # as pytest's XML spells it, and as terminals do
# The notebooks come first: a recording that is already there would change what their cells print.
NAMES = ("notebooks", *record.PARTS)


def arguments():
    parser = argparse.ArgumentParser(prog=recorded.COMMAND, description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--ranks", type=int, default=4, metavar="N", help="how many ranks the measurements take, 2 or more (4)")
    add("--only", nargs="+", choices=NAMES, metavar="PART", help=f"only these parts, of {', '.join(NAMES)}")
    add("--notebooks", nargs="+", type=Path, metavar="FILE", help="only these notebooks (every chapter and lab source)")
    add("--out", type=Path, metavar="FOLDER", help="write there (ringtree/tables/recordings; a dry run: a temporary folder)")
    add("--overwrite", action="store_true", help="replace recordings that are there already")
    add("--dry", action="store_true", help="a trial with small sizes over Gloo on CPUs: no recording")
    return parser


def main(given=None) -> int:
    parser = arguments()
    options = parser.parse_args(given)
    try:
        found = look(options.dry)
        return run(_checked(options), options, found)
    except UsageError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    except KeyboardInterrupt:
        print("interrupted: the parts that were done are kept", file=sys.stderr)
        return 130


def _checked(options) -> tuple[list[str], Path, list[Path]]:
    """(parts, folder, notebooks); UsageError unless all can be, so that mistakes show before anything runs."""
    if options.ranks < 2:
        raise UsageError(f"--ranks {options.ranks}: give 2 ranks or more, one has nobody to talk to")
    books = [path.resolve() for path in options.notebooks or normalise.stored_notebooks()]
    if lacking := [path.name for path in books if not (path.is_file() and path.suffix == ".ipynb")]:
        raise UsageError(f"--notebooks {lacking[0]}: there is no such notebook; give files that end in .ipynb")
    parts = [name for name in NAMES if name in (options.only or NAMES)]
    folder = options.out or recorded.FOLDER
    if options.dry and options.out is None:
        folder = Path(tempfile.mkdtemp(prefix="ringtree-dry-run-"))
    if options.dry and folder.resolve() == recorded.FOLDER.resolve():
        raise UsageError("--dry makes no recordings: give another folder with --out, or leave --out out")
    there = [name for name in parts if recorded.path_of(name, folder).exists()]
    if there and not options.overwrite:
        raise UsageError(
            f"{', '.join(there)} {'is' if len(there) == 1 else 'are'} recorded already, and nothing was done: "
            "give --overwrite to record again, --only to record others, or --out to write elsewhere"
        )
    return parts, folder, books


# -- what is here --------------------------------------------------------------------


def look(dry=False) -> dict:
    """What is here before anything is written: gpus (how many PyTorch sees), driver, commit, changed (the tree since then).

    UsageError where there is no GPU, or no NCCL, and the run is no dry one.
    """
    import torch

    commit, changed = commit_here()
    if dry:
        return {"gpus": 0, "driver": None, "commit": commit, "changed": changed}
    gpus, driver = (torch.cuda.device_count() if torch.cuda.is_available() else 0), driver_version()
    if gpus == 0:
        why = "none is here" if driver is None else f"it sees none, though the driver {driver} is installed"
        if driver and torch.version.cuda is None:
            why = f"this one, {torch.__version__}, was built without CUDA: install PyTorch's build for CUDA"
        raise UsageError(
            f"a recording needs an NVIDIA GPU that PyTorch can use, and {why}; nothing was written (--dry tries it on CPUs)"
        )
    if not torch.distributed.is_nccl_available():
        raise UsageError(f"a recording needs NCCL, and this PyTorch, {torch.__version__}, was built without: nothing was written")
    return {"gpus": gpus, "driver": driver or "unknown", "commit": commit, "changed": changed}


def driver_version():
    """The NVIDIA driver's version as its own tool or the kernel says it; None where there is none."""
    with contextlib.suppress(OSError, subprocess.SubprocessError, IndexError):
        asked = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True, timeout=30
        )
        if asked.returncode == 0:
            return asked.stdout.split()[0]
    with contextlib.suppress(OSError):
        return driver_in(Path("/proc/driver/nvidia/version").read_text())
    return None


def driver_in(text):
    """The version in /proc/driver/nvidia/version, or None."""
    said = re.search(r"Kernel Module\b.*?\s(\d+(?:\.\d+)+)", text)
    return said and said[1]


def provenance(stage, settings, command, found) -> dict:
    """All of `recorded.PROVENANCE`, from what the ranks of a part said of themselves, and what `look` found."""
    told, first = stage.found, stage.found[0]
    devices = {each["device"]: each["gpu"] for each in told if each["gpu"]}
    return {
        "kind": recorded.GPU if first["backend"] == "nccl" else recorded.DRY,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": command,
        "ranks": len(told),
        "shared": bool(devices) and len(devices) < len(told),
        "gpus": list(devices.values()),
        **{key: found[key] for key in ("driver", "commit", "changed")},
        **{key: first[key] for key in ("backend", "capability", "cuda", "torch", "nccl", "python", "system", "cores")},
        "ringtree": version("ringtree"),
        "environment": stage.environment,
        "settings": settings,
    }


def commit_here():
    """(commit, whether the tree differs from it), (None, None) where git or its history is not."""

    def git(*words):
        asked = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True, timeout=30)
        return asked.stdout.strip()

    try:
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain"))
    except (OSError, subprocess.SubprocessError):
        return None, None


def command_of(options) -> str:
    """The command that makes this recording again; where it wrote to is nobody's concern."""
    words = [] if options.ranks == 4 else ["--ranks", str(options.ranks)]
    for name in ("only", "notebooks"):
        if values := getattr(options, name):
            words += [f"--{name}", *(Path(value).name if name == "notebooks" else value for value in values)]
    words += ["--dry"] if options.dry else []
    return f'{recorded.COMMAND} ARGS="{shlex.join(words)}"' if words else recorded.COMMAND


# -- the run -------------------------------------------------------------------------


def run(plan, options, found) -> int:
    """Record part after part, each written as soon as it is done; returns the exit code."""
    parts, folder, books = plan
    if options.dry:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a notebook must not take a GPU that is there
    backend = "nccl" if found["gpus"] else "gloo"
    stage = record.Stage(options.ranks, backend, 0 < found["gpus"] < options.ranks)
    introduce(stage, found)
    made, failed = [], []
    for name in parts:
        if name == "nccl_log" and backend != "nccl":
            print("nccl_log: left out, only NCCL writes it")
            continue
        print(f"{name}: …", flush=True)
        began = time.monotonic()
        try:
            on = record.Stage(NOTEBOOK_RANKS, backend, 0 < found["gpus"] < NOTEBOOK_RANKS) if name == "notebooks" else stage
            rows, settings = run_notebooks(on, books) if name == "notebooks" else record.PARTS[name](on, quick=options.dry)
            told = provenance(on, settings, command_of(options), found)
            path = recorded.write(name, rows, told, folder, options.overwrite)
        except Exception as error:  # the other parts are worth having
            if isinstance(error, RankError) and error.report.startswith("interrupted"):
                raise KeyboardInterrupt from error
            failed.append(name)
            print(f"{name}: not recorded: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            continue
        made.append(name)
        print(f"{name}: {len(rows)} rows in {time.monotonic() - began:.0f} s, {path.name}", flush=True)
    print(f"{'Tried' if options.dry else 'Recorded'}: {', '.join(made) or 'nothing'}; in {folder}")
    if made and folder.resolve() == recorded.FOLDER.resolve():
        print("Run `make notebooks` next: it stores what the pages' cells print now.")
    return 1 if failed else 0


def introduce(stage, found):
    """Start the ranks once, and say what they found; UsageError where they do not start."""
    try:
        with stage.start():
            pass
    except Exception as error:
        raise UsageError(f"{stage.size} ranks did not start over {stage.backend}, and nothing was written: {error}") from error
    told = provenance(stage, {}, "", found)
    versions = f"PyTorch {told['torch']}"
    if stage.backend == "nccl":
        versions = f"driver {told['driver']}, CUDA {told['cuda']}, {versions}, NCCL {told['nccl']}"
    print(f"Found {recorded.where(told)}; {versions}.")
    if told["shared"]:
        print("Results are right where ranks share a GPU; times are those of its time slices, not of a network.")
    elif stage.backend != "nccl":
        print("This is a dry run: what it writes says nothing of a GPU.")


# -- the notebooks ---------------------------------------------------------------------


def run_notebooks(stage, paths) -> tuple[list[dict], dict]:
    """Run each notebook with nbval against its stored outputs; returns a row a cell (see `outcomes`), and the settings."""
    with stage.start():
        pass  # for the provenance: the notebooks start their own ranks in the same way
    environment = {**os.environ, "RINGTREE_SHARE_GPUS": "1" if stage.share_gpus else "0"}
    rows = []
    for path in paths:
        with tempfile.TemporaryDirectory(prefix="ringtree-nbval-") as folder:
            results = Path(folder) / "cells.xml"
            ended = _pytest(path, results, environment)
            found = outcomes(path, results.read_text(encoding="utf-8") if results.is_file() else None, ended)
        rows += found
        print(f"  {recorded.Recording('notebooks', '', found).text}", flush=True)
    if all(row["outcome"] == "not run" for row in rows):
        raise RuntimeError(f"none of {len(rows)} cells ran, {ended}: `make test` says more")
    return rows, {"notebooks": len(paths), "compared": "with the stored outputs, by nbval"}


def _pytest(path, results, environment) -> str:
    """Run nbval on one notebook; say how it ended. Past NOTEBOOK_SECONDS it is ended, with all that it started."""
    command = [sys.executable, "-m", "pytest", "-q", "-vv", "--color=no", "-p", "no:cacheprovider", f"--junitxml={results}"]
    command += ["-c", str(ROOT / "pyproject.toml"), *NBVAL]
    with subprocess.Popen(
        [*command, str(path)], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            process.wait(NOTEBOOK_SECONDS)
            return f"pytest ended with {process.returncode}"
        except BaseException as error:
            for each in [*psutil.Process(process.pid).children(recursive=True), process]:
                with contextlib.suppress(psutil.Error):
                    each.kill()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return f"pytest was ended after {NOTEBOOK_SECONDS} s"


def outcomes(path, xml, ended="") -> list[dict]:
    """A row for each code cell of a notebook: notebook, cell (from 0), outcome, report.

    xml: pytest's JUnit results of it, None where there are none; ended: how pytest ended. outcome: "same", "ran" (its
    output is not compared), "differs", "failed" or "not run". report: what nbval says of a cell that differs or failed,
    and why one was not run; else None.
    """
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    cases = {}
    for case in [] if xml is None else ElementTree.fromstring(xml).iter("testcase"):
        if match := re.fullmatch(r"(?:.*::)?Cell (\d+)", case.get("name", "")):
            cases[int(match[1])] = case
    return [
        {"notebook": path.name, "cell": number, **dict(zip(("outcome", "report"), _outcome(cell, cases.get(number), ended)))}
        for number, cell in enumerate(cells)
    ]


def _outcome(cell, case, ended) -> tuple[str, str | None]:
    if case is None:
        return "not run", ended
    problem = next((part for part in case if part.tag in ("failure", "error", "skipped")), None)
    if problem is None:
        return "ran" if "nbval-ignore-output" in cell.metadata.get("tags", ()) else "same", None
    if problem.tag == "skipped":
        return "not run", problem.get("message") or "left out"
    said = normalise.without_paths(COLOUR.sub("", problem.text or problem.get("message") or "no reason was given"))
    outcome = "differs" if problem.tag == "failure" and "Cell outputs differ" in said else "failed"
    return outcome, (said.partition("Traceback:")[2] or said).strip()[:REPORT_LENGTH]


if __name__ == "__main__":
    sys.exit(main())
