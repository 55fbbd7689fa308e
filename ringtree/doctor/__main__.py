"""`python -m ringtree.doctor`: the same as `ringtree doctor`."""

import sys

from ringtree.command import run

if __name__ == "__main__":
    sys.exit(run("doctor", prog="python -m ringtree.doctor"))
