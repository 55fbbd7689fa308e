"""What ringtree/README.md tells a newcomer to do, done: its own blocks are put where they say, in a copy of this tree."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "ringtree" / "README.md").read_text()
# Each block's first line says where it goes: "# path, where".
BLOCK = re.compile(r"^```(?:python|yaml)\n# (\S+), ([^\n]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [match.groups() for match in BLOCK.finditer(README)]
KEPT = ("ringtree", "tests", "trials", "tools", "book", "conftest.py", "pyproject.toml", "_toc.yml", "labs", "notebooks")


def blocks_of(heading):
    """The blocks under the heading that begins so."""
    section = re.search(rf"^## {heading}.*?(?=^## |\Z)", README, re.MULTILINE | re.DOTALL)[0]
    return [match.groups() for match in BLOCK.finditer(section)]


@pytest.fixture
def tree(tmp_path):
    """A copy of what the recipes touch, without what was built."""
    for name in KEPT:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(
                source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "vendor", "fonts", "*.egg-info")
            )
        else:
            shutil.copy(source, tmp_path / name)
    return tmp_path


def follow(tree, heading):
    for path, where, text in blocks_of(heading):
        put(tree / path, where, text)


def put(file, where, text):
    """Put one block where it says."""
    if where == "a new file":
        assert not file.exists()
        file.write_text(text)
    elif where == "a cell":
        file.parent.mkdir(parents=True, exist_ok=True)
        notebook = nbformat.read(file, as_version=4) if file.exists() else nbformat.v4.new_notebook()
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook.cells.append(nbformat.v4.new_code_cell(text.rstrip("\n"), id=f"cell-{len(notebook.cells)}"))
        nbformat.write(notebook, file)
    elif where == "at the end":
        file.write_text(file.read_text().rstrip("\n") + "\n\n\n" + text)
    elif match := re.fullmatch(r"in (\w+)", where):
        file.write_text(
            re.sub(rf"^({match[1]} = [(\[]\n)", lambda found: found[1] + text, file.read_text(), flags=re.MULTILINE)
        )
    else:
        after = re.fullmatch(r"below (\S+)", where)[1]
        file.write_text(
            re.sub(
                rf"^(.*{re.escape(after)}.*\n)", lambda found: found[1] + text, file.read_text(), count=1, flags=re.MULTILINE
            )
        )
    assert text.strip().splitlines()[0].strip() in file.read_text() or where == "a cell"


def run(tree, *words):
    """Run Python in the copied tree; returns what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run([sys.executable, *words], cwd=tree, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_every_block_says_where_it_goes():
    assert len(BLOCKS) == README.count("```python\n") + README.count("```yaml\n") == 18


PYTEST = "-m", "pytest", "-q", "--cold", "-p", "no:cacheprovider"
ONE_TEST = """
import sys
sys.path[:0] = ["tests", "tests/algorithms"]
import test_algorithms
test_algorithms.test_outputs_are_the_definition_and_the_cost_is_the_formula("pairwise_all_gather", 4)
"""


def test_an_algorithm_is_a_function_its_name_and_a_row_and_a_wrong_row_is_found_out(tree):
    follow(tree, "An algorithm")
    assert len(blocks_of("An algorithm")) == 4
    told = run(tree, *PYTEST, "tests/algorithms/test_algorithms.py", "-k", "pairwise_all_gather")
    assert int(re.search(r"(\d+) passed", told)[1]) > 20
    run(tree, "-c", ONE_TEST)
    table = tree / "ringtree" / "theory" / "rows.py"
    table.write_text(
        table.read_text().replace("for step in range(1, p)\n        ),\n", "for step in range(2, p)\n        ),\n", 1)
    )
    with pytest.raises(AssertionError, match="in assert_cost\n +assert "):
        run(tree, "-c", ONE_TEST)


def test_a_collective_is_four_places(tree):
    follow(tree, "A collective")
    assert len({path for path, *_ in blocks_of("A collective")}) == 4
    tests = ["tests/algorithms/test_algorithms.py", "tests/ground/test_collectives.py"]
    told = run(tree, *PYTEST, *tests, "-k", "scan")
    assert int(re.search(r"(\d+) passed", told)[1]) > 20
    measured = """
import ringtree
from ringtree.measure import measure
with ringtree.start(3):
    table = measure("chain_scan", sizes=[64], budget=0.05, show=False)
print(table.collective[0], table.wrong[0])
def no_scan(tensor, dist):
    from ringtree.algorithms import mst_all_reduce
    mst_all_reduce(tensor, dist)
with ringtree.start(3):
    print(measure(no_scan, sizes=[64], of="scan", budget=0.05, show=False).wrong[0] > 0)
"""
    assert run(tree, "-c", measured).split() == ["scan", "0", "True"]


def test_a_chapter_is_a_notebook_and_a_line(tree):
    follow(tree, "A collective")
    follow(tree, "A chapter")
    notebook = next((tree / "notebooks").glob("27-*.ipynb"))
    run(tree, "tools/normalise.py", "--execute", str(notebook))
    printed = [
        output["text"] for cell in nbformat.read(notebook, as_version=4).cells for output in cell.outputs if "text" in output
    ]
    assert printed == ["".join(f"[rank {rank}] {total}\n" for rank, total in enumerate((1.0, 3.0, 6.0, 10.0))), "7\n"]
    parts = yaml.safe_load((tree / "_toc.yml").read_text())["parts"]
    chapters = [entry["file"] for part in parts for entry in part["chapters"]]
    assert chapters[chapters.index("notebooks/26-context-parallel") + 1] == "notebooks/27-scan"


def test_a_lab_is_a_module_and_a_notebook(tree):
    follow(tree, "A lab")
    source = tree / "labs" / "source" / "02-totals" / "totals.ipynb"
    run(tree, "-m", "ringtree.labs", "release")
    release = nbformat.read(tree / "labs" / "release" / "02-totals" / "totals.ipynb", as_version=4)
    assert "batch_isend_irecv" not in "".join(cell.source for cell in release.cells)
    run(tree, "tools/normalise.py", "--execute", str(source))
    said = "".join(output.get("text", "") for cell in nbformat.read(source, as_version=4).cells for output in cell.outputs)
    machine, verdict = said.splitlines()
    assert machine.startswith("This machine: ")
    assert verdict == "total is right, and within the target: 4 runs in the simulator, 1 on your ranks."
    answers = run(
        tree,
        "-c",
        "import sys; sys.path.insert(0, 'trials'); from answers.totals import WRONG; print(WRONG['total']['its own'][0])",
    )
    wrong = nbformat.read(source, as_version=4)
    wrong.cells[1].source = answers
    nbformat.write(wrong, source)
    with pytest.raises(AssertionError, match="the part of rank 1 is missing"):
        run(tree, "tools/normalise.py", "--execute", str(source))
