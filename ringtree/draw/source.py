"""The code of a function, on the page, as it is run."""

from __future__ import annotations

import functools
import inspect
import textwrap

from ringtree.errors import UsageError


class Source:
    """The source text of a program; a notebook shows it highlighted, and `repr` is the text itself."""

    def __init__(self, program):
        text = textwrap.dedent(_code(program)).rstrip("\n")
        self.text = text

    def _repr_markdown_(self):
        return f"```python\n{self.text}\n```"

    def __repr__(self):
        return self.text


def source(program):
    """Show the code of a program: the lines that are run, simulated and counted, not a copy of them.

    Of a partial, the code of its function below a line for each argument that was given to it; of an object
    that can be called, its `__call__`; of a lambda, the statement that it stands in.
    Raises UsageError where the code is not known: a function of C, or text given to `exec`.
    """
    return Source(program)


def _code(program) -> str:
    if isinstance(program, functools.partial):
        return "".join(f"# with {each}\n" for each in _given(program)) + textwrap.dedent(_code(program.func))
    written = program if inspect.isroutine(program) or inspect.isclass(program) else getattr(type(program), "__call__", None)  # noqa: B004 - the code is wanted
    try:
        return inspect.getsource(written)
    except (TypeError, OSError):
        name = getattr(program, "__name__", repr(program))
        what = "whose code is not known here" if callable(program) else "which is not a program"
        raise UsageError(f"source() was given {name}, {what}: give a function that a cell or a file defines") from None


def _given(program: functools.partial) -> list[str]:
    """The arguments of a partial, as `name=value`."""
    try:
        given = inspect.signature(program.func).bind_partial(*program.args, **program.keywords).arguments
    except (TypeError, ValueError):
        given = {**{f"argument {place}": value for place, value in enumerate(program.args, 1)}, **program.keywords}
    return [f"{name}={getattr(value, '__name__', None) or ' '.join(repr(value).split())}" for name, value in given.items()]
