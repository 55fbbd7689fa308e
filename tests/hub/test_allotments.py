"""GPUs are one learner's at a time: what is allotted, who waits, and what happens when a part dies."""

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


def processes_of(learner):
    return [pid for pid in filter(str.isdigit, os.listdir("/proc")) if _owner(pid) == learner.uid]


def _owner(pid):
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except FileNotFoundError:
        return None


@pytest.mark.parametrize("part", ["hub", "proxy", "slurmctld", "slurmd", "munge"])
def test_a_part_killed_and_started_again_takes_no_learners_work(hub, learners, part):
    learner = learners(1)
    learner.start(gpus=2)
    with learner.kernel(keep=True) as run:
        run("kept = 41")
        number = run.number
    hub.kill(part)
    hub.restart(part)
    wait_for(hub.answers, "the hub to answer")
    wait_for(learner.ready, "the hub to know the server", 60)
    wait_for(lambda: "RUNNING" in hub.admin.job(learner.name), "Slurm to answer", 60)
    assert len(gpus_of(learner)) == 2
    wait_for(lambda: reaches(learner), "the way to the server", 60)
    with learner.kernel(number) as run:
        assert run("print(kept + 1)") == "42"


def reaches(learner):
    return requests.get(f"{learner.url}/api/status", headers=learner.headers(), timeout=30).status_code == 200


@pytest.mark.parametrize("after", [0, 1, 3])
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
    # A job that is launched anew while it runs already makes Slurm close the node: its administrator opens it again.
    if "Duplicate" in hub.slurm("sinfo", "--noheader", "--list-reasons"):
        hub.slurm("scontrol", "update", f"nodename={hub.name}", "state=resume")
    wait_for(lambda: first.ready() or second.ready(), "one of them to have the GPUs")
    assert not (first.ready() and second.ready())


def _command(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as command:
            return command.read()
    except OSError:
        return ""
