"""Whose address the hub's log names, and how many connections they have: only the proxy may say for whom it asks.

A learner's server reaches the hub itself, and could name any address in a header.
"""

import socket
import struct

from bounds import Held
from tornado import httpserver

Plain = httpserver._HTTPRequestContext


class Caller(Plain):
    """What tornado knows of a connection. `proxies`: the users of a Unix socket's other end who may speak for others."""

    proxies = frozenset({0})
    held = Held()

    def __init__(self, stream, *more):
        super().__init__(stream, *more)
        self.is_proxy = False
        if self.address_family == socket.AF_UNIX:
            _, uid, _ = struct.unpack("3i", stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            self.is_proxy = uid in self.proxies
            self.remote_ip = self._orig_remote_ip = f"user-{uid}"
        elif self.address_family is not None:  # the proxy is on the hub's own host, and servers are elsewhere
            self.is_proxy = self.address[0] == stream.socket.getsockname()[0]
        if not self.is_proxy and self.held.too_many(self.remote_ip, stream):
            stream.close()

    def _apply_xheaders(self, headers):
        if self.is_proxy:
            headers.pop("X-Real-Ip", None)  # the proxy sets none, and hands on whatever a browser sends
            super()._apply_xheaders(headers)


def trust(*users):
    """From now on only these users' programs, and root's, are believed at a Unix socket."""
    Caller.proxies = frozenset({0, *users})
    httpserver._HTTPRequestContext = Caller
