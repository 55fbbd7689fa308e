"""`ringtree explain all_reduce_8.log all_reduce_64.log --html cluster.html`: your cluster on one page."""

from __future__ import annotations

import argparse
import math
import re
import sys
from pathlib import Path

from ringtree.errors import UsageError
from ringtree.explain import as_text, howto
from ringtree.explain.gaps import MOST
from ringtree.explain.report import explain

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}


def arguments(prog="ringtree explain"):
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Explain a cluster from logs of nccl-tests, rccl-tests or OSU: the fitted machine, NCCL's own model, slow "
        "ways, busbw on each wire, the nearest published machine, and what more nodes will do. Without logs: how to make them.",
        epilog="A number may be given once for all logs, or once for each, with commas: --nodes 1,2,8. The exit code is 2 if "
        "a log could not be used; the others are explained all the same.",
    )
    add = parser.add_argument
    add("logs", nargs="*", metavar="LOG", help="a log, CSV or JSON of ringtree.measure, or a published run such as v100_n4_p16")
    add("--html", metavar="FILE", help="write the report as a page with drawings and sliders too, which needs no network")
    add("--overwrite", action="store_true", help="replace FILE if it exists")
    add("--ranks", type=_numbers, metavar="N", help="how many ranks ran, where a log does not say it (OSU's never does)")
    add("--nodes", type=_numbers, metavar="N", help="on how many nodes")
    add("--gpus-per-node", type=_number, metavar="N", help="ranks on each node, instead of --nodes")
    add("--nics", type=_number, metavar="N", help="network cards of a node, for what busbw is on one of them")
    add(
        "--gap",
        type=_seconds,
        metavar="TIME",
        help="between two messages at a port, such as 0.3us (as in the logs, or assumed)",
    )
    add("--collective", metavar="NAME", help="such as all_reduce, where a log does not name it")
    add("--nccl-log", metavar="FILE", help="a log with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING")
    return parser


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 1 or more")
    return int(text)


def _numbers(text: str) -> list[int]:
    return [_number(part) for part in text.split(",")]


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)(e-?\d+)?\s*(s|ms|us|µs|μs|ns)?", text.strip())
    seconds = float(found[1] + (found[2] or "")) * _UNITS[found[3] or "s"] if found else math.inf
    if seconds >= MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time below 1 ms: give one with its unit, such as 0.3us or 300ns")
    return seconds


def main(given=None, prog="ringtree explain") -> int:
    """Returns the exit code: 0, or 2 where something given could not be used."""
    parser = arguments(prog)
    options = parser.parse_args(given)
    try:
        return _run(options)
    except UsageError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    except BrokenPipeError:  # the reader of a pipe has seen enough
        sys.stderr.close()
        return 0


def _run(options) -> int:
    if not options.logs:
        print(as_text.text_of(howto.sections()))
        return 0
    page = _page_to_write(options)
    report = explain(
        *options.logs,
        ranks=options.ranks,
        nodes=options.nodes,
        gpus_per_node=options.gpus_per_node,
        collective=options.collective,
        nics=options.nics,
        nccl_log=_text_of(options.nccl_log),
        gap=options.gap,
    )
    print(report)
    if page:
        page.write_text(report.page(), encoding="utf-8")
        print(f"Written: {page}")
    for each in report.unread:
        print(f"{each.name} could not be used: {each.why}", file=sys.stderr)
    return 2 if report.unread else 0


def _page_to_write(options) -> Path | None:
    if options.html is None:
        return None
    page = Path(options.html)
    if not page.parent.is_dir():
        raise UsageError(f"--html {options.html}: there is no folder {str(page.parent)!r}: make it first, or give another name")
    if page.is_dir():
        raise UsageError(f"--html {options.html} is a folder: give a file's name, such as cluster.html")
    if page.exists() and not options.overwrite:
        raise UsageError(f"--html {options.html} exists already: give another name, or --overwrite")
    return page


def _text_of(path) -> str:
    if path is None:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"--nccl-log {path} cannot be read ({error.strerror}): give the path of a log") from error
