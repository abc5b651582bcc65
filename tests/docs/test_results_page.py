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


def test_the_page_and_its_figures_are_those_of_the_rows(tool: ModuleType) -> None:
    text, figures = tool.page()
    for name, content in {"results.md": text, **figures}.items():
        written = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert written == content, f"docs/{name} is stale: run python docs/tools/results_page.py"
    assert set(re.findall(r"\((\S+\.svg)\)", text)) == set(figures)
    assert len(text.splitlines()) < 160


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
