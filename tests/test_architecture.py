"""The shape of the package: who may import whom, no circles, and a checker that shares nothing with the prover.

ALLOWED is the one table of it; docs/architecture.md shows the same table and a picture drawn from the imports.
"""

import ast
import re
from pathlib import Path

import pytest
from architecture import ACROSS, PICTURE, ROOT, SOURCE, Edges, draw, imported, levels, read_edges

ALLOWED: dict[str, str] = {
    "console": "",
    "errors": "",
    "version": "",
    "files": "errors",
    "inputs": "errors",
    "data": "errors files",
    "networks": "errors files inputs",
    "bounds": "errors inputs networks",
    "checker": "errors files networks",
    "attacks": "bounds errors files inputs networks",
    "certify": "attacks bounds checker errors files inputs networks",
    "methods": "attacks bounds errors inputs networks",
    "report": "certify console errors files inputs version",
    "training": "attacks bounds data errors files inputs methods networks version",
    "recipes": "attacks errors methods training",
    "api": "attacks bounds certify checker data errors networks recipes training",
    "studies": "certify console data errors files inputs methods networks recipes report training",
    "__init__": "api version",
    "commands": "attacks certify checker console data errors files inputs networks recipes report studies training",
    "cli": "__init__ errors",
    "__main__": "cli",
}
"""By room: the rooms it may import. `cli` loads the module of a command by its name."""

CHECKER = ("citrus.checker", "citrus.errors", "citrus.files", "citrus.networks.operations")
"""All of the package that the checker may know; of operations only the fields (tests/checker looks at what runs)."""
BRIDGE = {"certify/export.py"}
"""The only files of the prover that know the checker."""


def forbidden(edges: Edges) -> list[str]:
    """Imports that the table does not allow."""
    return [
        f"{room} imports {other}"
        for room, others in edges.items()
        for other in sorted(others)
        if other not in ALLOWED.get(room, "").split()
    ]


def planted(folder: Path, file: str, line: str) -> Path:
    """A copy of the source with one more import."""
    copy = folder / "citrus"
    for path in SOURCE.rglob("*.py"):
        target = copy / path.relative_to(SOURCE)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    (copy / file).write_text((copy / file).read_text(encoding="utf-8") + f"\n{line}\n", encoding="utf-8")
    return copy


def test_rooms_import_only_what_the_table_allows() -> None:
    edges = read_edges()
    assert edges.keys() == ALLOWED.keys()
    assert not forbidden(edges)


def test_the_table_allows_nothing_that_nobody_uses() -> None:
    used = read_edges()
    assert {room: set(others.split()) for room, others in ALLOWED.items()} == used


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("bounds/interval.py", "from citrus.certify import certify"),
        ("training/loop.py", "import citrus.recipes"),
        ("networks/graph.py", "def late():\n    from citrus.bounds import interval"),
        ("checker/proofs.py", "from citrus.bounds import crown"),
        ("methods/base.py", "from citrus import certify"),
    ],
)
def test_a_planted_import_is_found(tmp_path: Path, file: str, line: str) -> None:
    assert forbidden(read_edges(planted(tmp_path, file, line)))


def test_there_is_no_circle() -> None:
    levels(read_edges())
    with pytest.raises(ValueError, match="in a circle: a -> b -> a"):
        levels({"a": {"b"}, "b": {"a"}})


def modules_of(path: Path) -> set[str]:
    return imported(ast.parse(path.read_text(encoding="utf-8")))


def strangers(source: Path) -> list[str]:
    """What the checker imports of the package that it may not know."""
    return [
        f"{path.name}: {module}"
        for path in sorted((source / "checker").glob("*.py"))
        for module in sorted(modules_of(path))
        if not any(module == known or module.startswith(f"{known}.") for known in CHECKER)
    ]


def test_the_checker_knows_no_prover(tmp_path: Path) -> None:
    assert not strangers(SOURCE)
    assert strangers(planted(tmp_path, "checker/cover.py", "from citrus.networks.graph import fold"))


def test_one_file_leads_from_the_prover_to_the_checker() -> None:
    knowing = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if any(module.startswith("citrus.checker") for module in modules_of(path))
    }
    provers = {name for name in knowing if not name.startswith(("checker/", "commands/", "api"))}
    assert provers == BRIDGE


def test_private_names_stay_in_their_file() -> None:
    found = [
        f"{path.relative_to(SOURCE)}: {module}"
        for path in SOURCE.rglob("*.py")
        for module in modules_of(path)
        if re.fullmatch(r"_[a-z]\w*", module.rpartition(".")[2])
    ]
    assert not found


def test_a_class_name_is_used_once() -> None:
    places: dict[str, list[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    assert not {name: files for name, files in places.items() if len(files) > 1}


def test_functions_and_files_can_be_read_in_one_sitting() -> None:
    lengths = []
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 300, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                lengths.append(node.end_lineno - node.lineno + 1 if node.end_lineno else 0)
    assert max(lengths) <= 50
    assert sorted(lengths)[int(0.95 * len(lengths))] < 30


def test_the_documentation_shows_the_table_and_the_picture() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", text, re.MULTILINE))
    assert {room: set(re.findall(r"`(\w+)`", others)) for room, others in rows.items()} == {
        room: set(others.split()) for room, others in ALLOWED.items()
    }
    assert ACROSS.keys() == {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert PICTURE.read_text(encoding="utf-8") == draw(read_edges()), "run: python docs/tools/architecture.py"


def test_the_documentation_names_files_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", text))
    assert len(named) > 20
    assert not [name for name in named if not (SOURCE / name).exists()]
