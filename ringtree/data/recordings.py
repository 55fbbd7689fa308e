"""What four NCCL ranks did on a real GPU, recorded once and kept as small files, for pages to show beside your own run.

    from ringtree import data
    print(data.recording("streams"))

prints the recording and where it was made, or one sentence that says that it is still to be made. Either way the text
depends on the recorded file alone, so it is the same on every machine. `make gpu-record`, on a machine with an
NVIDIA GPU, makes the files; what was not measured on a GPU is refused. Times are in seconds, sizes in bytes.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from ringtree import tables
from ringtree.errors import UsageError
from ringtree.units import binary_text, count_text, seconds_text

FOLDER = Path(__file__).parent / "tables" / "recordings"
KIND = "ringtree recording"
COMMAND = "make gpu-record"
PAGE_WIDTH = 90  # letters of a line that a page shows whole
GPU, DRY = "GPU", "dry run"

# Every recording: what it is, and its columns.
RECORDINGS = {
    "notebooks": ("The notebooks' checked outputs over NCCL", "notebook cell outcome report"),
    "order": ("Reduce and all-reduce over NCCL, timed in both orders", "order inside when collective time"),
    "streams": ("What the host waits for, and what the stream, over NCCL", "case size late returned waited events done"),
    "synchronize": ("A training loop over NCCL with and without synchronize() in it", "loop matrix size steps time"),
    "choices": (
        "All-reduce over NCCL: its time, NCCL's choice and what NCCL expected",
        "size time low high wrong algorithm protocol channels expected",
    ),
    "pairing": ("The programs of NCCL's rules of pairing, over NCCL", "program way numbers verdict ranks"),
    "hangs": ("Where a recv without a send hangs over NCCL", "case report"),
}
NUMBERS = {
    "float64": "time low high late returned waited events done expected".split(),
    "Int64": "size cell matrix steps wrong channels numbers".split(),
}
TYPES = {column: dtype for dtype, columns in NUMBERS.items() for column in columns}  # all others hold words

# What the words of the table of "pairing" mean.
PAIRING_WORDS = (
    "lazy: no device_id; eager: with device_id; connected: eager, after a message of each pair",
    "in …: hangs on the host, in that call; at the read: hangs, waiting for the GPU; fails: raises",
)

# What an asking rank should have got, where a program of "pairing" may end with wrong data.
RIGHT = {"two tags, received in the other order": "[[2.0], [1.0]]"}

# What every file says of itself, and nothing of it may be missing.
PROVENANCE = (
    "kind",
    "date",
    "command",
    "ranks",
    "backend",
    "shared",
    "gpus",
    "driver",
    "cuda",
    "torch",
    "nccl",
    "commit",
    "changed",
    "settings",
)


@dataclass(frozen=True, eq=False)
class Recording:
    """One recording, made or still to be made; as a condition it is true when made.

    frame: its rows, None while it is still to be made; provenance: where it comes from, with the keys of PROVENANCE.
    """

    name: str
    frame: object = None
    provenance: dict = field(default_factory=dict)

    def __bool__(self):
        return bool(self.provenance)

    def __str__(self):
        about, told = RECORDINGS[self.name][0], self.provenance
        if not self:
            return f"{about}:\nthis recording is still to be made, by `{COMMAND}` on a machine with an NVIDIA GPU."
        made = (
            f"Recorded {told['date'][:10]} with {where(told)}, NCCL {told['nccl']}, PyTorch {told['torch']}, "
            f"CUDA {told['cuda']}, driver {told['driver']}, by `{told['command']}`."
        )
        return "\n".join([f"{about}.", *textwrap.wrap(made, PAGE_WIDTH), rows_text(self.name, self.frame)])

    __repr__ = __str__


def recording(name, folder=FOLDER) -> Recording:
    """The recording of that name, which is one of RECORDINGS; it says itself where it is still to be made.

    Raises UsageError for another name, and for a file that is not a complete recording of a GPU.
    """
    if name not in RECORDINGS:
        raise UsageError(f"there is no recording {name!r}: give one of {', '.join(RECORDINGS)}")
    path = path_of(name, folder)
    if not path.is_file():
        return Recording(name)
    frame, told = tables.parse(path.read_text(encoding="utf-8"), KIND, path.name, TYPES)
    if told.get("kind") != GPU:
        raise UsageError(
            f"{path.name} has the kind {told.get('kind')!r}, which is not measured on a GPU: it is not a recording, so delete it"
        )
    lacking = [key for key in PROVENANCE if told.get(key) in (None, [])]
    wrong = f"does not say {', '.join(lacking)}" if lacking else told.get("truncated")
    if not wrong and told["backend"] != "nccl":
        wrong = f"ran over {told['backend']}"
    if not wrong and list(frame) != RECORDINGS[name][1].split():
        wrong = f"has other columns than {RECORDINGS[name][1]}"
    if wrong:
        raise UsageError(f"{path.name} is not a recording of NCCL on a GPU, {wrong}: make it again with `{COMMAND}`")
    return Recording(name, frame, told)


def write(name, rows, provenance, folder=FOLDER, overwrite=False) -> Path:
    """Write a recording's rows (dicts; what one lacks is missing) and provenance into the folder.

    Raises UsageError where a dry run would go among the recordings, FileExistsError where the file is there, unless overwrite.
    """
    import pandas

    path = path_of(name, folder)
    if provenance["kind"] != GPU and path.parent.resolve() == FOLDER.resolve():
        raise UsageError(f"a {provenance['kind']} has no place among the recordings of GPUs: give another folder")
    columns = RECORDINGS[name][1].split()
    frame = {each: pandas.Series([row.get(each) for row in rows], dtype=TYPES.get(each, "object")) for each in columns}
    told = {key: provenance[key] for key in PROVENANCE}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w" if overwrite else "x", encoding="utf-8") as file:
        file.write(tables.text_of(pandas.DataFrame(frame), told, KIND))
    return path


def path_of(name, folder=FOLDER) -> Path:
    """Return where the recording of that name is kept."""
    return Path(folder) / f"{name}.csv"


def where(told) -> str:
    """The ranks and GPUs of a provenance: `4 ranks that share 1 NVIDIA H100`, `4 ranks, one on each of 4 NVIDIA H100`."""
    counted = ", ".join(f"{count} {gpu}" for gpu, count in Counter(told["gpus"]).items())
    how = " that share " if told["shared"] else ", one on each of "
    return f"{told['ranks']} ranks{how}{counted}" if counted else f"{told['ranks']} ranks on CPUs"


def rows_text(name, frame) -> str:
    """The rows as text: a table with units, or a line a notebook and below it the cells that did not pass."""
    if name == "pairing":
        return _pairing_text(frame)
    if name == "hangs":
        return "\n".join(f"{row.case}: {row.report}" for row in frame.itertuples())
    if name == "notebooks":
        lines = []
        for notebook, cells in frame.groupby("notebook", sort=False):
            counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(Counter(cells["outcome"]).items()))
            told = cells[cells["report"].notna()].itertuples()
            lines += [f"{notebook}: {len(cells)} cells, {counts}", *(f"  cell {row.cell}: {row.outcome}" for row in told)]
        return "\n".join(lines)
    show = {column: seconds_text for column in NUMBERS["float64"]} | {"size": binary_text}
    words = frame.astype(object).apply(lambda column: column.map(show.get(column.name, str), na_action="ignore"))
    return words.to_string(index=False, na_rep="-")


def _pairing_text(frame) -> str:
    """A line a program, a column a way; and one line on the messages of more than one number."""
    found = frame.assign(what=[_outcome(row) for row in frame.itertuples()])
    found = found.groupby(["numbers", "program", "way"], sort=False)["what"].agg(lambda each: " or ".join(dict.fromkeys(each)))
    sizes = list(dict.fromkeys(frame["numbers"]))
    table = found.loc[sizes[0]].unstack("way", fill_value="-")
    programs, ways = (list(dict.fromkeys(frame[column])) for column in ("program", "way"))
    words = [["program", *ways], *([program, *table.loc[program, ways]] for program in programs)]
    widths = [max(map(len, column)) for column in zip(*words)]
    lines = ["  ".join(word.ljust(width) for word, width in zip(line, widths)).rstrip() for line in words]
    for size in sizes[1:]:
        differ = [f"{program}, {way}: {what}" for (program, way), what in found[size].items() if what != table.at[program, way]]
        came = "the same for the programs that were run" if not differ else "the same but for " + "; ".join(differ)
        lines.append(f"Messages of {binary_text(4 * size)}, {count_text(len(found[size]), 'case')}: {came}.")
    return "\n".join([*lines, *PAIRING_WORDS])


def _outcome(row) -> str:
    """Return what became of a program of "pairing", in few words."""
    if row.verdict == "ends":
        return "ends" if RIGHT.get(row.program, "") in row.ranks else "wrong data"
    if row.verdict == "fails":
        return "fails"
    told = [each.partition(": ")[2] for each in row.ranks.split("; ")]
    calls = [each.removeprefix("held in ") for each in told if each.startswith("held in ")]
    calls = ["the batch" if each == "batch_isend_irecv" else each for each in calls]
    calls = [*dict.fromkeys(calls)]
    return f"in {calls[0]}" if len(calls) == 1 else "in both calls" if calls else "at the read"
