"""`%%px`, the magic of ipyparallel, with what a course on collectives needs.

Output in rank order, one block a rank; a deadline for every cell, and a report that
names who waits for whom when it passes; one traceback, not four.
"""

import argparse
import re
import sys
import tempfile

from ipyparallel.client.magics import ParallelMagics
from IPython.core import error
from IPython.display import publish_display_data

from ringtree import watching
from ringtree.errors import UsageError
from ringtree.live import cluster
from ringtree.live.processes import launchers
from ringtree.live.reports import deadline

TELL_AFTER = 2.0  # seconds before a long cell says which ranks have finished
MOST_TEXT = 1_000_000  # characters a rank; the Jupyter server drops what comes faster
CELL_FILE = re.compile(re.escape(tempfile.gettempdir()) + r"/ipykernel_\d+/\d+\.py")
NOT_STARTED = "there are no ranks yet: run `ringtree.start(4)` in a cell before this one"


def load(shell):
    """Register `%%px` and its family with a shell, and warm up what ranks are forked from."""
    shell.register_magics(RankMagics(shell, view=None))
    if launchers.can_fork():
        launchers.fork_server()


class _Options(argparse.ArgumentParser):
    """Our own option, taken out of the line before ipyparallel reads the rest."""

    def error(self, message):
        raise UsageError(message)


def _take_timeout(line):
    parser = _Options(prog="%%px", add_help=False, allow_abbrev=False)
    parser.add_argument("--timeout", type=float)
    known, rest = parser.parse_known_args(line.split())
    if known.timeout is not None and not known.timeout > 0:
        raise UsageError(f"--timeout {known.timeout:g}: give the seconds that the cell may take, more than 0")
    return known.timeout, " ".join(rest)


class RankMagics(ParallelMagics):
    """ipyparallel's magics on the ranks of this kernel. `%%px --timeout S` sets a cell's deadline."""

    _seconds = None
    _local_cell = None

    def px(self, line=""):
        self.view = _require_ranks().view
        return super().px(line)

    px.__doc__ = ParallelMagics.px.__doc__

    def pxconfig(self, line):
        self.view = _require_ranks().view
        return super().pxconfig(line)

    pxconfig.__doc__ = ParallelMagics.pxconfig.__doc__
    pxconfig.parser = ParallelMagics.pxconfig.parser

    def cell_px(self, line="", cell=None):
        ranks = _require_ranks()
        self.view = ranks.view
        seconds, line = _take_timeout(line)
        words = line.split()
        self._seconds = seconds or ranks.timeout
        self._local_cell = cell if "--local" in words else None
        try:
            return super().cell_px(" ".join(word for word in words if word != "--local"), _same_lines(cell))
        except error.UsageError as mistake:
            raise UsageError(f"%%px {line}: {mistake}") from None  # IPython's own would not fail the cell
        finally:
            self._seconds = self._local_cell = None

    cell_px.__doc__ = ParallelMagics.cell_px.__doc__
    cell_px.parser = ParallelMagics.cell_px.parser

    def result(self, line=""):
        """Show the output of the last `%%px --noblock` once more, or for the first time."""
        if self.last_result is None:
            raise UsageError("%pxresult shows what the last %%px cell gave, but no such cell has run yet: run one first")
        self.last_result.get()
        show(self.last_result, self.last_result._targets)

    result.parser = ParallelMagics.result.parser

    def parallel_execute(self, cell, block=None, groupby="type", save_name=None, **_):
        """Run `cell` on the view's targets; wait with a deadline; show output by rank."""
        ranks = _require_ranks()
        self.view = ranks.view
        ranks.check_allotment()
        block = self.view.block if block is None else block
        try:
            result = self.view.execute(cell, silent=False, block=False)
        except IndexError:
            raise UsageError(f"--targets {self.view.targets}: the ranks are 0 to {ranks.size - 1}, give some of them") from None
        result._fname = "%px"
        self.last_result = result
        if save_name:
            self.shell.user_ns[save_name] = result
        here = None if self._local_cell is None else self.shell.run_cell(self._local_cell)
        if not block:
            return result
        targets = result._targets if isinstance(result._targets, list | tuple) else [result._targets]
        status = _Status(self.shell, list(targets), result)
        ranks.finish(
            result,
            list(targets),
            self._seconds or ranks.timeout,
            tell=status.tell,
            show=lambda: (status.clear(), show(result, targets)),
        )
        if here and not here.success:
            raise deadline.RankError("the ranks finished the cell; in this notebook it raised, as shown above")


def _require_ranks():
    """Return the ranks of this kernel. Raises UsageError where there are none."""
    ranks = cluster.current()
    if ranks is None:
        raise UsageError(NOT_STARTED)
    return ranks


def _same_lines(cell):
    """Line numbers on the ranks as the reader sees them, where `%%px` is line 1."""
    return cell if cell.startswith("%%") else "#\n" + cell


class _Status:
    """For somebody who watches: which ranks have finished, while a long cell runs."""

    def __init__(self, shell, targets, result):
        self.watched = watching.notebook_is_watched(shell)
        self.line = watching.Line()
        self.targets = targets
        self.result = result

    def tell(self, done, seconds):
        if self.watched and seconds >= TELL_AFTER:
            self.line.show(self._text(done, seconds))

    def _text(self, done, seconds):
        lines = [f"{len(done)} of {len(self.targets)} ranks have finished, {int(seconds)} s"]
        for i, child in zip(self.targets, self.result._children):
            if i not in done:
                said = child.output.metadata["stdout"].strip().rpartition("\n")[2]
                lines.append(f"  rank {i} is running" + (f": {said[:100]}" if said else ""))
        return "\n".join(lines)

    def clear(self):
        if self.line.text is not None:
            from IPython.display import clear_output

            clear_output()


def show(result, targets):
    """Print what each rank printed and returned, in rank order, a block a rank."""
    children = dict(zip(targets, result._children))
    for child in children.values():
        if child.done() and not hasattr(child.result(), "ename"):
            child.output.wait(5)  # its output is complete when the rank says that it is idle
    for i in sorted(children):
        metadata = children[i].output.metadata
        value = metadata["execute_result"]
        say(sys.stdout, i, metadata["stdout"])
        say(sys.stderr, i, metadata["stderr"])
        for output in metadata["outputs"]:
            publish_display_data(data=output["data"], metadata=output.get("metadata", {}))
        if value:
            say(sys.stdout, i, value["data"]["text/plain"])


def say(stream, i, text):
    """One block of a rank's text, each line marked with the rank, in one message."""
    if not text:
        return
    if len(text) > MOST_TEXT:
        text = f"{text[:MOST_TEXT]}\n… {len(text) - MOST_TEXT} more characters are not shown"
    text = CELL_FILE.sub("the cell", text.rstrip("\n") + "\n")
    stream.flush()
    stream.write("".join(f"[rank {i}] {line}" for line in text.splitlines(True)))
    stream.flush()
