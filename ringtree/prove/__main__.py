"""`python -m ringtree.prove`: the same as `ringtree prove`."""

import sys

from ringtree.command import run

if __name__ == "__main__":
    sys.exit(run("prove", prog="python -m ringtree.prove"))
