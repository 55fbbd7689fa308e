"""The scripts at the ends of the chapters: alone, byte for byte the book's algorithms, right under torchrun, and shown."""

import ast
import inspect
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import nbformat
import pytest

from ringtree import algorithms
from ringtree.collectives import bus_factor

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
# Each script, the algorithms in it, and the lines that it prints of them: whose call, and of which collective.
SCRIPTS = {
    "broadcast": {"mst_broadcast": "broadcast"},
    "reduce": {"mst_reduce": "reduce"},
    "scatter_gather": {"mst_scatter": "scatter", "mst_gather": "gather"},
    "all_gather": {"ring_all_gather": "all_gather"},
    "reduce_scatter": {"ring_reduce_scatter": "reduce_scatter"},
    "ring_all_reduce": {"ring_all_reduce": "all_reduce"},
    "tree_all_reduce": {"mst_all_reduce": "all_reduce"},
    "all_to_all": {"pairwise_all_to_all": "all_to_all"},
}
LINE = re.compile(r"(.+): (\d+) bytes, median ([\d.]+) ms, algbw ([\d.]+) GB/s, busbw ([\d.]+) GB/s")
every_script = pytest.mark.parametrize("name", SCRIPTS)


@cache
def text_of(name):
    return (NOTEBOOKS / "scripts" / f"{name}.py").read_text()


def functions_of(name):
    """The script's own functions, by name, each as it is written."""
    text = text_of(name)
    found = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    return {node.name: ast.get_source_segment(text, node) for node in found}


def torchrun(path, ranks, *arguments):
    """Run a script as its first lines say: (exit status, what it printed, what it complained of)."""
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(ranks), str(path), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": loopback},
        capture_output=True,
        text=True,
        timeout=150,
    )
    return done.returncode, done.stdout, done.stderr


def test_every_script_of_a_collective_is_tested():
    there = {path.stem for path in (NOTEBOOKS / "scripts").glob("*.py") if not path.stem.startswith("hello_")}
    assert there == set(SCRIPTS) | {"restarted_training"}  # that one in test_training_hangs.py


@every_script
def test_a_script_has_the_books_algorithm_to_the_letter(name):
    written = functions_of(name)
    for program in SCRIPTS[name]:
        assert written[program] == inspect.getsource(getattr(algorithms, program)).rstrip()


@every_script
def test_a_script_needs_torch_and_the_standard_library_alone(name):
    for node in ast.walk(ast.parse(text_of(name))):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        assert {each.split(".")[0] for each in names} <= {"torch", *sys.stdlib_module_names}


def test_all_scripts_join_and_measure_alike():
    for function in "join", "report":
        assert len({functions_of(name)[function] for name in SCRIPTS}) == 1


# Every script as the program that it is, one after the other, each in a fork of a process that has imported torch. Only how
# they meet is not torchrun's: that has one store, where the addresses of the script before would be found.
IN_TURN = """
import functools, os, runpy, sys
import torch.distributed as dist
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
for path in sys.argv[1:]:
    if rank == 0:
        print(f"script {path}", flush=True)
    child = os.fork()
    if not child:
        met = f"file://{os.path.dirname(os.path.abspath(__file__))}/{os.path.basename(path)}.met"
        dist.init_process_group = functools.partial(dist.init_process_group, init_method=met, rank=rank, world_size=size)
        runpy.run_path(path, run_name="__main__")
        sys.stdout.flush()
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{path} failed")
"""


@pytest.fixture(scope="module")
def printed_on_four(tmp_path_factory):
    """What rank 0 printed in each script, on four ranks."""
    in_turn = tmp_path_factory.mktemp("scripts") / "in_turn.py"
    in_turn.write_text(IN_TURN)
    paths = [str(NOTEBOOKS / "scripts" / f"{name}.py") for name in SCRIPTS]
    status, printed, complained = torchrun(in_turn, 4, *paths)
    assert status == 0, complained
    assert "Warning" not in complained
    parts = re.split(r"^script .*/(\w+)\.py\n", printed, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


@every_script
def test_a_script_agrees_with_torch_and_says_how_long_both_took(printed_on_four, name):
    says_what_it_should(name, 4, printed_on_four[name])


def test_a_script_alone_runs_on_a_number_of_ranks_that_is_no_power_of_two():
    status, printed, complained = torchrun(NOTEBOOKS / "scripts" / "reduce_scatter.py", 3)
    assert status == 0, complained
    assert "Warning" not in complained
    says_what_it_should("reduce_scatter", 3, printed)


def says_what_it_should(name, ranks, printed):
    first, *lines = printed.splitlines()
    assert re.fullmatch(rf"(gloo|nccl), {ranks} ranks: ours equals PyTorch's", first)
    expected = []
    for program, collective in SCRIPTS[name].items():
        theirs = f"PyTorch's {collective}" if len(SCRIPTS[name]) > 1 else "PyTorch's"
        expected += [(program, collective), (theirs, collective)]
    assert len(lines) == len(expected)
    for line, (who, collective) in zip(lines, expected):
        said, nbytes, milliseconds, algbw, busbw = LINE.fullmatch(line).groups()
        assert said == who
        assert int(nbytes) == 8 * (2**20 // ranks * ranks)
        assert float(algbw) == pytest.approx(int(nbytes) / float(milliseconds) / 1e6, rel=0.01, abs=2e-3)
        assert float(busbw) == pytest.approx(float(algbw) * bus_factor(collective, ranks), rel=0.01, abs=2e-3)


def test_a_script_with_a_wrong_algorithm_says_so_and_fails(tmp_path):
    """The root, which prints, has the right tensor all the same: what it says must hold for all ranks."""
    right = "            dist.recv(tensor, root)\n"
    broken = tmp_path / "broadcast.py"
    assert text_of("broadcast").count(right) == 1
    broken.write_text(text_of("broadcast").replace(right, "            dist.recv(tensor.clone(), root)\n"))
    status, printed, complained = torchrun(broken, 2)
    assert status != 0
    assert "ours equals" not in printed
    assert "AssertionError: rank 1: not what PyTorch has" in complained


@every_script
def test_a_chapter_ends_with_the_script_folded(name):
    # a fence of backticks has none in its title, or it is no fence
    script = re.escape((NOTEBOOKS / "scripts" / f"{name}.py").read_text(encoding="utf-8").rstrip())
    shown = re.compile(rf"^````\{{dropdown\}} [^`\n]*\n```python\n# scripts/{name}\.py\n{script}\n```\n````$", re.M)
    for path in NOTEBOOKS.glob("*.ipynb"):
        if any(cell.cell_type == "markdown" and shown.search(cell.source) for cell in nbformat.read(path, as_version=4).cells):
            return
    pytest.fail(f"no chapter shows scripts/{name}.py")
