"""What PyTorch's own techniques do in each setting of tests/helpers/cells.py, on two ranks; written to tests/parallel/torch_cells.json.

    PYTHONPATH=tests python trials/torch_cells.py

A cell is "equal" to one process, "refused" with torch's sentence, or "differs" from one process without a word.
"""

import json
import math
import re
import sys
from pathlib import Path

import torch
from helpers import cells
from helpers.cells import CELLS, Pipeline, Way, alone
from helpers.processes import Processes
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parents[1]


class DDP(Way):
    """DistributedDataParallel with find_unused_parameters, the accumulation under no_sync()."""

    def ready(self):
        super().ready()
        self.whole_net = self.net
        self.net = Named(
            torch.nn.parallel.DistributedDataParallel(self.net, find_unused_parameters=self.cell.skipped), self.net
        )

    def backward(self, rows, weight, last):
        if last:
            return super().backward(rows, weight, last)
        with self.net.wrapped.no_sync():
            return super().backward(rows, weight, last)

    def finish(self):
        pass

    def state(self):
        return self.whole_net.state_dict(), self.optimizer.state_dict()

    def load(self, state):
        self.whole_net.load_state_dict(state[0])
        self.optimizer.load_state_dict(state[1])


class Named:
    """Called as the wrapped module, asked as the one inside."""

    def __init__(self, wrapped, inner):
        self.wrapped, self.inner = wrapped, inner

    def __call__(self, *given):
        return self.wrapped(*given)

    def __getattr__(self, name):
        return getattr(self.inner, name)


class FullyShard(Way):
    """fully_shard on each block and on the rest; no_sync's place is taken by reduce-scatters of each part."""

    def ready(self):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (self.size,))
        for block in self.net.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.net, mesh=mesh)
        super().ready()

    def finish(self):
        pass

    def clip(self, max_norm):
        norm = torch.nn.utils.clip_grad_norm_(self.net.parameters(), max_norm)
        return norm.full_tensor()


class Pipelining(Pipeline):
    """torch.distributed.pipelining's Schedule1F1B over the same stages."""

    def ready(self):
        super().ready()

    def backward(self, rows, weight, last):
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        stage = PipelineStage(self.net, self.rank, self.size, torch.device("cpu"))
        schedule = Schedule1F1B(stage, 2, loss_fn=lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten()) * weight)
        losses = []
        if self.rank == 0:
            schedule.step(rows[:, :-1])
        elif self.rank == self.size - 1:
            schedule.step(target=rows[:, 1:], losses=losses)
        else:
            schedule.step()
        mean = torch.stack(losses).mean().detach().double() if losses else torch.zeros((), dtype=torch.float64)
        self.dist.all_reduce(mean, group=self.group)
        return mean.item()


TORCH = {"DDP": DDP, "fully_shard": FullyShard, "pipelining": Pipelining}


def judged(name, cell, ranks):
    form = TORCH[name]
    losses, norms = alone(cell, 2, form.split, form.feed_forward)
    try:
        found = ranks.call(run, name, cell, timeout=25)
    except (AssertionError, TimeoutError) as error:
        return told(str(error).strip().splitlines()[-1]), True
    if "died" in found:
        return {"is": "aborts", "said": "a rank's process was ended by Gloo: sizes of two calls that met differ"}, True
    if all(isinstance(each, list) for each, _ in found):
        tolerance = 0.03 if cell.masters else 1e-9
        far = max(abs(a - b) for ours, _ in found for a, b in zip(ours, losses))
        ratio = max(abs(a / b - 1) for _, ours in found for a, b in zip(ours, norms))
        equal = far < tolerance and (ratio < (0.01 if cell.masters else 1e-6))
        return {"is": "equal" if equal else "differs", "by": f"losses by {far:.1e}, norms by {ratio:.1e}"}, False
    said = [message for kind, message in found if not isinstance(kind, list)]
    return told(min(said, key=lambda each: "imed out" in each or "closed" in each or "closure" in each)), True


def told(text):
    text = re.sub(r"\s+", " ", text)[:200]
    waits = "imed out" in text or "did not finish" in text or "closure" in text
    return {"is": "hangs" if waits else "refused", "said": text}


def run(dist, name, cell):
    import copy

    torch.set_num_threads(1)
    cells.WAYS = {**cells.WAYS, name: TORCH[name]}
    if name == "fully_shard":
        original = cells._train

        def train_it(dist, form, cell, group):
            return own_train(dist, form, cell)

        cells._train = train_it
        try:
            return cells.train(dist, name, cell)
        finally:
            cells._train = original
    return cells.train(dist, name, copy.copy(cell))


def own_train(dist, form, cell):
    """The loop of helpers.cells, with torch's own clipping of DTensors."""
    way, losses, norms = form(dist, cell), [], []
    parts = cell.parts or way.size
    for number, batch in enumerate(cells.batches(cell, way.size)):
        if cell.zero_grad is not None:
            way.zero_grad(cell.zero_grad)
        total = 0.0
        for rows in way.mine(batch).chunk(parts):
            total += way.backward(rows, len(rows) / len(batch) * way.size, True)
        if cell.looks:
            way.look(next(cells.batches(cell, way.size)))
        norms.append(float(way.clip(cell.max_norm or math.inf)))
        way.step()
        if cell.zero_grad is None:
            way.zero_grad(True)
        if cell.looks:
            way.look(next(cells.batches(cell, way.size)))
        if cell.saved and number == 1:
            state = way.state()
            way = form(dist, cell, seed=5)
            way.load(state)
        total = torch.tensor(total, dtype=torch.float64)
        dist.all_reduce(total)
        losses.append(total.item() / way.size)
    cells.skip(way.net, False)
    return [*losses, way.look(next(cells.batches(cells.replace(cell, rows=0), way.size)))], norms


def main():
    ranks, found = Processes(2, patience=8), {}
    for name in TORCH:
        for setting, cell in CELLS.items():
            answer, broken = judged(name, cell, ranks)
            found.setdefault(name, {})[setting] = answer
            print(f"{name:12} {setting:46} {answer}", flush=True)
            if broken:
                ranks.stop()
                ranks = Processes(2, patience=8)
    ranks.stop()
    path = ROOT / "tests" / "parallel" / "torch_cells.json"
    path.write_text(json.dumps({"torch": torch.__version__, "ranks": 2, "backend": "gloo", "cells": found}, indent=1) + "\n")
    print(path.relative_to(ROOT), file=sys.stderr)


if __name__ == "__main__":
    main()
