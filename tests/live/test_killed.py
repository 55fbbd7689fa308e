"""Each process of ours is killed in turn: a sentence tells which, the ranks are back, and nothing is left."""

import contextlib
import functools
import os
import re
import signal
import sys

import psutil
import pytest
from helpers.live import alive, kernel, wait_gone

linux = pytest.mark.skipif(sys.platform != "linux", reason="what Linux does for who loses a parent is needed")
KILLED = re.escape(": ended by SIGKILL (killed by hand, or by the system when memory ran out)")
LAST = "The ranks were restarted and their variables are gone: run the cells that set them again."
SERVER = rf"the fork server, with which all ranks end, died({KILLED})?\."
CONTROLLER = rf"the controller, which carries all messages between this notebook and the ranks, died({KILLED})?\."
RANK = rf"rank 1 died\.\n(.*\n)*  rank 1 died({KILLED})?(.*\n)*"

# Below each kind of ranks: what is killed, by its pid in the kernel, and what is told.
FORK = {
    "fork server": ("ranks.cluster.controller.server.process.pid", SERVER),
    "controller": ("ranks.cluster.controller.pid", CONTROLLER),
    "what the controller forks": ("psutil.Process(ranks.cluster.controller.pid).children()[0].pid", None),
    "rank": ("ranks.places[1].pid", RANK),
}
LOCAL = {
    "controller's nanny": ("ranks.cluster.controller.pid", CONTROLLER),
    "controller": ("psutil.Process(ranks.cluster.controller.pid).children()[0].pid", CONTROLLER),
    "rank's nanny": ("psutil.Process(ranks.places[1].pid).ppid()", RANK),
    "rank": ("ranks.places[1].pid", RANK),
}
ALL = {(engines, who): each for engines, those in (("fork", FORK), ("local", LOCAL)) for who, each in those.items()}


@pytest.fixture(scope="module")
def notebooks():
    """A kernel for each way to start ranks on this machine."""
    with contextlib.ExitStack() as stack:

        def made(engines):
            live = stack.enter_context(kernel(cold=True))
            live.run("import ringtree, os, psutil, signal, threading")
            assert live.run(f"ranks = ringtree.start(2, engines={engines!r})").error is None
            return live

        yield functools.cache(made)


def works(live):
    return live.run("%%px\nt = torch.ones(1)\ndist.all_reduce(t)\nprint(t.item())").text == "[rank 0] 2.0\n[rank 1] 2.0\n"


@linux
@pytest.mark.parametrize(
    "engines, who, moment",
    [
        *((*each, "in a cell") for each in ALL),
        *((*each, "before a cell") for each in [("fork", "fork server"), ("fork", "controller"), ("local", "rank's nanny")]),
    ],
)
def test_a_process_that_is_killed_is_told_and_the_ranks_are_back(notebooks, engines, who, moment):
    notebook, (pid, told) = notebooks(engines), ALL[engines, who]
    assert works(notebook)
    before = notebook.descendants()
    kill = f"os.kill({pid}, signal.SIGKILL)"
    if moment == "before a cell":
        notebook.run(kill)
        answer = notebook.run("%%px --timeout 20\nprint('on')")
    else:
        notebook.run(f"threading.Timer(0.5, lambda: {kill}).start()")
        answer = notebook.run("%%px --timeout 20\nimport time\nfor _ in range(30):\n    time.sleep(0.1)")
    if told:
        assert answer.error == "RankDied" and re.fullmatch(f"{told}\n?{re.escape(LAST)}", answer.message), answer.message
        assert "rank 0 waits" not in answer.message
    assert works(notebook)
    if told:
        kept = {process.pid for process in notebook.descendants()}
        assert wait_gone([process for process in before if process.pid not in kept])


@linux
@pytest.mark.parametrize(
    "deed", ["os.kill(os.getppid(), signal.SIGKILL)", "os.kill(os.getppid(), signal.SIGKILL); time.sleep(5)"]
)
def test_a_rank_that_kills_its_parent_is_told_in_the_same_cell(notebooks, deed):
    """Its fork server. Of a rank under a nanny the nanny is the parent, and above it is killed from the notebook."""
    notebook = notebooks("fork")
    answer = notebook.run(f"%%px --timeout 20\nimport os, signal, time\nif rank == 1:\n    {deed}")
    assert answer.error == "RankDied" and re.fullmatch(f"{SERVER}\n?{re.escape(LAST)}", answer.message), answer.message
    assert works(notebook)


@linux
def test_a_fork_server_that_is_stopped_keeps_no_rank_from_working_and_no_restart_waiting(notebooks):
    live = notebooks("fork")
    live.run("from ringtree.live.processes import launchers\npatience = launchers.PATIENCE, launchers.LITTLE_PATIENCE")
    live.run("launchers.PATIENCE = launchers.LITTLE_PATIENCE = 0.5")
    live.run("os.kill(ranks.cluster.controller.server.process.pid, signal.SIGSTOP)")
    assert works(live)
    assert live.run("ranks.restart()").error is None
    assert works(live)
    assert live.run("launchers.PATIENCE, launchers.LITTLE_PATIENCE = patience").error is None


@linux
@pytest.mark.parametrize("end", ["now", "as asked"])
def test_nothing_stays_of_a_kernel_whose_fork_server_was_killed(end, tmp_path):
    with kernel(cold=True, TMPDIR=str(tmp_path)) as live:
        live.run("import ringtree\nranks = ringtree.start(2)")
        below = live.descendants()
        answer = live.run("%%px --timeout 20\nimport os, signal\nos.kill(os.getppid(), signal.SIGKILL)")
        assert answer.error == "RankDied"
        below += live.descendants()
        me = psutil.Process(live.pid)
        if end == "as asked":
            live.client.shutdown()
            assert wait_gone([me])
            assert not [each for each in os.listdir(tmp_path) if each.startswith("ringtree-")]
        else:
            os.kill(live.pid, signal.SIGKILL)
        assert wait_gone([me, *below]), alive(below)


@linux
def test_a_fork_server_that_is_killed_while_ranks_start_ends_the_start_with_a_sentence(notebooks):
    live = notebooks("fork")
    live.run("from ringtree.live import joining\njoin = joining.join")
    live.run("def kill(*_):\n    import os\n    os.kill(os.getppid(), 9)\njoining.join = kill")
    answer = live.run("ranks = ringtree.start(2, engines='fork')", timeout=40)
    assert answer.error == "RuntimeError" and "the fork server, with which all ranks end, died" in answer.message
    assert "ringtree.start again" in answer.message
    live.run("joining.join = join")
    assert live.run("ranks = ringtree.start(2, engines='fork')").error is None and works(live)
