"""Plans: a recipe and what is set in it become runs, on held-out images or on the test set, and a table."""

import json
from pathlib import Path
from typing import Any

import pytest

from citrus.cli import main
from citrus.errors import CitrusError
from citrus.recipes import recipe
from citrus.report.document import ABSENT
from citrus.studies import read_rows
from citrus.studies.plan import read_plan, runs_sheet

SHORT = {"epochs": 2, "ramp_epochs": 1, "warmup_epochs": 0, "milestones": "1", "network": "mlp", "test_images": 10}


@pytest.fixture
def write_plan(tmp_path: Path, blobs_file: str) -> Any:
    def write(*entries: Any) -> Path:
        (tmp_path / "plan.json").write_text(json.dumps(list(entries)))
        return tmp_path / "plan.json"

    return write


def test_a_recipe_with_what_is_set_in_it(write_plan: Any) -> None:
    path = write_plan(
        {"name": "held out", "recipe": "quickstart", "set": {"method.tau_ratio": 0.4, "compile": "true"}},
        {"name": "all", "recipe": "quickstart", "set": {"validation": 0}},
    )
    first, second = read_plan(path, certify=100)
    assert first.config.method.tau_ratio == 0.4  # type: ignore[union-attr]
    assert first.config.compile
    assert second.config.method == recipe("quickstart").method
    assert (first.on, second.on) == ("validation", "test"), "held-out images where there are some"
    assert first.source == {"recipe": "quickstart", "set": {"method.tau_ratio": 0.4, "compile": "true"}}
    assert [(s.group_size, s.grouping) for s in first.proofs] == [(5, "correct"), (20, "correct")]
    assert first.images == 100
    assert read_plan(path)[0].proofs == ()
    assert [entry.on for entry in read_plan(path, on="test")] == ["test", "test"]


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([{"name": "a"}], "is no list of runs with a name, a recipe and what is set"),
        (["a"], "is no list of runs"),
        ([{"name": "a", "recipe": "quickstart", "set": 3}], "is no list of runs"),
        ([{"name": "a", "recipe": "quickstrat"}], "did you mean 'quickstart'"),
        ([{"name": "a", "recipe": "quickstart", "set": {"epoch": 3}}], "did you mean 'epochs'"),
        ([{"name": "a", "recipe": "quickstart"}] * 2, "gives a name to two runs"),
        ([{"name": "../a", "recipe": "quickstart"}], r"'\.\./a' is no name for a folder"),
        ([{"name": "", "recipe": "quickstart"}], "'' is no name for a folder"),
        ([{"name": "..", "recipe": "quickstart"}], r"'\.\.' is no name for a folder"),
    ],
)
def test_plans_that_are_not_understood(write_plan: Any, entries: list[Any], says: str) -> None:
    with pytest.raises(CitrusError, match=says):
        read_plan(write_plan(*entries))


def test_a_run_without_held_out_images_is_not_measured_on_them(write_plan: Any) -> None:
    path = write_plan({"name": "a", "recipe": "quickstart", "set": {"validation": 0}})
    with pytest.raises(CitrusError, match="a holds out no images"):
        read_plan(path, on="validation")


def test_the_command(write_plan: Any, blobs_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = {**SHORT, "data": blobs_file, "batch_size": 20, "validation": 20}
    path = write_plan(
        {"name": "small", "recipe": "quickstart", "set": {**short, "method.tau_ratio": 0.4}},
        {"name": "wrong", "recipe": "quickstart", "set": {**short, "batch_size": 1000}},
    )
    words = ["bench", "plan", str(path), "--out", str(tmp_path / "out"), "--device", "cpu", "--certify", "10"]
    assert main(words) == 2, "a run failed"
    out, err = capsys.readouterr()
    assert "[1/2] small" in err
    [small] = (line for line in out.splitlines() if line.startswith("| small |"))
    assert "method.tau_ratio 0.4" in small
    assert "| validation |" in small
    assert "N = 5: " in small
    assert "N = 20: " in small
    assert "batch_size 1000 is larger than the 130 training images" in out
    rows = read_rows(tmp_path / "out" / "rows.jsonl")
    assert [(row["kind"], row["name"]) for row in rows] == [
        ("study", ""),
        ("run", "small"),
        ("certification", "small"),
        ("certification", "small"),
        ("run", "wrong"),
    ]
    assert all(row["study"] == "plan" for row in rows)
    assert main(words) == 2
    assert "[1/2]" not in capsys.readouterr().err, "what is finished is not redone"
    assert main([*words[:-1], "12"]) == 1
    assert "another study (certify differ)" in capsys.readouterr().err
    assert main(["bench", "rows", str(tmp_path / "out" / "rows.jsonl")]) == 0
    assert small in capsys.readouterr().out


def test_words_that_are_not_understood(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for words, says in (
        (["plan"], "Which plan?"),
        (["plan", str(tmp_path / "none.json")], "none.json"),
        (["plan", "plan.json", "--worker", "3"], "--workers"),
        (["rows"], "Which rows?"),
        (["rows", str(tmp_path / "none.jsonl")], "Which rows?"),
    ):
        assert main(["bench", *words]) == 1
        assert says in capsys.readouterr().err


def test_the_table_of_runs_shows_failed_and_planned_ones() -> None:
    start = {"study": "s", "recipe": "quickstart"}
    measured = {"on": "test", "clean": 97.5, "note": "shared"}
    rows = [
        {"kind": "study", "study": "s", "name": ""},
        {"kind": "run", "name": "a", **start, "set": {"epochs": 3, "seed": 1}, **measured},
        {"kind": "run", "name": "b", **start, "set": {}, "failed": "no | luck\nat all"},
        {"kind": "planned", "name": "c", **start, "set": {}},
        {"kind": "certification", "name": "a", "study": "s", "group_size": 5, "certified": 90.0, "images": 20},
    ]
    assert runs_sheet(rows).cells == [
        ["a", "quickstart", "epochs 3", "test", ABSENT, "97.50", "N = 5: 90.00 of 20; shared"],
        ["b", "quickstart", "", ABSENT, ABSENT, ABSENT, "no / luck at all"],
        ["c", "quickstart", "", ABSENT, ABSENT, ABSENT, "planned"],
    ]


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '[{"name": "a", "recipe": 3}]',
        '[{"name": "a", "recipe": null}]',
        '[{"name": "a", "recipe": {"b": 1}}]',
        "[{}]",
        "3",
    ],
)
def test_a_file_that_is_no_plan_is_told(text: str, tmp_path: Path) -> None:
    """Found by `make fuzz`."""
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(CitrusError, match=r"plan\.json"):
        read_plan(tmp_path / "plan.json")
    with pytest.raises(CitrusError, match="is no list of runs"):
        read_plan(tmp_path)


def test_a_certification_that_proves_nothing_is_no_line_of_the_table() -> None:
    """Such as those of attacks alone in results/certifications.jsonl."""
    about = {"study": "s", "name": "a"}
    sheet = runs_sheet([{"kind": "run", **about}, {"kind": "certification", **about, "attack": 5.0}])
    assert "a" in sheet.markdown()
