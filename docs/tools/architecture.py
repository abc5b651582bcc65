"""The rooms of the package and who imports whom, read from the source: python docs/tools/architecture.py

Writes docs/architecture.svg. A room is a folder or a file directly below src/citrus; the picture shows the folders.
`tests/test_architecture.py` holds the table of imports that are allowed and fails when this picture is not the code's
any more.
"""

import ast
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "citrus"
PICTURE = ROOT / "docs" / "architecture.svg"

Edges = dict[str, set[str]]
"""By room: the rooms it imports."""

WIDTH, ROW, BOX, MARGIN = 760, 78, 34, 20
ACROSS = {
    "commands": 0.5,
    "studies": 0.5,
    "recipes": 0.22,
    "report": 0.84,
    "training": 0.22,
    "methods": 0.34,
    "certify": 0.66,
    "attacks": 0.46,
    "bounds": 0.46,
    "checker": 0.86,
    "data": 0.08,
    "networks": 0.56,
}
"""Where a folder stands from left to right, chosen so that no line runs through a box."""


def imported(tree: ast.AST) -> set[str]:
    """The modules of the package that a file imports, also inside functions: citrus.bounds.interval and the like."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name == "citrus" or name.startswith("citrus.")}


def room_of(module: str, rooms: set[str]) -> str:
    """The room of a dotted module; the root where it is in none."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in rooms else "__init__"


def read_edges(source: Path = SOURCE) -> Edges:
    """Who imports whom, room by room."""
    files = sorted(source.rglob("*.py"))
    place = {file: file.relative_to(source).parts[0].removesuffix(".py") for file in files}
    rooms = set(place.values())
    edges: Edges = {room: set() for room in sorted(rooms)}
    for file, room in place.items():
        tree = ast.parse(file.read_text(encoding="utf-8"))
        edges[room] |= {room_of(module, rooms) for module in imported(tree)} - {room}
    return edges


def levels(edges: Edges) -> dict[str, int]:
    """The height of each room: one above the highest of those it imports. A cycle is an error."""
    found: dict[str, int] = {}

    def height(room: str, path: tuple[str, ...]) -> int:
        if room in path:
            raise ValueError(f"imports run in a circle: {' -> '.join((*path, room))}")
        if room not in found:
            found[room] = 1 + max((height(other, (*path, room)) for other in edges[room]), default=-1)
        return found[room]

    for room in edges:
        height(room, ())
    return found


def direct(edges: Edges) -> list[tuple[str, str]]:
    """The imports that no chain of others implies: few enough to draw."""

    def below(room: str) -> set[str]:
        return edges[room] | {far for near in edges[room] for far in below(near)}

    return [
        (room, other)
        for room, others in edges.items()
        for other in sorted(others)
        if not any(other in below(between) for between in others - {other})
    ]


def draw(edges: Edges) -> str:
    """Folders in rows, each above all that it imports, as SVG."""
    edges = {room: others & ACROSS.keys() for room, others in edges.items() if room in ACROSS}
    height = levels(edges)
    top = max(height.values())
    place = {}
    for room, level in sorted(height.items()):
        width = 9 * len(room) + 28
        place[room] = (ACROSS[room] * WIDTH - width / 2, MARGIN + (top - level) * ROW, width)
    lines = []
    for room, other in direct(edges):
        (x, y, width), (to_x, to_y, to_width) = place[room], place[other]
        lines.append(f'<line x1="{x + width / 2:.0f}" y1="{y + BOX}" x2="{to_x + to_width / 2:.0f}" y2="{to_y - 5}"/>')
    boxes = [
        f'<rect x="{x:.0f}" y="{y}" width="{width}" height="{BOX}" rx="6"/>'
        f'<text x="{x + width / 2:.0f}" y="{y + 22}">{escape(room)}</text>'
        for room, (x, y, width) in place.items()
    ]
    size = 2 * MARGIN + top * ROW + BOX
    style = (
        "rect { fill: #f3f6fb; stroke: #35507c; } line { stroke: #8090a8; marker-end: url(#arrow); } "
        "text { font: 15px ui-monospace, monospace; text-anchor: middle; fill: #1b2434; }"
    )
    arrow = '<marker id="arrow" markerWidth="8" markerHeight="8" refX="6" refY="3" orient="auto">'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{size}" viewBox="0 0 {WIDTH} {size}">',
            f'<style>{style}</style><rect width="{WIDTH}" height="{size}" style="fill: #fff; stroke: none"/>',
            f'<defs>{arrow}<path d="M0 0 7 3 0 6z" fill="#8090a8"/></marker></defs>',
            *lines,
            *boxes,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    PICTURE.write_text(draw(read_edges()), encoding="utf-8")
    print(PICTURE)
