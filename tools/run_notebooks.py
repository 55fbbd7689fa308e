"""Run notebooks on live ranks, several at a time, and keep what they print: `python tools/run_notebooks.py [NOTEBOOK …]`.

Without names: every chapter and lab source. A notebook is run only if something that its last run reached has changed
(`book/ext/executed.py`); --all runs each. The book shows what is kept, and `pytest --nbval --kept` compares it with the
stored outputs. Exits with 1 where a notebook did not run to its end.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
AT_ONCE = 3  # each spends part of its time waiting: three keep two cores busy
sys.path[:0] = [str(ROOT / "book" / "ext"), str(ROOT / "tools"), str(ROOT)]

import executed
import normalise

from ringtree.live.processes import warm

under_way = set()  # processes that run notebooks; a kernel ends with its own


def run(paths, everything=False, at_once=AT_ONCE):
    """Run those of the notebooks whose kept runs are not good any more; returns whether all ran to their ends."""
    due = [path for path in paths if everything or not executed.is_good(path)]
    if not due:
        return True
    print(f"Running {len(due)} of {len(paths)} notebooks on live ranks, {at_once} at a time.", flush=True)
    before = signal.signal(signal.SIGTERM, end)
    try:
        with warm.kernels(), ThreadPoolExecutor(at_once) as pool:
            return all(list(pool.map(run_one, sorted(due, key=executed.seconds_of, reverse=True))))
    finally:
        signal.signal(signal.SIGTERM, before)


def run_one(path):
    began = time.monotonic()
    command = [sys.executable, str(ROOT / "book" / "ext" / "executed.py"), str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        under_way.add(process)
        said, _ = process.communicate()
        under_way.discard(process)
    if process.returncode:
        print(f"{path.name} did not run to its end:\n{said}", file=sys.stderr, flush=True)
        return False
    print(f"  {path.name}: {time.monotonic() - began:.0f} s", flush=True)
    return True


def end(*_):
    """End what runs, and this process."""
    for process in list(under_way):
        process.terminate()
    os._exit(128 + signal.SIGTERM)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: every chapter and lab source")
    parser.add_argument("--all", action="store_true", help="also those of which nothing has changed")
    given = parser.parse_args()
    paths = [path.resolve() for path in given.notebooks] or normalise.stored_notebooks()
    return 0 if run(paths, given.all) else 1


if __name__ == "__main__":
    sys.exit(main())
