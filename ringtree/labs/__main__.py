"""`python -m ringtree.labs release`: make the learners' notebooks in labs/release from labs/source."""

import argparse
import sys
from pathlib import Path

from ringtree.labs.release import release_all


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m ringtree.labs")
    parser.add_argument("command", choices=["release"])
    parser.add_argument("--labs", type=Path, default=Path("labs"), help="the folder of source/ and release/ (default: labs)")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where release/ is out of date")
    options = parser.parse_args(arguments)
    if not (options.labs / "source").is_dir():
        parser.error(f"there is no folder {options.labs / 'source'}: run this where labs/ is, or name it with --labs")
    changed = release_all(options.labs, write=not options.check)
    for path in changed:
        print(f"{'out of date' if options.check else 'written'}: {path}")
    if not changed:
        print("labs/release is up to date")
    return 1 if options.check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
