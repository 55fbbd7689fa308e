"""Each part of a hub killed in turn: who is told what, what comes back, and that no GPU is given twice."""

import time
from pathlib import Path

import pytest
import requests
from people import wait_for


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
    assert len(learner.gpus()) == 2 and folders_of_jobs(hub) and groups_of_jobs(hub)
    wait_for(lambda: reaches(learner), "the way to the server", 60)
    with learner.kernel(number) as run:
        assert run("print(kept + 1)") == "42"
    if part == "slurmd":
        wait_for(learners(2).ready, "who asked meanwhile to have a server")
    nothing_is_left(hub, learner, learners(2))


def nothing_is_left(hub, *learners):
    """Once their servers are stopped, and no other runs; Slurm clears away while a job is ending, and a little after."""
    for learner in learners:
        hub.admin.stop(learner.name)
    until = time.monotonic() + 20
    while left := [*folders_of_jobs(hub), *groups_of_jobs(hub), *(told for each in learners if (told := each.processes()))]:
        assert time.monotonic() < until, left
        time.sleep(0.3)


def folders_of_jobs(hub):
    return list(Path("/tmp").glob(f"ringtree-{hub.name}-*"))


def groups_of_jobs(hub):
    """Slurm's control groups of jobs: of version 1, one for each kind, or of version 2."""
    groups = Path("/sys/fs/cgroup")
    return [*groups.glob(f"*/slurm_{hub.name}/uid_*/job_*"), *groups.glob(f"**/{hub.name}_slurmstepd.scope/job_*")]


def reaches(learner):
    return requests.get(f"{learner.url}/api/status", headers=learner.headers(), timeout=30).status_code == 200
