"""Where a waiting job stands in Slurm's queue, in words for the learner who waits. Run."""

import re
from math import inf

from ringtree.doctor.slurm import seconds_in

REASONS = {
    "Resources": "waiting until enough is free",
    "Priority": "waiting behind others who asked before",
    "ReqNodeNotAvail": "the server is being looked after",
    "PartitionDown": "the administrator has closed the queue",
    "PartitionTimeLimit": "more hours were asked for than the administrator allows",
    "BeginTime": "it starts in a moment",
    "None": "it starts in a moment",
}
# One line a job: state, number, GPUs, time left.
ASK = "squeue --noheader --states=all --sort=-p,i --format='%T|%i|%b|%L|%r'"


def gpus_in(text):
    """The GPUs that Slurm's words for generic resources name: "gres:gpu:2" is 2, "N/A" is 0."""
    found = re.search(r"gpu(?::[a-z]\w*)?[:=](\d+)", text)
    return int(found[1]) if found else 0


def tell_place(listing, job, total):
    """A sentence for the learner of `job`, or None where it does not wait.

    listing: what ASK printed. total: GPUs of the server.
    """
    jobs = [line.split("|") for line in listing.splitlines() if line.count("|") >= 4]
    waiting = [number for state, number, *_ in jobs if state == "PENDING"]
    running = [each for each in jobs if each[0] in ("RUNNING", "CONFIGURING", "COMPLETING")]
    mine = next((each for each in jobs if each[1] == job and each[0] == "PENDING"), None)
    if mine is None:
        return None
    wanted, free = gpus_in(mine[2]), total - sum(gpus_in(each[2]) for each in running)
    place = f"In the queue: place {waiting.index(job) + 1} of {len(waiting)}."
    free = f"{free} of {total} {'is' if free == 1 else 'are'} free."
    asked = f"You asked for {wanted} GPU{'s' * (wanted > 1)}; {free}" if wanted else ""
    reason = REASONS.get(mine[4].partition(",")[0].strip("() "), mine[4])
    ends = sorted((_or_never(seconds_in(each[3])), each[3]) for each in running if gpus_in(each[2]) or not wanted)
    soon = f"The next server ends in {ends[0][1]} at the latest, or when its learner stops it." if ends else ""
    return " ".join(filter(None, [place, asked, reason[:1].upper() + reason[1:] + ".", soon]))


def _or_never(seconds):
    return inf if seconds is None else seconds
