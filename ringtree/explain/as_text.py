"""A report as plain text, at most 100 characters wide."""

from __future__ import annotations

import textwrap

from ringtree.explain.blocks import Bullets, Code, Paragraph, Table

WIDTH = 100


def text_of(sections) -> str:
    """The sections, one below the other."""
    return "\n\n".join(_section(each) for each in sections) + "\n"


def _section(section) -> str:
    parts = [f"{section.title}\n{'-' * len(section.title)}"]
    return "\n\n".join(
        [parts[0] + "\n" + _block(section.blocks[0]), *map(_block, section.blocks[1:])] if section.blocks else parts
    )


def _block(block) -> str:
    if isinstance(block, Paragraph):
        return textwrap.fill(block.text, WIDTH, break_long_words=False, break_on_hyphens=False)
    if isinstance(block, Bullets):
        return "\n".join(
            textwrap.fill(
                item, WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
            )
            for item in block.items
        )
    if isinstance(block, Code):
        return textwrap.indent(block.text, "  ")
    return _table(block)


def _table(table: Table) -> str:
    rows = [table.head, *table.rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.head))]
    return "\n".join(
        "  ".join(
            f"{cell:<{width}}" if not i else f"{cell:>{width}}" for i, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    )
