"""Messages between two processes: a tree of JSON's values and blocks of bytes, over a socket, with limits."""

import json
import struct
import time

MOST = 256 * 2**20  # bytes of a message
HEAD = struct.Struct("!II")


class Ended(Exception):
    """The other process has ended, or has closed its side."""


class Garbled(Exception):
    """What came is no message."""


class Pipe:
    """One end of a socket.

    patience: seconds after which a wait for the other side comes up for air, so that a deadline in this process can end it.
    """

    def __init__(self, socket, patience=None):
        self._socket = socket
        self.close = socket.close
        self.until = None  # of time.monotonic: when the other side counts as ended
        socket.settimeout(patience)

    def send(self, tree, blocks=()):
        text = json.dumps([tree, [len(each) for each in blocks]]).encode()
        rest = memoryview(b"".join([HEAD.pack(len(text), sum(map(len, blocks))), text, *blocks]))
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except TimeoutError:
                continue
            except OSError:
                raise Ended from None

    def receive(self):
        """(tree, blocks). Raises Ended, and Garbled where it is no message."""
        length, more = HEAD.unpack(self._read(HEAD.size))
        if length + more > MOST:
            raise Garbled(f"{length + more} bytes")
        text, rest = self._read(length), self._read(more)
        try:
            tree, lengths = json.loads(bytes(text))
            if (
                not isinstance(tree, dict)
                or not all(type(each) is int and each >= 0 for each in lengths)
                or sum(lengths) != more
            ):
                raise ValueError("no message")
        except (ValueError, TypeError, RecursionError) as error:
            raise Garbled(str(error)) from None
        blocks, at = [], 0
        for each in lengths:
            blocks.append(rest[at : at + each])
            at += each
        return tree, blocks

    def _read(self, count):
        found = bytearray()
        while len(found) < count:
            if self.until is not None and time.monotonic() > self.until:
                raise Ended
            try:
                part = self._socket.recv(min(count - len(found), 2**20))
            except TimeoutError:
                continue
            except OSError:
                raise Ended from None
            if not part:
                raise Ended
            found += part
        return memoryview(found)
