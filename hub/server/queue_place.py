"""Where a waiting job stands in Slurm's queue, in words for the learner who waits."""

from math import ceil

from ringtree.live.processes.slurm_words import gpus_in, parts_in, reason, seconds_in

# One line a job: state, number, GPUs, time left, reason.
ASK = "squeue --noheader --states=all --sort=-p,i --format='%T|%i|%b|%L|%r'"


def tell_free(listing, total, parts=0):
    """A sentence for who is about to choose: how many GPUs are free, and how many learners wait. Arguments as of tell_place."""
    jobs = jobs_in(listing)
    waiting = sum(state == "PENDING" for state, *_ in jobs)
    free = f"GPUs: {free_of(jobs, total)}" if total else ""
    shared = f"Parts of shared GPUs: {free_of(jobs, parts, parts_in)}" if parts else ""
    waits = f"{waiting} learner{' waits' if waiting == 1 else 's wait'} in the queue." if waiting else ""
    return " ".join(filter(None, [free, shared, waits]))


def jobs_in(listing):
    return [line.split("|") for line in listing.splitlines() if line.count("|") >= 4]


def running_in(jobs):
    return [each for each in jobs if each[0] in ("RUNNING", "CONFIGURING", "COMPLETING")]


def free_of(jobs, total, count=gpus_in):
    free = total - sum(count(each[2]) for each in running_in(jobs))
    return f"{free} of {total} {'is' if free == 1 else 'are'} free."


def tell_place(listing, job, total, silent=("None",), parts=0):
    """A sentence for the learner of `job`, or None where it does not wait.

    listing: what ASK printed. total: GPUs that are given whole. silent: reasons of Slurm's that say nothing. parts: of the GPUs
    that learners share.
    """
    jobs = jobs_in(listing)
    waiting = [number for state, number, *_ in jobs if state == "PENDING"]
    running = running_in(jobs)
    mine = next((each for each in jobs if each[1] == job and each[0] == "PENDING"), None)
    if mine is None:
        return None
    count = parts_in if parts_in(mine[2]) else gpus_in
    wanted = count(mine[2])
    place = f"In the queue: place {waiting.index(job) + 1} of {len(waiting)}."
    asked = f"You asked for {wanted} GPU{'s' * (wanted > 1)}; {free_of(jobs, total)}" if wanted else ""
    if count is parts_in:
        asked = f"You asked for a part of a GPU; {free_of(jobs, parts, count)}"
    why = f"{reason('None' if mine[4] in silent else mine[4])}."
    if mine[4] in silent and (running or waiting[0] != job):
        why = ""
    left = [seconds_in(each[3]) for each in running if count(each[2]) or not wanted]
    soonest = min((seconds for seconds in left if seconds is not None), default=None)
    ends = "" if soonest is None else f"The next server ends in {spoken(soonest)} at the latest, or when its learner stops it."
    return " ".join(filter(None, [place, asked, why[:1].upper() + why[1:], ends]))


def spoken(seconds):
    """Rounded up to minutes: "45 min", "2 h 5 min"."""
    hours, minutes = divmod(ceil(seconds / 60), 60)
    return " ".join(filter(None, [f"{hours} h" * bool(hours), f"{minutes} min" * bool(minutes or not hours)]))
