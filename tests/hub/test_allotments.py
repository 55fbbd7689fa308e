"""GPUs are one learner's at a time: what is allotted, who waits, and what happens when a part dies."""

import json
import os
import re
import signal
import time

import people
import pytest
import requests
from people import wait_for

OPEN = "import os\ntry:\n    os.open({path!r}, os.O_RDWR)\nexcept OSError as error:\n    print(error.strerror)"


def gpus_of(learner):
    """The GPUs that Slurm says this learner's running job holds: a set of numbers."""
    told = learner.hub.slurm("scontrol", "show", "job", "--detail", learner.hub.admin.job(learner.name).split()[0])
    found = re.search(r"GRES=gpu\S*\(IDX:([\d,-]+)\)", told)
    spans = [span.split("-") for span in found[1].split(",")] if found else []
    return {number for span in spans for number in range(int(span[0]), int(span[-1]) + 1)}


def test_two_learners_hold_different_gpus_and_can_open_no_others(hub, learners):
    first, second = learners(1), learners(2)
    for learner, count in ((first, 2), (second, 1)):
        hub.admin.start(learner.name, gpus=count)
    for learner in (first, second):
        wait_for(learner.ready, f"{learner.name}'s server")
    held = {learner: gpus_of(learner) for learner in (first, second)}
    assert len(held[first]) == 2 and len(held[second]) == 1 and not held[first] & held[second]
    for learner in (first, second):
        with learner.kernel() as run:
            # A variable is a wish; the device is what the control group lets through, and then no driver answers.
            run("import os; os.environ['CUDA_VISIBLE_DEVICES'] = '0,1,2,3'")
            said = {number: run(OPEN.format(path=path)) for number, path in enumerate(hub.gpus)}
        refused = {number for number, words in said.items() if words == "Operation not permitted"}
        assert refused == {0, 1, 2, 3} - held[learner], said
        assert all("No such device" in said[number] for number in held[learner]), said


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
    assert gpus_of(second) == {0, 1, 2, 3} and "PENDING" in hub.admin.job(third.name)


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
    wait_for(lambda: not processes_of(learner), "the processes to end", 20)
    wait_for(lambda: not learner.ready(), "the hub to notice")
    page = requests.get(f"{learner.url}/api/status", headers=learner.headers(), timeout=30)
    assert page.status_code == 424 and "no longer running" in page.text, page.text


def test_a_kernel_killed_is_started_again_and_its_ranks_are_gone(hub, learners):
    learner = learners(1)
    learner.start(gib=4)
    with learner.kernel() as run:
        said = run("import os, ringtree; ranks = ringtree.start(2); print(os.getpid(), os.environ['TMPDIR'])")
        pid, folder = said.split()
        assert any("ringtree/live/" in _command(each) for each in processes_of(learner))
        os.kill(int(pid), signal.SIGKILL)
        told = []
        while "restarting" not in told and len(told) < 1000:
            told.append(json.loads(run.args[0].recv())["content"].get("execution_state"))
        assert "restarting" in told, set(told)
        wait_for(lambda: not any("ringtree/live/" in _command(each) for each in processes_of(learner)), "its ranks to end", 30)
        wait_for(lambda: not [name for name in os.listdir(folder) if name.startswith("ringtree-")], "their folder to go", 30)
        assert run("print('ranks' in globals())") == "False"
    assert learner.ready()


def test_idle_and_overdue_servers_end_and_their_gpus_go_to_who_waits(hub, learners):
    idle, overdue, waiting = learners(1), learners(2), learners(3)
    try:
        hub.settings["RINGTREE_HUB_IDLE_SECONDS"] = "15"
        again(hub, "hub")
        idle.start(gpus=2)
        hub.settings["RINGTREE_HUB_IDLE_SECONDS"] = "3600"
        again(hub, "hub")
        overdue.start(gpus=2)
        hub.admin.start(waiting.name, gpus=4)
        hub.slurm("scontrol", "update", f"jobid={hub.admin.job(overdue.name).split()[0]}", "endtime=now+5")
        wait_for(waiting.ready, "both to end", 240)
    finally:
        hub.settings.pop("RINGTREE_HUB_IDLE_SECONDS", None)
    for learner in (idle, overdue):
        assert not hub.admin.job(learner.name) and not processes_of(learner)
        wait_for(lambda learner=learner: not learner.ready(), "the hub to notice")


def again(hub, part):
    hub.kill(part)
    hub.restart(part)
    wait_for(hub.answers, "the hub to answer")


def processes_of(learner):
    return [pid for pid in filter(str.isdigit, os.listdir("/proc")) if _owner(pid) == learner.uid]


def _owner(pid):
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except FileNotFoundError:
        return None


def no_hub(hub, learner, other):
    """Nobody can log in or start, and is told so; servers go on."""
    page = requests.get(f"{hub.address}/hub/login", timeout=30)
    assert page.status_code == 503 and "503" in page.text, page.text
    assert reaches(learner)


def no_proxy(hub, learner, other):
    with pytest.raises(requests.ConnectionError):
        requests.get(f"{hub.address}/hub/login", timeout=30)


def no_controller(hub, learner, other):
    """Who asks for a server is told that it did not start."""
    hub.admin.ask("POST", f"users/{other.name}")
    asked = hub.admin.ask("POST", f"users/{other.name}/server", gpus=1)
    assert asked.status_code in (202, 500), asked.text
    wait_for(lambda: not hub.admin.server(other.name).get("pending"), "the refusal")
    told = list(hub.admin.progress(other.name))
    assert told and told[-1].get("failed") and "Ask again in a minute" in told[-1]["message"], told
    assert reaches(learner)


def no_node(hub, learner, other):
    """Who asks for a server waits, and has it when the node is back."""
    hub.admin.start(other.name, gpus=1)
    wait_for(lambda: hub.admin.job(other.name), "the job")
    assert reaches(learner) and not other.ready()


WHILE_GONE = {"hub": no_hub, "proxy": no_proxy, "slurmctld": no_controller, "slurmd": no_node, "munge": no_controller}


@pytest.mark.parametrize("part", ["hub", "proxy", "slurmctld", "slurmd", "munge"])
def test_a_part_killed_and_started_again_takes_no_learners_work(hub, learners, part):
    learner = learners(1)
    learner.start(gpus=2)
    with learner.kernel(keep=True) as run:
        run("kept = 41")
        number = run.number
    hub.kill(part)
    WHILE_GONE[part](hub, learner, learners(2))
    hub.restart(part)
    wait_for(hub.answers, "the hub to answer")
    wait_for(learner.ready, "the hub to know the server", 60)
    wait_for(lambda: "RUNNING" in hub.admin.job(learner.name), "Slurm to answer", 60)
    assert len(gpus_of(learner)) == 2
    wait_for(lambda: reaches(learner), "the way to the server", 60)
    with learner.kernel(number) as run:
        assert run("print(kept + 1)") == "42"
    if part == "slurmd":
        wait_for(learners(2).ready, "who asked meanwhile to have a server")


def reaches(learner):
    return requests.get(f"{learner.url}/api/status", headers=learner.headers(), timeout=30).status_code == 200


@pytest.mark.parametrize("after", [0, 1])
def test_a_controller_killed_soon_after_a_submission_gives_no_gpu_twice(hub, learners, after):
    first, second = learners(1), learners(2)
    hub.admin.start(first.name, gpus=4)
    wait_for(lambda: hub.admin.job(first.name), "the submission")
    time.sleep(after)
    hub.kill("slurmctld")
    hub.restart("slurmctld")
    wait_for(lambda: "PARTITION" in hub.slurm("sinfo"), "the controller")
    hub.admin.start(second.name, gpus=4)
    until = time.monotonic() + 25
    while time.monotonic() < until:
        holders = [each for each in (first, second) if any("jupyterhub" in _command(pid) for pid in processes_of(each))]
        assert len(holders) < 2, "both have a server with all four GPUs"
        time.sleep(0.2)
    wait_for(lambda: first.ready() or second.ready(), "one of them to have the GPUs")
    assert not (first.ready() and second.ready())


def _command(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as command:
            return command.read()
    except OSError:
        return ""
