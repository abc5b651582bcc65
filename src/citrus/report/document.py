"""The pieces of a report: each function gives a block, which is HTML and, for the twin of the page, Markdown.

Texts are plain and escaped here; only the SVG of a figure is markup, made by `charts`. Markdown tells it in words.
"""

import base64
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from string import Template
from typing import Literal

ABSENT = "\N{EN DASH}"
"""Stands in a table where a number is not known."""
SHAPES = ("M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", "M-3.6-3.6h7.2v7.2h-7.2z", "M0-4.8 4.6 3.6h-9.2z", "M0-5 5 0 0 5-5 0z")
"""Markers of lines, as paths of SVG."""


@dataclass(frozen=True)
class Block:
    html: str
    markdown: str
    around: str = ""
    """The HTML element that holds this block and its neighbours of the same kind, such as a list."""


@dataclass(frozen=True)
class Cell:
    """Of a table."""

    text: str
    note: str = ""
    """Said smaller below, such as what a number was measured on."""
    bar: float | None = None
    """Drawn as a bar, of this share of the longest."""
    colour: str = ""
    """Name of a colour: a swatch before the text, or the colour of the bar."""


Cells = Sequence[str | Cell]  # of a row


@dataclass(frozen=True)
class Key:
    """An entry of a legend."""

    text: str
    colour: str
    style: Literal["area", "solid", "dashed", "marker"] = "area"
    shape: int = 0

    @property
    def path(self) -> str:
        return SHAPES[self.shape % len(SHAPES)]


@dataclass(frozen=True)
class Figure:
    title: str
    description: str
    """What the figure shows, in words: its alternative text."""
    svg: str
    keys: tuple[Key, ...] = ()


@dataclass(frozen=True)
class Picture:
    png: bytes
    alt: str
    caption: str
    wrong: bool = False


def plain(text: str) -> str:
    """Text that every file and terminal can show: no control characters, no reversed writing, no half characters."""
    whole = text.encode("utf-8", "replace").decode("utf-8")
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", "\N{REPLACEMENT CHARACTER}", whole)


def style() -> str:
    """The style sheet of the page and of the figures."""
    return Path(__file__).with_name("page.css").read_text(encoding="utf-8")


def _html(text: str) -> str:
    """Text that breaks within a very long word, but not between a number and its unit."""
    whole = re.sub(r"(?<=\d) (?=%|s\b)|(?<=\bN) (?==)|(?<=\bN =) (?=\d)", "\N{NO-BREAK SPACE}", text)
    return "<wbr>".join(escape(part) for part in re.split(r"(\S{24})(?=\S{8})", whole) if part)


def _markdown(text: str) -> str:
    """Letters that mean something to Markdown or HTML are escaped, and a text stays on its line."""
    return re.sub(r"([\\`*_{}\[\]<>#|~&$])", r"\\\1", re.sub(r"\s+", " ", text))


def strong(text: str) -> Block:
    return Block(f"<strong>{_html(text)}</strong>", f"**{_markdown(text).strip()}**")


def code(text: str) -> Block:
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return Block(f"<code>{_html(text)}</code>", f"{fence} {' '.join(text.split())} {fence}")


def paragraph(*words: str | Block, kind: Literal["plain", "lead", "note", "heading", "item"] = "plain") -> Block:
    """Items that follow each other become one list; a heading is below that of the section."""
    parts = [Block(_html(word), _markdown(word)) if isinstance(word, str) else word for word in words]
    html, told = "".join(part.html for part in parts), "".join(part.markdown for part in parts)
    if kind == "heading":
        return Block(f"<h3>{html}</h3>", f"### {told}")
    if kind == "item":
        return Block(f"<li>{html}</li>", f"- {told}", "ul")
    return Block(f'<p class="{kind}">{html}</p>', told)


def table(
    caption: str,
    header: Sequence[str],
    rows: Iterable[Cells],
    kind: Literal["numbers", "words", "shares"] = "numbers",
) -> Block:
    """The first cell of a row names it."""
    cells = [[Cell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    head = "".join(f'<th scope="col">{_html(name)}</th>' for name in header)
    body = "".join(
        f'<tr><th scope="row">{_cell(first)}</th>{"".join(f"<td>{_cell(cell)}</td>" for cell in others)}</tr>'
        for first, *others in cells
    )
    html = (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}"><table class="{kind}">'
        f"<caption>{_html(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
    told = [[cell.text + (f" ({cell.note})" if cell.note else "") for cell in row] for row in cells]
    lines = [f"| {' | '.join(_markdown(text) for text in line)} |" for line in (header, *told)]
    lines.insert(1, "| --- " + ("| ---: " if kind == "numbers" else "| --- ") * (len(header) - 1) + "|")
    return Block(html, "\n".join([f"**{_markdown(caption)}**", "", *lines]))


def _cell(cell: Cell) -> str:
    note = f"<small>{_html(cell.note)}</small>" if cell.note else ""
    if cell.bar is not None:
        bar = f'<svg class="bar" aria-hidden="true"><rect class="k-{cell.colour}" width="{100 * cell.bar:.2f}%"/></svg>'
        return f"{_html(cell.text)} {note}{bar}"
    swatch = f'<span class="swatch k-{cell.colour}"></span>' if cell.colour else ""
    return f"{swatch}{_html(cell.text)}{note}"


def figure(shown: Figure, wide: bool = False) -> Block:
    """Figures that follow each other stand side by side where there is room, if they are not `wide`."""
    keys = "".join(f"<li>{_swatch(key)}{_html(key.text)}</li>" for key in shown.keys)
    legend = f'<ul class="legend">{keys}</ul>' if keys else ""
    inner = shown.svg if wide else f'<div class="frame">{shown.svg}</div>'
    html = f"<figure><figcaption>{_html(shown.title)}</figcaption>{legend}{inner}</figure>"
    told = f"**{_markdown(shown.title)}**: {_markdown(shown.description)}"
    return Block(html, told, "" if wide else 'div class="figures"')


def _swatch(key: Key) -> str:
    if key.style == "marker":
        return f'<svg class="key k-{key.colour}" viewBox="-6 -6 12 12" aria-hidden="true"><path d="{key.path}"/></svg>'
    return f'<span class="swatch {key.style} k-{key.colour}"></span>'


def gallery(title: str, entries: Iterable[Sequence[Picture]], large: bool = False) -> Block:
    """Pictures in a row, one by one or as pairs that belong together; galleries stand side by side, too."""
    pictures, told = "", []
    for entry in entries:
        pictures += f"<li>{''.join(_picture(picture) for picture in entry)}</li>"
        told += [picture.alt for picture in entry]
    kind = "gallery large" if large else "gallery"
    html = f'<figure><figcaption>{_html(title)}</figcaption><ul class="{kind}">{pictures}</ul></figure>'
    return Block(html, f"**{_markdown(title)}**: {_markdown(' '.join(told))}", 'div class="galleries"')


def _picture(picture: Picture) -> str:
    data, kind = base64.b64encode(picture.png).decode(), "picture wrong" if picture.wrong else "picture"
    image = f'<img src="data:image/png;base64,{data}" alt="{escape(picture.alt)}">'
    return f'<span class="{kind}">{image}<span>{_html(picture.caption)}</span></span>'


def fold(summary: str, *blocks: Block) -> Block:
    """Closed until the reader opens it."""
    inner = _together(blocks)
    html = f"<details><summary>{_html(summary)}</summary>\n{inner.html}\n</details>"
    return Block(html, f"### {_markdown(summary)}\n\n{inner.markdown}")


def _together(blocks: Iterable[Block]) -> Block:
    html, markdown = [], []
    for around, group in groupby(blocks, key=lambda block: block.around):
        members = list(group)
        inner = "\n".join(block.html for block in members)
        html.append(f"<{around}>{inner}</{around.split()[0]}>" if around else inner)
        markdown += [block.markdown for block in members]
    return Block("\n".join(html), "\n\n".join(markdown))


@dataclass(frozen=True)
class Section:
    anchor: str
    title: str
    blocks: tuple[Block, ...]


def document(title: str, subtitle: str, sections: Sequence[Section], footer: str) -> Block:
    """One page that needs nothing but itself: style inside, images as data, no script."""
    links, body, told = "", "", [f"# {_markdown(title)}", _markdown(subtitle)]
    for section in sections:
        inner, name = _together(section.blocks), f"{section.anchor}-heading"
        links += f'<li><a href="#{section.anchor}">{_html(section.title)}</a></li>'
        body += (
            f'<section id="{section.anchor}" aria-labelledby="{name}">\n<h2 id="{name}">{_html(section.title)}</h2>\n'
            f"{inner.html}\n</section>\n"
        )
        told += [f"## {_markdown(section.title)}", inner.markdown]
    html = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8")).substitute(
        title=escape(title),
        style=style(),
        heading=_html(title),
        subtitle=_html(subtitle),
        links=links,
        body=body,
        footer=_html(footer),
    )
    return Block(plain(html), plain("\n\n".join([*told, _markdown(footer)]) + "\n"))
