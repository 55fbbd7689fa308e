"""Whether Slurm has one GPU given out twice, looked at all the time while the tests of a hub run."""

import contextlib
import re
import subprocess
import threading
from collections import Counter

HELD = re.compile(r"JobId=(\d+) .*JobState=RUNNING .*GRES=(gpu|shard)\S*\(IDX:([\d,-]+)\)")


def held_in(told, kind="gpu"):
    """{job: its GPUs, a set of numbers} from what `scontrol --details --oneliner show job` prints; for the kind "shard", those of
    which it has a part."""
    return {int(job): numbers_in(spans) for job, what, spans in HELD.findall(told) if what == kind}


def numbers_in(spans):
    """ "0-1,3" is {0, 1, 3}."""
    ends = [list(map(int, span.split("-"))) for span in spans.split(",")]
    return {number for first, *last in ends for number in range(first, (last or [first])[0] + 1)}


class Sampled(threading.Thread):
    """`with Sampled(hub) as seen`: what was held twice is in `seen.twice`, and how often was looked in `seen.looks`."""

    def __init__(self, hub, pause=0.3):
        super().__init__(daemon=True)
        self.hub, self.pause, self.over = hub, pause, threading.Event()
        self.looks, self.most, self.twice = 0, 0, []

    def run(self):
        while not self.over.wait(self.pause):
            with contextlib.suppress(subprocess.TimeoutExpired):  # a controller that is gone for a while
                self.look(self.hub.slurm("scontrol", "--details", "--oneliner", "show", "job"))

    def look(self, told):
        held, parts = held_in(told), held_in(told, "shard")
        self.looks += bool(held)
        out = Counter(number for numbers in held.values() for number in numbers)
        self.most = max(self.most, out.total())
        if (
            out.total() > len(self.hub.gpus)
            or any(count > 1 for count in out.values())
            or out.keys() & set().union(*parts.values())
        ):
            self.twice.append(held | parts)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()
