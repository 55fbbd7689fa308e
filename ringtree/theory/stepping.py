"""When the ranks of a schedule are through: the simulator's clock and ports, without its programs.

A rank posts all messages of its next step at once, waits for all, and reduces what has come. Which message goes first through
a port follows the rule of `ringtree.simulated`, whose network this uses.
"""

from __future__ import annotations

from heapq import heappop, heappush

from ringtree.simulated.network import Network


def time_of_steps(steps, size, machine, gamma, options=None) -> float:
    """Seconds until the last rank is through. steps: as in `ringtree.theory.schedules`, a rank's messages in posting order.

    options: those of the algorithm, which its steps need no more; a row's own `time` takes them.
    """
    if machine.cards_per_node or any(_crowded(messages) for messages, _ in steps):
        return _by_moments(steps, size, machine, gamma)
    now = [0.0] * size  # nobody waits for a port: a message starts when both of its ranks have come to it
    for messages, reduces in steps:
        after: dict[int, float] = {}
        for src, dst, nbytes in messages:
            link = machine.link(src, dst)
            end = max(now[src], now[dst]) + (link.alpha + nbytes * link.beta)
            after[src], after[dst] = max(end, after.get(src, end)), max(end, after.get(dst, end))
        for rank, end in after.items():
            now[rank] = end
        for _, dst, nbytes in messages if reduces else ():
            now[dst] += nbytes * gamma
    return max(now)


def _crowded(messages) -> bool:
    """Return whether a rank sends, or receives, several messages of a step."""
    return any(len(set(ends)) < len(ends) for ends in zip(*((src, dst) for src, dst, _ in messages)))


def _by_moments(steps, size, machine, gamma) -> float:
    """The same where messages wait for ports: moment after moment, all that become ready at one are booked together."""
    messages: list[tuple[int, int, int]] = []
    plan: list[list] = [[] for _ in range(size)]  # by rank, its steps: numbers of its messages, bytes of each to reduce
    for sent, reduces in steps:
        mine: dict[int, tuple[list[int], list[int]]] = {}
        for src, dst, nbytes in sent:
            mine.setdefault(src, ([], []))[0].append(len(messages))
            numbers, come = mine.setdefault(dst, ([], []))
            numbers.append(len(messages))
            if reduces:
                come.append(nbytes)
            messages.append((src, dst, nbytes))
        for rank, halves in mine.items():
            plan[rank].append(halves)
    carry = Network(machine, size).carry
    here = [False] * len(messages)  # whether one of its ranks has come to it
    unsent: list[list[int]] = [[] for _ in range(size)]
    at, left, until = [-1] * size, [0] * size, [0.0] * size
    agenda, last = [(0.0, rank) for rank in range(size)], 0.0
    while agenda:
        now, ready = agenda[0][0], []
        while agenda and agenda[0][0] == now:
            _, rank = heappop(agenda)
            at[rank] += 1
            if at[rank] == len(plan[rank]):
                last = max(last, now)
                continue
            numbers, _ = plan[rank][at[rank]]
            left[rank], until[rank] = len(numbers), now
            for number in numbers:
                if messages[number][0] == rank:
                    unsent[rank].append(number)
                if here[number]:
                    ready.append(number)
                here[number] = True
        if len(ready) > 1:
            places = {
                number: place for rank in {messages[number][0] for number in ready} for place, number in enumerate(unsent[rank])
            }
            ready.sort(key=lambda number: (places[number], messages[number][0]))
        for number in ready:
            src, dst, nbytes = messages[number]
            unsent[src].remove(number)
            _, end = carry(src, dst, nbytes, now)
            for rank in (src, dst):
                until[rank] = max(until[rank], end)
                left[rank] -= 1
                if not left[rank]:
                    for come in plan[rank][at[rank]][1] if gamma else ():
                        until[rank] += come * gamma
                    heappush(agenda, (until[rank], rank))
    return last
