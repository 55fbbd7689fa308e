"""Any rank program in slices, side by side: where a slice waits for a message, the next one goes on."""

from functools import partial

from greenlet import getcurrent, greenlet


class _Waits:
    """One of the works that a slice posted together. The first wait hands over to the other slices, until all are done."""

    def __init__(self, works):
        self.works = works

    def wait(self):
        if self.works:
            getcurrent().parent.switch([*self.works])
            self.works.clear()


class _Dist:
    """What a slice sees of `dist`."""

    def __init__(self, dist):
        self.dist = dist
        self.get_rank, self.get_world_size = dist.get_rank, dist.get_world_size

    def isend(self, *given, **named):
        return _Waits([self.dist.isend(*given, **named)])

    def irecv(self, *given, **named):
        return _Waits([self.dist.irecv(*given, **named)])

    def send(self, *given, **named):
        self.isend(*given, **named).wait()

    def recv(self, *given, **named):
        self.irecv(*given, **named).wait()

    def P2POp(self, op, *given, **named):
        return self.dist.P2POp(self.dist.isend if op == self.isend else self.dist.irecv, *given, **named)

    def batch_isend_irecv(self, batch):
        works = self.dist.batch_isend_irecv(batch)
        return [_Waits(works)] * len(works)


def in_slices(program, slices, **options):
    """A rank program that runs `program` on each slice of its tensor."""

    def run(tensor, dist):
        seen = _Dist(dist)
        parts = [greenlet(partial(program, part, seen, **options)) for part in tensor.tensor_split(slices)]
        under_way = [(part, part.switch()) for part in parts]
        while under_way:
            part, works = under_way.pop(0)
            if not part.dead:
                for work in works:
                    work.wait()
                under_way.append((part, part.switch()))

    return run
