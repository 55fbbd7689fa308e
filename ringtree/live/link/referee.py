"""The referee of an emulated link: a thread of rank 0 that pairs sends with receives and books their ports.

Every rank is connected to it and speaks JSON: what it wants to send and receive, and when. It answers both
ranks of a message with its start, its end and a key for the transfer, or with what is wrong.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import threading
from collections import defaultdict, deque
from dataclasses import dataclass
from multiprocessing import connection

from ringtree.ports import book

OUT_OF_ORDER = 1.0  # seconds by which a message may be ready before one that was booked earlier


@dataclass
class Post:
    """One half of a message: what a rank told the referee. busy: seconds for which it keeps its ports; duration: until it arrives."""

    number: int
    sends: bool
    src: int
    dst: int
    tag: int | str
    nbytes: int
    dtype: str
    busy: float
    duration: float
    time: float

    @property
    def rank(self) -> int:
        return self.src if self.sends else self.dst


class Referee:
    """Pairs sends with receives, in order, and books their ports."""

    def __init__(self, size: int):
        self.key = os.urandom(32)
        self._listener = connection.Listener(("127.0.0.1", 0), backlog=size, authkey=self.key)
        self.address = self._listener.address
        self._size = size
        self._out = [[] for _ in range(size)]  # each rank's ports
        self._in = [[] for _ in range(size)]
        self._waiting = {True: defaultdict(deque), False: defaultdict(deque)}
        self._keys = itertools.count(1)
        threading.Thread(target=self._serve, name="emulated link's referee", daemon=True).start()

    def _serve(self) -> None:
        self._connections = self._meet()
        while self._connections:
            for ready in connection.wait(list(self._connections.values())):
                try:
                    self._take(Post(*json.loads(ready.recv_bytes())))
                except (EOFError, OSError):
                    self._lose(ready)

    def _meet(self) -> dict[int, connection.Connection]:
        connections = {}
        while len(connections) < self._size:
            try:
                caller = self._listener.accept()
            except (connection.AuthenticationError, EOFError, OSError):
                continue  # somebody else on this host knocked
            send_at_once(caller)
            connections[json.loads(caller.recv_bytes())] = caller
        self._listener.close()
        return connections

    def _take(self, post: Post) -> None:
        channel = (post.src, post.dst, post.tag)
        others = self._waiting[not post.sends][channel]
        if not others:
            self._waiting[post.sends][channel].append(post)
            return
        other = others.popleft()
        send, receive = (post, other) if post.sends else (other, post)
        if (send.nbytes, send.dtype) != (receive.nbytes, receive.dtype):
            problem = (
                f"Rank {send.src} sends {send.nbytes} bytes of {send.dtype} where rank {send.dst} "
                f"expects {receive.nbytes} bytes of {receive.dtype}: give both tensors one size and dtype."
            )
            for each in (send, receive):
                self._tell(each.rank, {"number": each.number, "error": problem})
            return
        ready = max(send.time, receive.time)
        start = book((self._out[send.src], self._in[send.dst]), ready, send.busy, memory=OUT_OF_ORDER)
        booking = {"start": start, "end": start + send.duration, "key": next(self._keys) % 2**30}
        for each in (send, receive):
            self._tell(each.rank, {"number": each.number, **booking})

    def _tell(self, rank: int, news: dict) -> None:
        if rank in self._connections:
            try:
                self._connections[rank].send_bytes(json.dumps(news).encode())
            except OSError:
                pass  # its end has closed: the next read of that connection says so

    def _lose(self, ended: connection.Connection) -> None:
        lost = next(rank for rank, each in self._connections.items() if each is ended)
        del self._connections[lost]
        for rank in list(self._connections):
            self._tell(rank, {"lost": lost})


def send_at_once(control: connection.Connection) -> None:
    """Without this, TCP holds a second small message back for 40 ms."""
    with socket.socket(fileno=os.dup(control.fileno())) as endpoint:
        endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
