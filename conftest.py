"""What pytest needs to know about notebooks: pictures and HTML are not compared, their text is; kernels do without ports;
and with --kept, nbval compares what `tools/run_notebooks.py` has run."""

import contextlib
import gc
import os
import sys
from functools import partial
from pathlib import Path

import nbformat
import pytest
from nbval.plugin import IPyNbCell, IPyNbFile, coalesce_streams

sys.path.insert(0, str(Path(__file__).resolve().parent / "book" / "ext"))

import executed

from ringtree.live.processes import warm

executed.start_without_ports()

# It has blanks for its reader; the solved one is run from labs/source.
collect_ignore = ["notebooks/00-first-evening.ipynb"]
PICTURES = ("text/html", "text/markdown", "image/svg+xml", "application/javascript")

warm_kernels = contextlib.ExitStack()


def pytest_configure(config):
    # Workers have it from the process that starts them; a hub starts its kernels itself.
    if not (config.option.cold or hasattr(config, "workerinput") or "RINGTREE_HUB" in os.environ):
        warm_kernels.enter_context(warm.kernels())


def pytest_unconfigure(config):
    warm_kernels.close()
    # pytest goes through all objects five times now. After thousands of tests that takes longer than the five seconds that
    # xdist gives its workers to end before it interrupts them.
    gc.freeze()


def pytest_collection_finish():
    # Several test workers share the cores, and threads of torch that wait for work keep a core busy.
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


def pytest_collectstart(collector):
    if isinstance(collector, IPyNbFile):
        collector.skip_compare += PICTURES
        if collector.config.option.kept:
            collector.setup = collector.setup_sanitize_files  # no kernel


def pytest_addoption(parser):
    parser.addoption("--cold", action="store_true", help="load nothing for kernels beforehand: for tests that start none")
    parser.addoption("--kept", action="store_true", help="compare the outputs that tools/run_notebooks.py kept; run nothing")


# -- `--kept`: nbval compares what `tools/run_notebooks.py` kept, and runs nothing ------------------------------------


def pytest_itemcollected(item):
    if item.config.option.kept and isinstance(item, IPyNbCell):
        item.runtest = partial(compare_kept, item)


def compare_kept(cell):
    """What nbval does with a cell once it has run, for the outputs that are kept."""
    outputs = executed.outputs_of(cell.parent.path)
    if outputs is None:
        cell.raise_cell_error("it was not run to its end: `python tools/run_notebooks.py` says why")
    if cell.options["skip"]:
        pytest.skip()
    found = coalesce_streams([nbformat.from_dict(output) for output in outputs[cell.cell_num]])
    if failed := [each for each in found if each.output_type == "error" and not cell.options["check_exception"]]:
        cell.raise_cell_error("Cell execution caused an exception", "\n" + "\n".join(failed[0].traceback))
    if cell.options["check"] and not cell.compare_outputs(found, coalesce_streams(cell.cell.outputs)):
        cell.raise_cell_error("Cell outputs differ", "\n".join(cell.comparison_traceback))
