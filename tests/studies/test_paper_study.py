"""The paper's evaluation: the published numbers, shared runs, tables that say what is missing, and the command."""

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from citrus.cli import main
from citrus.commands import bench
from citrus.files import line_of
from citrus.methods import Citrus, CitrusSI
from citrus.report.document import ABSENT
from citrus.studies import Entry, Study, engine, read_rows
from citrus.studies.paper import SCALES, TABLES, PaperScale, Setting, make_paper, published, published_row
from citrus.training import train

# ---------------------------------------------------------------------------------------------------------- published


def line(table: str, setting: str, method: str, **values: float) -> dict[str, Any]:
    return published_row(table, {"published": setting, "method": method, **values})


def test_the_paper_says_of_its_table_what_the_transcription_holds() -> None:
    rows = published()["tables"]["main"]["rows"]
    assert len(rows) == 20
    gains, gaps = [], []
    for setting in {row["setting"] for row in rows}:
        citrus, *others = (line("main", setting, m) for m in ("citrus", "ibp", "sabr", "taps"))
        gains.append(citrus["clean"] - max(row["clean"] for row in others))
        gaps.append(citrus["certified"] - max(row["certified"] for row in others))
    assert min(gains) > 0
    assert max(gains) == pytest.approx(10.3)
    assert sum(gap > 0 for gap in gaps) == 3
    assert min(gaps) == pytest.approx(-1.69)
    assert line("main", "tinyimagenet-1-255", "citrus")["certified"] == 26.27
    assert line("main", "tinyimagenet-1-255", "taps")["certified"] == 24.71


def test_one_network_has_one_pair_of_numbers() -> None:
    base = line("main", "cifar10-8-255", "citrus")
    for name, value in (
        ("adversarial", {}),
        ("ablation-si", {}),
        ("ablation-tau", {"tau_ratio": 0.7}),
        ("ablation-batch", {"group": 5}),
    ):
        row = line(name, "mnist-0.1", "citrus", **value)  # beside any setting of ours: the paper has only one
        assert (row["clean"], row["certified"]) == (base["clean"], base["certified"]) == (63.12, 39.88)


def test_what_the_paper_does_not_have_is_empty() -> None:
    assert line("ablation-tau", "cifar10-8-255", "citrus", tau_ratio=0.3) == {}
    assert line("main", "mnist-0.1", "pgd") == {}
    assert published()["tables"]["main"]["where"] == "Table 1"
    assert set(published()["tables"]) == set(TABLES)
    assert line("runtimes", "cifar10-2-255", "citrus")["training_minutes"] / 238 == pytest.approx(4.21, abs=0.01)


# -------------------------------------------------------------------------------------------------------------- scales


@pytest.mark.parametrize("name", SCALES)
def test_every_run_has_one_name_and_every_name_one_run(name: str) -> None:
    scale = replace(SCALES[name], seed=3)
    found: dict[str, Entry] = {}
    for table in TABLES.values():
        for entry in table(scale):
            assert found.setdefault(entry.name, entry) == entry, "tables share the very same run"
    for entry in found.values():
        config = entry.config
        assert [other.name for other in found.values() if other.config == config] == [entry.name], "trained twice"
        assert (config.network, config.seed, config.group_size) == (scale.network, 3, 5)
        assert (config.test_images, entry.images) == (scale.images, scale.images)
        assert entry.name.startswith(f"{config.data}-")
        [settings] = entry.proofs
        assert (settings.group_size, settings.grouping, settings.budget) == (5, "dataset", scale.proof_seconds)


@pytest.mark.parametrize("name", SCALES)
def test_ablations_change_one_thing(name: str) -> None:
    scale = SCALES[name]
    base = scale.entry(scale.focus, "citrus").config
    assert isinstance(base.method, Citrus)
    assert (base.method.group_size, base.method.partners) == (5, 0)
    for tau, entry in zip(scale.taus, TABLES["ablation-tau"](scale), strict=True):
        assert entry.config.method == replace(base.method, tau_ratio=tau)
        assert replace(entry.config, method=base.method) == base
    assert base.method.tau_ratio in scale.taus
    for size, entry in zip(scale.groups, TABLES["ablation-batch"](scale), strict=True):
        assert entry.config.method == replace(base.method, group_size=size, partners=4 if size > 10 else 0)
        assert entry.config.batch_size == (size if name == "full" else base.batch_size)
        assert replace(entry.config, method=base.method, batch_size=base.batch_size) == base
    assert min(scale.groups) == 2
    assert max(scale.groups) >= 20
    same = scale.entry(scale.focus, "citrus_si").config
    assert isinstance(same.method, CitrusSI)
    assert vars(same.method) == vars(base.method)


def test_the_full_scale_is_the_papers() -> None:
    scale = SCALES["full"]
    assert {(row["setting"], row["method"]) for row in published()["tables"]["main"]["rows"]} == {
        (entry.source["published"], entry.source["method"]) for entry in TABLES["main"](scale)
    }
    config = scale.entry(scale.focus, "citrus").config
    assert (config.network, config.epochs, config.batch_size) == ("cnn7", 180, 5)
    assert config.method.attack.steps == 20


# --------------------------------------------------------------------------------------------------------------- study


@pytest.fixture
def scale(blobs_file: str) -> PaperScale:
    """All tables in seconds: an MLP on blobs."""
    setting = Setting(blobs_file, 0.05, "mnist-0.1")
    scale = PaperScale(
        network="mlp",
        main=(setting,),
        adversarial=(setting,),
        focus=setting,
        taus=(),
        groups=(2, 5, 20),
        images=10,
        proof_seconds=0.05,
        held_out=90,
        epochs=1,
        batch_size=20,
    )
    usual = scale.entry(setting, "citrus").config.method
    assert isinstance(usual, Citrus)
    return replace(scale, taus=(0.25, usual.tau_ratio))


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Study("paper-tiny", tmp_path / "out", device="cpu")


@pytest.fixture
def change_training(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Path], dict[str, Any]]], None]:
    """What is asked before each training, by its folder, may fail or add settings."""

    def change(ask: Callable[[Path], dict[str, Any]]) -> None:
        def changed(config: Any, folder: Path, **settings: Any) -> Any:
            return train(config, folder, **settings, **ask(folder))

        monkeypatch.setattr(engine, "train", changed)

    return change


def test_tables_share_runs_and_nothing_is_trained_twice(
    scale: PaperScale, study: Study, change_training: Callable[..., None]
) -> None:
    trained: list[str] = []
    change_training(lambda folder: trained.append(f"{folder.parent.name}/{folder.name}") or {})
    sheets = {sheet.table: sheet for sheet in make_paper(scale, study, list(TABLES))}
    expected = ["ibp", "sabr", "taps", "citrus", "pgd", "uat", "cw_uat", "citrus-tau0.25"]
    expected += ["citrus-group2", "citrus-group20", "citrus_si"]
    assert trained == [f"blobs-0.05/{name}" for name in expected]
    for sheet in make_paper(scale, study, ["runtimes", "figure-loss", "ablation-tau"]):
        assert sheet == sheets[sheet.table]
    assert len(trained) == len(expected)
    kept = {(row["kind"], row["name"]): row for row in read_rows(study.out / "rows.jsonl")}
    for sheet in sheets.values():
        assert not sheet.missing
        for entry, row in zip(TABLES[sheet.table](scale), sheet.rows, strict=False):
            if "clean" in row:
                run, proof = kept["run", entry.name], kept["certification", entry.name]
                assert (row["clean"], row["certified"]) == (run["clean"], proof["certified"])
                assert row["certified"] <= row["uap"]
                assert row["image_seconds"] == pytest.approx(proof["seconds"] / 10)
                assert len(proof["groups"]) == 2
    text = (study.out / "paper.md").read_text()
    assert text.startswith("# The paper's evaluation\n\n## Certified training methods (Table 1)\n")
    assert text.count("\n## ") == len(TABLES)
    assert text.count("paper-tiny: mlp, 1 epochs") == 1
    assert "; 11 runs, " in text


def test_tables_and_figures_as_files(scale: PaperScale, study: Study) -> None:
    make_paper(scale, study, ["figure-loss", "adversarial"])
    [sheet] = make_paper(scale, study, ["ablation-tau"])
    text = (study.out / "paper.md").read_text()
    assert [part.split(" (")[0] for part in text.split("\n## ")[1:]] == [
        "Universal and standard adversarial training",
        "The size of the boxes",
        "Same-input and cross-input loss",
    ], "tables made before stay"
    row = sheet.rows[0]
    assert [row["tau_ratio"] for row in sheet.rows] == [0.25, scale.taus[1]]
    values = f"| 0.25 | {row['clean']:.2f} | {ABSENT} | {row['certified']:.2f} | {ABSENT} | {row['uap']:.2f} |"
    assert values in text
    assert "(Figure 5a)" in text
    assert any(text_line.endswith("(ablation-tau.svg)") for text_line in text.splitlines())
    assert "| 94.91 |" in next(text_line for text_line in text.splitlines() if "CW-UAT" in text_line)
    for name in ("ablation-tau", "figure-loss"):
        picture = ElementTree.parse(study.out / f"{name}.svg").getroot()
        assert picture.tag == "{http://www.w3.org/2000/svg}svg"
        assert len(picture.findall(".//{*}polyline")) == 3
        assert "http" not in (study.out / f"{name}.svg").read_text().replace("http://www.w3.org/2000/svg", "")


def test_the_loss_of_boxes_is_the_mean_over_the_epoch_and_kept(scale: PaperScale, study: Study) -> None:
    [sheet] = make_paper(scale, study, ["figure-loss"])
    [row] = (row for row in read_rows(study.out / "rows.jsonl") if row["kind"] == "losses")
    series = [row[name] for name in ("same", "cross_sum", "cross_max")]
    assert [len(values) for values in series] == [3, 3, 3]
    assert [row["mean"] for row in sheet.rows] == [f"{sum(values) / 3:.4f}" for values in series]
    assert make_paper(scale, study, ["figure-loss"]) == [sheet]
    lines = (study.out / "rows.jsonl").read_text().splitlines()
    changed = [json.loads(text) | ({"same": [7.0]} if '"losses"' in text else {}) for text in lines]
    (study.out / "rows.jsonl").write_text("".join(map(line_of, changed)))
    [again] = make_paper(scale, study, ["figure-loss"])
    assert again.rows[0]["mean"] == "7.0000", "it is read, not computed again"


# ------------------------------------------------------------------------------------------------------ what is missing


def test_data_that_is_not_here_is_told_and_the_rest_is_made(
    scale: PaperScale, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CITRUS_DATA", raising=False)
    absent = Setting("tinyimagenet", 1 / 255, "tinyimagenet-1-255")
    wide = replace(scale, main=(absent, *scale.main))
    sheet, times = make_paper(wide, replace(study, data_dir=str(tmp_path / "nowhere")), ["main", "runtimes"])
    assert len(sheet.missing) == len(times.missing) == 4
    assert all(text.startswith("tinyimagenet-1-255/") and "nowhere" in text for text in sheet.missing)
    assert sheet.cells[0][:6] == ["tinyimagenet 1/255", "IBP", ABSENT, "25.92", ABSENT, "18.50"]
    assert sheet.rows[4]["clean"] > 0
    text = sheet.markdown()
    assert text.count("- missing: tinyimagenet-1-255/") == 4


def test_a_run_that_fails(scale: PaperScale, study: Study, change_training: Callable[..., None]) -> None:
    def ask(folder: Path) -> dict[str, Any]:
        if folder.name in ("citrus", "citrus-tau0.25"):
            raise RuntimeError("no luck")
        return {}

    change_training(ask)
    sheets = make_paper(scale, study, ["ablation-tau", "figure-loss", "ablation-si"])
    assert all("RuntimeError: no luck" in sheet.missing[0] for sheet in sheets)
    assert sheets[0].figure is None
    assert sheets[1].rows == []
    assert sheets[2].rows[1]["clean"] > 0


# --------------------------------------------------------------------------------------------------------- the command


def test_the_command(
    scale: PaperScale,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    change_training: Callable[..., None],
) -> None:
    monkeypatch.setattr(bench, "SCALES", {"demo": scale})
    words = ["bench", "paper", "--device", "cpu", "--out", str(tmp_path / "out"), "--table"]
    steps = iter((None, 2))
    change_training(lambda folder: {"stop_after": next(steps, None)})
    assert main([*words, "ablation-si,ablation-tau"]) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert main([*words, "ablation-si,ablation-tau"]) == 0
    out, err = capsys.readouterr()
    assert "[2/3] blobs-0.05/citrus_si" in err
    assert out.startswith("paper-demo: mlp, 1 epochs")
    assert out.index("CITRUS with same-input boxes") < out.index("The size of the boxes")
    assert f"results  {tmp_path / 'out' / 'paper.md'}" in out
    assert main([*words, "ablation-si", "--seed", "1"]) == 1
    assert "holds another study (scale differ)" in capsys.readouterr().err
    wide = replace(scale, main=(Setting(str(tmp_path / "none.npz"), 0.05, "mnist-0.1"),))
    monkeypatch.setattr(bench, "SCALES", {"demo": wide})
    assert main([*words[:-2], str(tmp_path / "wide"), "--table", "main"]) == 2
    assert "missing: none-0.05/ibp: " in capsys.readouterr().out


def test_words_that_are_not_understood(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["bench", "paper", "--help"]) == 0
    assert "--table" in capsys.readouterr().out
    for words, says in (
        (["--table", "mian"], "did you mean 'main'?"),
        (["--table", ""], "Which table?"),
        (["--scale", "cpus"], "did you mean 'cpu'?"),
        (["--tables", "main"], "--table"),
    ):
        assert main(["bench", "paper", "--out", str(tmp_path / "out"), *words]) == 1
        assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
