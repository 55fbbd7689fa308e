"""The wheel, installed outside the checkout: what it brings, what it says is missing, and each command on real input."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import jedi
import nbformat
import pytest
from helpers.requirements import DIRECT, HUB, LOCKED, pulled_in
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import ringtree
from ringtree import late

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
HUBS = tomllib.loads((ROOT / "hub" / "pyproject.toml").read_text())["project"]
COMMANDS = ("measure", "explain", "prove", "doctor", "parallel")
# The environment of somebody who has no checkout.
OUTSIDE = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RINGTREE", "SLURM"))}

nightly = pytest.mark.skipif("RINGTREE_NIGHTLY" not in os.environ, reason="downloads PyTorch: set RINGTREE_NIGHTLY=1")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from what a checkout has."""
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for path in (ROOT / "pyproject.toml", ROOT / "README.md", *ROOT.glob("LICENSE*")):
        shutil.copy(path, source)
    shutil.copytree(ROOT / "ringtree", source / "ringtree", ignore=shutil.ignore_patterns("__pycache__"))
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", made, source)
    (found,) = made.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def pins(tmp_path_factory):
    """All versions that the book runs, so that pip takes the pinned PyTorch and no other."""
    file = tmp_path_factory.mktemp("pins") / "constraints.txt"
    file.write_text("".join(f"{name}=={version}\n" for name, version in {**LOCKED, **DIRECT}.items()))
    return file


DECLARED = [Requirement(each).name for each in PROJECT["dependencies"]]


@pytest.fixture(scope="module")
def base(tmp_path_factory, wheel, pins):
    """An environment with what the wheel declares, and nothing else, then the wheel: pip may take nothing from elsewhere."""
    environment = Environment(tmp_path_factory.mktemp("base"))
    environment.borrow(DECLARED)
    return environment.install(wheel, pins, "--no-index")


@pytest.fixture(scope="module")
def with_torch(tmp_path_factory, wheel, pins):
    """An environment that has PyTorch already, then the wheel with the extra `sim`."""
    environment = Environment(tmp_path_factory.mktemp("torch"))
    environment.borrow(["torch", "greenlet", *DECLARED])
    environment.install(f"{wheel}[sim]", pins, "--no-index")
    assert (environment.packages / "torch").is_symlink(), "pip put another PyTorch into its place"
    return environment


def pip(*words):
    done = subprocess.run(
        [sys.executable, "-m", "pip", *map(str, words)], env=OUTSIDE, capture_output=True, text=True, timeout=600, cwd="/"
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


class Environment:
    """A virtual environment outside the checkout, with a folder to work in."""

    def __init__(self, folder):
        self.folder, self.bin = folder / "work", folder / "environment" / "bin"
        self.folder.mkdir()
        venv.create(folder / "environment", symlinks=True)
        self.packages = next((folder / "environment" / "lib").glob("python*")) / "site-packages"

    def borrow(self, names):
        """Link installed packages, and all that they need, from the environment that runs the tests."""
        for name in pulled_in(names):
            distribution = importlib.metadata.distribution(name)
            for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
                (self.packages / top).symlink_to(distribution.locate_file(top))

    def install(self, what, pins, *options):
        pip("--python", self.bin / "python", "install", "--disable-pip-version-check", "--constraint", pins, *options, what)
        return self

    def run(self, *words, code=0):
        """Run a command of this environment; return what it printed, errors last."""
        command = [self.bin / words[0], *map(str, words[1:])]
        done = subprocess.run(command, cwd=self.folder, env=OUTSIDE, capture_output=True, text=True, timeout=300)
        assert done.returncode == code, f"{words} ended with {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout + done.stderr


# -- what is declared ------------------------------------------------------------


def declared():
    """{distribution: its requirement} of the base, of the hub and of all extras, our own apart."""
    lists = [each for made in (PROJECT, HUBS) for each in (made["dependencies"], *made["optional-dependencies"].values())]
    found = [Requirement(text) for texts in lists for text in texts]
    return {canonicalize_name(each.name): each for each in found if each.name != "ringtree"}


def lower_bound(name):
    """Return the oldest version that pyproject.toml allows, or nothing."""
    found = [each.version for each in declared()[name].specifier if each.operator == ">="]
    return found[0] if len(found) == 1 else ""


def test_the_pins_are_within_the_declared_bounds():
    pinned = {**LOCKED, **DIRECT, **HUB}
    assert declared().keys() <= pinned.keys()
    other = {name: (str(each), pinned[name]) for name, each in declared().items() if pinned[name] not in each.specifier}
    assert not other, f"pinned outside of what pyproject.toml allows: {other}"


@pytest.mark.parametrize("name", sorted(declared()))
def test_each_dependency_has_one_lower_bound(name):
    assert re.fullmatch(r"\d+(\.\d+)*", lower_bound(name)), f"{declared()[name]}: write {name}>=VERSION in pyproject.toml"


def test_what_a_sentence_recommends_brings_the_package():
    brought = {extra: set(of_extra(extra)) for extra in EXTRAS}
    provider = {"IPython": "ipython", "jupyter_client": "jupyter-client"}
    for module, extra in late.EXTRAS.items():
        assert canonicalize_name(provider.get(module, module)) in brought[extra], f"[{extra}] does not bring {module}"
    assert brought["book"] >= brought["labs"] >= brought["live"] >= brought["sim"]


def of_extra(extra):
    for text in EXTRAS[extra]:
        needed = Requirement(text)
        yield from (name for each in needed.extras for name in of_extra(each))
        if needed.name != "ringtree":
            yield canonicalize_name(needed.name)


def test_the_hub_declares_all_that_it_pins_and_has_the_version_of_the_book():
    named = {canonicalize_name(Requirement(text).name) for text in HUBS["dependencies"] + HUBS["optional-dependencies"]["test"]}
    assert named - {"ringtree"} == HUB.keys()
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1]
    assert PROJECT["version"] == HUBS["version"] == cited
    assert HUBS["requires-python"] == PROJECT["requires-python"]


def test_the_wheel_has_stubs_tables_and_the_mark_of_types(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    kept = [path for path in (ROOT / "ringtree").rglob("*") if path.suffix in (".py", ".pyi", ".csv", ".css", ".js", ".txt")]
    assert {path.relative_to(ROOT).as_posix() for path in [*kept, ROOT / "ringtree" / "py.typed"]} <= names
    assert not [name for name in names if name.startswith(("tests", "book", "hub", "labs"))]


def test_each_late_name_is_what_its_file_has():
    """A stub with a wrong line would be found by the reader who first asks for that name."""
    stubs = sorted((ROOT / "ringtree").rglob("__init__.pyi"))
    assert len(stubs) > 5
    for stub in stubs:
        package = ".".join(stub.parent.relative_to(ROOT).parts)
        module = importlib.import_module(package)
        places = late.read(stub.read_text())
        assert dir(module) == sorted(places) == module.__all__
        for name, place in places.items():
            origin = importlib.import_module(f"{package}.{name}" if place == package else place)
            assert getattr(module, name) is (origin if place == package else getattr(origin, name)), (package, name)


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("import ringtree\nringtree.", {"simulate", "Link", "theory"}),
        ("from ringtree import draw\ndraw.", {"timeline", "before_after"}),
        ("from ringtree.algorithms import ", {"ring_all_reduce", "mst_broadcast"}),
    ],
)
def test_an_editor_completes_late_names(code, names):
    script = jedi.Script(code, environment=jedi.InterpreterEnvironment(), project=jedi.Project(ROOT))
    assert names <= {each.name for each in script.complete()}


@pytest.mark.parametrize("first", ["ringtree.draw.timeline", "ringtree.draw"])
def test_a_late_name_wins_over_the_file_of_that_name(first):
    code = f"import {first}; from ringtree import draw; assert callable(draw.timeline), draw.timeline"
    subprocess.run([sys.executable, "-c", code], check=True)


# -- the base --------------------------------------------------------------------


def test_the_base_is_imported_and_shows_its_face(base):
    told = base.run(
        "python", "-c", "import ringtree; print(ringtree.__file__, *dir(ringtree)); print(ringtree.Link(1e-6, 1e-9))"
    )
    assert str(base.packages) in told and {"simulate", "theory"} <= set(told.split())
    assert base.run("ringtree", "--version") == f"ringtree {PROJECT['version']}\n"
    assert all(name in base.run("python", "-m", "ringtree", "--help") for name in COMMANDS)


def test_the_base_explains_a_cluster(base):
    told = base.run("ringtree", "explain", "v100_n1_p4", "v100_n2_p8", "--html", "cluster.html")
    assert "Written: cluster.html" in told
    assert (base.folder / "cluster.html").read_text().count("<svg") > 0
    assert "nccl-tests" in base.run("python", "-m", "ringtree.explain")


def test_the_base_explains_a_log(base):
    sizes = [1 << power for power in range(3, 25)]
    rows = [
        f"{size:12} {size // 4:12}     float     sum      -1 {t:8.2f} {size / t / 1e3:7.2f} {1.75 * size / t / 1e3:7.2f}      0"
        for size, t in ((size, 20 + size / 2e5) for size in sizes)
    ]
    head = ["# nThread 1 nGpus 1", *(f"#  Rank {rank:2} Group  0 Pid {90 + rank} on n1 device {rank} GPU" for rank in range(8))]
    columns = "#       size         count      type   redop    root     time   algbw   busbw #wrong"
    (base.folder / "all_reduce.log").write_text("\n".join([*head, columns, *rows, ""]))
    assert "all-reduce" in base.run(
        "ringtree", "explain", "all_reduce.log", "--collective", "all_reduce", "--nodes", "1"
    ).replace("_", "-")


def test_the_base_looks_at_the_machine(base):
    found = {each["topic"]: each for each in json.loads(base.run("ringtree", "doctor", "--json", code=1))}
    assert found["PyTorch"]["do"] == "run `pip install 'ringtree[sim]'`" and found["memory"]["state"] == "fine"
    assert "✗ PyTorch" in base.run("python", "-m", "ringtree.doctor", code=1)


@pytest.mark.parametrize("command", ["measure all_reduce", "prove train.py:step", "parallel data_parallel"])
def test_a_command_says_in_one_sentence_what_it_lacks(base, command):
    name = command.split()[0]
    for start in (f"ringtree {name}", f"python -m ringtree.{name}"):
        told = base.run(*start.split(), command.split()[1], code=2)
        assert told == f"`{start}` needs torch, which is not installed: run `pip install 'ringtree[sim]'`\n"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("from ringtree import simulate", r"ringtree\.simulate needs (torch|greenlet), .*'ringtree\[sim\]'`"),
        ("from ringtree.algorithms import ring_all_reduce", r"ringtree\.algorithms needs torch, .*'ringtree\[sim\]'`"),
        ("from ringtree.parallel import model", r"ringtree\.parallel needs torch, .*'ringtree\[sim\]'`"),
        ("from ringtree.measure import measure; measure()", r"ringtree\.measure needs torch, .*'ringtree\[sim\]'`"),
        ("import ringtree; ringtree.start(4)", r"ringtree\.start needs IPython, .*'ringtree\[live\]'`"),
        ("import ringtree; ringtree.draw.timeline", r"ringtree\.draw\.timeline needs matplotlib, .*'ringtree\[live\]'`"),
        ("import ringtree; ringtree.labs.open", r"ringtree\.labs\.open needs \w+, .*'ringtree\[(sim|live)\]'`"),
    ],
)
def test_python_says_in_one_sentence_what_is_missing(base, code, told):
    last = base.run("python", "-c", code, code=1).splitlines()[-1]
    assert re.fullmatch(rf"ringtree\.errors\.MissingPackage: {told}", last), last


def test_another_missing_package_is_told_as_python_tells_it():
    error = ModuleNotFoundError("No module named 'elsewhere'", name="elsewhere")
    assert late.missing("ringtree.simulate", error) is error
    with pytest.raises(
        late.MissingPackage, match="this needs torch, which is not installed: run `pip install 'ringtree.sim.'`"
    ):
        raise late.missing("this", ModuleNotFoundError(name="torch.distributed"))


def test_the_doctor_needs_the_standard_library_alone():
    """-S: without the folder that packages are installed in."""
    words = [sys.executable, "-S", "-m", "ringtree.doctor", "--json"]
    done = subprocess.run(words, cwd="/", env=OUTSIDE | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and not done.stderr, done.stderr
    assert {"PyTorch", "memory", "stale ranks", "processes"} <= {each["topic"] for each in json.loads(done.stdout)}


# -- with PyTorch ----------------------------------------------------------------


def test_a_pytorch_that_is_already_there_is_used(with_torch):
    works_with_torch(with_torch)


@nightly
def test_the_extra_sim_brings_all_that_its_commands_need(tmp_path, wheel, pins):
    works_with_torch(Environment(tmp_path).install(f"{wheel}[sim]", pins))


@nightly
def test_the_oldest_versions_that_are_declared_work(tmp_path, wheel):
    """The lower bounds of `labs`, exactly, on this Python: the base, the ranks and what makes the labs."""
    oldest = tmp_path / "oldest.txt"
    names = {canonicalize_name(Requirement(each).name) for each in PROJECT["dependencies"]} | set(of_extra("labs"))
    oldest.write_text(
        "".join(f"{name}=={lower_bound(name)}\n" for name in sorted(names - {"torch"})) + f"torch=={DIRECT['torch']}\n"
    )
    environment = Environment(tmp_path).install(f"{wheel}[labs]", oldest)
    assert "Written: cluster.html" in environment.run(
        "ringtree", "explain", "v100_n1_p4", "v100_n2_p8", "--html", "cluster.html"
    )
    assert "✗" not in environment.run("ringtree", "doctor")
    program = "%%px\nx = torch.ones(2) * rank\ndist.all_reduce(x)\nprint(x.tolist())"
    cells = [nbformat.v4.new_code_cell(each) for each in ("import ringtree\nranks = ringtree.start(4)", program)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), environment.folder / "ranks.ipynb")
    told = environment.run("python", "-m", "nbconvert", "--execute", "--to", "markdown", "--stdout", "ranks.ipynb")
    assert told.count("[6.0, 6.0]") == 4
    shutil.copytree(ROOT / "labs" / "source", environment.folder / "labs" / "source")
    shutil.copy(ROOT / "labs" / "nbgrader_config.py", environment.folder / "labs")
    environment.run("python", "-m", "ringtree.labs", "release")
    made, kept = (sorted((folder / "labs" / "release").rglob("*.ipynb")) for folder in (environment.folder, ROOT))
    assert [each.read_text() for each in made] == [each.read_text() for each in kept]


def works_with_torch(environment):
    """Measure, train and simulate without what the extra `live` brings."""
    told = environment.run(
        "ringtree", "measure", "all_reduce", "--ranks", "2", "--max", "64", "--budget", "0.05", "--csv", "a.csv"
    )
    assert "# 2 ranks on 1 host, backend gloo" in told and told.count("\n# written: a.csv") == 1
    assert len((environment.folder / "a.csv").read_text().splitlines()) > 4
    launch = "python -m torch.distributed.run --nproc-per-node 2 -m ringtree.parallel data_parallel --steps 2"
    losses = re.findall(r"^step +\d: loss (\d\.\d+)$", environment.run(*launch.split()), re.MULTILINE)
    assert len(losses) == 2 and losses[0] > losses[1]
    program = """
import torch, ringtree
from ringtree.algorithms import ring_all_reduce
run = ringtree.simulate(ring_all_reduce, [torch.ones(8)] * 4, ringtree.Link(1.0, 0.5))
print(run.makespan == ringtree.cost_of(ring_all_reduce, 4, 32, ringtree.Link(1.0, 0.5)).time)
"""
    assert environment.run("python", "-c", program) == "True\n"
    assert "not installed: IPython" in environment.run("ringtree", "doctor")


def test_this_environment_has_the_command():
    assert importlib.metadata.entry_points(group="console_scripts")["ringtree"].value == "ringtree.command:main"
    assert ringtree.__file__ == str(ROOT / "ringtree" / "__init__.py")
