"""What Slurm's programs print, read; and its reasons, said. The same for ranks, the doctor and a hub's queue."""

import os
import re

# Source: the manual page of squeue, "Job Reason Codes".
REASONS = {
    "Resources": "waiting until enough is free",
    "Priority": "waiting behind earlier requests",
    "ReqNodeNotAvail": "what it needs is under maintenance",
    "PartitionDown": "the administrator has closed the queue",
    "PartitionTimeLimit": "more hours were asked for than the administrator allows",
    "PartitionNodeLimit": "more nodes were asked for than the administrator allows",
    # Where no accounts are kept Slurm 23.11 says it of whoever waits.
    "InvalidAccount": "it waits, or, where Slurm keeps accounts, it no longer knows this one",
    "BeginTime": "it starts in a moment",
    "None": "it starts in a moment",
}


def reason(said: str) -> str:
    """Slurm's reason, such as "ReqNodeNotAvail, UnavailableNodes:n1", in words; one that is not known, as it is."""
    return REASONS.get(said.partition(",")[0].strip("() "), said)


def gpus_in(text: str) -> int:
    """The GPUs that Slurm's words for generic resources name: "gres:gpu:2" is 2, "gpu:a100:4(S:0-1)" is 4, "N/A" is 0."""
    found = re.search(r"gpu(?::[a-z]\w*)?[:=](\d+)", text)
    return int(found[1]) if found else 0


def parts_in(text: str) -> int:
    """The parts of GPUs, Slurm's shards, that such words name: "gres:shard:1" is 1."""
    found = re.search(r"shard[:=](\d+)", text)
    return int(found[1]) if found else 0


def gpus_allotted(environment=os.environ) -> int:
    """The GPUs of this node that Slurm has allotted to this process's job; 0 without a job."""
    told = environment.get("SLURM_GPUS_ON_NODE", "0")
    return int(told) if told.isdigit() else 0


def seconds_in(text: str) -> int | None:
    """Slurm's days-hours:minutes:seconds; None for UNLIMITED and the like."""
    days, _, rest = text.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdigit() for part in parts) or not (days == "" or days.isdigit()):
        return None
    seconds = 0
    for part in parts:
        seconds = 60 * seconds + int(part)
    return seconds + 86_400 * int(days or 0)
