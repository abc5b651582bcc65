"""The checker shares no code with what it checks: it imports nothing of Citrus but what is named here."""

import ast
from pathlib import Path

import pytest

import citrus.checker

FILES = sorted(Path(citrus.checker.__file__).parent.glob("*.py"))
ALLOWED = {
    "citrus.networks.operations": {
        *("Conv", "Linear", "Scale", "Flatten", "Relu", "Add"),  # plain data classes, used by their fields
        *("Affine", "Arithmetic", "Node", "Graph"),
    },
    "citrus.files": {"load_tensors", "save_tensors"},
    "citrus.errors": {"CitrusError"},
}
ARITHMETIC = {"magnitude", "transpose", "reach", "window", "behind"}
"""Methods of operations and of graphs that compute something."""


def strangers(source: str) -> list[str]:
    """Imports that are not allowed, and calls of methods with which a network computes."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] == "citrus"]
        elif isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] == "citrus"):
            inside = not node.level and (node.module or "").startswith("citrus.checker.")
            known = ALLOWED.get(node.module or "", set())
            found += [f"{node.module}.{a.name}" for a in node.names if not inside and a.name not in known]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ARITHMETIC:
            found.append(f".{node.func.attr}()")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "import_module":
            found.append("import_module")
    return found


def test_there_is_something_to_look_at() -> None:
    assert {file.stem for file in FILES} >= {"arithmetic", "enclosure", "proofs", "cover", "certificate", "check"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_imports_nothing_of_the_prover(file: Path) -> None:
    assert strangers(file.read_text()) == []


@pytest.mark.parametrize(
    "planted",
    [
        "import citrus.bounds",
        "from citrus import certify",
        "from citrus.networks.operations import window",
        "from citrus.networks import graph",
        "from citrus.bounds.interval import Box",
        "from ..certify import search",
        "def f():\n    from citrus.certify.search.planes import dual_value",
        "size = op.reach((3, 3))",
        "rows, corner = op.transpose(rows, shape)",
        "importlib.import_module('citrus.bounds')",
    ],
)
def test_a_planted_import_is_noticed(planted: str) -> None:
    assert strangers(f"{FILES[1].read_text()}\n{planted}\n")


def test_only_the_export_of_the_cascade_knows_the_checker() -> None:
    """And neither does the checker's side need anything of it."""
    prover = Path(citrus.checker.__file__).parents[1] / "certify"
    knowing = {
        file.name
        for file in prover.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom) and "citrus.checker" in ast.unparse(node)
    }
    assert knowing == {"export.py"}
