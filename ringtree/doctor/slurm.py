"""What Slurm gave this process, and whether PyTorch sees just that."""

import os
import shutil
import subprocess

from ringtree.doctor.finding import fine, note, wrong
from ringtree.live.processes.slurm_words import gpus_allotted, seconds_in
from ringtree.units import count_text

SOON = 600  # seconds


def findings(gpus: int | None, cores: float, environment=os.environ, time_left=True):
    """gpus, cores: as many as this process sees; gpus None: PyTorch is not here to be asked. time_left: ask Slurm how long the job may still run."""
    if not (job := environment.get("SLURM_JOB_ID")):
        return
    given = gpus_allotted(environment)
    allotted = int(environment.get("SLURM_CPUS_ON_NODE", "0") or 0)
    seen = f"job {job}: {count_text(given, 'GPU')} and {count_text(allotted, 'core')} on this node"
    if gpus is None:
        yield fine("Slurm", seen)
    elif gpus < given:
        yield wrong(
            "Slurm",
            f"{seen}, and PyTorch sees {count_text(gpus, 'GPU')}",
            "look at CUDA_VISIBLE_DEVICES, which Slurm has set: leave it as it was",
        )
    elif gpus > given:
        do = "the administrator has to set ConstrainDevices=yes in cgroup.conf; until then use no more than was allotted"
        yield wrong("Slurm", f"{seen}, and PyTorch sees {count_text(gpus, 'GPU')}, also those of others", do)
    else:
        yield fine("Slurm", seen)
    if allotted and cores > allotted:
        yield note(
            "Slurm's cores",
            f"{allotted} allotted, {cores:g} can be used",
            "the administrator has to set ConstrainCores=yes in cgroup.conf",
        )
    if time_left and (left := _seconds_left(job)) is not None and left < SOON:
        yield note(
            "Slurm's time",
            f"{left // 60} min left of this job",
            "save what you need: all ranks and the kernel end with the job",
        )


def _seconds_left(job):
    if shutil.which("squeue") is None:
        return None
    try:
        said = subprocess.run(
            ["squeue", "-h", "-j", job, "-o", "%L"], capture_output=True, text=True, timeout=10
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return None
    return seconds_in(said)
