"""The page of results is what the rows say: python docs/tools/results_page.py makes it anew."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from support.documents import ROOT

from citrus.studies import read_rows

RESULTS = ROOT / "results"
pytestmark = pytest.mark.skipif(
    not RESULTS.exists(), reason="results/ is part of the repository, not of a source archive"
)
FILES = ("runs", "certifications", "steps")


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results_page", ROOT / "docs" / "tools" / "results_page.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_and_their_figures_are_those_of_the_rows(tool: ModuleType) -> None:
    files = tool.pages()
    for name, content in files.items():
        written = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert written == content, f"docs/{name} is stale: run python docs/tools/results_page.py"
    texts = [text for name, text in files.items() if name.endswith(".md")]
    shown = {figure for text in texts for figure in re.findall(r"\((\S+\.svg)\)", text)}
    assert shown == {name for name in files if name.endswith(".svg")}
    assert max(len(text.splitlines()) for text in texts) < 160


def test_every_row_says_what_it_is_and_where_it_was_made() -> None:
    environments = {row["id"] for row in read_rows(RESULTS / "environments.jsonl")}
    for name in FILES:
        for row in read_rows(RESULTS / f"{name}.jsonl"):
            assert {"kind", "study", "name"} <= row.keys()
            assert row["environment"] in environments
            assert row["kind"] != "planned" or {"recipe", "set", "plan"} <= row.keys()


def test_nothing_certified_was_attacked() -> None:
    for row in read_rows(RESULTS / "certifications.jsonl"):
        if row["kind"] == "certification" and "attacked" in row:
            assert row["certified"] <= row["attacked"] + 1e-9, row["name"]


def test_results_are_not_part_of_the_package() -> None:
    text = Path(ROOT / "pyproject.toml").read_text(encoding="utf-8")
    [sdist] = re.findall(r"targets\.sdist\]\ninclude = \[(.*?)\]", text)
    assert '"results"' not in sdist
    assert '"dev"' in sdist, "pages name the notebook"
