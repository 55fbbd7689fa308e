"""The `dist` that a learner's function is given while a lab is checked: every message is noted.

It speaks like torch.distributed and is as unkind as the rules allow: what `irecv` receives
shows up at `wait()` and no sooner, so that a program which reads too early fails every time,
not once in a hundred runs.
"""

import inspect

import torch
import torch.distributed as real

from ringtree.live.works import COLLECTIVES


class Watched:
    """torch.distributed among the ranks of one group; every call is noted.

    Notes are dicts: `call`, `kind` ("send", "recv" or "collective"), `peer`, `tag`, `posted` and
    `done` (when the call or its wait returned, counted in events; None for never) and `changed`
    (a sent tensor was written to before its wait).
    """

    def __init__(self, group):
        self._group = group
        self._notes = []
        self._works = []
        self._events = 0

    def __getattr__(self, name):
        if name in COLLECTIVES:
            return lambda *args, **kwargs: self._collective(name, args, kwargs)
        if name in ("init_process_group", "destroy_process_group"):
            raise RuntimeError(f"the ranks are joined already, and needed afterwards: leave out dist.{name}")
        return getattr(real, name)

    def get_rank(self, group=None):
        return real.get_rank(group or self._group)

    def get_world_size(self, group=None):
        return real.get_world_size(group or self._group)

    def send(self, *args, **kwargs):
        values, note = self._begin("send", args, kwargs)
        real.send(**values)
        self._finish(note)

    def recv(self, *args, **kwargs):
        values, note = self._begin("recv", args, kwargs)
        note["peer"] = real.recv(**values)
        self._finish(note)
        return note["peer"]

    def isend(self, *args, **kwargs):
        values, note = self._begin("isend", args, kwargs)
        return self._keep(_SendWork(self, note, values["tensor"], real.isend(**values)))

    def irecv(self, *args, **kwargs):
        values, note = self._begin("irecv", args, kwargs)
        box, tensor = torch.empty_like(values["tensor"]), values["tensor"]
        tensor.fill_(float("nan") if tensor.is_floating_point() else -1)
        return self._keep(_RecvWork(self, note, tensor, box, real.irecv(**{**values, "tensor": box})))

    def P2POp(self, op, tensor, peer=None, group=None, tag=0, **_):
        """`op` is this object's isend or irecv, or torch.distributed's own."""
        calls = {"isend": self.isend, "irecv": self.irecv}
        if getattr(op, "__name__", None) not in calls:
            raise ValueError(f"P2POp was given {op!r}: it takes dist.isend or dist.irecv")
        return calls[op.__name__], tensor, peer, group, tag

    def batch_isend_irecv(self, operations):
        # One by one is what Gloo does with a batch.
        return [start(tensor, peer, group=group, tag=tag) for start, tensor, peer, group, tag in operations]

    def finished(self):
        """All notes, after the function has returned."""
        for work in self._works:
            work.look()
        return self._notes

    def _begin(self, call, args, kwargs):
        values = dict(inspect.signature(getattr(real, call)).bind(*args, **kwargs).arguments)
        values["group"] = values.get("group") or self._group
        kind = "send" if "send" in call else "recv" if "recv" in call else "collective"
        note = {
            "call": call,
            "kind": kind,
            "peer": values.get("dst" if kind == "send" else "src"),
            "tag": values.get("tag", 0),
            "posted": self._tick(),
            "done": None,
            "changed": False,
        }
        self._notes.append(note)
        return values, note

    def _collective(self, name, args, kwargs):
        values, note = self._begin(name, args, kwargs)
        result = getattr(real, name)(**values)
        if not values.get("async_op"):
            self._finish(note)
            return result
        return self._keep(_Work(self, note, result))

    def _tick(self):
        self._events += 1
        return self._events

    def _finish(self, note):
        if note["done"] is None:
            note["done"] = self._tick()

    def _keep(self, work):
        self._works.append(work)
        return work


class _Work:
    """A Work whose wait is noted."""

    def __init__(self, owner, note, work):
        self._owner, self._note, self._work = owner, note, work

    def look(self):
        """Called before the wait, or at the end where there was none."""

    def arrive(self):
        """Called once, when the wait is over."""

    def wait(self, *args, **kwargs):
        self.look()
        result = self._work.wait(*args, **kwargs)
        self._over()
        return result

    def is_completed(self):
        if not self._work.is_completed():
            return False
        self.look()
        self._over()
        return True

    def _over(self):
        if self._note["done"] is None:
            self.arrive()
            self._owner._finish(self._note)

    def __getattr__(self, name):
        return getattr(self._work, name)


class _SendWork(_Work):
    def __init__(self, owner, note, tensor, work):
        super().__init__(owner, note, work)
        self._tensor, self._before = tensor, tensor.clone()

    def look(self):
        if self._note["done"] is None:
            self._note["changed"] = not torch.allclose(self._tensor, self._before, rtol=0, atol=0, equal_nan=True)


class _RecvWork(_Work):
    def __init__(self, owner, note, tensor, box, work):
        super().__init__(owner, note, work)
        self._tensor, self._box = tensor, box

    def arrive(self):
        self._tensor.copy_(self._box)
