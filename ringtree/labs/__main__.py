"""`python -m ringtree.labs release`: make the learners' notebooks, labs/release, from labs/source; `mark`: a notebook's marks."""

import argparse
import dataclasses
import json
import shlex
import sys
from pathlib import Path

from ringtree.errors import UsageError


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m ringtree.labs")
    commands = parser.add_subparsers(required=True)
    release = commands.add_parser("release", help="make labs/release from labs/source")
    release.add_argument("--labs", type=Path, default=Path("labs"), help="the folder of source/ and release/ (default: labs)")
    release.add_argument("--check", action="store_true", help="write nothing; fail where release/ is out of date")
    release.set_defaults(run=_release)
    mark = commands.add_parser("mark", help="the marks of a learner's notebook, which runs in a sandbox")
    mark.add_argument("notebook", type=Path)
    mark.add_argument("--hidden", type=Path, help="the folder with the cases that only the teacher has, such as labs/hidden")
    mark.add_argument("--lab", help="the lab's name, if the notebook has another name")
    mark.add_argument("--seconds", type=float, default=300.0, help="in all (default: 300)")
    mark.add_argument("--enclose", default="", metavar="COMMAND", help="start the sandbox by this command, as the hub does")
    mark.add_argument("--json", action="store_true", help="print a list of {name, points, most, says} instead")
    mark.set_defaults(run=_mark)
    options = parser.parse_args(arguments)
    try:
        return options.run(options)
    except UsageError as error:
        parser.error(str(error))


def _release(options):
    from ringtree.labs.release import release_all  # nbgrader is there where labs are made, and not for every learner

    if not (options.labs / "source").is_dir():
        raise UsageError(f"there is no folder {options.labs / 'source'}: run this where labs/ is, or name it with --labs")
    changed = release_all(options.labs, write=not options.check)
    for path in changed:
        print(f"{'out of date' if options.check else 'written'}: {path}")
    if not changed:
        print("labs/release is up to date")
    return 1 if options.check and changed else 0


def _mark(options):
    from ringtree.labs.marking import fence
    from ringtree.labs.marking.notebook import mark
    from ringtree.labs.marking.sandbox import guard_this_process

    if not options.enclose and not fence.version():
        print("this kernel has no Landlock: the submission can read and write every file that you can", file=sys.stderr)
    guard_this_process()
    marks = mark(options.notebook, options.hidden, options.lab, options.seconds, shlex.split(options.enclose))
    if options.json:
        print(json.dumps([dataclasses.asdict(each) for each in marks]))
        return 0
    for each in marks:
        print(f"{each.name}: {each.points} of {each.most}\n  {each.says}")
    print(f"{sum(each.points for each in marks)} of {sum(each.most for each in marks)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
