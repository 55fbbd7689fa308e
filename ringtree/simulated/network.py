"""The links between ranks, and the ports that a message has to pass: from when to when it moves.

Hockney's α-β model, ranks with one port out and one in: a message takes α + nβ of the link
between its two ranks, and for so long both its ports. Where the ranks of a node share its
network cards, a message between nodes passes a card of each node as well.
"""

from collections import defaultdict

from ringtree.ports import book


class Network:
    """A machine's links, and which of its ports are taken when."""

    def __init__(self, machine, size):
        self.machine = machine
        self.one_link = machine.inside if machine.between is None else None
        self.shared = machine.shares_cards
        self.out_free, self.into_free = [0.0] * size, [0.0] * size  # by rank, when its port gets free for good
        self.out, self.into = [[] for _ in range(size)], [[] for _ in range(size)]  # and when it is taken before
        self.card_out, self.card_into = defaultdict(list), defaultdict(list)  # by (node, card)

    def carry(self, src, dst, nbytes, ready):
        """(start, end) of a message that may move from `ready` on; no message before it was ready later."""
        link = self.one_link or self.machine.link(src, dst)
        duration = link.alpha + nbytes * link.beta
        if self.out_free[src] > ready or self.into_free[dst] > ready or self.shared:
            return self._book(src, dst, ready, duration)
        end = self.out_free[src] = self.into_free[dst] = ready + duration  # nothing to wait for, as most messages go
        return ready, end

    def _book(self, src, dst, ready, duration):
        out, into = self.out[src], self.into[dst]
        for port, free in (out, self.out_free[src]), (into, self.into_free[dst]):
            if not port or port[-1][1] < free:
                port[:] = [(0.0, free)]  # the last message was not booked: what was before it is past
        ports = out, into
        if cards := self.machine.cards(src, dst):
            ports += self.card_out[cards[0]], self.card_into[cards[1]]
        start = book(ports, ready, duration)
        end = start + duration
        self.out_free[src], self.into_free[dst] = max(self.out_free[src], end), max(self.into_free[dst], end)
        return start, end
