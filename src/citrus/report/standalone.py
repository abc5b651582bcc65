"""A figure of the report as an SVG file of its own: style, title and legend inside, light and dark."""

from html import escape
from pathlib import Path

from citrus.report.charts import SHAPES
from citrus.report.document import Figure, Key
from citrus.report.page import plain

WIDTH, HEIGHT = 720, 420
LEFT, TOP, RIGHT, BOTTOM = 64, 104, 24, 56  # room around the plot
LETTER = 7.2  # widths of a letter of the legend, for the place of the next entry


def svg_file(figure: Figure) -> str:
    """The text of the file; it needs nothing but itself."""
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    return plain(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">\n'
        f"<style><![CDATA[\n{style}\n"
        "text { font-family: system-ui, sans-serif; fill: var(--ink); } .tick, .axis { fill: var(--soft); }\n"
        f".plot {{ height: 100%; }} .key-mark {{ fill: var(--k); }}\n]]></style>\n"
        f'<rect width="{WIDTH}" height="{HEIGHT}" style="fill: var(--ground)"/>\n'
        f'<text x="{LEFT - 40}" y="32" font-size="17" font-weight="600">{escape(figure.title)}</text>\n'
        f"{_legend(figure.keys)}\n"
        f'<svg x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" height="{HEIGHT - TOP - BOTTOM}" overflow="visible">'
        f"{figure.svg}</svg>\n</svg>\n"
    )


def _legend(keys: tuple[Key, ...]) -> str:
    parts, x = [], float(LEFT - 34)
    for key in keys:
        shape = SHAPES[key.shape % len(SHAPES)]
        parts.append(
            f'<g class="k-{key.colour}" transform="translate({x:.0f} 57)"><path class="key-mark" d="{shape}"/></g>'
        )
        parts.append(f'<text x="{x + 12:.0f}" y="61" font-size="13">{escape(key.text)}</text>')
        x += 12 + LETTER * len(key.text) + 24
    return "".join(parts)
