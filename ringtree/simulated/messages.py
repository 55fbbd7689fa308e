"""Messages: two ranks ask for its halves, the halves meet, and it moves.

- A message is ready when both ranks have asked for it, and starts when the ports are free (`network`).
- Messages that are ready at the same moment get their ports by their place among their sender's sends that do not move yet,
  then by sender: so all of a moment's messages are booked together, before time advances.
- The k-th send from one rank to another with one tag meets the k-th receive.
- A send is a rendezvous: its wait returns when the message has arrived.
"""

from collections import defaultdict, deque
from operator import itemgetter
from threading import get_ident

from ringtree.simulated import faults
from ringtree.simulated.guard import move


class Work:
    """Half of a message, as isend and irecv return it."""

    # Without __init__, whose call would take as long as all the rest: Messages.post fills it in.
    __slots__ = ("rank", "operation", "place", "posted", "end")

    # the operation is what P2POp makes
    sends = property(lambda self: self.operation[0])
    tensor = property(lambda self: self.operation[1])
    peer = property(lambda self: self.operation[2])
    tag = property(lambda self: self.operation[3])

    def touches(self):
        """(tensor, whether it is written) of what may not be touched, or not be changed, meanwhile."""
        return ((self.tensor, not self.sends),)

    def wait(self, timeout=None):
        rank, end = self.rank, self.end
        if end is None:
            rank.waiting = self
            rank.clock.pause(rank)
            end = self.end
            if end > rank.now:
                rank.now = end
        elif end > rank.now:
            rank.clock.advance(rank, end)
        return True

    def is_completed(self):
        rank = self.rank
        if self.end is None or self.end > rank.now:
            rank.clock.look_again(rank, self)
        done = self.end is not None and self.end <= rank.now
        if done:
            rank.polled.discard(self)
        if done and rank.in_flight is not None:
            rank.in_flight.pop(self, None)
        return done


class NotedWork(Work):
    """A work whose wait is noted: for a trace, to guard buffers, or because somebody watches."""

    __slots__ = ()

    @property
    def label(self):
        """Return what a trace says of the wait."""
        sends, _, peer, _ = self.operation
        return self.rank.clock.notes.labels[sends][peer]

    def wait(self, timeout=None):
        rank = self.rank
        notes, began = rank.clock.notes, rank.now
        if notes.watch is not None:
            notes.watch.before_wait(rank.number, began)
        Work.wait(self)
        if rank.now > began and rank.turn == rank.number:  # a stream's wait is not its rank's
            notes.waited(rank.number, began, rank.now, self.label)
        if rank.in_flight is not None:
            rank.in_flight.pop(self, None)
        return True


class Messages:
    """All messages of a run: those asked for by one rank alone, and how many have moved.

    notes: `Notes`, or the `Tape` of a sweep. guard: a `Guard` of buffers in flight, or None. late: whether a rank's clock may be
    ahead of its turn where it asks for a message, because it computed. graphs: whether tensors may have gradients; what moves
    has none.
    """

    def __init__(self, clock, network, notes, guard, late, graphs=False):
        self.clock, self.agenda, self.size = clock, clock.agenda, len(clock.ranks)
        self.home = clock.home
        self.carry, self.machine = notes.carry or network.carry, network.machine
        self.ready = clock.agenda.pending  # (when, send, receive) of messages that are ready and not booked
        clock.agenda.settle = self._settle
        self.note = notes.moved if notes.wanted else None
        self.guard, self.late, self.graphs = guard, late, graphs
        self.move = move if guard is None else guard.copy
        self.tape = notes if notes.work is not None else None
        self.careful = late or guard is not None or self.tape is not None
        self.work = notes.work or (NotedWork if notes.wanted or guard is not None else Work)
        self.unmatched = {}  # by channel, the first of the works that wait for their other half
        self.queues = defaultdict(deque)  # by channel, the others, where there are more
        self.asked = 0
        self.differing = None  # the first halves of a message that do not fit, of ranks that are in one collective
        self.collectives = {}  # by group, the collectives that were called in it, in order

    @property
    def count(self):
        """Return how many have moved, where no half is left."""
        return self.asked // 2

    def post(self, rank, operations, place):
        """Ask for halves of messages: returns their works. Where the other half is there, the message moves."""
        if get_ident() != self.home:
            self.clock.refuse_threads(rank)
        size, unmatched, careful = self.size, self.unmatched, self.careful
        number, new_work = rank.number, self.work
        rank.looks = 0
        works = []
        for operation in operations:
            sends, _, peer, tag = operation
            if type(peer) is not int or not 0 <= peer < size or peer == number:
                raise faults.wrong_peer(number, size, peer, sends)
            work = new_work()
            work.rank = rank
            work.operation = operation
            work.place = place
            work.posted = rank.now
            work.end = None
            if careful:
                self._before_post(work)
            if sends:
                rank.sending.append(work)
            channel = number * size + peer if sends else peer * size + number
            if tag:
                channel = channel, tag
            first = unmatched.setdefault(channel, work)
            if first is not work:
                self._meet(first, work, channel)
            works.append(work)
        self.asked += len(works)
        return works

    def _before_post(self, work):
        rank = work.rank
        if self.late:
            self.clock.advance(rank, rank.now)  # it may have computed: earlier ranks go first
            work.posted = rank.now
        if self.tape is not None:
            self.tape.posted(work)
        if self.guard is not None:
            self.guard.used(work.tensor, not work.sends, work)  # what has not come yet cannot be sent on
            rank.in_flight[work] = True

    def _meet(self, first, work, channel):
        """A work comes where `first` already waits: they are the halves of a message, which moves, or two of one kind."""
        sends = work.operation[0]
        if first.operation[0] is sends:
            self.queues[channel].append(work)
            return
        if self.queues and channel in self.queues:
            self._next_in_queue(channel)
        else:
            del self.unmatched[channel]
        if sends:
            send, receive = work, first
        else:
            send, receive = first, work
        _, source, dst, _ = send.operation
        _, target, src, _ = receive.operation
        try:
            nbytes, room = source.nbytes, target.nbytes
            if nbytes is not room and nbytes != room or source.dtype is not target.dtype:
                if send.rank.inside is None or receive.rank.inside is None:
                    raise faults.mismatch(send, receive)
                self.differing = self.differing or (send, receive)  # both wait, so that the other ranks can come and be named
                return
        except AttributeError:
            raise faults.no_tensor(receive if hasattr(source, "nbytes") else send) from None
        if not (source.is_contiguous() and target.is_contiguous()):
            raise faults.with_gaps(receive if source.is_contiguous() else send)
        ready, asked = work.posted, first.posted
        self.ready.append((ready if ready > asked else asked, send, receive))

    def _settle(self):
        """Book all messages that became ready at this moment, and move their contents."""
        ready = self.ready[:]
        self.ready.clear()
        if len(ready) > 1:
            ready = self._in_order(ready)
        for when, send, receive in ready:
            sender = send.rank
            if len(sender.sending) == 1:
                sender.sending.clear()
            else:
                sender.sending.remove(send)
            _, source, dst, _ = send.operation
            _, target, src, _ = receive.operation
            start, end = self.carry(src, dst, source.nbytes, when)
            if self.note is not None:
                self.note(send, receive, start, end)
            if self.graphs:
                target, source = target.detach(), source.detach()
            self.move(target, source)
            send.end = receive.end = end
            for work in (send, receive):
                rank = work.rank
                if rank.idle is not None:
                    self.clock.wake(rank, work)
                elif rank.waiting is work:
                    self.agenda.put(end if end > rank.now else rank.now, rank.turn)

    @staticmethod
    def _in_order(ready):
        """By place among their sender's sends that do not move yet, then by sender."""
        places, placed = {}, []
        for message in ready:
            send = message[1]
            sender = send.rank
            if len(sender.sending) == 1:
                placed.append((0, sender.number, sender.turn, message))
                continue
            if sender not in places:
                places[sender] = {each: place for place, each in enumerate(sender.sending)}
            placed.append((places[sender][send], sender.number, sender.turn, message))
        placed.sort(key=itemgetter(0, 1, 2))
        return [each[-1] for each in placed]

    def _next_in_queue(self, channel):
        queue = self.queues[channel]
        self.unmatched[channel] = queue.popleft()
        if not queue:
            del self.queues[channel]

    def check_all_met(self):
        for work in self.unmatched.values():
            if not hasattr(work.tensor, "nbytes"):
                raise faults.no_tensor(work)
        if self.unmatched:
            raise faults.never_met(self.unmatched.values())
