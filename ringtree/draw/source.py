"""The code of a function, on the page, as it is run."""

import inspect
import textwrap


class Source:
    """The source text of a function; a notebook shows it highlighted, and `repr` is the text itself."""

    def __init__(self, function):
        text = textwrap.dedent(inspect.getsource(function)).rstrip("\n")
        self.text = text.replace("  # fmt: skip", "")  # a word to the formatter, not to the reader

    def _repr_markdown_(self):
        return f"```python\n{self.text}\n```"

    def __repr__(self):
        return self.text


def source(function):
    """Show the code of a function: the lines that are run, simulated and counted, not a copy of them."""
    return Source(function)
