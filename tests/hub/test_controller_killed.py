"""What is killed in the wrong moment: Slurm forgets jobs, holds ended ones to be running, and closes the node; what is done about it."""

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from people import in_place_of, wait_for
from test_parts_killed import nothing_is_left


@pytest.mark.parametrize("after", [0, 1])
def test_a_controller_killed_soon_after_a_submission_gives_no_gpu_twice(hub, learners, after):
    """A controller may so lose a job, and give its number to the next, which the node then ends: who is told so asks again."""
    first, second = learners(1), learners(2)
    hub.admin.start(first.name, gpus=4)
    assert hub.admin.server(first.name)["pending"] == "spawn", (
        "answered when the server runs, which is long after its submission"
    )
    wait_for(lambda: hub.admin.job(first.name), "the submission")
    time.sleep(after)
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


def test_a_job_whose_processes_are_all_gone_gives_its_gpus_back(hub, learners):
    """What Slurm itself would see after ten minutes and more: its own process for the job is killed as well."""
    learner = learners(1)
    learner.start(gpus=4)
    job = hub.admin.job(learner.name).split()[0]
    (step,) = steps_of(hub, job)
    for pid in (step, *learner.processes()):
        os.kill(pid, signal.SIGKILL)
    assert "RUNNING" in hub.admin.job(learner.name), "Slurm has seen it by itself: then this test shows nothing"
    wait_for(lambda: not hub.admin.job(learner.name), "the GPUs to be free")
    wait_for(lambda: not learner.ready(), "the hub to notice")
    assert "idle" in hub.slurm("sinfo", "--noheader", "--format=%T")


def steps_of(hub, job):
    """The numbers of Slurm's own processes for a job: each listens at a socket of this hub's node."""
    sockets = str(hub.folder / "node" / f"{hub.name}_{job}.")
    named = [each for each in psutil.process_iter(["name"]) if each.info["name"] == "slurmstepd"]
    return [each.pid for each in named if any(str(held.laddr).startswith(sockets) for held in each.net_connections("unix"))]


def test_a_node_closed_over_a_launch_made_twice_is_opened_and_one_that_somebody_closed_is_not(hub):
    close = ["scontrol", "update", f"nodename={hub.name}", "state=drain"]
    assert not hub.slurm(*close, "reason=Duplicate jobid")
    wait_for(lambda: "drain" not in hub.slurm("sinfo", "--noheader", "--format=%T"), "the node to open", 60)
    assert not hub.slurm(*close, "reason=a new disk")
    try:
        program = next(
            line.split()[-1] for line in hub.slurm("scontrol", "show", "config").splitlines() if "HealthCheckProgram" in line
        )
        hub.slurm("env", f"SLURMD_NODENAME={hub.name}", program)
        assert "drain" in hub.slurm("sinfo", "--noheader", "--format=%T")
    finally:
        hub.slurm("scontrol", "update", f"nodename={hub.name}", "state=resume")


def holds(learner):
    return learner.runs("jupyterhub")


@pytest.mark.parametrize(
    "says, ended",
    [
        ("JobId=7 does not exist on node gpu1.", True),
        ("There are no steps for job 7 on node gpu1.", True),
        ("scontrol: error: Unable to connect to slurmstepd: Connection refused", True),
        ("PID      JOBID    STEPID   LOCALID GLOBALID\n4242     7        batch    0       0", False),
        ("scontrol: error: something new", False),
    ],
)
def test_a_job_is_ended_where_slurm_says_that_it_has_no_step_and_nowhere_else(tmp_path, says, ended):
    commands = {"sinfo": "", "squeue": "echo 7 0", "scontrol": f"echo '{says}' >&2", "scancel": f"echo $1 > {tmp_path}/ended"}
    environment = {"PATH": in_place_of(tmp_path, commands), "SLURMD_NODENAME": "gpu1"}
    subprocess.run(
        [Path(__file__).resolve().parents[2] / "hub" / "server" / "mend"], env=environment, check=True, capture_output=True
    )
    assert (tmp_path / "ended").exists() == ended
