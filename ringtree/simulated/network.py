"""The links between ranks, and the ports that a message has to pass: from when to when it moves.

One rule: a message keeps its sender's port out and its receiver's port in for g + nβ from the first moment at which both
are free for so long, and it arrives α + nβ after that moment. At g = α that is Hockney's model with one port out and one in
for each rank; with g < α a port sends its next message while the last is still under way, as in LogP. Where the nodes of a
machine have network cards, a message between nodes keeps the ports of the two cards in place of the ranks'.
"""

from ringtree.ports import book


class Network:
    """A machine's links, and which of its ports are taken when. Ports are numbered: those of the ranks, then the cards."""

    def __init__(self, machine, size):
        self.machine, self.size = machine, size
        self.one_link = machine.inside if machine.between is None else None
        self.cards = self._cards(size) if machine.cards_per_node else None  # by rank, the number of its card's port
        ports = size + (len(set(self.cards)) if self.cards else 0)
        self.out_free, self.into_free = [0.0] * ports, [0.0] * ports  # when a port gets free for good
        self.out, self.into = [[] for _ in range(ports)], [[] for _ in range(ports)]  # and when it is taken before

    def _cards(self, size):
        numbers = {}
        return [size + numbers.setdefault(self.machine.card(rank), len(numbers)) for rank in range(size)]

    def carry(self, src, dst, nbytes, ready):
        """(start, arrival) of a message that may move from `ready` on; no message before it was ready later."""
        link = self.one_link or self.machine.link(src, dst)
        if self.cards is not None:
            src, dst = self.ports(src, dst)
        moving = nbytes * link.beta
        if self.out_free[src] > ready or self.into_free[dst] > ready:
            start = self._book(src, dst, ready, link.gap + moving)
            return start, start + (link.alpha + moving)
        self.out_free[src] = self.into_free[dst] = ready + (link.gap + moving)  # nothing to wait for, as most messages go
        return ready, ready + (link.alpha + moving)

    def ports(self, src, dst):
        """The numbers of the port out and the port in that a message keeps."""
        if self.cards is None or self.machine.node(src) == self.machine.node(dst):
            return src, dst
        return self.cards[src], self.cards[dst]

    def _book(self, src, dst, ready, duration):
        out, into = self.out[src], self.into[dst]
        for port, free in (out, self.out_free[src]), (into, self.into_free[dst]):
            if not port or port[-1][1] < free:
                port[:] = [(0.0, free)]  # the last message was not booked: what was before it is past
        start = book((out, into), ready, duration)
        if duration:  # what takes no time keeps no port
            end = start + duration
            self.out_free[src], self.into_free[dst] = max(self.out_free[src], end), max(self.into_free[dst], end)
        return start
