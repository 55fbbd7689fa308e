"""A pipeline's step: what each rank computes when, and how many micro-batches it holds meanwhile."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.patches import Patch, Rectangle

from ringtree.draw.picture import Picture, picture
from ringtree.draw.style import INK, PAPER, RANK_COLOURS, WIDE, figure, headline, letters, narrow, styled
from ringtree.errors import UsageError
from ringtree.given import a, takes, text
from ringtree.simulated.sketches.pipeline import action_of, held
from ringtree.trace import Trace
from ringtree.units import count_text

KINDS = {
    "F": ("forward", RANK_COLOURS[0]),
    "B": ("backward", RANK_COLOURS[5]),
    "I": ("backward, for the input", RANK_COLOURS[1]),
    "W": ("backward, for the weights", RANK_COLOURS[2]),
}
BAR, STRIP = 0.46, 0.32  # heights of the boxes and of the strip under them, in rows


@styled
@takes(traces=a(Trace, Mapping, words="a trace, or a dict from a name to a trace"), title=text)
def pipeline(traces: Trace | Mapping[str, Trace], *, title: str = "") -> Picture:
    """Draw traces of `simulated.sketches.pipeline`, under each other on one time axis.

    traces: a `Trace`, or a dict from name to `Trace`. Each rank is a row of boxes, a micro-batch's number in each; those of
    a rank's second stage are pale. The strip below is how many micro-batches the rank holds, at the right the most; with
    v stages a rank one of them counts 1/v.

    Raises UsageError for a trace in which a rank computes nothing, or something else than a pipeline's actions.
    """
    named = dict(traces) if isinstance(traces, Mapping) else {"": traces}
    for name, trace in named.items():
        idle = [rank for rank in range(trace.size) if not _stages(trace, rank)]
        if idle:
            raise UsageError(
                f"pipeline() was given a trace {name} in which rank {idle[0]} computes nothing: run a pipeline's step"
            )
    rows = sum(trace.size for trace in named.values())
    fig, axes = figure(
        WIDE,
        72 + 40 * len(named) + 42 * rows + (40 if narrow() else 0),
        nrows=len(named),
        sharex=True,
        squeeze=False,
        height_ratios=[trace.size for trace in named.values()],
    )
    last = max(span.end for trace in named.values() for span in trace.spans)
    most = max(_most(trace, counts) for trace in named.values() for counts in held(trace))
    seen = {}
    for (name, trace), axis in zip(named.items(), axes[:, 0], strict=True):
        axis.set_title(name)
        seen |= _draw_boxes(axis, trace, last)
        _draw_held(axis, trace, last, most)
        axis.set_ylim(trace.size - 0.35, -0.4)
        axis.set_yticks(range(trace.size), [f"rank {rank}" for rank in range(trace.size)])
        axis.tick_params(axis="y", length=0)
        axis.spines["left"].set_visible(False)
        axis.spines["bottom"].set_visible(False)
        axis.tick_params(axis="x", length=0, labelbottom=False)
    axes[-1, 0].set_xlim(0, last * 1.06)
    axes[-1, 0].set_xlabel("time →")
    headline(fig, title)
    handles = [Patch(label=KINDS[kind][0], facecolor=KINDS[kind][1]) for kind in KINDS if kind in seen]
    handles.append(Patch(label="micro-batches held, and the most", facecolor=INK, alpha=0.35))
    columns = 1 if narrow() and len(handles) > 3 else 2 if narrow() or len(handles) > 3 else 3
    fig.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)
    return picture(fig, _alt(named))


def _stages(trace: Trace, rank: int) -> list[int]:
    return sorted({action_of(span.label)[0] for span in trace.spans if span.rank == rank and span.kind == "compute"})


def _most(trace: Trace, counts) -> float:
    """The most micro-batches that a rank holds, each stage of the rank counting as its share of them."""
    return max(count for _, count in counts) / len(_stages(trace, 0))


def _draw_boxes(axis, trace: Trace, last: float) -> dict:
    seen = {}
    letter = last * (0.027 if narrow() else 0.0125)  # what a figure takes of the axis
    for span in trace.spans:
        if span.kind != "compute":
            continue
        stage, kind, microbatch = action_of(span.label)
        colour, width = KINDS[kind][1], span.end - span.start
        later = stage != _stages(trace, span.rank)[0]
        axis.add_patch(Rectangle((span.start, span.rank - BAR / 2), width, BAR, facecolor=PAPER, edgecolor="none"))
        look = {"facecolor": colour, "edgecolor": PAPER, "linewidth": 0.8, "alpha": 0.3 if later else 1.0}
        axis.add_patch(Rectangle((span.start, span.rank - BAR / 2), width, BAR, **look))
        if width > letter * len(str(microbatch)):
            axis.text(
                span.start + width / 2,
                span.rank,
                str(microbatch),
                ha="center",
                va="center_baseline",
                color=INK if later else "white",
                fontsize=letters(11.5),
            )
        seen[kind] = True
    return seen


def _draw_held(axis, trace: Trace, last: float, most: float) -> None:
    for rank, counts in enumerate(held(trace)):
        ground, stages = rank + BAR / 2 + STRIP, len(_stages(trace, rank))
        times, heights = [], []
        for (when, count), (until, _) in zip(counts, [*counts[1:], counts[-1]]):
            times += when, until
            heights += [ground - STRIP * count / stages / most] * 2
        axis.fill_between(times, heights, ground, color=INK, alpha=0.35, linewidth=0)
        axis.text(last * 1.012, ground - STRIP / 2, f"{_most(trace, counts):g}", va="center", fontsize=letters(11.5))


def _alt(named: Mapping[str, Trace]) -> str:
    parts = []
    for name, trace in named.items():
        most = ", ".join(f"{_most(trace, counts):g}" for counts in held(trace))
        blocks = sum(span.kind == "compute" for span in trace.spans)
        what = f"{count_text(trace.size, 'rank')}, {count_text(blocks, 'block')} of computation; micro-batches held at most: {most}"
        parts.append(f"{name}: {what}" if name else what)
    return "A pipeline's step. " + "; ".join(parts) + "."
