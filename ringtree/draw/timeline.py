"""Ranks over time: what each computed, when it waited, and the messages between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.patches import Patch, Rectangle

from ringtree.draw.picture import Picture, picture
from ringtree.draw.style import INK, PAPER, WIDE, figure, headline, letters, narrow, rank_colour, styled
from ringtree.errors import UsageError
from ringtree.given import a, optional, several, takes, text
from ringtree.trace import Span, Trace
from ringtree.units import count_text

HEIGHT = 0.46  # of a rank's bar, in rows
STRIP = 0.12  # of what shows a collective beside it


@styled
@takes(
    traces=a(Trace, Mapping, words="a trace, or a dict from a name to a trace"),
    ranks=optional(several("a list of ranks")),
    title=text,
)
def timeline(traces: Trace | Mapping[str, Trace], *, ranks: Sequence[int] | None = None, title: str = "") -> Picture:
    """Draw a trace, or several under each other on one time axis.

    traces: a `Trace`, or a dict from name to `Trace`. Each rank is a row: a filled bar
    where it computed, a pale one where it waited while its message was moving, a hatched
    one where it waited for a rank that was not ready, and an arrow in the sender's colour
    for each message, from its start to its arrival. A strip under the bar is a collective
    that ran beside the rank: thin where computing hid it, thick where it was exposed. The
    label of the trace (such as "emulated link: …") stands on the picture.
    ranks: the rows to draw, with the messages among them; all ranks when left out.

    Raises UsageError when there is nothing to draw.
    """
    named = dict(traces) if isinstance(traces, Mapping) else {"": traces}
    named = {name: _among(trace, ranks) for name, trace in named.items()}
    for name, trace in named.items():
        if not trace and not trace.spans:
            raise UsageError(f"timeline() was given an empty trace{f' ({name})' if name else ''}: run something first")
    rows = sum(len(trace.rows) for trace in named.values())
    high = 38 if rows <= 16 else max(16, 608 / rows)
    fig, axes = figure(
        WIDE,
        70 + 58 * len(named) + high * rows + (40 if narrow() else 0),  # where titles and the key take more lines
        nrows=len(named),
        sharex=True,
        squeeze=False,
        height_ratios=[len(trace.rows) for trace in named.values()],
    )
    last = max(_last(trace) for trace in named.values())
    scale, unit = _unit(last)
    for (name, trace), axis in zip(named.items(), axes[:, 0], strict=True):
        _draw(axis, trace, scale, last, heads=12 if high > 24 else 8)
        axis.set_title(name)
        axis.set_title(trace.label, loc="right", fontsize=letters(12), fontweight="normal")
    axes[-1, 0].set_xlim(0, last * scale * 1.02)
    axes[-1, 0].set_xlabel(f"time ({unit})")
    headline(fig, title)
    handles = _legend(named.values())
    columns = 1 if narrow() else 3 if len(handles) < 4 else 2
    fig.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)
    return picture(fig, _alt(named))


def _among(trace: Trace, ranks: Sequence[int] | None) -> Trace:
    """The part of a trace that lies in some rows.

    `rows` is where each rank is drawn; `moving`, when a message of it was moving, also one from or to a rank without a row.
    """
    rows = {rank: row for row, rank in enumerate(range(trace.size) if ranks is None else ranks)}
    part = Trace(
        [each for each in trace if each.src in rows and each.dst in rows],
        size=trace.size,
        spans=[each for each in trace.spans if each.rank in rows],
        calls=[each for each in trace.calls if each.rank in rows],
        label=trace.label,
    )
    part.rows = rows
    moving = {rank: [] for rank in rows}
    for message in trace:
        for rank in rows.keys() & {message.src, message.dst}:
            moving[rank].append((message.start, message.end))
    part.moving = {rank: _union(intervals) for rank, intervals in moving.items()}
    return part


def _draw(axis, trace: Trace, scale: float, last: float, heads: float) -> None:
    rows, letter = trace.rows, 0.021 if narrow() else 0.013  # a letter's width, as a part of the axis
    for span in _told_apart(trace):
        left, width = span.start * scale, (span.end - span.start) * scale
        look = _WAITING if span.kind == "wait" else _LOOKS[span.kind](rank_colour(span.rank))
        axis.add_patch(Rectangle((left, rows[span.rank] - HEIGHT / 2), width, HEIGHT, **look))
        if span.kind == "compute" and span.label and width > letter * (len(span.label) + 1) * last * scale:
            axis.text(
                left + width / 2, rows[span.rank], span.label, ha="center", va="center", color="white", fontsize=letters(12)
            )
    for rank, start, end, exposed in _beside(trace):
        high = STRIP if exposed else STRIP / 2
        corner = start * scale, rows[rank] + HEIGHT / 2 + 0.03
        axis.add_patch(Rectangle(corner, (end - start) * scale, high, **(_EXPOSED if exposed else _HIDDEN)))
    for message in trace:
        src, dst = rows[message.src], rows[message.dst]
        towards = 1 if dst > src else -1
        axis.annotate(
            "",
            xy=(message.end * scale, dst - towards * HEIGHT / 2),
            xytext=(message.start * scale, src + towards * HEIGHT / 2),
            arrowprops={
                "arrowstyle": "-|>",
                "color": rank_colour(message.src),
                "linewidth": heads / 6,
                "shrinkA": 0,
                "shrinkB": 0,
                "mutation_scale": heads,
            },
        )
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_yticks(list(rows.values()), [f"rank {rank}" for rank in rows])
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    axis.grid(axis="x")


_WAITING = {"facecolor": "none", "edgecolor": INK, "hatch": "////", "alpha": 0.35, "linewidth": 0.8}


_HIDDEN = {"facecolor": INK, "edgecolor": "none", "alpha": 0.4}
_EXPOSED = {"facecolor": INK, "edgecolor": "none"}


def _computing(colour) -> dict:
    return {"facecolor": colour, "edgecolor": PAPER, "linewidth": 0.8}  # blocks that follow each other stay apart


def _moving(colour) -> dict:
    return {"facecolor": colour, "edgecolor": "none", "alpha": 0.3}


_LOOKS = {"compute": _computing, "move": _moving}


def _legend(traces) -> list:
    traces = list(traces)
    spans = [span for trace in traces for span in _told_apart(trace)]
    kinds = {span.kind for span in spans}
    handles = []
    if "compute" in kinds:
        only_reducing = all(span.label == "reduce" for span in spans if span.kind == "compute")
        handles.append(Patch(label="reduces" if only_reducing else "computes", **_computing(rank_colour(0))))
    if "move" in kinds:
        handles.append(Patch(label="waits for a message on its way", **_moving(rank_colour(0))))
    if "wait" in kinds:
        seen = any(any(trace.moving.values()) for trace in traces)  # of a collective inside the backend no message is seen
        handles.append(Patch(label="waits for a rank that is not ready" if seen else "waits", **_WAITING))
    strips = {exposed for trace in traces for *_, exposed in _beside(trace)}
    if False in strips:
        handles.append(Patch(label="hidden: a collective beside computing", **_HIDDEN))
    if True in strips:
        handles.append(Patch(label="exposed: the rank waits for it", **_EXPOSED))
    return handles


def _beside(trace: Trace) -> list[tuple[int, float, float, bool]]:
    """(rank, start, end, exposed) of the collectives that ran beside a rank, cut where it began or ceased to wait."""
    pieces = []
    for rank in trace.rows:
        ran = _union((call.start, call.end) for call in trace.calls if call.rank == rank and call.beside)
        waits = _union((span.start, span.end) for span in trace.spans if (span.rank, span.kind) == (rank, "wait"))
        for start, end in ran:
            for began, ended in waits:
                began, ended = max(began, start), min(ended, end)
                if began < ended:
                    pieces += [(rank, start, began, False), (rank, began, ended, True)]
                    start = ended
            pieces.append((rank, start, end, False))
    brief = 1e-9 * _last(trace)
    return [piece for piece in pieces if piece[2] - piece[1] > brief]


def _told_apart(trace: Trace) -> list[Span]:
    """The spans, each wait cut into what passed while a message of the rank was moving and the rest."""
    spans = []
    for span in trace.spans:
        if span.kind != "wait":
            spans.append(span)
            continue
        at = span.start
        for start, end in trace.moving[span.rank]:
            start, end = max(start, at), min(end, span.end)
            if start < end:
                spans += [span._replace(start=at, end=start), span._replace(start=start, end=end, kind="move")]
                at = end
        spans.append(span._replace(start=at))
    brief = 1e-9 * _last(trace)
    return [span for span in spans if span.kind == "compute" or span.end - span.start > brief]


def _union(intervals):
    joined = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([start, end])
    return joined


def _alt(named: dict[str, Trace]) -> str:
    """Counts are of the program, not of the machine, so the sentence stays the same on every run."""
    parts = []
    for name, trace in named.items():
        blocks = sum(span.kind == "compute" for span in trace.spans)
        what = f"{count_text(len(trace.rows), 'rank')}, {count_text(len(trace), 'message')}" + (
            f" and {count_text(blocks, 'block')} of computation" if blocks else ""
        )
        beside = sum(call.beside for call in trace.calls)
        what += f", {count_text(beside, 'collective call')} beside them" if beside else ""
        label = f" on an {trace.label.split(':')[0]}" if trace.label.startswith("emulated") else ""
        parts.append(f"{name}: {what}{label}" if name else what + label)
    return "Ranks over time. " + "; ".join(parts) + "."


def _last(trace: Trace) -> float:
    return max(each.end for each in [*trace, *trace.spans, *trace.calls])


def _unit(seconds: float) -> tuple[float, str]:
    for scale, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * scale >= 1:
            return scale, unit
    return 1e9, "ns"
