"""The same document as Markdown: tables and texts; what figures show is told in words."""

import re

from citrus.report.document import (
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
    Paragraph,
    Strong,
    Table,
    Words,
)
from citrus.report.page import plain


def markdown(document: Document) -> str:
    parts = [f"# {_e(document.title)}", _e(document.subtitle)]
    for section in document.sections:
        parts.append(f"## {_e(section.title)}")
        parts += [_block(block) for block in section.blocks]
    return plain("\n\n".join([*parts, _e(document.footer)]) + "\n")


def _e(text: str) -> str:
    """Letters that mean something to Markdown or HTML are escaped, and a text stays on its line."""
    return re.sub(r"([\\`*_{}\[\]<>#|~&$])", r"\\\1", " ".join(text.split()))


def _block(block: Block) -> str:
    match block:
        case Paragraph():
            return _words(block.words)
        case Heading():
            return f"### {_e(block.text)}"
        case Items():
            return "\n".join(f"- {_words(item)}" for item in block.items)
        case Table():
            return _table(block)
        case Figures():
            return "\n\n".join(_figure(f) for f in block.figures)
        case Bars():
            told = "\n".join(f"- {_e(bar.label)}: {_e(bar.description)}" for bar in block.bars)
            return f"**{_e(block.title)}**\n\n{told}"
        case Galleries():
            return "\n\n".join(_gallery(gallery) for gallery in block.galleries)
        case Fold():
            return "\n\n".join([f"### {_e(block.summary)}", *(_block(b) for b in block.blocks)])


def _words(words: Words) -> str:
    return "".join(_word(word) for word in words)


def _word(word: str | Strong | Code) -> str:
    match word:
        case Strong():
            return f"**{_e(word.text)}**"
        case Code():
            fence = "`" * (1 + max((len(run) for run in re.findall("`+", word.text)), default=0))
            return f"{fence} {' '.join(word.text.split())} {fence}"
        case _:
            before, after = word[: len(word) - len(word.lstrip())], word[len(word.rstrip()) :]
            return f"{before and ' '}{_e(word)}{after and ' '}" if word.strip() else " "


def _table(table: Table) -> str:
    rule = ["---", *("---:" if table.kind == "numbers" else "---" for _ in table.header[1:])]
    lines = [[_e(name) for name in table.header], rule, *([_cell(cell) for cell in row] for row in table.rows)]
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"**{_e(table.caption)}**\n\n{rows}"


def _cell(cell: Cell) -> str:
    return f"{_e(cell.text)} ({_e(cell.note)})" if cell.note else _e(cell.text)


def _gallery(gallery: Gallery) -> str:
    entries = "\n".join(f"- {_e(' '.join(picture.alt for picture in entry))}" for entry in gallery.entries)
    return f"**{_e(gallery.title)}**\n\n{entries}"


def _figure(figure: Figure) -> str:
    return f"**{_e(figure.title)}**: {_e(figure.description)}"
