"""`python -m ringtree.parallel`: the same as `ringtree parallel`."""

import sys

from ringtree.command import run

if __name__ == "__main__":
    sys.exit(run("parallel", prog="python -m ringtree.parallel"))
