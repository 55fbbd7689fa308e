"""Run `ringtree NAME`. `python -m ringtree.NAME` runs the same command.

    ringtree measure all_reduce --ranks 4
    ringtree explain all_reduce_8.log all_reduce_64.log --html cluster.html
    ringtree doctor
    ringtree parallel data_parallel --ranks 4

Each command is a module here with a function `main(given, prog)`. This file needs the standard library alone.
"""

import argparse
import importlib
import sys
from importlib import metadata

from ringtree import late
from ringtree.errors import MissingPackage

COMMANDS = {
    "measure": "time a collective on ranks of this machine, or inside torchrun",
    "explain": "explain a cluster on one page, from logs of nccl-tests, rccl-tests or OSU",
    "prove": "prove that a parallel training step is the step of one process",
    "doctor": "find what stands in the way of ranks on this machine",
    "parallel": "train a small GPT on several ranks, by a technique that you choose",
}


def main(given=None, prog="ringtree") -> int:
    """Run `ringtree`; return the exit code of the command."""
    listed = "\n".join(f"  {name:10}{what}" for name, what in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Measure, explain and check how ranks communicate.",
        epilog=f"commands:\n{listed}\n\nRun `{prog} COMMAND --help` for the options of a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"ringtree {version()}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of the commands below")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    return run(options.command, options.arguments, prog=f"{prog} {options.command}")


def version() -> str:
    """Return the version of the installed package."""
    try:
        return metadata.version("ringtree")
    except metadata.PackageNotFoundError:
        return "from a checkout that is not installed"


def run(name: str, given=None, prog: str = "") -> int:
    """Run one command; return its exit code, 2 where a package is missing."""
    prog = prog or f"ringtree {name}"
    try:
        return importlib.import_module(f"ringtree.command.{name}").main(given, prog) or 0
    except ModuleNotFoundError as error:
        told = late.missing(f"`{prog}`", error)
        if not isinstance(told, MissingPackage):
            raise
        print(told, file=sys.stderr)
        return 2
