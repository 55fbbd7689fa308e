"""How much one caller may keep of the hub: bytes of a request, seconds to send it, connections, and letters in the log.

A learner reaches the hub through the proxy, and from a server at the hub's own socket. JupyterHub takes 100 MB a request by itself,
waits for its end forever, and writes it into the log in full.
"""

from collections import defaultdict

from jupyterhub.log import CoroutineLogFormatter
from tornado import httpserver

BODY = 100_000  # bytes; the longest that the hub's own pages send are lists of names
HEADER = 16_384  # bytes, as Node has it in the proxy
SECONDS = 30  # for the lines before a body, and as many for the body
CONNECTIONS = 100  # of one user, or of one address, who is not the proxy
LETTERS = 4000  # of one entry in the log


class Held(defaultdict):
    """{caller: connections that are open}."""

    def __init__(self):
        super().__init__(list)

    def too_many(self, caller, stream):
        """Whether this connection is one too many for the caller. If not, it counts."""
        still = [each for each in self.pop(caller, []) if not each.closed()]
        if len(still) < CONNECTIONS:
            self[caller] = [*still, stream]
            return False
        self[caller] = still
        return True


def shortened(text):
    """The text, or its two ends."""
    left_out = len(text) - LETTERS
    if left_out <= 0:
        return text
    return f"{text[: LETTERS // 2]} … {left_out} letters … {text[-LETTERS // 2 :]}"


def set_for_the_hub():
    """From now on each server of tornado has these limits, and each line of JupyterHub's log."""
    initialize, write = httpserver.HTTPServer.initialize, CoroutineLogFormatter.format
    limits = dict(max_body_size=BODY, max_header_size=HEADER, idle_connection_timeout=SECONDS, body_timeout=SECONDS)
    httpserver.HTTPServer.initialize = lambda self, *given, **more: initialize(self, *given, **limits | more)
    CoroutineLogFormatter.format = lambda self, record: shortened(write(self, record))
