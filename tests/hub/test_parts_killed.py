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


@pytest.mark.parametrize("after", [0, 1])
def test_a_controller_killed_soon_after_a_submission_gives_no_gpu_twice(hub, learners, after):
    """A controller may so lose a job, and give its number to the next, which the node then ends: who is told so asks again."""
    first, second = learners(1), learners(2)
    hub.admin.start(first.name, gpus=4)
    wait_for(lambda: hub.admin.job(first.name), "the submission")
    time.sleep(after)
    assert not holds(first), "then it has long been written down"
    hub.kill("slurmctld")
    hub.restart("slurmctld")
    wait_for(lambda: "PARTITION" in hub.slurm("sinfo"), "the controller")
    hub.admin.start(second.name, gpus=4)
    until = time.monotonic() + 25
    while time.monotonic() < until:
        assert not (holds(first) and holds(second)), "both have a server with all four GPUs"
        time.sleep(0.2)
    wait_for(lambda: any([goes_on_asking(hub, each) for each in (first, second)]), "one of them to have the GPUs")
    assert holds(first) != holds(second)
    nothing_is_left(hub, first, second)


def goes_on_asking(hub, learner):
    """Whether the server is ready; who is told that there will be none asks again."""
    server = hub.admin.server(learner.name)
    if not server.get("ready") and not server.get("pending"):
        told = list(hub.admin.progress(learner.name))[-1]
        assert told["failed"] and "Ask again in a minute" in told["message"], told
        hub.admin.start(learner.name, gpus=4)
    return server.get("ready")


def test_a_node_closed_over_a_launch_made_twice_is_opened_and_one_that_somebody_closed_is_not(hub):
    close = ["scontrol", "update", f"nodename={hub.name}", "state=drain"]
    hub.slurm(*close, "reason=Duplicate jobid")
    wait_for(lambda: "drain" not in hub.slurm("sinfo", "--noheader", "--format=%T"), "the node to open", 60)
    hub.slurm(*close, "reason=a new disk")
    try:
        program = next(line.split()[-1] for line in hub.slurm("scontrol", "show", "config").splitlines() if "HealthCheckProgram" in line)
        hub.slurm(program)
        assert "drain" in hub.slurm("sinfo", "--noheader", "--format=%T")
    finally:
        hub.slurm("scontrol", "update", f"nodename={hub.name}", "state=resume")


def holds(learner):
    return learner.runs("jupyterhub")

