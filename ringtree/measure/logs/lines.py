"""The lines of a log as the benchmark printed them: without colours, quotes, and what launchers put before each."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ringtree.watching import COLORS

NOT_SHOWN = re.compile(COLORS.pattern + "|[\ufeff\u200b]")
QUOTE = re.compile(r"\s*>+(?:\s|(?=#)|$)")  # of a mail, or of markdown
# mpirun and ts with times, kubectl logs --timestamps, GitHub's runners, syslog, Python's logging, NCCL's own
TIME = re.compile(
    r"\s*(?:\[?(?:\d{4}[-/]\d\d[-/]\d\d[T ])?\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z| ?[+-]\d\d:?\d\d)?\]?[:,]?(?=[\s\[<#]|$)"
    r"|(?:[A-Z][a-z]{2},? )?[A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d(?: \d{4}(?=[\[<]))?(?=[\s\[<]|$))"
)
# mpirun --tag-output, torchrun --tee, Hydra's -l, kubectl logs --prefix | Ray's workers | docker compose | srun -l, pdsh, clush
ORIGIN = re.compile(
    r"\s*(?:(\[[^\[\]\s]{1,100}\])(?:<std(?:out|err|diag)>)?:?|(\([^()]{1,100}\))(?=\s)"
    r"|((?=[^|]*[A-Za-z])[\w./-]{1,100}) *\|(?=\s)|(?![nr]ccl-tests:)([\w.-]{1,100}):(?=\s|$))"
)
# NCCL's own lines come in between, and in the middle of a line, which goes on after them: "-1node7:880:910 [3] NCCL INFO …".
NCCL_SAYS = re.compile(
    r"(?:^\s*|(?<=-1)|(?<=N/A)|(?<=\s\d)(?=[A-Za-z])|(?<=\s)(?!\d[A-Za-z]))"
    r"[A-Za-z0-9][\w.-]*:\d+:\d+ \[-?\d+\] .*?\bNCCL (?:INFO|WARN|TRACE|CALL|VERSION|ABORT).*"
)
BARS = re.compile(r"[|│┃]")


@dataclass(frozen=True)
class Line:
    """One line: where it stands in the log, whose it is (what launchers say of it), its text, and all of it."""

    number: int
    stream: str
    text: str
    whole: str


def lines_of(text) -> list[Line]:
    """The lines of a log, in its order, with those of several processes told apart by their `stream`."""
    return [_line(number, whole) for number, whole in enumerate(NOT_SHOWN.sub("", text).split("\n"), 1)]


def _line(number, whole):
    text, stream = whole, []
    while True:
        if match := TIME.match(text) or QUOTE.match(text):
            pass
        elif match := ORIGIN.match(text):
            stream.append(next(filter(None, match.groups())))
        else:
            break
        text = text[match.end() :]
    if "NCCL" in text:
        text = NCCL_SAYS.sub("", text)
    return Line(number, " ".join(stream), _without_bars(text), whole)


def _without_bars(text):
    """A row of a table in markdown, or one with commas between, as words."""
    if len(BARS.findall(text)) > 3:
        return BARS.sub(" ", text)
    if text.count(",") > 5 and re.match(r"\W*(?:\d+ *,|size *, *count)", text):
        return text.replace(",", " ")
    return text
