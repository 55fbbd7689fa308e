"""The programs that decide NCCL's rules of pairing, and what a real NCCL does with them.

    python tools/pairing.py --backend nccl      a JSON list of rows, with the columns of `recordings`' "pairing"

`PROGRAMS` are rank programs of four ranks. The simulator judges them by NCCL's documented rules (`simulate(..., rules=
"nccl")`); here the same lines run on GPUs, each case on ranks of its own, forked from this process, which must not have
touched CUDA. "lazy" starts the process group without device_id, "eager" with it, "connected" also sends a message
between every two ranks first, so that no connection is left to be made. A rank that is not done at the deadline
is asked where its main thread is, and killed.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import faulthandler
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch

SIZE = 4
LARGE = 16 << 20  # numbers: 64 MiB, which no library keeps in a buffer of its own
START_SECONDS, DEADLINE_SECONDS = 90.0, 8.0
AT_ONCE = 8


# -- the programs: each returns the tensors that it received ---------------------------


def _around(dist, device, numel):
    rank, size = dist.get_rank(), dist.get_world_size()
    outgoing = torch.full((numel,), 1.0 + rank, device=device)
    return outgoing, torch.zeros(numel, device=device), (rank + 1) % size, (rank - 1) % size


def send_then_receive(dist, device="cpu", numel=1):
    x, y, right, left = _around(dist, device, numel)
    dist.send(x, right)
    dist.recv(y, left)
    return [y]


def isend_then_receive(dist, device="cpu", numel=1):
    x, y, right, left = _around(dist, device, numel)
    work = dist.isend(x, right)
    dist.recv(y, left)
    work.wait()
    return [y]


def unbatched(dist, device="cpu", numel=1):
    x, y, right, left = _around(dist, device, numel)
    for work in [dist.isend(x, right), dist.irecv(y, left)]:
        work.wait()
    return [y]


def first_receives(dist, device="cpu", numel=1):
    x, y, right, left = _around(dist, device, numel)
    if dist.get_rank() == 0:
        dist.recv(y, left)
        dist.send(x, right)
    else:
        dist.send(x, right)
        dist.recv(y, left)
    return [y]


def batched(dist, device="cpu", numel=1):
    x, y, right, left = _around(dist, device, numel)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, y, left)]):
        work.wait()
    return [y]


def swap(dist, device="cpu", numel=1):
    if dist.get_rank() > 1:
        return []
    x, y, _, _ = _around(dist, device, numel)
    other = 1 - dist.get_rank()
    for work in [dist.isend(x, other), dist.irecv(y, other)]:
        work.wait()
    return [y]


def swap_in_turn(dist, device="cpu", numel=1):
    if dist.get_rank() > 1:
        return []
    x, _, _, _ = _around(dist, device, numel)
    other = 1 - dist.get_rank()
    for step in (dist.send, dist.recv) if dist.get_rank() == 0 else (dist.recv, dist.send):
        step(x, other)
    return [x]


def tags_in_another_order(dist, device="cpu", numel=1):
    """Rank 0 sends 1.0 under tag 1, then 2.0 under tag 2; rank 1 asks for tag 2 first."""
    if dist.get_rank() > 1:
        return []
    if dist.get_rank() == 0:
        got, works = [], [dist.isend(torch.full((numel,), float(tag), device=device), 1, tag=tag) for tag in (1, 2)]
    else:
        got = [torch.zeros(numel, device=device) for _ in range(2)]
        works = [dist.irecv(each, 0, tag=tag) for each, tag in zip(got, (2, 1))]
    for work in works:
        work.wait()
    return got


def reduce_before_and_after(dist, device="cpu", numel=1):
    x = torch.ones(numel, device=device)
    if dist.get_rank() == 0:
        dist.all_reduce(x)
        dist.send(x, 1)
        return [x]
    if dist.get_rank() == 1:
        dist.recv(x, 0)
    dist.all_reduce(x)
    return [x]


def two_groups(dist, device="cpu", numel=1, blocking=False, used=False):
    """Two groups that share ranks 1 and 2; rank 2 calls on them in the other order."""
    rank, members = dist.get_rank(), ([0, 1, 2], [1, 2, 3])
    mine = [group for group, ranks in [(dist.new_group(ranks), ranks) for ranks in members] if rank in ranks]
    for group in mine if used else ():
        dist.barrier(group=group)
    tensors = [torch.ones(numel, device=device) for _ in mine]
    order = list(zip(mine, tensors))
    works = [dist.all_reduce(x, group=group, async_op=not blocking) for group, x in (order[::-1] if rank == 2 else order)]
    for work in works if not blocking else ():
        work.wait()
    return tensors


def three_of_four(dist, device="cpu", numel=1):
    x = torch.ones(numel, device=device)
    if dist.get_rank() != 3:
        dist.all_reduce(x)
    return [x]


def batch_of_two(dist, device="cpu", numel=1):
    """The group's first operation is a batch by two of its four ranks."""
    if dist.get_rank() > 1:
        return []
    x, y, _, _ = _around(dist, device, numel)
    other = 1 - dist.get_rank()
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, y, other)]):
        work.wait()
    return [y]


def batch_meets_receive(dist, device="cpu", numel=1):
    x, y, _, _ = _around(dist, device, numel)
    if dist.get_rank() == 0:
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1)]):
            work.wait()
    if dist.get_rank() == 1:
        dist.recv(y, 0)
        return [y]
    return []


def batch_meets_receive_later(dist, device="cpu", numel=1):
    """The same where the group's communicator is there already."""
    dist.barrier()
    return batch_meets_receive(dist, device, numel)


# What a rank program cannot be judged by alone: messages without a partner, or of another length.
def receive_without_a_send(dist, device="cpu", numel=1):
    x = torch.zeros(numel, device=device)
    if dist.get_rank() == 0:
        dist.recv(x, 1)
    return [x]


def receive_without_a_send_later(dist, device="cpu", numel=1):
    x = torch.zeros(numel, device=device)
    dist.all_reduce(x)
    if dist.get_rank() == 0:
        dist.recv(x, 1)
    return [x]


def lengths_differ(dist, device="cpu", numel=1, sent=2, received=4):
    if dist.get_rank() == 0:
        dist.send(torch.ones(sent * numel, device=device), 1)
    if dist.get_rank() == 1:
        dist.recv(got := torch.zeros(received * numel, device=device), 0)
        return [got]
    return []


PROGRAMS = {
    "ring: send, then recv": send_then_receive,
    "ring: isend, then recv, then wait": isend_then_receive,
    "ring: isend and irecv, not batched": unbatched,
    "ring: rank 0 receives first": first_receives,
    "ring: one batch": batched,
    "swap: isend and irecv, not batched": swap,
    "swap: in turn": swap_in_turn,
    "two tags, received in the other order": tags_in_another_order,
    "all-reduce before a send, after its receive": reduce_before_and_after,
    "two groups in two orders, blocking": partial(two_groups, blocking=True),
    "two groups in two orders": two_groups,
    "two groups in two orders, used before": partial(two_groups, used=True),
    "all-reduce on three of four ranks": three_of_four,
    "first operation a batch of two ranks": batch_of_two,
    "batch meets recv": batch_meets_receive,
    "batch meets recv, after a barrier": batch_meets_receive_later,
}
ALONE = {
    "recv without a send, first call": receive_without_a_send,
    "recv without a send, later": receive_without_a_send_later,
    "2 numbers sent, 4 received": lengths_differ,
    "4 numbers sent, 2 received": partial(lengths_differ, sent=4, received=2),
}
MESSAGES = [name for name in PROGRAMS if not name.startswith(("two groups", "all-reduce on"))]
WAYS = ("lazy", "eager", "connected")


def cases(quick=False):
    """(program's name, way, numbers in a message) of every case."""
    if quick:
        return [(name, "lazy", 1) for name in ("ring: one batch", "recv without a send, first call")]
    return [(name, way, 1) for name in [*PROGRAMS, *ALONE] for way in WAYS] + [(name, "connected", LARGE) for name in MESSAGES]


def _connect(dist, device):
    """One message each way between every two ranks, all in one batch, and an all-reduce."""
    dist.all_reduce(torch.zeros(1, device=device))
    others = [rank for rank in range(SIZE) if rank != dist.get_rank()]
    operations = [dist.P2POp(dist.isend, torch.zeros(1, device=device), other) for other in others]
    operations += [dist.P2POp(dist.irecv, torch.zeros(1, device=device), other) for other in others]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    if device.type == "cuda":
        torch.cuda.synchronize()


# -- one case ---------------------------------------------------------------------------


class Case:
    """Four ranks, forked here, that run one program; `folder` holds what they wrote."""

    def __init__(self, name, way, numel, backend, environments):
        self.name, self.way, self.numel = name, way, numel
        self.folder = Path(tempfile.mkdtemp(prefix="ringtree-pairing-"))
        self.until, self.begun = time.monotonic() + START_SECONDS, False
        self.pids = {}
        for rank in range(SIZE):
            if not (pid := os.fork()):
                self._become(rank, backend, environments[rank])
            self.pids[rank] = pid

    def _become(self, rank, backend, environment):
        code = 1
        try:
            os.setsid()
            log = os.open(self.folder / f"{rank}.log", os.O_WRONLY | os.O_CREAT)
            os.dup2(log, 1), os.dup2(log, 2)
            os.environ.update(environment)
            stacks = open(self.folder / f"{rank}.stack", "w")
            faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
            self._run(rank, backend)
            code = 0
        except BaseException as error:
            self._note(rank, "error", f"{type(error).__name__}: {error}".splitlines()[0])
        finally:
            os._exit(code)

    def _run(self, rank, backend):
        import torch.distributed as dist

        device = torch.device("cpu")
        if backend == "nccl":
            device = torch.device("cuda", rank % torch.cuda.device_count())
            torch.cuda.set_device(device)
            torch.zeros(1, device=device)
        dist.init_process_group(
            backend,
            store=dist.FileStore(str(self.folder / "store"), SIZE),
            rank=rank,
            world_size=SIZE,
            timeout=datetime.timedelta(seconds=300),
            device_id=device if backend == "nccl" and self.way != "lazy" else None,
        )
        if self.way == "connected":
            _connect(dist, device)
        self._note(rank, "begun")
        got = {**PROGRAMS, **ALONE}[self.name](dist, device, self.numel)
        self._note(rank, "returned")
        if backend == "nccl":
            torch.cuda.synchronize()
        self._note(rank, "done", [each.unique().tolist() for each in got])
        time.sleep(START_SECONDS + DEADLINE_SECONDS)  # a rank that leaves would break what others wait for

    def _note(self, rank, what, more=None):
        path = self.folder / f"{rank}.{what}"
        path.with_suffix(".new").write_text(json.dumps(more))
        path.with_suffix(".new").rename(path)

    def _noted(self, rank, what):
        return (self.folder / f"{rank}.{what}").exists()

    def ended(self):
        """Whether nothing more is to be waited for."""
        ranks = range(SIZE)
        if not self.begun and all(self._noted(rank, "begun") or self._noted(rank, "error") for rank in ranks):
            self.begun, self.until = True, time.monotonic() + DEADLINE_SECONDS
        return time.monotonic() > self.until or all(self._noted(r, "done") or self._noted(r, "error") for r in ranks)

    def row(self):
        """What became of it, once it has `ended`; ends its ranks."""
        unfinished = [rank for rank in self.pids if not (self._noted(rank, "done") or self._noted(rank, "error"))]
        for rank in unfinished:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[rank], signal.SIGUSR1)
        if unfinished:
            time.sleep(0.5)
        told = [self._told(rank) for rank in range(SIZE)]  # before a rank sees that another one was killed
        for pid in self.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self.pids.values():
            os.waitpid(pid, 0)
        failed = [what for what in told if what.startswith("error")]
        verdict = "fails" if failed else "hangs" if unfinished else "ends"
        shutil.rmtree(self.folder, ignore_errors=True)
        return {"program": self.name, "way": self.way, "numbers": self.numel, "verdict": verdict, "ranks": _grouped(told)}

    def _told(self, rank):
        if self._noted(rank, "error"):
            return f"error {json.loads((self.folder / f'{rank}.error').read_text())}"[:200]
        if self._noted(rank, "done"):
            got = json.loads((self.folder / f"{rank}.done").read_text())
            return f"done, has {got}" if got else "done"
        if self._noted(rank, "returned"):
            return "at the read"
        if self._noted(rank, "begun"):
            return f"held in {self._call(rank)}"
        return "never began"

    def _call(self, rank):
        """The call of the program in which its main thread is, as faulthandler wrote it."""
        text = (self.folder / f"{rank}.stack").read_text()
        frames = re.findall(r'File "(.*?)", line \d+ in (\S+)', text.partition("(most recent call first)")[2] or text)
        inner = []
        for path, function in frames:
            if path == __file__:
                return next((name for name in reversed(inner) if name != "wrapper"), "a call that it shows no frame of")
            inner.append(function)
        return "a place that it shows no frame of"


def _grouped(told):
    """`0, 1: held in isend; 2, 3: done` from what each rank has to say."""
    groups = {}
    for rank, what in enumerate(told):
        groups.setdefault(what, []).append(str(rank))
    return "; ".join(f"{', '.join(ranks)}: {what}" for what, ranks in groups.items())


def run(backend, environments, quick=False) -> list[dict]:
    """A row a case, in the order of `cases`. environments: by rank, variables set before anything of CUDA starts."""
    waiting, running, rows = list(enumerate(cases(quick))), {}, {}
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                place, case = waiting.pop(0)
                running[place] = Case(*case, backend, environments)
            for place in [place for place, case in running.items() if case.ended()]:
                rows[place] = running.pop(place).row()
                print(json.dumps(rows[place]), file=sys.stderr, flush=True)
            time.sleep(0.05)
    finally:
        for case in running.values():
            case.row()
    return [rows[place] for place in sorted(rows)]


def main():
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from ringtree.live.placement import SHARED_GPU

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=("gloo", "nccl"), required=True)
    parser.add_argument("--share", action="store_true", help="ranks share GPUs")
    parser.add_argument("--quick", action="store_true", help="two cases")
    given = parser.parse_args()
    environments = [{"NCCL_HOSTID": f"rank{rank}", **SHARED_GPU} if given.share else {} for rank in range(SIZE)]
    json.dump(run(given.backend, environments, given.quick), sys.stdout)


if __name__ == "__main__":
    main()
