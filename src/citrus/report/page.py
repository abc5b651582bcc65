"""A document as one HTML page that needs nothing but itself: style inside, images as data, no script."""

import base64
import re
from html import escape
from pathlib import Path

from citrus.report.charts import SHAPES
from citrus.report.document import (
    Bar,
    Bars,
    Block,
    Cell,
    Code,
    Document,
    Figure,
    Figures,
    Fold,
    Galleries,
    Gallery,
    Heading,
    Items,
    Key,
    Paragraph,
    Picture,
    Section,
    Strong,
    Table,
    Words,
)

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Says to the browser what is true of the page anyway: it runs nothing and fetches nothing."""
HATCH = (
    '<svg class="hidden" aria-hidden="true" focusable="false"><defs><pattern id="hatch" width="6" height="6" '
    'patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="6" height="6" class="hatch-ground"/>'
    '<rect width="2.5" height="6" class="hatch-line"/></pattern></defs></svg>'
)


def plain(text: str) -> str:
    """Text that every file and terminal can show: no control characters, no reversed writing, no half characters."""
    whole = text.encode("utf-8", "replace").decode("utf-8")
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", "\N{REPLACEMENT CHARACTER}", whole)


def html_page(document: Document) -> str:
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    links = "".join(f'<li><a href="#{s.anchor}">{_t(s.title)}</a></li>' for s in document.sections)
    body = "".join(_section(section) for section in document.sections)
    return plain(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{_e(document.title)} · Citrus report</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f'<a class="skip" href="#main">Skip to the content</a>\n{HATCH}\n'
        f'<header><p class="brand">Citrus report</p><h1>{_t(document.title)}</h1>'
        f"<p>{_t(document.subtitle)}</p></header>\n"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n'
        f'<main id="main" tabindex="-1">\n{body}</main>\n'
        f"<footer><p>{_t(document.footer)}</p></footer>\n</body>\n</html>\n"
    )


def _e(text: str) -> str:
    return escape(text, quote=True)


def _t(text: str) -> str:
    """Text that breaks within a very long word, but not between a number and its unit."""
    whole = re.sub(r"(?<=\d) (?=%|s\b)|(?<=\bN) (?==)|(?<=\bN =) (?=\d)", "\N{NO-BREAK SPACE}", text)
    return "<wbr>".join(_e(part) for part in re.split(r"(\S{24})(?=\S{8})", whole) if part)


def _section(section: Section) -> str:
    inner = "\n".join(_block(block) for block in section.blocks)
    name = f"{section.anchor}-heading"
    return (
        f'<section id="{section.anchor}" aria-labelledby="{name}">\n<h2 id="{name}">{_t(section.title)}</h2>\n'
        f"{inner}\n</section>\n"
    )


def _block(block: Block) -> str:
    match block:
        case Paragraph():
            return f'<p class="{block.kind}">{_words(block.words)}</p>'
        case Heading():
            return f"<h3>{_t(block.text)}</h3>"
        case Items():
            return f"<ul>{''.join(f'<li>{_words(item)}</li>' for item in block.items)}</ul>"
        case Table():
            return _table(block)
        case Figures():
            return f'<div class="figures">{"".join(_figure(f) for f in block.figures)}</div>'
        case Bars():
            return _bars(block)
        case Galleries():
            return f'<div class="galleries">{"".join(_gallery(g) for g in block.galleries)}</div>'
        case Fold():
            inner = "\n".join(_block(b) for b in block.blocks)
            return f"<details><summary>{_t(block.summary)}</summary>\n{inner}\n</details>"


def _words(words: Words) -> str:
    tags = {Strong: "strong", Code: "code"}
    return "".join(_e(w) if isinstance(w, str) else f"<{tags[type(w)]}>{_e(w.text)}</{tags[type(w)]}>" for w in words)


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{_t(name)}</th>' for name in table.header)
    rows = "".join(
        f'<tr><th scope="row">{_cell(row[0])}</th>{"".join(f"<td>{_cell(cell)}</td>" for cell in row[1:])}</tr>'
        for row in table.rows
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{_e(table.caption)}">'
        f'<table class="{table.kind}"><caption>{_t(table.caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _cell(cell: Cell) -> str:
    note = f"<small>{_t(cell.note)}</small>" if cell.note else ""
    if cell.bar is not None:
        bar = f'<svg class="bar" aria-hidden="true"><rect class="k-{cell.colour}" width="{100 * cell.bar:.2f}%"/></svg>'
        return f"{_t(cell.text)} {note}{bar}"
    swatch = f'<span class="swatch k-{cell.colour}"></span>' if cell.colour else ""
    return f"{swatch}{_t(cell.text)}{note}"


def _figure(figure: Figure) -> str:
    note = f'<p class="note">{_t(figure.note)}</p>' if figure.note else ""
    return (
        f"<figure><figcaption>{_t(figure.title)}</figcaption>{_legend(figure.keys)}"
        f'<div class="frame">{figure.svg}</div>{note}</figure>'
    )


def _legend(keys: tuple[Key, ...]) -> str:
    if not keys:
        return ""
    return f'<ul class="legend">{"".join(f"<li>{_swatch(key)}{_t(key.text)}</li>" for key in keys)}</ul>'


def _swatch(key: Key) -> str:
    if key.style == "marker":
        shape = SHAPES[key.shape % len(SHAPES)]
        return f'<svg class="key k-{key.colour}" viewBox="-6 -6 12 12" aria-hidden="true"><path d="{shape}"/></svg>'
    return f'<span class="swatch {key.style} k-{key.colour}"></span>'


def _bars(block: Bars) -> str:
    inner = "".join(_bar(bar) for bar in block.bars)
    return (
        f'<figure class="bars"><figcaption>{_t(block.title)}</figcaption>{_legend(block.keys)}{inner}'
        '<p class="scale" aria-hidden="true"><span>0 %</span><span>50 %</span><span>100 %</span></p></figure>'
    )


def _bar(bar: Bar) -> str:
    whole, done, parts = sum(number for number, _ in bar.parts) or 1, 0, []
    for number, colour in bar.parts:
        place, width = 100 * done / whole, 100 * number / whole
        if number:
            parts.append(f'<rect class="k-{colour}" x="{place:.3f}%" width="{width:.3f}%"/>')
        done += number
    label = _e(f"{bar.label}: {bar.description}")
    return (
        f'<p class="label">{_t(bar.label)}</p><svg class="stack" role="img" aria-label="{label}">'
        f"<title>{label}</title>{''.join(parts)}</svg>"
    )


def _gallery(gallery: Gallery) -> str:
    entries = "".join(f"<li>{''.join(_picture(p) for p in entry)}</li>" for entry in gallery.entries)
    kind = "gallery large" if gallery.large else "gallery"
    return f'<figure><figcaption>{_t(gallery.title)}</figcaption><ul class="{kind}">{entries}</ul></figure>'


def _picture(picture: Picture) -> str:
    data = base64.b64encode(picture.png).decode()
    kind = "picture wrong" if picture.wrong else "picture"
    caption = f"<span>{_t(picture.caption)}</span>" if picture.caption else ""
    return f'<span class="{kind}"><img src="data:image/png;base64,{data}" alt="{_e(picture.alt)}">{caption}</span>'
