"""requirements.txt, the locks and what the project imports say the same."""

import ast
import importlib.metadata
import sys
from functools import cache
from pathlib import Path

import nbformat
import pytest
import yaml
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "book"))

import lock  # noqa: E402

FOLDERS = ("ringtree", "book", "notebooks", "labs", "tests", "hub", "benchmarks")
# Not imported by any file of ours, but called by the Makefile, by _config.yml or by the notebooks' magics.
CALLED = {"jupyterlab", "jupyterlab-myst", "nbval", "pytest-xdist", "jupyter-book", "myst-nb", "sphinx-book-theme"}

# Not on PyPI: what a benchmark is compared with, where the system has it (Debian: python3-simgrid).
OF_THE_SYSTEM = {"simgrid"}


def code_of(path):
    if path.suffix == ".py":
        yield path.read_text()
        return
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            lines = cell.source.splitlines()
            magic = bool(lines) and lines[0].startswith("%%")
            if not magic or lines[0].startswith("%%px"):
                kept = lines[magic:]
                yield "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in kept)


@cache
def imported_modules():
    """{top-level module: the first file that imports it}, standard library and our own left out."""
    found = {}
    files = [path for folder in FOLDERS for kind in ("*.py", "*.ipynb") for path in (ROOT / folder).rglob(kind)]
    ours = {"ringtree", "conftest"} | {path.stem for path in files if path.suffix == ".py"}
    for path in [*files, ROOT / "conftest.py"]:
        if any(part.startswith(".") for part in path.relative_to(ROOT).parts):
            continue
        for code in code_of(path):
            for node in ast.walk(ast.parse(code)):
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    names = [node.module]
                else:
                    continue
                for name in names:
                    top = name.split(".")[0]
                    if top not in sys.stdlib_module_names and top not in ours:
                        found.setdefault(top, path.relative_to(ROOT).as_posix())
    return found


PROVIDERS = importlib.metadata.packages_distributions()


def distributions_of(module):
    return {canonicalize_name(name) for name in PROVIDERS.get(module, [])}


DIRECT = lock.pins(ROOT / "requirements.txt")
LOCKED = lock.pins(ROOT / "requirements.lock")
CUDA = lock.pins(ROOT / "requirements-cuda.lock")


def test_everything_imported_is_in_requirements():
    missing = {
        module: where
        for module, where in imported_modules().items()
        if module not in OF_THE_SYSTEM and not distributions_of(module) & DIRECT.keys()
    }
    assert not missing, f"imported, but not pinned in requirements.txt: {missing}"


def test_everything_in_requirements_is_used():
    used = CALLED | {name for module in imported_modules() for name in distributions_of(module)}
    sphinx = yaml.safe_load((ROOT / "_config.yml").read_text())["sphinx"]
    used |= {name for extension in sphinx["extra_extensions"] for name in distributions_of(extension)}
    used |= {"sphinxcontrib-bibtex", "sphinx-design"}  # loaded by jupyter-book; the pages call them
    unused = DIRECT.keys() - used
    assert not unused, f"pinned in requirements.txt, but nothing imports or calls them: {sorted(unused)}"


@pytest.mark.parametrize("name", sorted(DIRECT))
def test_the_pinned_version_is_installed(name):
    assert importlib.metadata.version(name).split("+")[0] == DIRECT[name]


def test_the_lock_pins_everything_below_requirements():
    below = {name: version for name, version in lock.pulled_in(DIRECT).items() if name not in DIRECT | CUDA}
    missing = below.keys() - LOCKED.keys()
    other = {name: (LOCKED[name], version) for name, version in below.items() if LOCKED.get(name, version) != version}
    assert not missing, f"not in requirements.lock: {sorted(missing)}; run python book/lock.py"
    assert not other, f"locked at one version, installed at another: {other}"


def test_nothing_is_pinned_twice():
    assert not DIRECT.keys() & LOCKED.keys()
    assert not CUDA.keys() & (DIRECT.keys() | LOCKED.keys())


def test_cuda_lock_names_only_packages_that_torch_may_pull():
    assert "nvidia-nccl-cu13" in CUDA
    assert all(name.startswith(("nvidia-", "cuda-", "triton")) for name in CUDA)


def test_the_package_itself_is_in_requirements():
    assert "-e ." in (ROOT / "requirements.txt").read_text().splitlines()
