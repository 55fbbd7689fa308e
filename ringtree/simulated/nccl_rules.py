"""NCCL's rules of pairing: whether a program that ended here would also end there.

NCCL lets less happen at once than Gloo does, and so a program can end on Gloo and hang on NCCL. `check` takes what every
rank issued in a run (`nccl_calls`) and carries it out again by these rules alone, on no clock:

- the operations of one communicator run one after the other, in the order of their calls; a batch is one of them;
- what is waited for, or called without async_op, comes before all that its rank calls later, on any communicator;
- a message matches by pair, in order, without tags, and a send is done when its receive runs;
- collectives of several groups run one after the other on a rank, for nobody may rely on their overlap;
- the program itself goes on after a call; it is held where it reads, polls or ends, and where a communicator is made.

"lazy" makes communicators when they are first used, as torch.distributed does without device_id: one of two ranks for
their first unbatched message, one of the group for its first collective or batch. "eager" has each group's from the start.

`PROGRAMS` of `tools/pairing.py` were run on four NCCL ranks (the recording "pairing"). None that is accepted here
hung or failed there, and each that is refused hung, failed or got wrong data in at least one way, save one: collectives of
several groups in two orders ended, where the groups had been used before. That NCCL's luck is not relied upon here. Where
"eager" differs from a run: the communicator is there, but connections are made when first used, on the host. So the first
unbatched message of a pair, and a first collective, hold the program until its partners came; and once connections exist, a
short send ends without its receive.

Sources: NCCL's user guide (group calls; thread and stream safety; concurrent use of communicators), PyTorch's
documentation of batch_isend_irecv and init_process_group(device_id=).
"""

from collections import defaultdict

from ringtree.simulated.faults import Deadlock, ProgramError, line_text
from ringtree.waits import describe_circle, name_ranks

RULES = {
    "order": "operations of one communicator run one after the other, in the order of their calls; those of one batch together",
    "wait": "a call that is waited for, or made without async_op, comes before all that this rank calls later",
    "groups": "collectives of several groups must be called in one order on all ranks that they share",
    "pairs": "the first unbatched message between two ranks makes a communicator of the two, and holds each program until both have arrived",
    "group": "the first collective or batch of a group makes its communicator, and holds each program until all its ranks have arrived",
    "batches": "a message of a batch lives in its group's communicator, another in that of its pair: they do not meet",
    "rendezvous": "a send is done when its receive runs",
    "tags": "there are no tags: messages between two ranks match in the order of their calls",
}
HOW = {
    "lazy": "communicators made when first used (no device_id)",
    "eager": "communicators made at the start (device_id given)",
}


def check(issued):
    """Raise Deadlock, or ProgramError for messages that meet wrongly, where NCCL's rules do not let this program end.

    issued: by rank, what `NcclDist` wrote down.
    """
    for way in HOW:
        _Run(issued, way).go()


class _Run:
    """All ranks under the rules: how far each program is, and which operations are done."""

    def __init__(self, issued, way):
        self.way = way
        self.issued = issued
        self.at = [0] * len(issued)  # by rank, how far its program is
        self.behind = [[] for _ in issued]  # by rank, what all that it issues later has to come after
        self.last_collective = [None] * len(issued)
        self.lanes = defaultdict(list)  # by communicator and rank, its operations in order
        self.made, self.come = set(), defaultdict(set)  # communicators that there are; ranks that came to make one
        for operation in (operation for each in issued for what, operation in each if what == "issue"):
            operation.after, operation.done = [], False
        self.left = {id(each): list(each.entries) for rank in issued for what, each in rank if what == "issue"}

    def go(self):
        while any([self._advance(rank) for rank in range(len(self.issued))] + [self._meet(key) for key in list(self.lanes)]):
            pass
        stuck = [rank for rank in range(len(self.issued)) if self._held(rank)]
        if stuck:
            raise _Report(self, stuck).deadlock()

    # -- the programs

    def _advance(self, rank):
        """Let a program go on as far as it can; whether it did."""
        before = self.at[rank]
        while self.at[rank] < len(self.issued[rank]):
            what, operation = self.issued[rank][self.at[rank]]
            if what == "issue" and not self._issue(rank, operation):
                break
            if what == "behind":
                self.behind[rank].append(operation)
            if what == "read" and not all(each.done for each in self.behind[rank]):
                break
            if what == "poll" and not operation.done:
                break
            self.at[rank] += 1
        return self.at[rank] > before

    def communicator(self, operation):
        """Its key, and the ranks that must come to make it."""
        if self.way == "lazy" and operation.kind == "message":
            pair = (operation.rank, operation.entries[0][1])
            return ("pair", operation.group, frozenset(pair)), pair
        return ("group", operation.group), operation.ranks

    def _issue(self, rank, operation):
        key, ranks = self.communicator(operation)
        if self.way == "lazy" and key not in self.made:
            self.come[key].add(rank)
            if not self.come[key] >= set(ranks):
                return False
            self.made.add(key)
        lane = self.lanes[key, rank]
        operation.after += [(each, "wait") for each in self.behind[rank] if not each.done]
        operation.after += [(each, "order") for each in lane[-1:]]
        if operation.kind == "collective":
            if self.last_collective[rank]:
                operation.after.append((self.last_collective[rank], "groups"))
            self.last_collective[rank] = operation
        lane.append(operation)
        return True

    def _held(self, rank):
        """Return whether a program has not ended, or has left something behind that never will."""
        return self.at[rank] < len(self.issued[rank]) or any(
            not each.done for _, each in self.issued[rank][: self.at[rank]] if each
        )

    # -- the operations

    def running(self, key, rank):
        """The operation of a rank that runs on a communicator now, or None."""
        for operation in self.lanes.get((key, rank), ()):
            if not operation.done:
                return operation if all(each.done for each, _ in operation.after) else None
        return None

    def _meet(self, lane):
        """Let what runs in a lane meet what runs in others; whether something met."""
        key, rank = lane
        operation = self.running(key, rank)
        if operation is None:
            return False
        if operation.kind == "collective":
            all_ranks = [self.running(key, each) for each in operation.ranks]
            if any(each is None or each.kind != "collective" for each in all_ranks):
                return False
            for each in all_ranks:
                each.done = True
            return True
        met = [self._match(key, operation, entry) for entry in list(self.left[id(operation)]) if entry[0]]
        self._close(operation)
        return any(met)

    def _match(self, key, send, entry):
        """Match a send that runs with the first receive of its peer that runs."""
        _, peer, nbytes, tag = entry
        first = next(each for each in self.left[id(send)] if each[:2] == (True, peer))
        receive = self.running(key, peer)
        if entry is not first or receive is None or receive.kind == "collective":
            return False
        other = next((each for each in self.left[id(receive)] if each[:2] == (False, send.rank)), None)
        if other is None:
            return False
        if other[3] != tag or other[2] != nbytes:
            raise _met_wrongly(self.way, send, entry, receive, other)
        self._take(send, entry)
        self._take(receive, other)
        self._close(receive)
        return True

    def _take(self, operation, entry):
        left = self.left[id(operation)]
        del left[next(i for i, each in enumerate(left) if each is entry)]

    def _close(self, operation):
        operation.done = operation.done or not self.left[id(operation)]


# -- in words ------------------------------------------------------------------


class _Report:
    """Who waits for whom, and by which rule."""

    def __init__(self, run, stuck):
        self.run, self.stuck = run, stuck
        self.rules = []
        self.queued = False  # whether a rank's half of a message is there, behind another operation of its own

    def deadlock(self):
        told = [self._rank(rank) for rank in self.stuck]
        waits = {rank: peer for rank, (_, peer) in zip(self.stuck, told)}
        lines = [f"deadlock under NCCL's rules, {HOW[self.run.way]}.", *(line for line, _ in told)]
        if circle := describe_circle(waits):
            lines.append(circle)
        names = list(dict.fromkeys(self.rules))
        lines += [f"rule: {RULES[name]}" for name in names]
        if {"order", "pairs"} & set(names):
            or_in_turn = ", or let one of two ranks receive first" if self.queued else ""
            lines.append(f"give sends and receives that belong together to one batch_isend_irecv{or_in_turn}")
        problem = Deadlock("\n  ".join(lines), waits)
        problem.rules = tuple(names)
        return problem

    def _rank(self, rank):
        """(a line on what holds this rank, the rank that it waits for)."""
        run = self.run
        if run.at[rank] < len(run.issued[rank]):
            what, operation = run.issued[rank][run.at[rank]]
            if what == "issue":
                return self._making(rank, operation)
        undone = next(each for what, each in run.issued[rank] if what == "issue" and not each.done)
        return self._operation(rank, undone)

    def _making(self, rank, operation):
        key, ranks = self.run.communicator(operation)
        missing = [each for each in ranks if each not in self.run.come[key]]
        self.rules.append("pairs" if key[0] == "pair" else "group")
        if key[0] == "pair":
            self._other_communicator(operation, operation.entries[0], missing[0])
        of = "the two" if key[0] == "pair" else "the group"
        come = f"{'has' if len(missing) == 1 else 'have'} not come to make the communicator of {of}"
        return f"rank {rank} is held in {_named(operation)}: {name_ranks(missing)} {come}  [{_place(operation)}]", missing[0]

    def _operation(self, rank, operation):
        """The first operation of a rank that is not done runs, and its peer does not; or it comes behind another one."""
        run = self.run
        key, ranks = run.communicator(operation)
        if operation.kind == "collective":
            missing = [each for each in ranks if (other := run.running(key, each)) is None or other.kind != "collective"]
            self._why_not(key, missing[0])
            does = "does" if len(missing) == 1 else "do"
            return (
                f"rank {rank} runs {_named(operation)}, which {name_ranks(missing)} {does} not run  [{_place(operation)}]",
                missing[0],
            )
        entry = run.left[id(operation)][0]
        sends, peer, *_ = entry
        self.rules.append("rendezvous")
        self._other_communicator(operation, entry, peer)
        behind = self._why_not(key, peer, (not sends, rank))
        half = "receive" if sends else "send"
        runs = f"rank {rank} runs {_named(operation)}"
        if behind is None:
            return f"{runs}, and rank {peer} does not {half}  [{_place(operation)}]", peer
        self.queued = True
        its, first = behind
        waits = f"rank {peer}'s {half}  [{_place(its)}] waits in the queue behind its own {_named(first)}  [{_place(first)}]"
        return f"{runs}  [{_place(operation)}], and {waits}", peer

    def _why_not(self, key, peer, half=None):
        """Note the rules by which the peer's part, which it has issued, comes behind others; return it and the first of those.

        half: of a message, as (sends, peer). None where the peer has issued no such part.
        """
        for operation in self.run.lanes.get((key, peer), ()):
            meets = half in [entry[:2] for entry in operation.entries] if half else operation.kind == "collective"
            if meets and not operation.done:
                rules = [rule for each, rule in operation.after if not each.done]
                # an order within one communicator and an order by waiting are often the same two operations
                self.rules += rules[:1] if "order" not in rules else ["order"]
                first = next((each for each, _ in operation.after if not each.done), None)
                return None if first is None else (operation, first)
        return None

    def _other_communicator(self, operation, entry, peer):
        """Note where the peer's half is there, in another communicator."""
        sends, _, nbytes, _ = entry
        kinds = {"message": "batch", "batch": "message"}
        for what, other in self.run.issued[peer]:
            if what == "issue" and other.kind == kinds[operation.kind] and not other.done:
                if (not sends, operation.rank, nbytes) in [each[:3] for each in other.entries] and self.run.way == "lazy":
                    self.rules.append("batches")


def _named(operation):
    if operation.kind != "message":
        return operation.name
    sends, peer, *_ = operation.entries[0]
    return f"{operation.name} {'to' if sends else 'from'} rank {peer}"


def _place(operation):
    return line_text(*operation.place)


def _met_wrongly(way, send, entry, receive, other):
    if entry[3] != other[3]:
        what = f"tag {entry[3]} meets tag {other[3]}"
    else:
        what = f"{entry[2]} bytes meet a receive of {other[2]} bytes"
    return ProgramError(
        f"under NCCL's rules, {HOW[way]}, {what}: rank {send.rank}'s {_named(send)}  [{_place(send)}], and "
        f"rank {receive.rank}'s {_named(receive)}  [{_place(receive)}]\n"
        f"  rule: {RULES['tags']}"
    )
