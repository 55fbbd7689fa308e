"""What every fork server does: it forks what it is asked for, tells how that ended, and leaves nothing behind."""

import os
import subprocess
import sys
import time

import psutil
import pytest
from helpers.live import wait_gone

from ringtree.live.processes import asking

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a fork server watches its parent as Linux lets it")
ENDED = "it has ended"
PROGRAM = """
import os, socket, sys, time
from ringtree.live.processes import forks
request, files = forks.Server(socket.socket(fileno=int(sys.argv[1]))).serve()
os.write(files[0], request["say"].encode())
time.sleep(request["seconds"])
os._exit(request["code"])
"""


@pytest.fixture
def server():
    """(A fork server of little, what asks it)."""
    process, line = asking.start(sys.executable, "-c", PROGRAM, stderr=subprocess.PIPE, text=True)
    asker = asking.Asker(line, ENDED)
    with process:
        try:
            assert asker.answer(patience=30)["ready"] == process.pid
            yield process, asker
        finally:
            process.kill()
            asker.close()


def forked(asker, code=0, seconds=0):
    """A process that says so in a pipe, waits and ends with a code: (its number, what it said)."""
    reading, writing = os.pipe()
    pid = asker.ask("fork", 30, files=[writing], say="here", seconds=seconds, code=code)["pid"]
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        return pid, pipe.read(4)


def code_of(asker, pid):
    until = time.monotonic() + 20
    while (code := asker.ask("exit_codes", 30, pids=[pid])["codes"][str(pid)]) is None and time.monotonic() < until:
        time.sleep(0.01)
    return code


def test_a_child_has_its_request_and_its_files_and_how_it_ended_is_told(server):
    _, asker = server
    pid, said = forked(asker, code=7)
    assert said == b"here" and code_of(asker, pid) == 7
    pid, _ = forked(asker, seconds=600)
    assert os.getsid(pid) == pid
    asker.ask("kill", 30, pids=[pid, os.getpid(), 1])  # no others are its own
    assert code_of(asker, pid) == -9


@pytest.mark.parametrize("end", ["its line closes", "it is killed", "it hears what is no request"])
def test_with_a_server_its_children_end_and_its_folders_go(server, tmp_path, end):
    process, asker = server
    folder = asker.ask("folder", 30, place=str(tmp_path))["folder"]
    child = psutil.Process(forked(asker, seconds=600)[0])
    match end:
        case "its line closes":
            asker.close()
        case "it is killed":
            process.kill()
        case _:
            with pytest.raises(RuntimeError, match=ENDED):
                asker.ask("dance", 30)
    assert wait_gone([child])
    process.wait(20)
    assert os.path.exists(folder) == (end == "it is killed")
    with pytest.raises(RuntimeError, match=ENDED):
        asker.ask("nothing", 30)
    assert process.stderr.read() == ""


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next(server):
    process, asker = server
    psutil.Process(process.pid).suspend()
    assert asker.ask("exit_codes", 0.05, pids=[1]) is None
    psutil.Process(process.pid).resume()
    assert "codes" not in asker.ask("nothing", 30)


def test_why_no_folder_could_be_made_is_told(server, tmp_path):
    with pytest.raises(RuntimeError, match=f"no folder could be made in {tmp_path}/none: No such file or directory"):
        server[1].ask("folder", 30, place=f"{tmp_path}/none")
    assert server[1].ask("nothing", 30)


def test_why_no_process_could_be_forked_is_told():
    refusing = PROGRAM.replace("request,", "def fork():\n    raise BlockingIOError(11, 'too many')\nos.fork = fork\nrequest,")
    process, line = asking.start(sys.executable, "-c", refusing)
    asker = asking.Asker(line, ENDED)
    with process:
        asker.answer(patience=30)
        with pytest.raises(RuntimeError, match="no process could be forked: too many"):
            forked(asker)
        asker.close()


@pytest.mark.parametrize(
    "seconds, said", [(0.5, ""), (600, "the process that others are forked from must have one thread, and has 2")]
)
def test_a_thread_that_is_about_to_end_is_waited_for_and_another_is_refused(seconds, said):
    program = "import threading, time\nfrom ringtree.live.processes import forks\n"
    program += f"threading.Thread(target=time.sleep, args=({seconds},), daemon=True).start()\nforks.load()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.strip() == said
