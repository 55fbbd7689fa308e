"""An ipyparallel controller whose sockets are Unix sockets in a folder of its owner's.

    python -m ringtree.live.processes.controller …

On TCP every user of the machine could connect to them and read along: ipyparallel signs messages, it does not
hide them. Nor can a port that was free a moment ago be taken by somebody else.
"""

import itertools

from ipyparallel.controller.app import IPController


class UnixSocketController(IPController):
    """Where others have a port this one has a running number: socket 7 is the file `<ip>:7`."""

    def __init__(self, *args, **kwargs):
        self._numbers = itertools.count(1)
        super().__init__(*args, **kwargs)

    def next_port(self, pool_name="common"):
        return next(self._numbers)

    def construct_url(self, kind, channel, index=None):
        # ipyparallel binds Unix sockets as "ip-7", and connects to "ip:7".
        head, _, number = super().construct_url(kind, channel, index).rpartition("-")
        return f"{head}:{number}"


if __name__ == "__main__":
    UnixSocketController.launch_instance()
