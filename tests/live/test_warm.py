"""Kernels that are forked from one that has imported everything: what is asked for is there, and nothing is left."""

import ast
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
import psutil
import pytest
from helpers.live import SECOND_THREAD, alive, kernel, wait_gone

from ringtree.live.processes import warm

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = [*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("labs/source/*/*.ipynb")]


@pytest.fixture(scope="module", autouse=True)
def warmth():
    with warm.kernels():
        yield


def test_a_kernel_has_its_environment_its_folder_and_its_backend_and_inherits_its_fork_server(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['CUSTOMIZED'] = 'yes'\n")
    with kernel(PYTHONPATH=str(tmp_path), TMPDIR=str(tmp_path), ASKED="for") as live:
        answer = live.run(
            "import os, tempfile\nprint(os.environ['ASKED'], os.environ['CUSTOMIZED'], tempfile.gettempdir(), os.getcwd())"
        )
        assert answer.text == f"for yes {tmp_path} {os.getcwd()}\n"
        assert (
            live.run("import matplotlib; print(matplotlib.get_backend())").text == "module://matplotlib_inline.backend_inline\n"
        )
        below = {process.pid for process in live.descendants()}
        live.run("import ringtree\nfrom ringtree.live.processes import forks, launchers\nserver = launchers.fork_server()")
        said = live.run("print(type(server.process).__name__, server.process.pid, forks.FORK_SERVER in os.environ)").text
        assert said == f"Inherited {below.pop()} False\n" and not below
        assert live.run("ranks = ringtree.start(2)").error is None
        assert live.run("%px rank").text == "[rank 0] 0\n[rank 1] 1\n"


@pytest.mark.parametrize("python_path", ["{here}:{other}:{here}", ".:{own}", ""])
def test_a_kernel_and_its_ranks_search_modules_as_a_kernel_that_is_not_forked_does(python_path, tmp_path, monkeypatch):
    """What is first on PYTHONPATH may be the working directory, and the kernels' own server has a PYTHONPATH too."""
    here, other, own = (tmp_path / each for each in ("here", "other", "own"))
    for each in (here, other, own):
        each.mkdir()
    monkeypatch.delenv(warm.ADDRESS)
    monkeypatch.setenv("PYTHONPATH", f"{own}{os.pathsep}relative")
    monkeypatch.chdir(here)
    searched = []
    with warm.kernels():
        for cold in (False, True):
            with kernel(cold, PYTHONPATH=python_path.format(here=here, other=other, own=own)) as live:
                assert live.run("import ringtree; ranks = ringtree.start(1)").error is None
                cell = "import sys; print(sys.path)"
                searched.append((live.run(cell).text, live.run(f"%px {cell}").text))
    assert searched[0] == searched[1]


def test_a_fork_server_that_has_ended_is_started_anew():
    with kernel() as live:
        live.run(
            "import ringtree, os, signal\nfrom ringtree.live.processes import launchers\nprocess = launchers.fork_server().process"
        )
        live.run("os.kill(process.pid, signal.SIGKILL)\ncode = process.wait(10)")
        answer = live.run("ranks = ringtree.start(2)\nprint(code, type(launchers.fork_server().process).__name__)")
        assert answer.text.endswith("-9 Popen\n"), answer.message


def test_what_a_program_of_the_kernels_starts_is_not_taken_for_the_kernels():
    with kernel() as live:
        live.run("import subprocess, sys")
        program = "from ringtree.live.processes import warm; print(warm.Inherited.here())"
        assert (
            live.run(f"print(subprocess.run([sys.executable, '-c', {program!r}], capture_output=True, text=True).stdout)").text
            == "None\n\n"
        )


def test_how_a_kernel_ended_is_known_and_nothing_is_left_of_it():
    with kernel() as live:
        process, below = live.manager.provisioner.process, live.descendants()
        assert process.poll() is None and below
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
        os.kill(live.pid, signal.SIGSEGV)
        assert process.wait(10) == process.poll() == -signal.SIGSEGV
        assert wait_gone(below, 5.0)


def test_who_asks_and_goes_away_keeps_nobody_waiting_and_no_word_is_lost_on_it(capfd):
    with warm.kernels():
        for said in (b"", b"\0", b"{"):
            with socket.socket(socket.AF_UNIX) as line:
                line.connect(warm.address())
                line.sendall(said)
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(warm.address())
            line.sendall(b'{"do": "fork", "number": 1, "files": 3}\n')  # and no streams with it
            assert line.recv(100) == b""
        with kernel() as live:
            assert live.run("print(1)").text == "1\n"
    assert capfd.readouterr().err == ""


def test_kernels_end_with_what_they_were_forked_from_and_with_who_started_it():
    program = """
import os, sys, time
from jupyter_client.manager import start_new_kernel
from ringtree.live.processes import warm
os.environ.pop(warm.ADDRESS, None)
os.environ["JUPYTER_DEFAULT_PROVISIONER_NAME"] = "ringtree-unix-sockets"
with warm.kernels():
    manager, client = start_new_kernel(kernel_name="python3")
    print(manager.provisioner.process.pid, warm.address(), flush=True)
    time.sleep(600)
"""
    with (
        tempfile.TemporaryDirectory(prefix="killed-") as folder,  # who is killed takes no folder away
        subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": folder}
        ) as starter,
    ):
        pid, place = starter.stdout.readline().split()
        everyone = [each for each in psutil.Process(starter.pid).children(recursive=True)]
        assert int(pid) in [each.pid for each in everyone] and len(everyone) >= 3
        starter.send_signal(signal.SIGKILL)
        assert wait_gone(everyone, 10.0), alive(everyone)
        assert not Path(place).parent.exists()


def test_without_a_process_to_fork_from_kernels_and_ranks_start_as_always_and_why_is_said(monkeypatch, tmp_path, capfd):
    (tmp_path / "sitecustomize.py").write_text(SECOND_THREAD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv(warm.ADDRESS)
    said = "the process that others are forked from must have one thread, and has 2"
    with warm.kernels():
        with kernel() as live:
            assert live.run("import ringtree\nprint(6 * 7)").text == "42\n"
            answer = live.run("ranks = ringtree.start(2)")
            assert answer.error is None and answer.shown[0].endswith(f"\nRanks start more slowly here: {said}.")
            assert live.run("%px rank").text == "[rank 0] 0\n[rank 1] 1\n"
            assert live.run("ranks = ringtree.start(2); ranks.restart()").error is None
            answer = live.run("ringtree.start(2, engines='fork')")
            assert answer.message.startswith(f"engines='fork' cannot be here ({said}): leave engines= out")
    assert capfd.readouterr().err == f"{said}: kernels are started as always, which takes longer\n"


def test_notebooks_import_what_they_name_of_torch():
    """A reader's kernel is not forked from one that has loaded all of torch: what is no part of `import torch` is imported."""
    named, imported = {}, {}
    for path in NOTEBOOKS:
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type != "code":
                continue
            lines = [line for line in cell.source.splitlines() if not line.lstrip().startswith(("%", "!"))]
            for node in ast.walk(ast.parse("\n".join(lines))):
                match node:
                    case ast.Import():
                        imported.setdefault(path.stem, set()).update(each.name for each in node.names)
                    case ast.ImportFrom():
                        imported.setdefault(path.stem, set()).update(f"{node.module}.{each.name}" for each in node.names)
                    case ast.Attribute() if (name := ast.unparse(node)).startswith("torch.") and name.replace(
                        ".", ""
                    ).isidentifier():
                        named.setdefault(name, set()).add(path.stem)
    program = """
import functools, sys, types
import torch, torch.distributed
for name in sys.stdin.read().split():
    found, parts = torch, name.split(".")[1:]
    while parts and isinstance(found, types.ModuleType) and hasattr(found, parts[0]):
        found = getattr(found, parts.pop(0))
    if parts and isinstance(found, types.ModuleType):
        print(name, ".".join(name.split(".")[: -len(parts) + 1 or None]))  # and what of it is not there
"""
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    told = subprocess.run(
        [sys.executable, "-c", program], input="\n".join(named), capture_output=True, text=True, env=plain, check=True
    )
    missing = [
        (name, where)
        for name, lacks in map(str.split, told.stdout.splitlines())
        for where in named[name]
        if not any(f"{each}.".startswith(f"{lacks}.") for each in imported.get(where, ()))
    ]
    assert len(named) > 50 and not missing
