"""What a proof found: a table of meshes, what is wrong by its pattern, and the calls of each axis beside it."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass, field

COLUMNS = ("weights", "loss", "gradients", "norm")
WIDTH, SHOWN = 120, 6


class NotEqualToOne(AssertionError):
    """A step on several ranks is not the step of one process; the report says where."""


@dataclass
class Row:
    """One mesh: "right", "WRONG" or None where it has no result; what each column says; the first wrong step, from 0."""

    mesh: str
    state: str | None
    cells: dict[str, str]
    step: int | None = None


@dataclass
class Finding:
    """One thing that is wrong on some meshes.

    kind: weights, loss, gradients or norm. names: parameters, for weights and gradients, out of `of`. sentence: what is seen.
    inferred: what that lets one suppose, which was not seen. calls: {axes: {operation: counts}} of the first wrong step on
    the mesh `calls_on`.
    """

    kind: str
    names: list[str]
    of: int
    step: int
    where: str
    meshes: list[str]
    sentence: str
    inferred: str | None
    calls: dict[str, dict[str, str]] = field(default_factory=dict)
    calls_on: str = ""

    def subject(self):
        if self.kind in ("loss", "norm"):
            return f"the {self.kind}"
        what = "gradient" if self.kind == "gradients" else "weight"
        if len(self.names) == self.of > 1:
            return f"each {what}"
        shown = self.names if len(self.names) <= SHOWN + 1 else [*self.names[:SHOWN], f"{len(self.names) - SHOWN} more"]
        listed = shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
        return f"the {what} of {listed}" if len(shown) == 1 else f"each {what} of {listed}"

    def __str__(self):
        return f"{self.subject()} {self.sentence}"


class Report:
    """The result of a proof. `print(report)` shows it; `as_dict()` has all of it as plain data.

    status: 0 where every mesh is right, 1 where one is wrong, 2 where none is wrong and one could not be judged.
    """

    def __init__(self, plan, rows, findings, failed, notes=(), steps=1):
        self.step, self.axes, self.steps = f"{plan.step[0]}:{plan.step[1]}", plan.axes, steps
        self.rows, self.findings, self.failed, self.notes = list(rows), list(findings), dict(failed), list(notes)

    @property
    def status(self) -> int:
        if any(row.state == "WRONG" for row in self.rows):
            return 1
        return 2 if self.failed else 0

    def as_dict(self) -> dict:
        return {
            "step": self.step,
            "axes": list(self.axes),
            "verdict": ("right", "wrong", "not judged")[self.status],
            "meshes": [asdict(row) for row in self.rows],
            "findings": [asdict(each) | {"says": str(each)} for each in self.findings],
            "not_judged": self.failed,
            "notes": self.notes,
        }

    def __str__(self):
        lines = [*self._table(), ""]
        for mesh, why in self.failed.items():
            lines += _wrapped(f"{mesh} could not be judged: {why}", "")
        for each in self.findings:
            lines += ["", *_wrapped(f"step {each.step + 1}, {each.where}: {each}.", "  ")]
            if each.inferred:
                lines += _wrapped(f"inferred, not seen: {each.inferred}.", "    ", "  ")
        if self.findings:
            lines += ["", *self._calls()]
        lines += [line for note in self.notes for line in _wrapped(f"note: {note}", "  ")]
        return "\n".join([*lines, self._verdict()]).replace("\n\n\n", "\n\n")

    def _table(self):
        table = [["mesh", *COLUMNS, ""]]
        for row in self.rows:
            state = "not judged" if row.state is None else row.state
            at = f" at step {row.step + 1}" if row.step is not None else ""
            table.append([row.mesh, *(row.cells.get(name, "") for name in COLUMNS), state + at])
        widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
        return ["  ".join(f"{text:{width}}" for text, width in zip(line, widths)).rstrip() for line in table]

    def _calls(self):
        """Calls of the first wrong step, on one mesh for each place that findings have."""
        shown, lines = [], []
        for each in self.findings:
            if each.calls_on in shown:
                continue
            shown.append(each.calls_on)
            lines.append(f"calls of step {each.step + 1} on {each.calls_on}, a rank:")
            for axes, operations in each.calls.items():
                told = "; ".join(f"{operation} {counts}" for operation, counts in operations.items())
                lines += _wrapped(f"{axes}: {told or 'none'}", "    ", "  ")
            if len(shown) == 2:
                break
        return lines

    def _verdict(self):
        count, wrong = len(self.rows), sum(row.state == "WRONG" for row in self.rows)
        if self.status == 1:
            left = f", and {len(self.failed)} could not be judged" if self.failed else ""
            return f"WRONG on {wrong} of {count} meshes{left}: this is not the step of one process."
        if self.status == 2:
            right = count - len(self.failed)
            return f"NOT JUDGED: {len(self.failed)} of {count} meshes" + (f"; right on the other {right}." if right else ".")
        return f"RIGHT: equal to one process on {count} mesh{'es' * (count > 1)}, over {self._steps()}."

    def _steps(self):
        return f"{self.steps} steps" if self.steps > 1 else "one step"


def _wrapped(text, behind, first=""):
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=behind, break_on_hyphens=False, break_long_words=False
    )
