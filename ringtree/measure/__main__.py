"""`python -m ringtree.measure`: the same as `ringtree measure`."""

import sys

from ringtree.command import run

if __name__ == "__main__":
    sys.exit(run("measure", prog="python -m ringtree.measure"))
