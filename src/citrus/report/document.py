"""What a report says, before it is HTML or Markdown: sections made of a few kinds of blocks.

All texts are plain; whoever renders them escapes them. Only `Figure.svg` is markup, made by `charts`.
"""

from dataclasses import dataclass
from typing import Literal

ABSENT = "\N{EN DASH}"
"""Stands in a table where a number is not known."""


@dataclass(frozen=True)
class Strong:
    text: str


@dataclass(frozen=True)
class Code:
    text: str


Words = tuple[str | Strong | Code, ...]


@dataclass(frozen=True)
class Paragraph:
    words: Words
    kind: Literal["plain", "lead", "note"] = "plain"


@dataclass(frozen=True)
class Heading:
    """Below that of the section."""

    text: str


@dataclass(frozen=True)
class Items:
    """A list."""

    items: tuple[Words, ...]


@dataclass(frozen=True)
class Cell:
    text: str
    note: str = ""
    """Said smaller below, such as what a number was measured on."""
    bar: float | None = None
    """Drawn as a bar, of this share of the longest."""
    colour: str = ""
    """Name of a colour: a swatch before the text, or the colour of the bar."""


@dataclass(frozen=True)
class Table:
    """The first cell of a row names it."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    kind: Literal["numbers", "words", "shares"] = "numbers"

    def transposed(self) -> "Table":
        columns = list(zip(*self.rows, strict=True))
        header = (self.header[0], *(cell.text for cell in columns[0]))
        rows = tuple((Cell(name), *column) for name, column in zip(self.header[1:], columns[1:], strict=True))
        return Table(self.caption, header, rows, self.kind)


@dataclass(frozen=True)
class Key:
    """An entry of a legend."""

    text: str
    colour: str
    style: Literal["area", "solid", "dashed", "marker"] = "area"
    shape: int = 0


@dataclass(frozen=True)
class Figure:
    title: str
    description: str
    """What the figure shows, in words: its alternative text."""
    svg: str
    keys: tuple[Key, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Figures:
    """Figures side by side where there is room."""

    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Bar:
    """Parts (count, colour) of one whole, from left to right."""

    label: str
    parts: tuple[tuple[int, str], ...]
    description: str


@dataclass(frozen=True)
class Bars:
    """Stacked bars, each as long as all its parts together."""

    title: str
    bars: tuple[Bar, ...]
    keys: tuple[Key, ...] = ()


@dataclass(frozen=True)
class Picture:
    png: bytes
    alt: str
    caption: str
    wrong: bool = False


@dataclass(frozen=True)
class Gallery:
    """Pictures in a row; each entry is one picture or a pair that belongs together."""

    title: str
    entries: tuple[tuple[Picture, ...], ...]
    large: bool = False


@dataclass(frozen=True)
class Galleries:
    """Galleries side by side where there is room."""

    galleries: tuple[Gallery, ...]


@dataclass(frozen=True)
class Fold:
    """Closed until the reader opens it."""

    summary: str
    blocks: "tuple[Block, ...]"


Block = Paragraph | Heading | Items | Table | Figures | Bars | Galleries | Fold


@dataclass(frozen=True)
class Section:
    anchor: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Document:
    title: str
    subtitle: str
    sections: tuple[Section, ...]
    footer: str
