"""Ranks as threads that take turns, in the place of greenlets: for programs that call `backward()`.

Torch keeps by thread whether gradients are noted, which modes are on, and which backward pass is under way. Greenlets of one
thread share all that: a rank that waits inside a backward pass, or inside `torch.no_grad()`, would spoil the others'. Here one
thread goes on at a time, and hands over where a greenlet would, so that a run is the same, only slower.
"""

import sys
import threading

import greenlet

PATIENCE = 1.0  # seconds in which a thread has to leave a run that is over


class Threads:
    """What `clock` uses of the module `greenlet`; a greenlet is a `Thread` here. around(): a context in which each runs."""

    def __init__(self, around):
        self.around, self.made = around, []

    def getcurrent(self):
        """The caller, which is no rank: whoever ends, or raises, hands over to it."""
        self.main = self.now_on = Thread(self, None)
        self.main.thread = threading.current_thread()
        return self.main

    def greenlet(self, run, parent=None):
        self.made.append(Thread(self, run))
        return self.made[-1]

    def running(self):
        """The identity of the thread whose turn it is; None where it is just beginning."""
        return self.now_on.thread and self.now_on.thread.ident

    def close(self):
        """End those that still wait."""
        for each in self.made:
            each.leave()


class Left(BaseException):
    """Raised in a rank that waits when its run is over."""


class Thread:
    """One that takes turns; made by `Threads`."""

    def __init__(self, turns, run):
        self.turns, self.run = turns, run
        self.thread = self.error = None
        self.dead = self.over = False
        self.may_go_on = threading.Semaphore(0)

    @property
    def gr_frame(self):
        """Return where it stands."""
        return sys._current_frames().get(self.thread.ident)

    def switch(self):
        """It goes on; who called this waits for its own next turn. Raises there what another has raised, if it is the main one."""
        here = self.turns.now_on
        if here.thread is not threading.current_thread() and not isinstance(threading.current_thread(), threading._DummyThread):
            raise greenlet.error("a thread that takes no turns")
        self.turns.now_on = self
        if self.thread is None:
            self.thread = threading.Thread(target=self._live, daemon=True)
            self.thread.start()
        else:
            self.may_go_on.release()
        here.may_go_on.acquire()
        if here.over:
            raise Left
        if here.error is not None:
            error, here.error = here.error, None
            raise error

    def _live(self):
        main = self.turns.main
        try:
            with self.turns.around():
                self.run()
        except Left:
            return
        except BaseException as error:
            main.error = error
        self.dead, self.turns.now_on = True, main
        main.may_go_on.release()

    def leave(self):
        if self.thread is not None and not self.dead:
            self.over = True
            self.may_go_on.release()
            self.thread.join(PATIENCE)
