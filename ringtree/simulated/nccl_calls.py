"""torch.distributed over NCCL, simulated: what each rank issues, waits for and reads is written down for `nccl_rules`."""

from dataclasses import dataclass, field

from ringtree.simulated import faults
from ringtree.simulated.dist import SimulatedDist
from ringtree.simulated.faults import caller


@dataclass(eq=False, slots=True)
class Operation:
    """What a rank issued: a collective, a batch, or one message.

    kind: "collective", "batch" or "message". name: of the function. group: its number, and ranks. entries: of messages,
    (sends, peer, bytes, tag). after: operations of this rank that come before it, each with the rule that says so.
    """

    rank: int
    kind: str
    name: str
    group: int
    ranks: tuple
    place: tuple
    entries: list = field(default_factory=list)
    after: list = field(default_factory=list)
    done: bool = False


class NcclDist(SimulatedDist):
    """A `SimulatedDist` that writes down, in `issued`, what NCCL's rules are about, in the order of the program.

    issued: a list of ("issue", operation); ("behind", operation): what comes later is behind it; ("poll", operation): the
    program went on when it was done; ("read", None): the program held until all that it waited for was done.
    """

    __slots__ = ("_issued",)

    def __init__(self, rank, messages, issued):
        super().__init__(rank, messages)
        self._issued = issued

    def _begin(self, name, entries):
        """NCCL gives one work for a whole batch."""
        batch, lane, place = name == "batch_isend_irecv", entries[0][3], caller(3)
        group = self._made[lane[0]] if type(lane) is tuple else None
        try:
            noted = [(sends, peer, tensor.nbytes, tag) for sends, tensor, peer, tag in entries]
        except AttributeError:
            raise faults.no_tensor_given(self._rank.number, entries) from None
        works = self._post(self._rank, entries, place)  # first: it refuses what is then not issued
        issued = self._issue("batch" if batch else "message", name, group, place)
        issued.entries = noted
        return [IssuedWork(self._issued, issued, works)]

    def _call(self, asked, algorithm, place):
        if self.get_rank(asked.group) < 0:
            return None
        issued = self._issue("collective", asked.function, asked.group, place)
        work = super()._call(asked, algorithm, place)
        if work is not None:
            return IssuedWork(self._issued, issued, [work])
        self._issued.append(("behind", issued))
        if asked.row.before == "nothing":
            self._issued.append(("read", None))  # a barrier holds the program
        return None

    def _issue(self, kind, name, group, place):
        operation = Operation(
            self._rank.number, kind, name, group.number if group else 0, tuple(self.get_process_group_ranks(group)), place
        )
        self._issued.append(("issue", operation))
        return operation


class IssuedWork:
    """The work of one operation: of a message, of all messages of a batch, or of a collective."""

    def __init__(self, issued, operation, works):
        self._issued, self._operation, self._works = issued, operation, works

    def wait(self, timeout=None):
        self._issued.append(("behind", self._operation))
        for work in self._works:
            work.wait()
        return True

    def is_completed(self):
        done = all([work.is_completed() for work in self._works])
        if done:
            self._issued.append(("poll", self._operation))
        return done
