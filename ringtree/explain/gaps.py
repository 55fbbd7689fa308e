"""The gap g of each wire: as given, as inferred from the logs, or as the described wires have it."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from ringtree.errors import UsageError
from ringtree.theory import CARD_GAP, NVLINK_GAP, fit_gap
from ringtree.units import seconds_text

__all__ = ["MOST", "Gap", "gaps", "sentences"]

MOST = 1e-3
"""Seconds: a gap is less, on every wire that there is."""
_DESCRIBED = {"inside": NVLINK_GAP, "between": CARD_GAP}
_WHERE = {"inside": "inside a node", "between": "between nodes"}


@dataclass(frozen=True)
class Gap:
    """The gap of one wire, "inside" a node or "between" nodes, in seconds.

    source: "given", "inferred" or "described". basis: what it rests on, as a clause; of a described one why the logs do not
    hold it.
    """

    wire: str
    seconds: float
    source: str
    basis: str = ""


def gaps(sweeps, given: float | None = None, nics: int | None = None) -> dict[str, Gap]:
    """The gap of each wire that the sweeps use: a given one counts first, then one that the logs hold."""
    inside, between = (any(sweep.cards > 1 for sweep in sweeps), any(sweep.nodes > 1 for sweep in sweeps))
    wires = [wire for wire, used in (("inside", inside), ("between", between)) if used]
    return {wire: _gap(wire, sweeps, given, nics) for wire in wires}


def _gap(wire, sweeps, given, nics) -> Gap:
    if given is not None:
        return Gap(wire, given, "given")
    try:
        found = fit_gap(_samples([sweep for sweep in sweeps if (sweep.nodes > 1) == (wire == "between")]), nics)
    except UsageError as error:
        return Gap(wire, _DESCRIBED[wire], "described", str(error).replace("give nics,", "give --nics,"))
    return Gap(wire, found.gap, "inferred", f"{found}, if all messages are posted at once")


def _samples(sweeps) -> pd.DataFrame:
    columns = ("collective", "ranks", "nodes")
    parts = [
        pd.DataFrame({**{name: getattr(one, name) for name in columns}, "size": one.sizes, "time": one.times}) for one in sweeps
    ]
    return pd.concat(parts) if parts else pd.DataFrame(columns=[*columns, "size", "time"])


def sentences(found: dict[str, Gap]) -> str:
    """Return which gaps a report reckons with, and where they are from."""
    where = {wire: f"{seconds_text(gap.seconds)} {_WHERE[wire]}" for wire, gap in found.items()}
    said = []
    if given := [where[wire] for wire, gap in found.items() if gap.source == "given"]:
        said.append(f"g, the gap between two messages at a port, is {' and '.join(given)}, as given with --gap.")
    said += [f"g {_WHERE[wire]} is {gap.basis}." for wire, gap in found.items() if gap.source == "inferred"]
    if described := [wire for wire, gap in found.items() if gap.source == "described"]:
        why = "; ".join(dict.fromkeys(found[wire].basis for wire in described))
        said.append(
            f"g, the gap between two messages at a port, is {' and '.join(where[wire] for wire in described)}: assumed, as for "
            f"the wires that this book describes, and not measured here ({why}). Give yours with --gap, such as --gap 0.5us."
        )
    return " ".join(said)
