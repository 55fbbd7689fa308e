"""What four NCCL ranks did on a real GPU, recorded once and kept as small files, for pages to show beside your own run.

    from ringtree.data.recordings import recording
    print(recording("streams"))

prints the recording and where it was made, or one sentence that says that it is still to be made. Either way the text
depends on the recorded file alone, so it is the same on every machine. `make gpu-record`, on a machine with an
NVIDIA GPU, makes the files; nothing else writes into their folder, and what was not measured on a GPU is refused.

A file is CSV: comment lines with its provenance, one a line as JSON, then the columns. Times are in seconds, sizes in bytes.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from ringtree.errors import UsageError
from ringtree.units import binary_text, seconds_text

FOLDER = Path(__file__).parent / "tables" / "recordings"
FIRST_LINE = "# ringtree recording"
COMMAND = "make gpu-record"
GPU, DRY = "GPU", "dry run"

# Every recording: what it is, and its columns with their units ("s", "B", "" for what is printed as it is).
RECORDINGS = {
    "notebooks": (
        "The notebooks' checked outputs over NCCL",
        {"notebook": "", "cell": "", "outcome": "", "report": ""},
    ),
    "first_calls": (
        "The first call of each collective over NCCL, and later ones",
        {"order": "", "place": "", "collective": "", "size": "B", "first": "s", "later": "s", "fastest": "s"},
    ),
    "order": (
        "Reduce and all-reduce over NCCL, timed in both orders",
        {"order": "", "inside": "", "when": "", "collective": "", "time": "s"},
    ),
    "streams": (
        "What the host waits for, and what the stream, over NCCL",
        {"case": "", "size": "B", "late": "s", "returned": "s", "waited": "s", "completed": "", "events": "s", "done": "s"},
    ),
    "synchronize": (
        "A training loop over NCCL with and without synchronize() in it",
        {"loop": "", "matrix": "", "size": "B", "steps": "", "time": "s"},
    ),
    "choices": (
        "All-reduce over NCCL: its time, NCCL's choice and what NCCL expected",
        {
            "size": "B", "time": "s", "low": "s", "high": "s", "wrong": "", "algorithm": "", "protocol": "", "channels": "",
            "expected": "s",
        },
    ),
    "nccl_log": ("What NCCL said of the machine, its table and its choices", {"line": ""}),
    "time_slice": (
        "A ring all-reduce of NCCL ranks that share one GPU: a time slice a step",
        {"ranks": "", "size": "B", "steps": "", "time": "s", "low": "s", "high": "s", "per_step": "s"},
    ),
}  # fmt: skip

# What every file must say of itself; of a GPU's, none of FROM_A_GPU may be missing.
PROVENANCE = (
    "kind", "date", "command", "ranks", "backend", "shared", "gpus", "capability", "driver", "cuda", "torch", "nccl",
    "python", "system", "cores", "ringtree", "commit", "changed", "environment", "settings",
)  # fmt: skip
FROM_A_GPU = ("gpus", "capability", "driver", "cuda", "torch", "nccl")


@dataclass(frozen=True)
class Recording:
    """One recording, made or still to be made; as a condition it is true when made.

    name, about (what it shows), rows (dicts, the columns of RECORDINGS), provenance (the keys of PROVENANCE).
    """

    name: str
    about: str
    rows: list[dict] = field(default_factory=list)
    provenance: dict = field(default_factory=dict)

    def __bool__(self):
        return bool(self.provenance)

    @property
    def source(self) -> str:
        """One sentence: where and when it was made, or that it is still to be made."""
        if not self:
            return f"{self.about}:\nthis recording is still to be made, by `{COMMAND}` on a machine with an NVIDIA GPU."
        told = self.provenance
        return (
            f"{self.about}. Recorded {told['date'][:10]} with {where(told)}, NCCL {told['nccl']}, PyTorch {told['torch']}, "
            f"CUDA {told['cuda']}, driver {told['driver']}, by `{told['command']}`."
        )

    def frame(self):
        """The rows as a pandas DataFrame; empty, with the same columns, while the recording is still to be made."""
        import pandas

        return pandas.DataFrame(self.rows, columns=list(RECORDINGS[self.name][1]))

    @property
    def text(self) -> str:
        """The rows as text: a table with units, a line a notebook, or NCCL's own lines."""
        if self.name == "nccl_log":
            return "\n".join(row["line"] for row in self.rows)
        if self.name == "notebooks":
            return "\n".join(_by_notebook(self.rows))
        return _table(self.rows, RECORDINGS[self.name][1])

    def __str__(self):
        return f"{self.source}\n{self.text}" if self else self.source

    __repr__ = __str__


def recordings(folder=FOLDER) -> dict[str, Recording]:
    """All recordings by name, those that are still to be made too."""
    return {name: recording(name, folder) for name in RECORDINGS}


def recording(name, folder=FOLDER) -> Recording:
    """The recording of that name, which is one of RECORDINGS; it says itself where it is still to be made.

    Raises UsageError for another name, and for a file that is no complete recording of a GPU.
    """
    known, path = _known(name), path_of(name, folder)
    if not path.is_file():
        return Recording(name, known[0])
    rows, told = read(path)
    if told.get("kind") != GPU:
        raise UsageError(f"{path.name} is of kind {told.get('kind')!r}, not measured on a GPU: delete it, it is no recording")
    missing = [key for key in PROVENANCE if key not in told] + [key for key in FROM_A_GPU if told.get(key) in (None, [])]
    if missing or told["backend"] != "nccl":
        what = f"does not say {', '.join(dict.fromkeys(missing))}" if missing else f"ran over {told['backend']}"
        raise UsageError(f"{path.name} {what}, so it is no recording of NCCL on a GPU: make it again with `{COMMAND}`")
    if any(row.keys() != known[1].keys() for row in rows):
        raise UsageError(f"{path.name} lacks some of the columns {', '.join(known[1])}: make it again with `{COMMAND}`")
    return Recording(name, known[0], rows, told)


def path_of(name, folder=FOLDER) -> Path:
    """Where the recording of that name is kept."""
    return Path(folder) / f"{name}.csv"


def where(told) -> str:
    """The ranks and GPUs of a provenance: `4 ranks that share 1 NVIDIA H100`, `4 ranks, one on each of 4 NVIDIA H100`."""
    counted = ", ".join(f"{count} {gpu}" for gpu, count in Counter(told["gpus"]).items())
    if not counted:
        return f"{told['ranks']} ranks on CPUs"
    return f"{told['ranks']} ranks that share {counted}" if told["shared"] else f"{told['ranks']} ranks, one on each of {counted}"


# -- files -----------------------------------------------------------------------


def write(name, rows, provenance, folder=FOLDER, overwrite=False) -> Path:
    """Write one recording's file, making the folder where needed.

    Raises UsageError where the file exists and overwrite is not given, where a dry run would go among the recordings, and
    ValueError where rows or provenance are not what RECORDINGS and PROVENANCE say.
    """
    columns = list(_known(name)[1])
    path = path_of(name, folder)
    if strange := next((row for row in rows if list(row) != columns), None):
        raise ValueError(f"a row of {name} has the columns {', '.join(strange)}: expected {', '.join(columns)}")
    if sorted(provenance) != sorted(PROVENANCE):
        off = sorted(set(provenance) ^ set(PROVENANCE))
        raise ValueError(f"the provenance of {name} lacks, or does not know, {', '.join(off)}: give the keys of PROVENANCE")
    if provenance["kind"] != GPU and Path(folder).resolve() == FOLDER.resolve():
        raise UsageError(f"a {provenance['kind']} has no place among the recordings of GPUs: give another folder")
    if path.exists() and not overwrite:
        raise UsageError(f"{path.name} was recorded already: give --overwrite to record it again, or --only to record others")
    text = io.StringIO(newline="")
    text.write(f"{FIRST_LINE}\n" + "".join(f"# {key}: {json.dumps(provenance[key])}\n" for key in PROVENANCE))
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    table.writerows([_cell(value) for value in row.values()] for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.getvalue(), encoding="utf-8")
    return path


def read(path) -> tuple[list[dict], dict]:
    """(rows, provenance) of a file that `write` wrote; UsageError for any other."""
    head, body = {}, []
    first, *lines = Path(path).read_text(encoding="utf-8").split("\n")
    if first != FIRST_LINE:
        raise UsageError(f"{Path(path).name} does not begin with {FIRST_LINE!r}, so it is no file of `{COMMAND}`: delete it")
    for line in lines:
        key, colon, value = line.removeprefix("# ").partition(": ")
        if not body and line.startswith("# ") and colon:
            head[key] = json.loads(value)
        else:
            body.append(line)
    return [{key: _value(cell) for key, cell in row.items()} for row in csv.DictReader(body)], head


def _cell(value) -> str:
    """A value so that `_value` gives it back: words plainly, all else, and words that look like it, as JSON.

    Of a number that is not whole six digits are kept: no clock here knows more.
    """
    if isinstance(value, float):
        return f"{value:.6g}"
    plain = isinstance(value, str) and value and value.isprintable() and _value(value) is value
    return value if plain else "" if value is None else json.dumps(value, ensure_ascii=False)


def _value(cell):
    if cell == "":
        return None
    try:
        return json.loads(cell)
    except ValueError:
        return cell


def _known(name):
    if name not in RECORDINGS:
        raise UsageError(f"there is no recording {name!r}: give one of {', '.join(RECORDINGS)}")
    return RECORDINGS[name]


# -- text ------------------------------------------------------------------------


def _table(rows, units) -> str:
    """Rows under their columns' names: words to the left, numbers to the right."""
    cells = [list(units), *([_in_words(row[name], unit) for name, unit in units.items()] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(units))]
    left = [all(isinstance(row[name], str) for row in rows) for name in units]
    lines = ("  ".join(t.ljust(w) if to_left else t.rjust(w) for t, w, to_left in zip(row, widths, left)) for row in cells)
    return "\n".join(line.rstrip() for line in lines)


def _in_words(value, unit) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return {"s": seconds_text, "B": binary_text}.get(unit, str)(value)


def _by_notebook(rows) -> list[str]:
    """A line a notebook, with how its cells came out, and below it the cells that came out otherwise than stored."""
    lines = []
    for name in dict.fromkeys(row["notebook"] for row in rows):
        cells = [row for row in rows if row["notebook"] == name]
        counted = Counter(row["outcome"] for row in cells)
        lines.append(f"{name}: {len(cells)} cells, " + ", ".join(f"{n} {outcome}" for outcome, n in sorted(counted.items())))
        lines += [f"  cell {row['cell']}: {row['outcome']}" for row in cells if row["report"]]
    return lines
