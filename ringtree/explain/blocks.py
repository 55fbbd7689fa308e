"""What a report is made of: sections of paragraphs, lists and tables, which the text and the page both draw."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Bullets", "Code", "Paragraph", "Section", "Table"]


@dataclass(frozen=True)
class Paragraph:
    """Sentences that belong together."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """Statements, one a bullet, each with its reason."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Code:
    """Lines to be copied as they are."""

    text: str


@dataclass(frozen=True)
class Table:
    """A table of words. head: the columns' names, all but the first aligned to the right; rows: as many words each."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Section:
    """One part of the report. name: a short handle, by which the page finds where its drawings go."""

    name: str
    title: str
    blocks: tuple = ()
