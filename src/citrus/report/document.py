"""The pieces of a report: each function gives a piece, which is HTML and, for the twin of the page, Markdown.

Texts are plain: the macros of pieces.html escape them, `in_markdown` does it for Markdown. That tells figures in words.
"""

import base64
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined  # torch brings it along
from markupsafe import Markup, escape

TOGETHER = r"(?<=\d) (?=%|s\b)|(?<=\bN) (?==)|(?<=\bN =) (?=\d|all\b)|(?<=\ball) (?=\(?\d)"  # spaces that never break
ABSENT = "\N{EN DASH}"
"""Stands in a table where a number is not known."""


@dataclass(frozen=True)
class Piece:
    html: Markup
    markdown: str
    around: str = ""
    """Neighbours of the same kind, such as items of a list, stand in one element of this class."""


@dataclass(frozen=True)
class Cell:
    """Of a table."""

    text: str
    note: str = ""
    """Said smaller below, such as what a number was measured on."""


Cells = Sequence[str | Cell]  # of a row, or of a column


@dataclass(frozen=True)
class Key:
    """An entry of a legend."""

    text: str
    colour: str
    style: Literal["area", "solid", "dashed", "marker"] = "area"
    marker: str = ""
    """Its shape, as a path of SVG."""


@dataclass(frozen=True)
class Figure:
    title: str
    description: str
    """What the figure shows, in words: its alternative text."""
    svg: Markup
    keys: tuple[Key, ...] = ()
    caption: str = ""
    """One sentence on how to read it."""


@dataclass(frozen=True)
class Picture:
    png: bytes
    alt: str
    caption: str
    wrong: bool = False


@dataclass(frozen=True)
class Section:
    anchor: str
    title: str
    pieces: Sequence[Piece]


# --------------------------------------------------------------------------------------------------------------- pieces


def strong(text: str) -> Piece:
    return Piece(Markup("<strong>{}</strong>").format(in_html(text)), f"**{in_markdown(text).strip()}**")


def code(text: str) -> Piece:
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return Piece(Markup("<code>{}</code>").format(in_html(text)), f"{fence} {' '.join(text.split())} {fence}")


def paragraph(*words: str | Piece, kind: Literal["plain", "lead", "note", "heading", "item"] = "plain") -> Piece:
    """Items that follow each other become one list; a heading is below that of the section."""
    parts = [Piece(in_html(word), in_markdown(word)) if isinstance(word, str) else word for word in words]
    html, told = Markup("").join(part.html for part in parts), "".join(part.markdown for part in parts)
    if kind == "heading":
        return Piece(Markup("<h3>{}</h3>").format(html), f"### {told}")
    if kind == "item":
        return Piece(Markup("<li>{}</li>").format(html), f"- {told}", "items")
    return Piece(Markup('<p class="{}">{}</p>').format(kind, html), told)


def table(
    caption: str, header: Sequence[str], rows: Sequence[Cells], kind: Literal["numbers", "words"] = "numbers"
) -> Piece:
    """The first cell of a row names it."""
    cells = [[Cell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    told = [[cell.text + (f" ({cell.note})" if cell.note else "") for cell in row] for row in cells]
    lines = [f"| {' | '.join(map(in_markdown, row))} |" for row in (header, *told)]
    lines.insert(1, "| --- " + ("| ---: " if kind == "numbers" else "| --- ") * (len(header) - 1) + "|")
    html = draw("table", caption=caption, header=header, rows=cells, kind=kind)
    return Piece(html, "\n".join([f"**{in_markdown(caption)}**", "", *lines]))


def figure(shown: Figure, wide: bool = False) -> Piece:
    """Figures that follow each other stand side by side where there is room, if they are not `wide`."""
    told = f"**{in_markdown(shown.title)}**: {in_markdown(' '.join(filter(None, (shown.caption, shown.description))))}"
    return Piece(draw("figure", shown=shown, wide=wide), told, "" if wide else "figures")


def gallery(title: str, entries: Sequence[Sequence[Picture]], large: bool = False) -> Piece:
    """Pictures in a row, one by one or as pairs that belong together; galleries stand side by side, too."""
    told = " ".join(picture.alt for entry in entries for picture in entry)
    html = draw("gallery", title=title, entries=entries, large=large)
    return Piece(html, f"**{in_markdown(title)}**: {in_markdown(told)}", "galleries")


def fold(summary: str, *pieces: Piece) -> Piece:
    """Closed until the reader opens it."""
    markdown = "\n\n".join([f"### {in_markdown(summary)}", *(piece.markdown for piece in pieces)])
    return Piece(draw("fold", summary=summary, pieces=pieces), markdown)


def document(title: str, subtitle: str, sections: Sequence[Section], footer: str) -> Piece:
    """One page that needs nothing but itself: style inside, images as data, no script."""
    told = [f"# {in_markdown(title)}", in_markdown(subtitle)]
    for section in sections:
        told += [f"## {in_markdown(section.title)}", *(piece.markdown for piece in section.pieces)]
    told.append(in_markdown(footer))
    page = templates().get_template("page.html")
    html = page.render(title=title, subtitle=subtitle, sections=sections, footer=footer)
    return Piece(Markup(plain(html)), plain("\n\n".join(told) + "\n"))


# ---------------------------------------------------------------------------------------------------------------- texts


def plain(text: str) -> str:
    """Text that every file and terminal can show: no control characters, no reversed writing, no half characters."""
    whole = text.encode("utf-8", "replace").decode("utf-8")
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", "\N{REPLACEMENT CHARACTER}", whole)


def in_html(text: str) -> Markup:
    """Text that breaks within a very long word, but not between a number and its unit."""
    whole = re.sub(TOGETHER, "\N{NO-BREAK SPACE}", text)
    return Markup("<wbr>").join(escape(part) for part in re.split(r"(\S{24})(?=\S{8})", whole) if part)


def in_markdown(text: str) -> str:
    """Letters that mean something to Markdown or HTML are escaped, and a text stays on its line."""
    return re.sub(r"([\\`*_{}\[\]<>#|~&$])", r"\\\1", re.sub(r"\s+", " ", text))


def neighbours(pieces: Iterable[Piece]) -> list[tuple[str, list[Piece]]]:
    """What stands around pieces that follow each other, and those pieces."""
    return [(around, list(group)) for around, group in groupby(pieces, key=lambda piece: piece.around)]


@cache
def templates() -> Environment:
    """The files of this folder that hold HTML and SVG; they escape all that is put into them."""
    folder = FileSystemLoader(Path(__file__).parent)
    made = Environment(loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {"soft": in_html, "base64": lambda data: base64.b64encode(data).decode(), "neighbours": neighbours}
    return made


def draw(macro: str, **values: Any) -> Markup:
    """What a macro of pieces.html makes of values."""
    found: Markup = getattr(templates().get_template("pieces.html").module, macro)(**values)
    return found
