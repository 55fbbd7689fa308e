"""The links between ranks, and the ports that a message has to pass: from when to when it moves.

Hockney's α-β model, ranks with one port out and one in: a message takes α + nβ of the link
between its two ranks, and for so long both its ports. Where the ranks of a node share the
node's links, a message between nodes passes a port of each node as well.
"""

from collections import defaultdict

from ringtree.ports import book


class Network:
    """A machine's links, and which of its ports are taken when."""

    def __init__(self, machine, size):
        self.machine = machine
        self.one_link = machine.inside if machine.between is None else None
        self.shared = machine.shared
        self.out, self.into = [[] for _ in range(size)], [[] for _ in range(size)]
        self.node_out, self.node_into = defaultdict(list), defaultdict(list)

    def carry(self, src, dst, nbytes, ready):
        """(start, end) of a message that may move from `ready` on, which no message before it was later than."""
        link = self.one_link or self.machine.link(src, dst)
        duration = link.alpha + nbytes * link.beta
        out, into = self.out[src], self.into[dst]
        if self.shared or not out or not into or out[-1][1] > ready or into[-1][1] > ready:
            start = book(self._ports(src, dst), ready, duration)
            return start, start + duration
        # Nothing to wait for, as most messages go: quicker than to book. What ended by now is past, and may be forgotten.
        end = ready + duration
        out[-1] = into[-1] = ready, end
        return ready, end

    def _ports(self, src, dst):
        """All that a message has to pass, one at a time."""
        ports = self.out[src], self.into[dst]
        if self.machine.shares(src, dst):
            ports += self.node_out[self.machine.node(src)], self.node_into[self.machine.node(dst)]
        return ports
