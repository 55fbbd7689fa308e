"""Start a fork server, and ask it: the other end of `ringtree.live.processes.forks`."""

import select
import socket
import subprocess
import time

from ringtree.live.processes.forks import Line


class Asker:
    """Asks a fork server. Where that has ended, RuntimeError has the sentence `ended`."""

    def __init__(self, connected, ended):
        self._line, self._ended, self._asked = Line(connected), ended, 0
        self.close = self._line.close

    def ask(self, do, patience=None, files=(), **request):
        """Return the answer, or None where none has come in `patience` seconds."""
        self._asked += 1
        try:
            self._line.send(files, do=do, number=self._asked, **request)
        except OSError:
            raise RuntimeError(self._ended) from None
        answer = self.answer(self._asked, patience)
        if answer and "refused" in answer:
            raise RuntimeError(answer["refused"])
        return answer

    def answer(self, number=0, patience=None):
        """Wait for the answer of this number; of 0, what the server says by itself once it has imported all."""
        until = None if patience is None else time.monotonic() + patience
        while True:
            left = None if until is None else max(0.0, until - time.monotonic())
            try:
                if not select.select([self._line.socket], [], [], left)[0]:
                    return None
                answers = self._line.receive()
            except (EOFError, OSError, ValueError):  # ValueError: closed by us
                raise RuntimeError(self._ended) from None
            for content, _ in answers:
                if content["number"] == number:
                    return content  # the others answer what is no longer waited for


def start(*words, after=(), **options):
    """Start a fork server: Python with these words, the number of its socket, and the words after it.

    options: of `subprocess.Popen`. Returns (its process, the socket's other end).
    """
    ours, theirs = socket.socketpair()
    files = [theirs.fileno(), *options.pop("pass_fds", ())]
    command = [*map(str, (*words, theirs.fileno(), *after))]
    with theirs:
        return subprocess.Popen(command, pass_fds=files, start_new_session=True, **options), ours
