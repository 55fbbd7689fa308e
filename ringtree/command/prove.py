"""`ringtree prove train.py:step --axes data,tensor --ranks 4`: is a parallel step the step that was meant?"""

from __future__ import annotations

import argparse
import json
import os
import sys

from ringtree.errors import UsageError
from ringtree.prove.proving import prove


class Parser(argparse.ArgumentParser):
    """One that says what is wrong in one sentence."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}: see --help\n")


def arguments(prog="ringtree prove"):
    parser = Parser(
        prog=prog,
        allow_abbrev=False,
        description="Run a training step in one process and on every factorization of the ranks over the axes (Gloo, on this "
        "machine), and compare gradients, norm, loss, weights and their copies. FUNCTION takes a DeviceMesh and yields a "
        "ringtree.prove.Step for each batch, when its gradients are final.",
        epilog="Build the model in float64 and with seeds. Exit status: 0 where every mesh is right, 1 where one is wrong, 2 where "
        "something could not be judged.",
    )
    add = parser.add_argument
    add("step", metavar="FILE:FUNCTION", help="a generator, such as train.py:step, or package.module:step")
    add("--axes", default="data", metavar="NAMES", help="the axes of the mesh, such as data,tensor (data)")
    add("--ranks", default="4", metavar="N", help="N for N−1 and N ranks, or a list such as 2,3,4 (4)")
    add("--mesh", action="append", metavar="SIZES", help="only this mesh, such as data=2,tensor=2; may be repeated")
    add(
        "--reference",
        metavar="FILE:FUNCTION",
        help="the step in one process, where it is another function; it may take no argument",
    )
    add("--steps", type=int, default=3, metavar="N", help="how many batches to compare, 2 or more (3)")
    add("--timeout", type=float, default=60.0, metavar="S", help="seconds for each mesh, before its ranks are ended (60)")
    add("--json", action="store_true", help="the report as JSON")
    return parser


def main(given=None, prog="ringtree prove") -> int:
    """Return the exit status: 0 right, 1 wrong, 2 could not be judged, 130 interrupted."""
    parser = arguments(prog)
    options = parser.parse_args(given)
    sys.path.insert(0, os.getcwd())
    try:
        report = prove(
            options.step,
            options.axes,
            ranks=options.ranks,
            reference=options.reference,
            steps=options.steps,
            timeout=options.timeout,
            meshes=options.mesh,
        )
    except UsageError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    except KeyboardInterrupt:
        return 130
    print(json.dumps(report.as_dict(), indent=1, ensure_ascii=False) if options.json else report)
    return report.status
