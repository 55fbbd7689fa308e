"""Notebooks that were run: kept with their pictures, and run again only when something that they reached has changed.

    python book/ext/executed.py NOTEBOOK        # run one, and keep it

What a run reaches is noted while it runs (`book/ext/noting`): every file of this project that its kernel, its ranks and its
scripts opened, and every folder that they listed. A kept run is good as long as these are as they were, its code cells
too, and what no file of ours says: the packages, the Python, the GPUs. `tools/run_notebooks.py` runs the others; the book
shows what is kept, and nbval compares it.
"""

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import platform
import sys
import tempfile
import time
from importlib.metadata import entry_points
from pathlib import Path

import nbformat

from ringtree.watching import without_colors

ROOT = Path(__file__).resolve().parent.parent.parent
KEPT = ROOT / "_build" / "executed"
NOTING = ROOT / "book" / "ext" / "noting"
NOT_OURS = (".venv", "_build", ".git", "book", "tools", "trials", "tests")
CELL_SECONDS = 600
PROVISIONER = "ringtree-unix-sockets"
ASKED_FOR = ("ringtree/data/tables/recordings",)  # looked for without being opened, so it may come to be


def join_streams(outputs):
    """Text of one stream as one output, to the letter.

    A kernel sends it in pieces that may end anywhere. myst-nb, which would join them itself, puts each on a line of its own.
    """
    joined, streams = [], {}
    for output in outputs:
        if output["output_type"] == "stream":
            if output["name"] in streams:
                streams[output["name"]]["text"] += output["text"]
                continue
            output = streams[output["name"]] = output.copy()
        joined.append(output)
    return joined


# -- what a run depends on -------------------------------------------------------------


def of_the_machine():
    """A hash of what a cell's result depends on and no file of ours says: packages, Python, GPUs."""
    found = hashlib.sha256()
    for path in sorted(ROOT.glob("requirements*")):
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    gpus = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    found.update(repr([platform.python_version(), gpus, os.environ.get("RINGTREE_SHARE_GPUS")]).encode())
    return found.hexdigest()


def code_of(notebook):
    """A hash of a notebook's code cells, with their tags."""
    cells = [(cell.source, cell.metadata.get("tags", [])) for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()


def reached(log):
    """What a run reached, as it is now: {path: hash}, a folder's being that of the names in it."""
    found = {name: state_of(name) for name in ASKED_FOR}
    for line in log.read_text().splitlines() if log.exists() else ():
        kind, _, name = line.partition(" ")
        if name.endswith(".pyc"):
            with contextlib.suppress(ValueError):
                name = importlib.util.source_from_cache(name)
        ours = bool(name) and Path(name).parts[0] not in NOT_OURS and "__pycache__" not in name
        if ours and (kind == "file" or name.startswith("ringtree")):
            if state := state_of(name):
                found[name] = state
    return found


def state_of(name):
    """A hash of a file's contents, or of a folder's names; None where there is neither."""
    path = ROOT / name
    if path.is_dir():
        names = sorted(each.name for each in path.iterdir() if not each.name.startswith((".", "__pycache__")))
        return hashlib.sha256("\0".join(names).encode()).hexdigest()
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


# -- kept runs -------------------------------------------------------------------------


def place_of(path):
    return KEPT / path.resolve().relative_to(ROOT).with_suffix("")


def is_good(path):
    """Whether a notebook's kept run is what a run would give now."""
    with contextlib.suppress(OSError, ValueError):
        about = json.loads((place_of(path) / "about.json").read_text())
        return (
            about["machine"] == of_the_machine()
            and about["code"] == code_of(nbformat.read(path, as_version=4))
            and all(state_of(name) == state for name, state in about["reached"].items())
        )
    return False


def seconds_of(path):
    """How long the kept run took; infinity where there is none, since it may be long."""
    with contextlib.suppress(OSError, ValueError):
        return json.loads((place_of(path) / "about.json").read_text())["seconds"]
    return float("inf")


def text_of(path):
    """A notebook as it is to be shown: its text of today, with the outputs of the kept run of these code cells, or its own."""
    notebook, place = nbformat.read(path, as_version=4), place_of(path)
    with contextlib.suppress(OSError, ValueError):
        if json.loads((place / "about.json").read_text())["code"] == code_of(notebook):
            outputs = json.loads((place / "outputs.json").read_text())
            for cell, its in zip((cell for cell in notebook.cells if cell.cell_type == "code"), outputs, strict=True):
                cell.outputs = nbformat.from_dict(its)
    return nbformat.writes(notebook)


def outputs_of(path):
    """By code cell, the outputs of the kept run where it is good; None where it is not."""
    return json.loads((place_of(path) / "outputs.json").read_text()) if is_good(path) else None


def keep(path, outputs, log, seconds):
    """Keep a run: the outputs of each code cell, in order, and what it reached as noted in `log`."""
    place = place_of(path)
    place.mkdir(parents=True, exist_ok=True)
    about = {
        "machine": of_the_machine(),
        "code": code_of(nbformat.read(path, as_version=4)),
        "seconds": round(seconds, 1),
        "reached": reached(log),
    }
    (place / "outputs.json").write_text(json.dumps(outputs))
    (place / "about.json").write_text(json.dumps(about, indent=1))


def noting(log):
    """What the environment of a kernel needs so that all that it reaches is noted in `log`."""
    before = os.environ.get("PYTHONPATH", "")
    paths = [str(NOTING), *(each for each in before.split(os.pathsep) if each and each != str(NOTING))]
    return {"RINGTREE_REACHED": str(log), "PYTHONPATH": os.pathsep.join(paths)}


# -- one run ---------------------------------------------------------------------------


def start_without_ports():
    """Have this process's kernels do without ports (ringtree/live/processes/kernels.py), where this package is installed.

    Where it is only on PYTHONPATH, Jupyter does not find its provisioner, and would say that there is no kernel.
    """
    if PROVISIONER in entry_points(group="jupyter_client.kernel_provisioners").names:
        os.environ.setdefault("JUPYTER_DEFAULT_PROVISIONER_NAME", PROVISIONER)


def execute(path):
    """Run a notebook from the top in a fresh kernel, in its own folder; returns it, executed. Keeps nothing."""
    from nbclient import NotebookClient

    start_without_ports()
    notebook, resources = nbformat.read(path, as_version=4), {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=CELL_SECONDS, kernel_name="python3", resources=resources).execute(env=dict(os.environ))
    return notebook


def execute_and_keep(path):
    """Run a notebook and keep the run; returns it, executed."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ringtree-reached-") as folder:
        log = Path(folder) / "log"
        os.environ.update(noting(log))
        notebook = execute(path)
        keep(path, [cell.outputs for cell in notebook.cells if cell.cell_type == "code"], log, time.monotonic() - began)
    return notebook


def main():
    from nbclient.exceptions import CellExecutionError

    parser = argparse.ArgumentParser(description="Run one notebook, and keep its outputs for the book.")
    parser.add_argument("notebook", type=Path)
    path = parser.parse_args().notebook.resolve()
    try:
        execute_and_keep(path)
    except CellExecutionError as error:
        print(f"{path.name}: {without_colors(str(error))}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
