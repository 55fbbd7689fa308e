"""requirements.txt, the locks and what the project imports say the same."""

import ast
import importlib.metadata
import re
import sys
import tomllib
from functools import cache

import nbformat
import pytest
import yaml
from helpers.requirements import BELOW, DIRECT, HUB, HUB_LOCKED, LOCKED, ROOT, pins, pulled_in, refused_by
from packaging.utils import canonicalize_name

FOLDERS = ("ringtree", "book", "notebooks", "labs", "tests", "hub", "benchmarks", "tools", "trials")
# Not imported by any file of ours, but called by the Makefile, by _config.yml or by the notebooks' magics.
CALLED = {
    "jupyterlab",
    "jupyterlab-myst",
    "nbval",
    "pytest-xdist",
    "jupyter-book",
    "myst-nb",
    "sphinx-book-theme",
    "py-spy",
    "mypy",
    "ruff",
    "check-jsonschema",
    "zizmor",
}
HELD_BACK = {"jsonschema"}  # somebody else's, in a version that imports quickly: requirements.txt says why

# What the chart brings: where it is not installed, its tests are skipped.
IN_THE_CLUSTER = {"jupyterhub-kubespawner", "jupyterhub-nativeauthenticator"}

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
    ours = (
        {"ringtree", "conftest"} | {path.stem for path in files if path.suffix == ".py"} | {path.parent.name for path in files}
    )
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


CUDA = pins("requirements-cuda.lock")


def test_everything_imported_is_in_requirements():
    missing = {
        module: where
        for module, where in imported_modules().items()
        if module not in OF_THE_SYSTEM and not distributions_of(module) & DIRECT.keys() and not is_the_hubs(module, where)
    }
    assert not missing, f"imported, but not pinned in requirements.txt: {missing}"


def is_the_hubs(module, where):
    """The hub has an environment of its own, which need not be here: so a module is looked for by its package's name."""
    pinned = {*HUB, *IN_THE_CLUSTER}
    return where.startswith(("hub/", "tests/hub/")) and any(name.startswith(module.replace("_", "-")) for name in pinned)


def test_everything_in_requirements_is_used():
    used = CALLED | {name for module in imported_modules() for name in distributions_of(module)}
    sphinx = yaml.safe_load((ROOT / "_config.yml").read_text())["sphinx"]
    used |= {name for extension in sphinx["extra_extensions"] for name in distributions_of(extension)}
    used |= {"sphinxcontrib-bibtex", "sphinx-design"}  # loaded by jupyter-book; the pages call them
    assert pulled_in(DIRECT.keys() - HELD_BACK).keys() >= HELD_BACK
    unused = DIRECT.keys() - used - HELD_BACK
    assert not unused, f"pinned in requirements.txt, but nothing imports or calls them: {sorted(unused)}"


@pytest.mark.parametrize("name", sorted(DIRECT))
def test_the_pinned_version_is_installed(name):
    assert importlib.metadata.version(name).split("+")[0] == DIRECT[name]


def test_the_lock_pins_everything_below_requirements():
    below = {name: version for name, version in BELOW.items() if name not in CUDA and name != "torch"}
    missing = below.keys() - LOCKED.keys()
    other = {name: (LOCKED[name], version) for name, version in below.items() if LOCKED.get(name, version) != version}
    assert not missing, f"not in requirements.lock: {sorted(missing)}; run make lock"
    assert not other, f"locked at one version, installed at another: {other}"


def test_nothing_is_pinned_at_two_versions():
    twice = {name: (DIRECT[name], LOCKED[name]) for name in DIRECT.keys() & LOCKED.keys() if DIRECT[name] != LOCKED[name]}
    assert not twice, f"requirements.txt and requirements.lock differ: {twice}; run make lock"
    assert not CUDA.keys() & (DIRECT.keys() | LOCKED.keys())
    assert not HUB_LOCKED.keys() & (CUDA.keys() | LOCKED.keys())
    other = {name: version for name, version in HUB.items() if {**LOCKED, **HUB_LOCKED}.get(name) != version}
    assert not other, f"in hub/server/requirements.txt, but not so in a lock: {other}; run make lock"


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-cuda.lock", "hub/server/requirements.lock"])
def test_a_lock_fits_every_machine(name):
    lines = [line for line in (ROOT / name).read_text().splitlines() if line]
    other = [line for line in lines if not re.fullmatch(r"[a-z0-9.-]+==[0-9][a-z0-9.]*|#[^/@]*", line)]
    assert not other, f"more than plain pins and words, such as an address or a machine's own build: {other}"


def test_every_pinned_version_allows_the_pythons_that_the_readme_names():
    assert not refused_by(BELOW)


def test_all_places_name_the_same_oldest_python():
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    oldest = wanted.removeprefix(">=")
    makefiles = "Makefile", "hub/Makefile"
    for page in ("README.md", "book/setup.md", *makefiles):
        stated = re.findall(r"Python (\S+) or newer", (ROOT / page).read_text())
        assert stated and set(stated) == {oldest}, (page, stated, wanted)
    for name in makefiles:
        checked = re.findall(r"sys\.version_info < \((.*?)\)", (ROOT / name).read_text())
        assert checked and set(checked) == {oldest.replace(".", ", ")}


def test_cuda_lock_names_only_packages_that_torch_may_pull():
    assert "nvidia-nccl-cu13" in CUDA
    assert all(name.startswith(("nvidia-", "cuda-", "triton")) for name in CUDA)


def test_the_package_itself_is_in_requirements():
    assert "-e ." in (ROOT / "requirements.txt").read_text().splitlines()
