"""Rows of studies: what is written is read, a crash loses one line at most, and what is not ours is told."""

import json
from pathlib import Path
from typing import Any

import pytest

from citrus.errors import CitrusError
from citrus.studies.rows import ENVIRONMENTS, StudyRows, environment_id, read_rows


def test_what_is_added_is_read_again(tmp_path: Path) -> None:
    rows = StudyRows(tmp_path / "new" / "rows.jsonl", "first")
    added = [rows.add("run", "a", {"clean": 97.5, "pair": (1, 2)}), rows.add("certification", "a", {"certified": 90.0})]
    other = StudyRows(tmp_path / "new" / "rows.jsonl", "second")
    other.add("run", "a", {"clean": 1.0})
    assert added[0]["pair"] == [1, 2], "as JSON gives it back"
    found = StudyRows(tmp_path / "new" / "rows.jsonl", "first")
    assert found.about("a") == added
    assert found.about("a", "certification") == added[1:]
    assert found.about("b") == []
    assert [row["study"] for row in found.rows] == ["first", "first", "second"]
    assert read_rows(tmp_path / "nothing.jsonl") == []


def test_every_row_names_its_environment_which_is_kept_once(tmp_path: Path) -> None:
    for _ in range(2):
        rows = StudyRows(tmp_path / "rows.jsonl", "s")
        rows.add("run", "a", {})
        rows.add("run", "b", {})
    [kept] = read_rows(tmp_path / ENVIRONMENTS)
    assert {row["environment"] for row in rows.rows} == {kept["id"]}
    assert {"torch", "cpu", "threads", "gpu", "git"} <= kept.keys()
    assert kept["id"] == environment_id({key: value for key, value in kept.items() if key != "id"})
    assert kept["id"] != environment_id({**kept, "torch": "another"})


@pytest.mark.parametrize("cut", ["", "{", '{"kind": "run", "na', '{"kind": "run", "name": "no brace"'])
def test_a_line_that_a_crash_cut_short_is_dropped_and_does_not_swallow_the_next(tmp_path: Path, cut: str) -> None:
    path = tmp_path / "rows.jsonl"
    StudyRows(path, "s").add("run", "a", {})
    for file in (path, tmp_path / ENVIRONMENTS):
        with file.open("a") as end:
            end.write(cut)
    rows = StudyRows(path, "s")
    rows.add("run", "b", {})
    assert [row["name"] for row in read_rows(path)] == ["a", "b"]
    assert len(read_rows(tmp_path / ENVIRONMENTS)) == 1


def test_a_row_that_lost_only_the_end_of_its_line_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    StudyRows(path, "s").add("run", "a", {})
    path.write_text(path.read_text().rstrip("\n"))
    StudyRows(path, "s").add("run", "b", {})
    assert [row["name"] for row in read_rows(path)] == ["a", "b"]


@pytest.mark.parametrize("line", [b"not JSON\n", b"[1, 2]\n", b"\xff\xfe\n", b'{"kind": "run"\n{"kind": "run"}\n'])
def test_files_that_are_damaged_or_not_ours_are_told(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(line)
    with pytest.raises(CitrusError, match=r"rows\.jsonl holds a line that is no row"):
        StudyRows(path, "s")
    assert path.read_bytes() == line


def test_a_file_belongs_to_one_question(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    StudyRows(path, "s").claim({"eps": 0.1, "sizes": (2, 5)})
    StudyRows(path, "s").claim({"eps": 0.1, "sizes": (2, 5)})
    [kept] = read_rows(path)
    assert (kept["kind"], kept["eps"]) == ("study", 0.1)
    with pytest.raises(CitrusError, match=r"another study \(eps differ\): choose another --out"):
        StudyRows(path, "s").claim({"eps": 0.2, "sizes": (2, 5)})
    with pytest.raises(CitrusError, match=r"\(study differ\)"):
        StudyRows(path, "t").claim({"eps": 0.1})
    assert len(json.loads(path.read_text().splitlines()[0])["sizes"]) == 2


ROW: dict[str, Any] = {"kind": "run", "study": "s", "name": "a"}


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"kind": "run", "name": "a"},
        {"study": "s", "name": "a"},
        {**ROW, "study": None},
        {**ROW, "name": {"a": 1}},
        {**ROW, "set": None},
        {**ROW, "failed": 0.5},
        {**ROW, "train_seconds": "long"},
        {**ROW, "certified": 10**400},
        {**ROW, "images": float("nan")},
        {"id": 3},
    ],
)
def test_rows_that_nobody_can_use_are_told(tmp_path: Path, row: dict[str, Any]) -> None:
    """Found by `make fuzz`."""
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(CitrusError, match=r"rows\.jsonl holds a line that is no row"):
        StudyRows(path, "s")
