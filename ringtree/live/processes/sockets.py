"""Where Unix sockets lie: in a folder of their owner's, whose name must be short."""

import tempfile

LONGEST = 107  # letters of a socket's name that Linux allows; macOS has three fewer
BELOW = 50  # letters that folders and sockets of ours add to it


def parent() -> str:
    """The folder for temporary files; /tmp where that one's name is too long for sockets below it."""
    place = tempfile.gettempdir()
    return place if len(place) + BELOW < LONGEST else "/tmp"
