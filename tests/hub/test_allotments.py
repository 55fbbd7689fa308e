"""GPUs are one learner's at a time: what is allotted, who waits, and how an allotment ends."""

import os
import re
import signal
import subprocess

import people
import pytest
import requests
from people import wait_for

OPEN = "import os\ntry:\n    os.open({path!r}, os.O_RDWR)\nexcept OSError as error:\n    print(error.strerror)"


@pytest.mark.cut
def test_two_learners_hold_different_gpus_and_can_open_no_others(hub, learners):
    first, second = learners(1), learners(2)
    for learner, count in ((first, 2), (second, 1)):
        hub.admin.start(learner.name, gpus=count)
    for learner in (first, second):
        wait_for(learner.ready, f"{learner.name}'s server")
    held = {learner: learner.gpus() for learner in (first, second)}
    assert len(held[first]) == 2 and len(held[second]) == 1 and not held[first] & held[second]
    for learner in (first, second):
        with learner.kernel() as run:
            # A variable is a wish; the device is what the control group lets through, and then no driver answers.
            run("import os; os.environ['CUDA_VISIBLE_DEVICES'] = '0,1,2,3'")
            said = {number: run(OPEN.format(path=path)) for number, path in enumerate(hub.gpus)}
        refused = {number for number, words in said.items() if words == "Operation not permitted"}
        assert refused == {*range(len(hub.gpus))} - held[learner], said
        assert all("No such device" in said[number] for number in held[learner]), said


def test_a_gpu_that_is_set_aside_is_shared_by_so_many_and_never_given_whole(hub, chromium, learners):
    first, second, third = learners(1), learners(2), learners(3)
    with people.at_the_hub(chromium, first, "/hub/spawn") as page:
        page.wait_for_selector("text=Parts of shared GPUs: 2 of 2 are free.")
        people.choose(page, gpus="part")
        page.wait_for_url(re.compile(f"/user/{first.name}/"))
    second.start(gpus="part")
    assert first.gpus("shard") == second.gpus("shard") == {4} and not first.gpus() | second.gpus()
    for learner in (first, second):
        with learner.kernel() as run:
            said = {number: run(OPEN.format(path=path)) for number, path in enumerate(hub.gpus)}
            assert run("import os; print(os.environ['SLURM_GPUS_ON_NODE'])") == "1"
        assert "No such device" in said.pop(4) and set(said.values()) == {"Operation not permitted"}, said
    hub.admin.start(third.name, gpus="part")
    told = next(each["message"] for each in hub.admin.progress(third.name) if "queue" in each.get("message", ""))
    assert "place 1 of 1. You asked for a part of a GPU; 0 of 2 are free." in told, told
    hub.admin.stop(first.name)
    wait_for(third.ready, "the freed part to go to who waited")
    first.start(gpus=2)  # of GPUs without types Slurm 22.05 would give one that the others have parts of
    assert len(first.gpus()) == 2 and not first.gpus() & {4} and second.gpus("shard") == third.gpus("shard") == {4}


FILLS = "import sys; kept = [b'x' * 2**28 for _ in range(int(sys.argv[1]))]; print(len(kept))"


def test_a_server_without_gpus_opens_none_and_is_held_to_its_memory_and_cores(hub, learners):
    learner = learners(1)
    learner.start(gpus=0, gib=2)
    with learner.kernel() as run:
        said = {path: run(OPEN.format(path=path)) for path in [*hub.gpus, *hub.cards]}
        assert set(said.values()) == {"Operation not permitted"} and len(said) == 6, said
        assert run("print(len(os.sched_getaffinity(0)))") == "1" and os.cpu_count() > 1
        run("import subprocess, sys")
        fills = "print(subprocess.run([sys.executable, '-c', {!r}, '{}'], capture_output=True, text=True))"
        fits, ended = (run(fills.format(FILLS, quarters)) for quarters in (4, 12))
        assert "returncode=0" in fits and "returncode=-9" in ended, (fits, ended)
        assert run("print('still here')") == "still here"


def test_who_asks_for_more_than_is_free_sees_the_place_and_gets_what_is_freed(hub, chromium, learners):
    first, second, third = learners(1), learners(2), learners(3)
    first.start(gpus=4)
    with people.at_the_hub(chromium, second, "/hub/spawn") as page:
        people.choose(page, gpus=4)
        page.wait_for_selector("text=/In the queue: place 1 of 1. You asked for 4 GPUs; 0 of 4 are free/")
        hub.admin.start(third.name, gpus=1)
        told = next(each["message"] for each in hub.admin.progress(third.name) if "queue" in each.get("message", ""))
        assert "place 2 of 2. You asked for 1 GPU; 0 of 4 are free." in told, told
        hub.admin.stop(first.name)
        wait_for(second.ready, "the freed GPUs to go to who waited")
        page.wait_for_url(re.compile(f"/user/{second.name}/"))
    assert second.gpus() == {0, 1, 2, 3} and "PENDING" in hub.admin.job(third.name)


def test_a_server_killed_gives_its_gpus_back_and_leaves_nothing(hub, learners):
    learner = learners(1)
    learner.start(gpus=4)
    with learner.kernel() as run:
        run("import ringtree; ranks = ringtree.start(2)")
        server = int(run("import os; print(os.getppid())"))
        folder = run("print(os.environ['TMPDIR'])")
        run("import subprocess; subprocess.Popen(['setsid', 'sleep', '1000'])")
        os.kill(server, signal.SIGKILL)
    wait_for(lambda: not hub.admin.job(learner.name), "the allotment to end")
    wait_for(lambda: not os.path.exists(folder), "the temporary folder to go", 20)
    wait_for(lambda: not learner.processes(), "the processes to end", 20)
    wait_for(lambda: not learner.ready(), "the hub to notice")
    page = requests.get(f"{learner.url}/api/status", headers=learner.headers(), timeout=30)
    assert page.status_code == 424 and "no longer running" in page.text, page.text
    assert "by itself" in last_end(hub, learner)


def test_a_kernel_killed_is_started_again_and_its_ranks_are_gone(hub, learners):
    learner = learners(1)
    learner.start(gib=4)
    with learner.kernel(keep=True) as run:
        said = run("import os, ringtree; ranks = ringtree.start(2); print(os.getpid(), os.environ['TMPDIR'])")
        pid, folder = said.split()
        assert learner.runs("ringtree/live/")
        os.kill(int(pid), signal.SIGKILL)
        told = []
        while "restarting" not in told and len(told) < 1000:
            told.append(people.received(run.line)["content"].get("execution_state"))
        assert "restarting" in told, set(told)
        wait_for(lambda: not learner.runs("ringtree/live/"), "its ranks to end", 30)
        wait_for(lambda: not [name for name in os.listdir(folder) if name.startswith("ringtree-")], "their folder to go", 30)
    # What a kernel says before the server listens to it again is lost; a new websocket waits for that.
    with learner.kernel(run.number) as run:
        assert run("print('ranks' in globals())") == "False"
    assert learner.ready()


def test_idle_and_overdue_servers_end_and_their_gpus_go_to_who_waits(hub, chromium, learners):
    """Idle is also who has JupyterLab open, and ranks that wait."""
    idle, overdue, waiting = learners(1), learners(2), learners(3)
    try:
        hub.settings["RINGTREE_HUB_IDLE_SECONDS"] = "40"
        again(hub, "hub")
        idle.start(gpus=2)
        hub.settings["RINGTREE_HUB_IDLE_SECONDS"] = "3600"
        again(hub, "hub")
        overdue.start(gpus=2)
        with people.at_the_hub(chromium, idle, f"/user/{idle.name}/lab") as page, idle.kernel(keep=True) as run:
            page.wait_for_selector("#jp-main-dock-panel")
            with overdue.kernel(keep=True) as theirs:
                folders = [
                    each("import os, ringtree; ranks = ringtree.start(2); print(os.environ['TMPDIR'])")
                    for each in (run, theirs)
                ]
            hub.admin.start(waiting.name, gpus=4)
            hub.slurm("scontrol", "update", f"jobid={hub.admin.job(overdue.name).split()[0]}", "endtime=now+5")
            wait_for(waiting.ready, "both to end", 240)
    finally:
        hub.settings.pop("RINGTREE_HUB_IDLE_SECONDS", None)
    for learner, folder in zip((idle, overdue), folders, strict=True):
        assert not hub.admin.job(learner.name) and not learner.processes()
        wait_for(lambda folder=folder: not os.path.exists(folder), "the temporary folder to go", 20)
        wait_for(lambda learner=learner: not learner.ready(), "the hub to notice")
    assert re.search(r"it had no work for \d min", last_end(hub, idle)) and "its time was over" in last_end(hub, overdue)
    overdue.start(gpus=0)
    hub.admin.stop(overdue.name)
    assert not last_end(hub, overdue), "it was stopped by its learner: that needs no word"


def last_end(hub, learner):
    """What the page to choose says at the next log-in of the learner's last server."""
    session, page = people.log_in(hub, learner.name, learner.password)
    page = session.get(f"{hub.address}/hub/spawn", timeout=30).text
    assert "Choose your server" in page
    return "".join(re.findall(r'<p id="last"[^>]*>([^<]*)</p>', page))


@pytest.mark.parametrize(
    "state, told, why",
    [
        ("TIMEOUT", "a line", "its time was over."),
        ("OUT_OF_MEMORY", "", "it took more memory than you had asked for."),
        ("NODE_FAIL", "", "the machine that it ran on was lost."),
        ("COMPLETED", "No kernels for 3601 seconds; shutting down.\nbye\nbye\nbye", "it had no work for 1 h 1 min."),
        ("FAILED", "KeyError: 1", "by itself. Its last lines: KeyError: 1"),
        ("", "", "by itself."),
    ],
)
def test_why_a_server_ended_is_said_in_words(state, told, why):
    pytest.importorskip("batchspawner", reason="the hub's packages are in its own environment: make test-hub")
    from allotments import why_ended

    assert why_ended(state, told) == why


def test_a_job_that_is_stopped_before_its_server_runs_starts_none(tmp_path):
    pytest.importorskip("batchspawner", reason="the hub's packages are in its own environment: make test-hub")
    from allotments import RUN
    from batchspawner.batchspawner import format_template

    log, ran = tmp_path / "log", tmp_path / "ran"
    settings = {"processes": 4096, "settings": "own", "log": log, "log_bytes": 10**6, "cmd": f"touch {ran}"}
    script = format_template(RUN, **settings).replace("/tmp/ringtree-", f"{tmp_path}/made-")
    ready = "keeper=$!\ntrap "
    assert script.count(ready) == 1
    before, after = script.split(ready)
    trap, rest = after.split("\n", 1)
    stopped = f"{before}{ready}{trap}\nkill -TERM $$\n{rest}"
    for each, runs in (script, True), (stopped, False):
        ended = subprocess.run(["bash", "-c", each], timeout=60, capture_output=True)
        assert (ran.exists(), ended.returncode == 0) == (runs, runs), ended
        assert not list(tmp_path.glob("made-*")), "the job's temporary folder"
        ran.unlink(missing_ok=True)


def again(hub, part):
    hub.kill(part)
    hub.restart(part)
    wait_for(hub.answers, "the hub to answer")
