"""Five jobs that really hang on four Gloo ranks, and what the Flight Recorder has of them.

    python tools/record_hangs.py         # writes ringtree/labs/exercises/hangs.json, which the lab "Hangs" gives its learners

The jobs train nothing: they call what a training calls, in its order. `test_training_hangs.py` runs them anew and compares.
"""

import contextlib
import json
import pickle
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "ringtree" / "labs" / "exercises" / "hangs.json"
STEPS, EVERY = 7, 2  # steps of a job, and those between two saves
KEPT = "collective_seq_id profiling_name input_sizes input_dtypes is_p2p state retired".split()


class Job:
    """What a rank of a training calls; in each job below rank `odd` does one thing of it otherwise, in step `when`.

    A step averages two buckets and brings the loss to rank 0; after each second step all meet before rank 0 saves.
    """

    def __init__(self, odd, when, dist, group):
        self.dist, self.group, self.when = dist, group, when
        self.is_odd = dist.get_rank() == odd

    def train(self):
        for step in range(1, STEPS + 1):
            self.one_step(step, self.is_odd and step == self.when)
            if step % EVERY == 0:
                self.save()

    def one_step(self, step, odd):
        self.average(4)
        self.average(6)
        self.log()

    def average(self, count):
        self.dist.all_reduce(torch.ones(count), group=self.group)

    def log(self):
        self.dist.reduce(torch.ones(1), dst=0, group=self.group)

    def save(self):
        self.dist.barrier(group=self.group)


class First(Job):
    def one_step(self, step, odd):
        if not odd:  # who is has no rows left
            super().one_step(step, odd)


class Second(Job):
    def save(self):
        if self.is_odd:
            super().save()


class Third(Job):
    def one_step(self, step, odd):
        self.average(8 if odd else 4)
        self.average(6)
        self.log()


class Fourth(Job):
    def one_step(self, step, odd):
        if odd:
            time.sleep(20)  # its rows do not come
            raise RuntimeError("no rows")
        super().one_step(step, odd)


class Fifth(Job):
    def one_step(self, step, odd):
        first, second = (6, 4) if odd else (4, 6)  # from a set, say
        self.average(first)
        self.average(second)
        self.log()


# Each job twice: with which rank and step it is shown, and those with which it comes again.
JOBS = {
    "1": (First, 1, 3),
    "2": (Second, 0, 2),
    "3": (Third, 2, 4),
    "4": (Fourth, 3, 4),
    "5": (Fifth, 2, 2),
    "1 again": (First, 3, 6),
    "2 again": (Second, 3, 2),
    "3 again": (Third, 1, 1),
    "4 again": (Fourth, 0, 2),
    "5 again": (Fifth, 0, 3),
}


def hang(dist, name, seconds):
    """On every rank: run a job of this name, which gives up after some seconds; returns the rank's last record before that."""
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds))
    kind, odd, when = JOBS[name]
    job, over, last = kind(odd, when, dist, group), threading.Event(), []

    def watch():
        """Until nothing new has come for two seconds: after the error everything counts as ended."""
        still, known = 0, None
        while still < 20 and not over.wait(0.1):
            last[:] = [torch._C._distributed_c10d._dump_fr_trace()]
            count = len(pickle.loads(last[0])["entries"])
            still, known = (still + 1, known) if count == known else (0, count)

    watcher = threading.Thread(target=watch)
    watcher.start()
    with contextlib.suppress(RuntimeError):
        job.train()
    over.set()
    watcher.join()
    return trimmed(pickle.loads(last[0]), group.group_name)


def trimmed(dump, group):
    """Of a dump what is this group's, as that of a job's only group, without times and paths."""
    entries = [
        {
            "process_group": ["0", "default_pg"],
            **{name: each[name] for name in KEPT},
            "frames": [
                {"name": frame["name"], "filename": "train.py", "line": frame["line"]}
                for frame in each["frames"]
                if frame["filename"] == __file__ and frame["name"] not in ("hang", "<module>")
            ],
        }
        for each in dump["entries"]
        if each["process_group"][0] == group
    ]
    return {"version": dump["version"], "entries": entries}


def on_a_rank(rank, name, folder):
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=4)
    Path(folder, f"{rank}.json").write_text(json.dumps(hang(torch.distributed, name, 10)))


def main():
    found = {}
    for name in JOBS:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(on_a_rank, (name, folder), nprocs=4)
            found[name] = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(4)]
    RECORDS.write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
