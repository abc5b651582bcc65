"""A figure of the report as an SVG file of its own: style, title and legend inside, light and dark."""

from html import escape

from citrus.report.document import Figure, Key, plain, style

WIDTH, HEIGHT = 720, 420
LEFT, TOP, RIGHT, BOTTOM = 64, 104, 24, 56  # room around the plot
LINE = 22  # height of a line of the legend
LETTER = 7.2  # widths of a letter of the legend, for the place of the next entry


def svg_file(figure: Figure) -> str:
    """The text of the file; it needs nothing but itself."""
    legend, lines = _legend(figure.keys)
    top, height = TOP + (lines - 1) * LINE, HEIGHT + (lines - 1) * LINE
    return plain(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">\n'
        f"<style><![CDATA[\n{style()}\n"
        "text { font-family: system-ui, sans-serif; fill: var(--ink); } .tick, .axis { fill: var(--soft); }\n"
        f".plot {{ height: 100%; }} .key-mark {{ fill: var(--k); }}\n]]></style>\n"
        f'<rect width="{WIDTH}" height="{height}" style="fill: var(--ground)"/>\n'
        f'<text x="{LEFT - 40}" y="32" font-size="17" font-weight="600">{escape(figure.title)}</text>\n'
        f"{legend}\n"
        f'<svg x="{LEFT}" y="{top}" width="{WIDTH - LEFT - RIGHT}" height="{height - top - BOTTOM}" overflow="visible">'
        f"{figure.svg}</svg>\n</svg>\n"
    )


def _legend(keys: tuple[Key, ...]) -> tuple[str, int]:
    """The entries, and how many lines they take."""
    parts, left, line = [], float(LEFT - 34), 0
    x = left
    for key in keys:
        width = 12 + LETTER * len(key.text)
        if x > left and x + width > WIDTH - RIGHT:
            x, line = left, line + 1
        parts.append(
            f'<g class="k-{key.colour}" transform="translate({x:.0f} {57 + line * LINE})">'
            f'<path class="key-mark" d="{key.path}"/>'
            f'<text x="12" y="4" font-size="13">{escape(key.text)}</text></g>'
        )
        x += width + 24
    return "".join(parts), line + 1
