"""What is noted of a run: every message and every span of waiting and computing, for its trace and for who watches."""

from functools import partial

from ringtree.trace import Call, Message, Span, Trace

# NamedTuples made as plain tuples are: their own constructors take five times as long.
_message, _span = partial(tuple.__new__, Message), partial(tuple.__new__, Span)


class Notes:
    """What happened so far. keep: whether there will be a trace; watch: who is told, or None."""

    work = carry = None  # of a `Tape` alone: what notes its waits, and what carries its messages

    def __init__(self, size, keep, watch):
        self.size = size
        self.watch = watch
        self.messages = [] if keep else None
        self.spans = []
        self.calls = []
        self.labels = [[f"{way} rank {rank}" for rank in range(size)] for way in ("from", "to")]
        self.buffers = [{} for _ in range(size)]  # by rank, its buffers' numbers by their addresses
        self.kept = []  # tensors in them, since no address may be used again

    @property
    def wanted(self):
        """Return whether anybody wants to know."""
        return self.messages is not None or self.watch is not None

    def moved(self, send, receive, start, end):
        """Note a message that moves, just before its one tensor is copied into the other."""
        _, source, dst, tag = send.operation
        _, target, src, _ = receive.operation
        place, there = self._place(src, source), self._place(dst, target)
        message = _message((src, dst, source.nbytes, start, end, tag, send.posted, receive.posted, place, there))
        if self.watch is not None:
            self.watch.on_message(message, source, target)
        if self.messages is not None:
            self.messages.append(message)

    def _place(self, rank, tensor):
        """Return where a message lies: a rank's buffers are numbered as they are first used; first byte."""
        buffers, first, address = self.buffers[rank], tensor.storage_offset() * tensor.element_size(), tensor.data_ptr()
        # quicker than to ask the storage; but an empty tensor has no address
        storage = address - first if address else tensor.untyped_storage().data_ptr()
        number = buffers.get(storage)
        if number is None:
            number = buffers[storage] = len(buffers)
            self.kept.append(tensor)
        return number, first

    def waited(self, rank, start, end, label):
        """A rank has waited for a message, or for a collective that ran beside it."""
        if self.messages is not None:
            self.spans.append(_span((rank, start, end, label, "wait")))

    def computed(self, rank, start, seconds, label):
        if self.messages is not None:
            self.spans.append(_span((rank, start, start + seconds, label, "compute")))

    def reduces(self, clock, gamma):
        """Return what is told of so many bytes that the running rank has reduced, or None."""
        return (lambda nbytes: clock.compute(nbytes * gamma, "reduce")) if gamma else None

    def called(self, rank, asked, ranks, posted, start, end, beside):
        """A rank's collective has run, from start to end; beside: whether the rank went on meanwhile."""
        if self.messages is not None:
            self.calls.append(Call(rank, asked.function, ranks, asked.nbytes, posted, start, end, beside))

    def trace(self):
        """The run's trace; None if none was to be kept."""
        if self.messages is None:
            return None
        return Trace(self.messages, size=self.size, spans=self.spans, calls=self.calls, label="simulated")
