"""`python -m ringtree`: the same as `ringtree`."""

import sys

from ringtree.command import main

if __name__ == "__main__":
    sys.exit(main(prog="python -m ringtree"))
