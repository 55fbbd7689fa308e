"""What a reader sees when ranks hang, raise or die: a clear report, working ranks, no orphan."""

import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest
from helpers.live import kernel, wait_gone

from ringtree.live.reports.rank import Rank

linux = pytest.mark.skipif(sys.platform != "linux", reason="what Linux tells of threads is needed")
LAST = "The ranks were restarted and their variables are gone: run the cells that set them again."


@pytest.fixture(scope="module", params=["fork", "local"])
def any_notebook(request):
    """A kernel whose ranks were started in one of the two ways of this machine."""
    with kernel() as live:
        live.run("import ringtree")
        answer = live.run(f"ranks = ringtree.start(4, engines={request.param!r})")
        assert answer.error is None, answer.traceback
        yield live


@pytest.fixture(scope="module")
def notebook():
    with kernel() as live:
        live.run("import ringtree")
        live.run("ranks = ringtree.start(4)")
        yield live


def goes_wrong(live, cell):
    """Run a cell that goes wrong; afterwards the ranks must work, and be the only ones."""
    answer = live.run(cell)
    again = live.run("%px t = torch.ones(1, device=device)\n%px dist.all_reduce(t)\n%px print(rank, t.item())")
    assert again.text == "".join(f"[rank {i}] {i} 4.0\n" for i in range(4)), again.traceback
    return answer


@pytest.fixture
def hangs(notebook):
    return lambda cell: goes_wrong(notebook, cell)


@pytest.fixture
def hangs_anyhow(any_notebook):
    return lambda cell: goes_wrong(any_notebook, cell)


def test_a_receive_without_a_send_names_who_waits_for_whom(hangs_anyhow):
    answer = hangs_anyhow(
        "%%px --timeout 1\nt = torch.zeros(1, device=device)\nif rank:\n    dist.recv(t, src=0)\nprint('through')"
    )
    assert answer.error == "RanksStuck"
    assert answer.message.split("\n") == [
        "after 1 s ranks 1, 2 and 3 had not finished.",
        "  rank 0 finished",
        *(f"  rank {i} waits to receive from rank 0, which has finished  [line 4: dist.recv(t, src=0)]" for i in (1, 2, 3)),
        LAST,
    ]
    assert answer.text == "[rank 0] through\n"


def test_a_skipped_collective_names_the_rank_that_skipped_it(hangs):
    answer = hangs("%%px --timeout 1\nif rank != 2:\n    dist.all_reduce(torch.ones(1))")
    assert "rank 2 finished" in answer.message
    assert answer.message.count("waits in all_reduce for rank 2, which has finished  [line 3: dist.all_reduce") == 3


def test_send_send_is_a_circle(hangs):
    answer = hangs("%%px --timeout 1\ndist.send(torch.ones(1), dst=(rank + 1) % 4)")
    assert "rank 3 waits to send to rank 0  [line 2: dist.send(torch.ones(1), dst=(rank + 1) % 4)]" in answer.message
    assert "they wait in a circle: rank 0 → rank 1 → rank 2 → rank 3 → rank 0" in answer.message


def test_wait_on_a_work_names_its_peer_and_the_function(hangs):
    cell = """%%px --timeout 1
def shift(t):
    ops = [dist.P2POp(dist.isend, t, (rank + 1) % 4), dist.P2POp(dist.irecv, t.clone(), (rank + 1) % 4)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
shift(torch.ones(1))"""
    answer = hangs(cell)
    assert "rank 1 waits to send to rank 2  [line 6: shift(torch.ones(1))  →  shift, line 5: work.wait()]" in answer.message


def test_different_collectives_are_told_apart(hangs):
    answer = hangs("%%px --timeout 1\nt = torch.ones(1)\ndist.all_reduce(t) if rank else dist.broadcast(t, src=3)")
    assert "rank 0 waits in broadcast for ranks 1, 2 and 3" in answer.message
    assert "rank 1 waits in all_reduce for rank 0" in answer.message


def test_a_collective_on_an_emulated_link_is_named_with_the_rank_that_is_missing(hangs):
    cell = """%%px --timeout 1
from ringtree import Link, emulate
link = emulate(dist, Link(1e-3, 0))
if rank != 2:
    work = link.all_reduce(torch.ones(1), async_op={})
    if work:
        work.wait()"""
    answer = hangs(cell.format(False))
    assert answer.message.count("waits in all_reduce for rank 2, which has finished  [line 5: work = link.all_reduce") == 3
    answer = hangs(cell.format(True))
    assert answer.message.count("waits in all_reduce for rank 2, which has finished  [line 7: work.wait()]") == 3


def test_a_message_on_an_emulated_link_names_its_peer_also_where_it_is_traced(hangs):
    cell = """%%px --timeout 1
from ringtree import Link, emulate, traced
link = emulate(dist, Link(1e-3, 0))
link.send(torch.ones(1), 1) if rank == 0 else traced(link).recv(torch.ones(1), 0) if rank == 2 else None"""
    answer = hangs(cell)
    assert "rank 0 waits to send to rank 1, which has finished  [line 4: link.send" in answer.message
    assert "rank 2 waits to receive from rank 0  [line 4: link.send" in answer.message


def test_the_same_collective_in_two_groups_is_told_apart(hangs):
    cell = """%%px --timeout 1
one, two = dist.new_group([0, 1]), dist.new_group([0, 1])
if rank < 2:
    for group in (one, two) if rank == 0 else (two, one):
        dist.all_reduce(torch.ones(1, device=device), group=group)"""
    answer = hangs(cell)
    assert "rank 0 waits in all_reduce for rank 1, which waits in another group" in answer.message


def test_a_collective_with_different_sizes_says_so(hangs):
    cell = """%%px --timeout 1
a, b = torch.ones(2, device=device), torch.ones(3, device=device)
for tensor in (b, a) if rank == 1 else (a, b):
    dist.all_reduce(tensor)"""
    answer = hangs(cell)
    assert answer.message.count("waits in all_reduce, where all its ranks are, with different sizes  [line 4") == 4


def test_a_rank_that_raises_comes_first_then_who_was_left_waiting(hangs):
    answer = hangs("%%px --timeout 20\nif rank == 1:\n    raise ValueError('no good')\ndist.barrier()")
    assert answer.message.split("\n")[:3] == [
        "rank 1 raised, and ranks 0, 2 and 3 were left waiting.",
        "  rank 1 raised ValueError: no good",
        "  rank 0 waits in barrier for rank 1, which raised  [line 4: dist.barrier()]",
    ]
    assert answer.traceback.count("line 3: raise ValueError('no good')") == 1


def test_honest_work_is_not_ended_by_another_ranks_error(notebook):
    answer = notebook.run("%%px --timeout 30\nimport time\nif rank == 1:\n    1 / 0\ntime.sleep(3)\nkept = rank")
    assert answer.error == "RankError"
    assert notebook.run("%%px --targets 0,2,3\nkept").text == "[rank 0] 0\n[rank 2] 2\n[rank 3] 3\n"


def test_a_killed_rank_is_reported_as_dead(hangs_anyhow):
    answer = hangs_anyhow("%%px --timeout 20\nimport os\nif rank == 2:\n    os.kill(os.getpid(), 9)\ndist.barrier()")
    assert answer.error == "RankDied"
    assert "rank 2 died" in answer.message.split("\n")[0]


def test_a_rank_that_aborts_is_reported_as_dead(hangs):
    answer = hangs("%%px --timeout 20\nimport os\nif rank == 0:\n    os.abort()\ntorch.ones(1)")
    assert answer.error == "RankDied"
    assert "rank 0 died: ended by SIGABRT  [line 4]" in answer.message


@pytest.mark.skipif(not hasattr(os, "getsid"), reason="sessions are Unix's")
def test_each_rank_has_a_session_of_its_own_and_so_its_share_of_the_cores(any_notebook):
    said = any_notebook.run("%%px\nimport os\nprint(os.getsid(0))").text.split("\n")[:4]
    assert len({line.partition("] ")[2] for line in said}) == 4


def test_a_stopped_rank_is_said_not_to_answer(hangs):
    answer = hangs(
        "%%px --timeout 1\nimport os, signal\nif rank == 3:\n    os.kill(os.getpid(), signal.SIGSTOP)\ndist.barrier()"
    )
    assert "rank 3 does not answer: its process is stopped (SIGSTOP)" in answer.message
    assert "rank 0 waits in barrier for rank 3" in answer.message


@pytest.fixture
def endless_patience(notebook):
    """Whoever is reported now was not reported because patience ended."""
    yield from set_in(notebook, PATIENCE=1000, MORE_PATIENCE=1000)


def set_in(notebook, **values):
    notebook.run(
        f"from ringtree.live.reports import diagnosis\nkept = {{name: getattr(diagnosis, name) for name in {list(values)}}}"
    )
    notebook.run(f"vars(diagnosis).update({values})")
    yield
    notebook.run("vars(diagnosis).update(kept)")


def test_a_rank_that_holds_the_interpreter_is_found_by_its_line(hangs):
    cell = "%%px --timeout 1\nimport ctypes\nif rank == 1:\n    ctypes.PyDLL(None).sleep(60)\ndist.barrier()"
    answer = hangs(cell)
    assert "rank 1 does not answer: it waits inside a call that holds the interpreter  [line 4]" in answer.message


@linux
@pytest.mark.parametrize(
    "call, doing", [("ctypes.PyDLL(None).sleep(60)", "waits"), ("re.match('(a+)+$', 40 * 'a' + 'b')", "computes")]
)
def test_that_the_interpreter_is_held_is_proven_without_waiting_for_long(endless_patience, hangs, call, doing):
    answer = hangs(f"%%px --timeout 1\nimport ctypes, re\nif rank != 2:\n    {call}")
    for i in (0, 1, 3):
        assert f"rank {i} does not answer: it {doing} inside a call that holds the interpreter  [line 4]" in answer.message


def test_a_long_call_that_holds_the_interpreter_and_computes_is_not_ended_by_another_ranks_error(notebook):
    cell = "%%px --timeout 60\nimport re\nif rank == 1:\n    1 / 0\nre.match('(a+)+$', 26 * 'a' + 'b')\nkept = rank"
    assert notebook.run(cell).error == "RankError"
    assert notebook.run("%%px --targets 0,2,3\nkept").text == "[rank 0] 0\n[rank 2] 2\n[rank 3] 3\n"


ANSWERS_LATE = """%%px --timeout 1
import time
handlers = get_ipython().kernel.control_handlers
usual = handlers['where_request']
def late(*request):
    time.sleep({seconds})
    usual(*request)
if rank == 2:
    handlers['where_request'] = late
dist.recv(torch.ones(1), src=(rank + 1) % 4)"""


def test_a_rank_that_answers_late_is_asked_for_no_other_reason(hangs):
    answer = hangs(ANSWERS_LATE.format(seconds=1.5))
    assert "rank 2 waits to receive from rank 3  [line 10: dist.recv" in answer.message


def test_of_a_rank_that_does_not_answer_no_more_is_said_than_is_known(hangs):
    answer = hangs(ANSWERS_LATE.format(seconds=60))
    assert "rank 2 has not answered within 3 s; its last lines:  [line 10]" in answer.message


WRITTEN = """Thread 0x2 (most recent call first):
  File "ipykernel_1/1.py", line 6 in late
Thread 0x1 (most recent call first):
  File "ipykernel_1/1.py", line 10 in <module>
"""


def test_a_stack_that_is_still_being_written_hides_no_line_of_the_cell(tmp_path):
    stacks = tmp_path / "stacks"
    stacks.write_text(WRITTEN + WRITTEN.partition("Thread 0x1")[0])
    rank = Rank(1, "a", 0, 0, "cpu", number=0, threads={"main": 1, "control": 2}, stack_file=str(stacks))
    assert rank.stack_lines() == [("<module>", 10)]


def test_threads_that_run_in_turns_hold_nothing(endless_patience, hangs):
    cell = """%%px --timeout 1
import threading
def spin():
    while True:
        pass
if rank == 2:
    for _ in range(8):
        threading.Thread(target=spin, daemon=True).start()
    dist.recv(torch.ones(1), src=0)"""
    assert "rank 2 waits to receive from rank 0, which has finished  [line 9" in hangs(cell).message


def test_stacks_that_were_asked_for_are_not_told_of_a_rank_that_is_killed(notebook, hangs):
    cell = "%%px --timeout 60\nimport re\nif rank == 1:\n    1 / 0\nif rank == 2:\n    re.match('(a+)+$', 26 * 'a' + 'b')"
    notebook.run(cell)
    answer = hangs("%%px --timeout 20\nimport os\nif rank == 2:\n    os.kill(os.getpid(), 9)\ndist.barrier()")
    assert re.search(
        r"rank 2 died: ended by SIGKILL \(killed by hand, or by the system when memory ran out\)$", answer.message, re.M
    )


def test_a_rank_that_computes_for_ever_is_told_from_one_that_waits(hangs):
    answer = hangs("%%px --timeout 1\nwhile rank == 2:\n    pass")
    assert "rank 2 is still running  [line" in answer.message


@pytest.fixture
def little_patience(notebook):
    yield from set_in(notebook, PATIENCE=0.05)  # two looks, and no answer comes so soon


def test_a_rank_that_computes_is_given_longer_to_answer(little_patience, hangs):
    answer = hangs("%%px --timeout 1\nwhile rank == 2:\n    sum(range(100_000))")  # lets other threads run now and then
    assert re.search(r"rank 2 is still running  \[line [23]: ", answer.message)


def test_a_message_too_long_for_its_buffer_is_told_in_bytes(hangs):
    answer = hangs(
        "%%px --timeout 20\nt = torch.ones(8 + rank)\nif rank == 1:\n    dist.recv(t, 2)\nif rank == 2:\n    dist.send(t, 1)"
    )
    assert answer.error == "RankDied"
    assert answer.message.split("\n") == [
        "rank 1 died.",
        "  rank 0 finished",
        "  rank 1 died: 40 bytes came where 36 were expected, and Gloo ended the process  [line 4]",
        "  rank 2 finished",
        "  rank 3 finished",
        LAST,
    ]


@pytest.mark.parametrize(
    "call, said",
    [
        ("dist.recv(t, 7)", "rank 1 wants to receive from rank 7"),
        ("dist.send(t, -1)", "rank 1 wants to send to rank -1"),
        ("dist.irecv(t, 1)", "rank 1 wants to receive from itself"),
        ("dist.isend(t, dst=4)", "rank 1 wants to send to rank 4"),
        ("dist.batch_isend_irecv([dist.P2POp(dist.irecv, t, 4)])", "rank 1 wants to receive from rank 4"),
    ],
)
def test_a_peer_that_is_no_other_rank_is_an_error_and_ends_nothing(notebook, call, said):
    answer = notebook.run(f"%%px --timeout 20\nt = torch.ones(1)\nif rank == 1:\n    {call}")
    assert (answer.error, answer.message) == (
        "RankError",
        f"rank 1 raised ValueError: {said}: give another rank, from 0 to 3",
    )
    assert notebook.run("%px print(t.item())").text == "".join(f"[rank {i}] 1.0\n" for i in range(4))


def test_ranks_that_fail_alike_are_told_once_without_a_librarys_marks(notebook):
    answer = notebook.run("%%px\ndist.reduce_scatter_single(torch.zeros(2), torch.zeros(7))")
    assert answer.message == (
        "ranks 0, 1, 2 and 3 raised RuntimeError: Check failed: outputShape[0] * worldSize == inputShape[0] (8 vs. 7)."
    )
    assert notebook.run("%%px\nassert rank").message == "rank 0 raised AssertionError"
    answer = notebook.run("%%px\nif rank == 1:\n    raise SystemExit(3)")
    assert answer.message == "rank 1 raised SystemExit: 3"
    assert "\x1b" not in answer.traceback


def test_waiting_for_several_says_what_they_all_do(hangs):
    answer = hangs("%%px --timeout 1\nif rank == 0:\n    dist.barrier()")
    assert "rank 0 waits in barrier for ranks 1, 2 and 3, which have finished  [line 3" in answer.message


def test_a_peer_in_a_group_is_a_rank_of_the_group(notebook):
    cell = "%%px --timeout 20\npair = dist.new_group([1, 3])\nt = torch.tensor([rank])\nif rank == 3:\n    {}\nif rank == 1:\n    {}"
    answer = notebook.run(
        cell.format("dist.send(t, group=pair, group_dst=0)", "dist.recv(t, group=pair, group_src=1); print(t.item())")
    )
    assert (answer.error, answer.text) == (None, "[rank 1] 3\n")
    answer = notebook.run(cell.format("dist.send(t, group=pair, group_dst=2)", "pass"))
    assert answer.message == "rank 3 raised ValueError: rank 1 wants to send to rank 2: give another rank, from 0 to 1"


def test_ranks_that_have_lost_each_other_are_told_how_to_meet_again(notebook):
    notebook.run("%px dist.destroy_process_group()")
    answer = notebook.run("%%px\ndist.all_reduce(torch.ones(1))")
    assert answer.error == "RankError"
    assert answer.message.split("\n")[-1].strip() == (
        "the ranks are no longer connected: ranks.restart() starts them afresh, without their variables"
    )
    notebook.run("ranks.restart()")
    assert notebook.run("%%px\nt = torch.ones(1)\ndist.all_reduce(t)\nprint(t.item())").text == "".join(
        f"[rank {i}] 4.0\n" for i in range(4)
    )


def test_mismatched_shapes_end_with_a_report(hangs):
    answer = hangs("%%px --timeout 1\nt = torch.ones(1 + rank)\ndist.all_reduce(t)")
    assert answer.error in ("RanksStuck", "RankDied", "RankError")  # which of them is Gloo's affair


def test_interrupting_the_cell_reports_and_restarts(any_notebook):
    request = any_notebook.send("%%px --timeout 60\ndist.recv(torch.zeros(1), src=(rank + 1) % 4)")
    time.sleep(1.0)
    any_notebook.interrupt()
    answer = any_notebook.answer(request)
    assert answer.error == "RanksStuck"
    assert answer.message.startswith("interrupted while ranks 0, 1, 2 and 3 had not finished.")
    assert "they wait in a circle: rank 0 → rank 1 → rank 2 → rank 3 → rank 0" in answer.message
    assert any_notebook.run("%px rank").text == "".join(f"[rank {i}] {i}\n" for i in range(4))


def test_a_second_interrupt_ends_the_asking(notebook):
    notebook.run("from ringtree.live.reports import diagnosis\nkept, diagnosis.WAKE_UPS = diagnosis.WAKE_UPS, 1_000_000")
    request = notebook.send("%%px --timeout 60\nimport ctypes\nctypes.PyDLL(None).sleep(60)")
    for _ in range(2):
        time.sleep(1.0)
        notebook.interrupt()
    answer = notebook.answer(request)
    notebook.run("diagnosis.WAKE_UPS = kept")
    assert answer.error == "RanksStuck"
    assert "rank 3 could not say where it is: it got no time to answer" in answer.message
    assert notebook.run("%px rank").text == "".join(f"[rank {i}] {i}\n" for i in range(4))


def test_call_reports_like_a_cell(hangs):
    answer = hangs("def skip():\n    if rank:\n        dist.barrier()\nranks.call(skip, timeout=2)")
    assert answer.error == "RanksStuck"
    assert "rank 1 waits in barrier for rank 0, which has finished" in answer.message


@pytest.mark.parametrize(
    "engines, cold", [("fork", False), ("fork", True), ("local", True)], ids=["fork-warm", "fork-cold", "local"]
)
def test_a_killed_kernel_leaves_no_process_behind(engines, cold):
    with kernel(cold) as live:
        live.run("import ringtree")
        assert live.run(f"ranks = ringtree.start(4, engines={engines!r})").error is None
        below = live.descendants()
        assert len(below) >= 5
        os.kill(live.pid, signal.SIGKILL)
        assert wait_gone(below, 5.0)


def test_a_killed_kernel_leaves_no_process_even_when_a_rank_holds_the_interpreter():
    with kernel() as live:
        live.run("import ringtree")
        live.run("ranks = ringtree.start(2)")
        live.send("%%px\nimport ctypes\nctypes.PyDLL(None).sleep(60)")
        time.sleep(0.5)
        below = live.descendants()
        os.kill(live.pid, signal.SIGKILL)
        assert wait_gone(below, 5.0)


def test_what_ranks_are_forked_from_ends_with_the_kernel_while_it_still_imports():
    slow = "import os, time\nfrom ringtree.live.processes import forks\nwith forks.watching(os.getppid()):\n"
    slow += "    print('importing', flush=True)\n    time.sleep(600)"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {slow!r}])"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as like_a_kernel:
        assert like_a_kernel.stdout.readline() == "importing\n"
        below = psutil.Process(like_a_kernel.pid).children()
        like_a_kernel.kill()
        assert below and wait_gone(below, 5.0)


@pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux")
def test_a_program_that_ends_has_ended_what_its_ranks_were_forked_from():
    program = """
import atexit
atexit.register(lambda: print(server.process.poll(), server.is_alive()))  # the first to be registered is the last to run
import ringtree
from ringtree.live.processes import launchers
ringtree.start(2)
server = launchers.fork_server()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=90)
    assert done.stdout == "0 False\n", done.stderr


def test_two_notebooks_at_once_do_not_meet():
    with kernel() as one, kernel() as other:
        for live in (one, other):
            live.run("import ringtree")
            live.run("ranks = ringtree.start(2)")
        one.run("%px value = 1")
        other.run("%px value = 2")
        assert one.run("ranks.pull('value')").shown == ["[1, 1]"]
        pids = {p.pid for p in other.descendants()}
        one.run("ranks.stop()")
        assert pids <= {p.pid for p in psutil.process_iter()}
        assert other.run("%px print(value)").text == "[rank 0] 2\n[rank 1] 2\n"
