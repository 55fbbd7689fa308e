"""What a nanny looks after ends with it, and what that has started too, whichever of them is ended and however."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from helpers.live import wait_gone

NANNY = "-m", "ringtree.live.processes.nanny"
# It forks a process, which waits, as ipyparallel's controller does, and may be ended before it looks after that.
FORKS = """
import os, pathlib, time
if forked := os.fork():
    pathlib.Path("started").write_text(f"{os.getpid()} {forked}")
time.sleep(600)
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="what Linux does for who loses a parent is needed")


@pytest.fixture(params=["a_controller"])
def family(request, tmp_path):
    """A nanny, its child, and what that has forked."""
    (tmp_path / f"{request.param}.py").write_text(FORKS)
    command = [sys.executable, *NANNY, os.getpid(), "-", request.param]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    nanny = subprocess.Popen([*map(str, command)], cwd=tmp_path, env=environment, start_new_session=True)
    numbers = []
    try:
        while len(numbers) < 2:
            assert nanny.poll() is None
            time.sleep(0.01)
            numbers = (tmp_path / "started").read_text().split() if (tmp_path / "started").exists() else []
        yield nanny, *(psutil.Process(int(number)) for number in numbers)
    finally:
        for number in (nanny.pid, *map(int, numbers)):
            if psutil.pid_exists(number):
                os.kill(number, signal.SIGKILL)
        nanny.wait()


def test_a_child_searches_modules_as_python_m_does(tmp_path):
    (tmp_path / "shows.py").write_text("import sys; print(sys.path)")
    command = [sys.executable, *NANNY, os.getpid(), "-", "shows"]
    plain = [sys.executable, "-m", "shows"]
    told = [
        subprocess.run([*map(str, each)], cwd=tmp_path, capture_output=True, text=True, start_new_session=True).stdout
        for each in (command, plain)
    ]
    assert told[0] == told[1] != ""


@pytest.mark.parametrize("family", ["a_controller", "an_engine"], indirect=True)
def test_what_a_child_has_forked_ends_with_it_and_the_launcher_sees_why(family):
    nanny, child, forked = family
    nanny.terminate()  # handed on to the child, which does not listen to it yet
    assert nanny.wait(20) == -signal.SIGTERM
    assert wait_gone([child, forked])


@linux
def test_a_nanny_that_is_killed_takes_all_with_it(family):
    nanny, child, forked = family
    nanny.kill()
    nanny.wait(20)
    assert wait_gone([child, forked])


@linux
def test_what_a_controller_has_forked_ends_where_both_above_it_are_killed(family):
    nanny, child, forked = family
    nanny.send_signal(signal.SIGSTOP)  # it sees to nothing
    child.kill()
    assert wait_gone([forked])
