"""`ringtree doctor`: what stands in the way of ranks here. Exit status 0: nothing; 1: something must be fixed."""

import argparse
import dataclasses
import json

from ringtree.doctor.finding import FINE, NOTE, WRONG
from ringtree.doctor.looking import look, worst
from ringtree.errors import UsageError

SIGNS = {FINE: "  ", NOTE: "· ", WRONG: "✗ "}


def main(arguments=None, prog="ringtree doctor"):
    parser = argparse.ArgumentParser(prog=prog, description=__doc__.partition(":")[2].strip(), allow_abbrev=False)
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="how many ranks are to run here (4)")
    parser.add_argument("--json", action="store_true", help="findings as JSON: topic, state (fine, note, wrong), seen, do")
    given = parser.parse_args(arguments)
    try:
        found = look(given.ranks)
    except UsageError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    if given.json:
        print(json.dumps([dataclasses.asdict(each) for each in found], indent=1, ensure_ascii=False))
    else:
        print(as_text(found))
    return int(worst(found) == WRONG)


def as_text(found) -> str:
    width = max(len(each.topic) for each in found)
    lines = []
    for each in found:
        lines.append(f"{SIGNS[each.state]}{each.topic:{width}}  {each.seen}")
        if each.do:
            lines.append(f"  {'':{width}}  → {each.do}")
    return "\n".join(lines)
