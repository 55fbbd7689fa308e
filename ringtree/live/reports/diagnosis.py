"""What the kernel finds out about ranks that do not come back: where they are, and why they do not say so."""

import time

import psutil

LOOK = 0.02  # seconds between two looks
PATIENCE = 3.0  # seconds in which a rank that can say where it is will have said so …
MORE_PATIENCE = 10.0  # … also where its answer must wait for its turn on a busy core

# A thread that waits for the interpreter is woken every 5 ms, and a main thread that runs Python code then hands it
# over: a rank that computes in Python answers after 10 to 20 such turns, however busy the cores are.
WAKE_UPS = 20
A_STACK = 2.0  # seconds that a rank may take to write down where it is
RUNS = 2e6  # nanoseconds of a core: a thread that took more meanwhile was not just woken


class Diagnosis:
    """Looks at ranks from outside.

    ranks: a `ringtree.live.reports.rank.Rank` each, by number. client: ipyparallel's, which reaches them. started: the
    `ringtree.live.processes.started.Started` that their processes are.
    """

    def __init__(self, ranks, client, started):
        self.ranks, self._client, self._started = ranks, client, started
        self.broken, self.last_words = started.broken, started.last_words

    def where(self, ids):
        """Return where each of these ranks is now, by rank: see `ringtree.live.reports.whereabouts.where`.

        One that does not answer has `silent` instead: "stopped" (its process), "held" (a call holds its interpreter,
        which is proven), "gone", or "slow", where all that is known is that it has not answered within `seconds`;
        and `computes`, whether its main thread was seen to run.
        """
        client = self._client
        replies = {
            i: client._send(client._control_stream, "where_request", content={}, ident=client._engines[i].encode())
            for i in ids
            if i in client._engines
        }
        found = {i: {"silent": "gone", "computes": False} for i in ids if i not in replies}
        silences = {i: Silence(self.ranks[i]) for i in replies}
        while silences:
            replies[next(iter(silences))].wait(LOOK)
            for i in list(silences):
                if replies[i].done():
                    found[i] = replies[i].result()["content"]
                elif verdict := silences[i].look():
                    found[i] = verdict
                if i in found:
                    del silences[i]
        return {i: found[i] for i in ids}

    def dead(self):
        """The numbers of those whose process is gone."""
        told = self._started.dead_ranks()
        return [rank.number for rank in self.ranks if rank.number in told or self._is_gone(rank)]

    def _is_gone(self, rank):
        return rank.is_gone() if rank.is_here() else rank.number not in self._client.ids

    def exit_code(self, i):
        """Return how a dead rank ended: its exit code, or minus the number of the signal; None where unknown."""
        return self._started.exit_code(i, self.ranks[i].pid)


class Silence:
    """Looks at a rank that has been asked where it is and has not answered, until it is plain why or patience ends.

    That a call holds the interpreter is proven so: the control thread, which is to answer, has been woken again and
    again, as one is that waits for the interpreter; two stacks, with `WAKE_UPS` before and between them, show that
    neither it nor the main thread has moved; and meanwhile at most one thread has run, so none runs in turns with it.
    """

    def __init__(self, rank):
        self._rank = rank
        self._began = time.monotonic()
        self._computes = False
        self._times = []
        self._start_over()

    def look(self):
        """None as long as the rank may answer, or why it does not: see `Diagnosis.where`."""
        here, state = self._rank.is_here(), self._rank.process_state()
        self._computes = self._computes or state == psutil.STATUS_RUNNING
        if here and state in (None, psutil.STATUS_ZOMBIE):
            return self._verdict("gone")
        if state == psutil.STATUS_STOPPED:
            return self._verdict("stopped")
        if here and self._is_held():
            self._computes = self._ran or state == psutil.STATUS_RUNNING  # in that call, not before it
            return self._verdict("held")
        patience = MORE_PATIENCE if self._computes else PATIENCE
        if time.monotonic() >= self._began + patience:
            if here:
                self._have_its_stack_written()
            return self._verdict("slow", patience)
        return None

    def _have_its_stack_written(self):
        """Ask for it, and give it the time that it takes on a busy core to be there whole."""
        written, before = self._rank.written(), None
        self._rank.ask_for_stack()
        end = time.monotonic() + A_STACK
        while time.monotonic() < end:
            time.sleep(0.1)
            found = self._rank.stacks(written)
            if found and found == before:
                break
            before = found

    def _verdict(self, why, seconds=None):
        return {"silent": why, "computes": self._computes, "seconds": seconds}

    def _start_over(self):
        self._asked, self._stacks = 0, []
        self._woken = self._rank.wake_ups()
        self._written = self._rank.written()

    def _is_held(self):
        woken = self._rank.wake_ups()
        if woken is None or self._woken is None:
            return False
        if self._asked < 2:
            if woken >= self._woken + WAKE_UPS:
                self._rank.ask_for_stack()
                self._asked, self._woken = self._asked + 1, woken
                self._times = [*self._times[-1:], self._rank.run_times()]
            return False
        before, self._stacks = self._stacks, self._rank.stacks(self._written)
        if self._stacks != before or len(before) < 2:  # the second is still being written
            return False
        first, second = self._times
        running = [thread for thread, spent in second.items() if spent - first.get(thread, 0) > RUNS]
        if self._stacks[0] == self._stacks[1] and len(running) <= 1:
            self._ran = bool(running)
            return True
        self._start_over()
        return False
