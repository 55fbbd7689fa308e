"""`python -m ringtree.explain`: the same as `ringtree explain`."""

import sys

from ringtree.command import run

if __name__ == "__main__":
    sys.exit(run("explain", prog="python -m ringtree.explain"))
