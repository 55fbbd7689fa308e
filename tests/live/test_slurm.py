"""Ranks as a job of Slurm, whose programs are small scripts here; `make test-hub` has the real ones."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest

from ringtree.errors import UsageError
from ringtree.live.processes import launchers, lifeline, slurm, slurm_words


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Put a program on the path: `programs("sinfo", "echo 2")`."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def put(name, script):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)

    put("sbatch", "echo Submitted batch job 7")
    put("sinfo", "true")
    return put


@pytest.fixture
def job(tmp_path, programs):
    made = slurm.SlurmEngineSet(work_dir=str(tmp_path), profile_dir=str(tmp_path))
    made.n, made.job_id, made.namespace = 4, "7", slurm.namespace(str(tmp_path), 4)
    return made


def chosen(tmp_path, monkeypatch, *asked, **more):
    """The script that is submitted."""
    monkeypatch.setattr(launchers.pathlib.Path, "home", lambda: tmp_path)
    arguments, options, folder, local = launchers.choose("slurm", *asked, **more)
    assert not local
    traits = options["SlurmEngineSet"]
    launcher = arguments["engines"](work_dir=folder, profile_dir=folder, **traits)
    launcher.write_batch_script(asked[0])
    return open(traits["batch_file_name"]).read()


def test_the_script_takes_whole_nodes_and_ends_with_its_notebook(tmp_path, monkeypatch, programs):
    script = chosen(tmp_path, monkeypatch, 8, 4)
    assert "#SBATCH --ntasks=8\n" in script and "#SBATCH --ntasks-per-node=4\n" in script
    assert "#SBATCH --exclusive=user\n" in script and "--gres" not in script
    assert script.splitlines()[-1].startswith("exec ") and "lifeline.py" in script and "srun " in script
    assert "-m ringtree.live.processes.engine" in script


def test_ranks_elsewhere_leave_no_folder_for_temporary_files_here(tmp_path, monkeypatch, programs):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(launchers.sockets, "parent", lambda: str(tmp_path / "temporary"))
    chosen(tmp_path, monkeypatch, 4)
    assert os.listdir(tmp_path / "temporary") == []


@pytest.mark.parametrize(
    "size, nodes, each, wanted",
    [
        (16, "2|gpu:8|main*", None, ["--ntasks-per-node=8", "--gres=gpu:8"]),
        (4, "2|gpu:a100:8(S:0-1)|main*", None, ["--ntasks-per-node=4", "--gres=gpu:4"]),
        (12, "4|gpu:8|main*", None, ["--ntasks-per-node=6", "--gres=gpu:6"]),
        (8, "4|gpu:8|main*", 2, ["--ntasks-per-node=2", "--gres=gpu:2"]),
        (16, "2|gpu:2|main*", None, []),  # too few: they would run on the CPU, as on a laptop
        (16, "2|(null)|main*\n2|gpu:8|other", None, []),
        (16, "2|(null)|main*", 8, ["--ntasks-per-node=8"]),
    ],
)
def test_a_gpu_a_rank_where_there_are_enough(tmp_path, programs, size, nodes, each, wanted):
    programs("sinfo", f"echo '{nodes}'")
    more = slurm.namespace(str(tmp_path), size, each)["more"]
    assert more.split("\n#SBATCH ")[1:] == wanted


def test_what_sbatch_refuses_is_said_in_its_words(programs, job):
    programs("sbatch", "echo 'sbatch: error: invalid partition specified: nowhere' >&2; exit 1")
    with pytest.raises(UsageError, match=r"Slurm's sbatch refused: invalid partition specified: nowhere; ask for"):
        job.start(4)


def test_a_job_inherits_neither_secrets_nor_another_job(tmp_path, monkeypatch, programs, job):
    for name in ("JUPYTERHUB_API_TOKEN", "SLURM_JOB_ID", "TMPDIR", "SLURM_CONF", "NCCL_DEBUG"):
        monkeypatch.setenv(name, str(tmp_path))
    programs("sbatch", f"env > {tmp_path}/seen; echo Submitted batch job 7")
    job.start(4)
    seen = {line.partition("=")[0] for line in (tmp_path / "seen").read_text().splitlines()}
    assert {"SLURM_CONF", "NCCL_DEBUG", "PATH"} <= seen and not {"JUPYTERHUB_API_TOKEN", "SLURM_JOB_ID", "TMPDIR"} & seen


PENDING = "JobState=PENDING Reason={} StartTime={}"


def test_who_waits_is_told_when_the_reason_changes(tmp_path, monkeypatch, programs, job):
    monkeypatch.setattr(slurm, "PATIENCE", 0)
    monkeypatch.setattr(slurm, "LOOK", 0.02)
    steps = [PENDING.format("None", "Unknown"), *[PENDING.format("Resources", "2030-01-02T03:04:05")] * 3]
    steps += [PENDING.format("Priority", "N/A"), "JobState=RUNNING Reason=None"]
    (tmp_path / "steps").write_text("\n".join(steps) + "\n")
    programs("scontrol", f"head -n1 {tmp_path}/steps; sed -i 1d {tmp_path}/steps")
    told = []
    job.wait_until_allotted(told.append)
    assert told == [
        "Slurm's job 7 is in the queue: waiting until enough is free. Slurm expects it to start at 03:04 on 2030-01-02. "
        "Interrupt the kernel to take it out.",
        "Slurm's job 7 is in the queue: waiting behind earlier requests. Interrupt the kernel to take it out.",
    ]


def test_an_interrupt_while_waiting_is_one_sentence(monkeypatch, programs, job):
    monkeypatch.setattr(slurm, "PATIENCE", 0)
    programs("scontrol", f"echo '{PENDING.format('Resources', 'Unknown')}'")

    def interrupt(said):
        raise KeyboardInterrupt

    with pytest.raises(UsageError, match="interrupted: Slurm's job 7 was taken out of the queue: call ringtree.start"):
        job.wait_until_allotted(interrupt)


@pytest.mark.parametrize(
    "state, why",
    [
        ("TIMEOUT TimeLimit=00:30:00", "its time limit of 00:30:00 is over; ask for more by options="),
        ("NODE_FAIL NodeList=n[1-2]", "node n2 was lost"),
        ("OUT_OF_MEMORY", "its ranks took more memory than was allotted"),
        ("CANCELLED", "it was cancelled, by scancel or by an administrator"),
        ("FAILED ExitCode=2:0", "its script ended with 2:0, and its last words were 'srun: error: no such file'"),
        ("BOOT_FAIL", "its state is BOOT_FAIL"),
    ],
)
def test_why_a_job_ended(programs, job, state, why):
    programs("sinfo", "echo n2")
    programs("scontrol", f"echo 'JobId=7 JobState={state}'")
    with open(job.output_file, "w") as log:
        log.write("starting\nsrun: error: no such file\n")
    told = job.ended()
    assert told.startswith(f"Slurm has ended job 7 and its ranks: {why}") and told.endswith(
        ". ringtree.start asks for a new one"
    )
    assert list(job.dead_ranks()) == [0, 1, 2, 3]


@pytest.mark.parametrize("answer", ["echo 'JobState=RUNNING'", "echo 'JobState=COMPLETING'", "exit 1"])
def test_a_job_that_runs_or_is_not_known_to_have_ended_is_not_over(programs, job, answer):
    programs("scontrol", answer)
    assert job.ended() is None and job.dead_ranks() == {}


def test_slurm_is_not_asked_at_each_look(tmp_path, programs, job):
    programs("scontrol", f"echo >> {tmp_path}/asked; echo JobState=RUNNING")
    for _ in range(20):
        job.ended(), job.dead_ranks()
    assert (tmp_path / "asked").read_text() == "\n"


def test_srun_tells_which_ranks_died_and_how(programs, job):
    programs("scontrol", "echo JobState=RUNNING")
    with open(job.output_file, "w") as log:
        log.write("srun: error: n1: task 0: Killed\nsrun: error: n2: tasks 2-3: Exited with exit code 7\nsrun: error: n1\n")
    assert job.dead_ranks() == {0: -9, 2: 7, 3: 7}


def test_reasons_are_said_in_words():
    assert slurm_words.reason("ReqNodeNotAvail, UnavailableNodes:n1") == "what it needs is under maintenance"
    assert slurm_words.reason("(QOSMaxJobsPerUserLimit)") == "(QOSMaxJobsPerUserLimit)"


# ---------------------------------------------------------------- the lifeline

QUICK = "import lifeline; lifeline.LOOK = 0.1; lifeline.main()"


@pytest.fixture
def controller(tmp_path):
    """A folder that names a controller, and the socket at which that listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        folder = tmp_path / "cluster"
        (folder / "security").mkdir(parents=True)
        told = {"location": "127.0.0.1", "registration": listening.getsockname()[1]}
        (folder / "security" / "ipcontroller-engine.json").write_text(json.dumps(told))
        yield folder, listening


def tied(folder, *command):
    here = os.path.dirname(lifeline.__file__)
    return subprocess.Popen([sys.executable, "-c", QUICK, str(folder), *command], env=os.environ | {"PYTHONPATH": here})


def test_the_lifeline_ends_its_command_and_removes_the_folder_when_the_kernel_is_gone(controller):
    folder, listening = controller
    with tied(folder, "sleep", "100") as running:
        time.sleep(1)
        assert running.poll() is None and folder.exists()
        listening.close()
        began = time.monotonic()
        running.wait(20)
        assert time.monotonic() - began < 15 and not folder.exists()


def test_the_lifeline_ends_as_its_command_does(controller):
    folder, _ = controller
    with tied(folder, "sh", "-c", "exit 3") as running:
        assert running.wait(20) == 3 and folder.exists()


def test_the_lifeline_removes_the_folder_of_ranks_that_ended_because_their_kernel_did(controller):
    folder, listening = controller
    listening.close()
    with tied(folder, "sh", "-c", "exit 3") as running:
        assert running.wait(20) == 3 and not folder.exists()
