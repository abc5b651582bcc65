"""The paper's evaluation: the published numbers, shared runs, tables that say what is missing, and the command."""

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.synthetic import blobs

import citrus.bench.methods as bench_methods
from citrus.attacks import Ascent
from citrus.bench import Row, tables
from citrus.bench.findings import above, certified_noise, clean_noise, kendall, trend
from citrus.bench.paper import TABLES, make
from citrus.bench.published import PublishedRow, published
from citrus.bench.scales import SCALES, Case, Scale, Setting
from citrus.bench.sheets import markdown
from citrus.bench.study import Measured, Study
from citrus.certify.settings import CertifySettings
from citrus.cli import main
from citrus.commands import bench_paper
from citrus.errors import CitrusError
from citrus.methods import Citrus, CitrusSI
from citrus.report.document import ABSENT

# ---------------------------------------------------------------------------------------------------------- published


def test_the_paper_says_of_its_table_what_the_transcription_holds() -> None:
    table = published("main")
    assert len(table.rows) == 20
    gains, gaps = [], []
    for setting in {row.setting for row in table.rows}:
        citrus, *others = (table.row(setting, m) for m in ("citrus", "ibp", "sabr", "taps"))
        gains.append(citrus.clean - max(row.clean for row in others))
        gaps.append(citrus.certified - max(row.certified for row in others))
    assert min(gains) > 0
    assert max(gains) == pytest.approx(10.3)
    assert sum(gap > 0 for gap in gaps) == 3
    assert min(gaps) == pytest.approx(-1.69)
    assert table.row("tinyimagenet-1-255", "citrus").certified == 26.27
    assert table.row("tinyimagenet-1-255", "taps").certified == 24.71


def test_one_network_has_one_pair_of_numbers() -> None:
    base = published("main").row("cifar10-8-255", "citrus")
    for name, value in (
        ("adversarial", {}),
        ("ablation-si", {}),
        ("ablation-tau", {"tau_ratio": 0.7}),
        ("ablation-batch", {"group_size": 5}),
    ):
        row = published(name).row("cifar10-8-255", "citrus", **value)
        assert (row.clean, row.certified) == (base.clean, base.certified) == (63.12, 39.88)


def test_what_the_paper_does_not_have_is_empty() -> None:
    assert published("ablation-tau").row("cifar10-8-255", "citrus", tau_ratio=0.3) == PublishedRow(
        "cifar10-8-255", "citrus"
    )
    assert published("main").row("mnist-0.1", "pgd").clean is None
    assert {name: published(name).where for name in TABLES}["main"] == "Table 1"
    times = published("runtimes")
    assert times.row("cifar10-2-255", "citrus").training_minutes / 238 == pytest.approx(4.21, abs=0.01)


# -------------------------------------------------------------------------------------------------------------- scales


def all_cases(scale: Scale) -> list[Case]:
    return list(dict.fromkeys(case for table in TABLES.values() for case in table.cases(scale)))


@pytest.mark.parametrize("name", SCALES)
def test_every_run_has_one_name_and_every_name_one_run(name: str) -> None:
    scale = SCALES[name]
    cases = all_cases(scale)
    places = [(case.setting.name, case.name) for case in cases]
    configs = [scale.config(case, seed=3) for case in cases]
    assert len(set(places)) == len(cases)
    for k, config in enumerate(configs):
        assert config not in configs[:k], f"{places[k]} is trained twice"
        assert (config.network, config.seed, config.group_size) == (scale.network, 3, 5)
        assert (config.eps, config.test_images) == (pytest.approx(cases[k].setting.eps), scale.images)
        assert config.data == cases[k].setting.data


@pytest.mark.parametrize("name", SCALES)
def test_ablations_change_one_thing(name: str) -> None:
    scale = SCALES[name]
    base = scale.config(Case(scale.focus, "citrus"), 0)
    assert isinstance(base.method, Citrus)
    assert (base.method.group_size, base.method.partners) == (5, 0)
    for tau in scale.taus:
        config = scale.config(scale.tau_case(tau), 0)
        assert config.method == replace(base.method, tau_ratio=tau)
        assert replace(config, method=base.method) == base
    assert scale.tau_ratio(scale.focus) in scale.taus
    for size in scale.groups:
        config = scale.config(scale.group_case(size), 0)
        assert config.method == replace(base.method, group_size=size, partners=4 if size > 10 else 0)
        assert config.batch_size == (size if name == "full" else base.batch_size)
        assert replace(config, method=base.method, batch_size=base.batch_size) == base
    assert min(scale.groups) == 2
    assert max(scale.groups) >= 20
    same = scale.config(Case(scale.focus, "citrus_si"), 0)
    assert isinstance(same.method, CitrusSI)
    assert vars(same.method) == vars(base.method)


def test_the_full_scale_is_the_papers() -> None:
    scale = SCALES["full"]
    assert {(row.setting, row.method) for row in published("main").rows} == {
        (case.setting.published, case.method) for case in TABLES["main"].cases(scale)
    }
    config = scale.config(Case(scale.focus, "citrus"), 0)
    assert (config.network, config.epochs, config.batch_size) == ("cnn7", 180, 5)
    assert config.method.attack.steps == 20


# ------------------------------------------------------------------------------------------------------------ findings


def test_rank_correlation() -> None:
    assert kendall([1, 2, 3], [5, 6, 9]) == 1
    assert kendall([1, 2, 3], [5, 4, 4]) == pytest.approx(-2 / 3)
    assert kendall([1, 2, 3, 4], [1, 4, 2, 3]) == pytest.approx(2 / 6)
    assert kendall([1, 2], [7, 7]) == 0
    assert kendall([1], [7]) == 0


def test_answers_need_more_than_noise() -> None:
    assert [above("", a, 50, 1, "").answer for a in (52, 50.9, 49.1, 48)] == ["yes", "unclear", "unclear", "no"]
    runs, falling = [Measured(Row(str(k))) for k in range(4)], ([1, 2, 3], [90, 85, 80])
    asked = []

    def noise(a: Measured, b: Measured) -> float:
        asked.append((a.row.name, b.row.name))
        return 9

    assert trend("", runs, *falling, False, noise).answer == "yes"
    assert trend("", runs, *falling, True, noise).answer == "no"
    assert trend("", runs, *falling, False, lambda a, b: 10).answer == "unclear"
    assert trend("", runs, [1, 2, 3, 4], [10, 40, 20, 30], True, noise).answer == "unclear"
    assert asked == [("2", "0"), ("2", "0"), ("0", "1")], "of the smallest and the largest value"


def test_noise_is_two_standard_errors() -> None:
    a = Measured(Row("a", clean=90), clean_images=10_000, groups=(5, 4, 1, 0))
    b = Measured(Row("b", clean=50), clean_images=10_000, groups=(5, 2, 1, 0))
    assert clean_noise(a, b) == pytest.approx(2 * (0.3**2 + 0.5**2) ** 0.5)
    # differences 0, 2, 0, 0 of 5 images: 0, 40, 0, 0 percent, deviation 20, over the root of 4
    assert certified_noise(a, b) == pytest.approx(20)
    assert certified_noise(a, replace(a, groups=(4, 3, 0, -1))) == 0
    alone = replace(a, groups=(5,))
    assert certified_noise(alone, alone) == float("inf")


# --------------------------------------------------------------------------------------------------------------- study


@pytest.fixture
def scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scale:
    """All tables in seconds: an MLP on blobs, and a short attack in certification."""
    short = lambda **kwargs: CertifySettings(**kwargs, attack=Ascent(steps=5, restarts=2))  # noqa: E731
    monkeypatch.setattr(bench_methods, "CertifySettings", short)
    parts = {"train": blobs(100, 1), "test": blobs(20, 3)}
    arrays = {f"{name}_images": part.images.numpy() for name, part in parts.items()}
    np.savez(tmp_path / "blobs.npz", **arrays, **{f"{n}_labels": part.labels.numpy() for n, part in parts.items()})
    setting = Setting(str(tmp_path / "blobs.npz"), 0.05, "mnist-0.1")
    scale = Scale(
        *("mlp", (setting,), (setting,), setting, (), (2, 5, 20)),
        images=10,
        proof_seconds=0.05,
        held_out=40,
        epochs=1,
        batch_size=20,
    )
    return replace(scale, taus=(0.25, scale.tau_ratio(setting)))


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the run folders in which training begins."""
    train, names = bench_methods.train, []

    def watched(config: Any, folder: Path, **settings: Any) -> Any:
        names.append(f"{folder.parent.name}/{folder.name}")
        assert len(settings["splits"].train) == 60
        return train(config, folder, **settings)

    monkeypatch.setattr(bench_methods, "train", watched)
    return names


def test_tables_share_runs_and_nothing_is_trained_twice(scale: Scale, trained: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    sheets = make(Study(scale, out), "tiny", list(TABLES))
    expected = ["ibp", "sabr", "taps", "citrus", "pgd", "uat", "cw_uat", "citrus-tau0.25"]
    expected += ["citrus-group2", "citrus-group20", "citrus_si"]
    assert trained == [f"blobs-0.05/{name}" for name in expected]
    again = make(Study(scale, out), "tiny", ["runtimes", "figure-loss", "ablation-tau"])
    assert len(trained) == len(expected)
    by_name = {sheet.table: sheet for sheet in sheets}
    for sheet in again:
        assert sheet.rows == by_name[sheet.table].rows
    for sheet in sheets:
        assert not sheet.missing
        assert all(finding.answer != "not measured" for finding in sheet.findings)
        for row in sheet.rows:
            if "run" in row:
                kept = json.loads((out / "blobs-0.05" / row["run"] / "row.json").read_text())
                assert (row["clean"], row["certified_uap"]) == (kept["clean"], kept["certified_uap"])
                assert row["certified_uap"] <= row["uap"]
                [file] = (out / "blobs-0.05" / row["run"] / "certify").glob("*.jsonl")
                seconds = [json.loads(line)["seconds"] for line in file.read_text().splitlines()[1:]]
                assert row["certification_seconds"] == pytest.approx(sum(seconds))
                assert len(seconds) == 2
    text = (out / "paper.md").read_text()
    assert text.startswith("# The paper's evaluation at scale tiny\n\n## Certified training methods (Table 1)\n")
    assert text.count("\n## ") == len(TABLES)
    assert text.count("Scale tiny: mlp, 1 epochs") == 1
    assert text.splitlines()[-1].startswith("11 runs, ")


def test_sheets_as_files(scale: Scale, tmp_path: Path) -> None:
    out = tmp_path / "out"
    make(Study(scale, out), "tiny", ["ablation-tau", "figure-loss", "adversarial"])
    found = json.loads((out / "ablation-tau.json").read_text())
    assert found["published"]["where"] == "Figure 5a"
    assert [row["tau_ratio"] for row in found["rows"]] == ["0.25", f"{scale.taus[1]:g}"]
    assert {"scale": "tiny", "seed": 0}.items() <= found.items()
    lines = (out / "ablation-tau.md").read_text().splitlines()
    row, first = found["rows"][0], lines.index("| ---: | ---: | ---: | ---: | ---: | ---: |") + 1
    values = f"| 0.25 | {row['clean']:.2f} | {ABSENT} | {row['certified_uap']:.2f} | {ABSENT} | {row['uap']:.2f} |"
    assert lines[first] == values
    assert any(line.endswith("(ablation-tau.svg)") for line in lines)
    adversarial = (out / "adversarial.md").read_text()
    assert "| 94.91 |" in next(line for line in adversarial.splitlines() if "CW-UAT" in line)
    for name in ("ablation-tau", "figure-loss"):
        picture = ElementTree.parse(out / f"{name}.svg").getroot()
        assert picture.tag == "{http://www.w3.org/2000/svg}svg"
        assert len(picture.findall(".//{*}polyline")) == 3
        assert "http" not in (out / f"{name}.svg").read_text().replace("http://www.w3.org/2000/svg", "")


def test_the_loss_of_boxes_is_the_mean_over_the_epoch(scale: Scale, tmp_path: Path) -> None:
    study = Study(scale, tmp_path / "out")
    [sheet] = make(study, "tiny", ["figure-loss"])
    losses = study.losses(Case(scale.focus, "citrus"))
    assert len(losses.same) == 3
    assert [row["value"] for row in sheet.rows] == pytest.approx(
        [sum(values) / 3 for values in (losses.same, losses.cross_sum, losses.cross_max)]
    )
    path = study.folder(Case(scale.focus, "citrus")) / "losses.json"
    kept = json.loads(path.read_text())
    path.write_text(json.dumps({**kept, "same": [7.0]}))
    assert study.losses(Case(scale.focus, "citrus")).same == (7.0,), "it is read"
    path.write_text(json.dumps({**kept, "same": [7.0], "config": {}}))
    assert study.losses(Case(scale.focus, "citrus")) == losses, "that of another configuration is not"


# ------------------------------------------------------------------------------------------------------ what is missing


def test_data_that_is_not_here_is_told_and_the_rest_is_made(
    scale: Scale, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CITRUS_DATA", raising=False)
    absent = Setting("tinyimagenet", 1 / 255, "tinyimagenet-1-255")
    wide = replace(scale, main=(absent, *scale.main))
    study = Study(wide, tmp_path / "out", data_dir=str(tmp_path / "nowhere"))
    sheet, times = make(study, "tiny", ["main", "runtimes"])
    assert len(sheet.missing) == len(times.missing) == 4
    assert all("tinyimagenet 1/255" in text and "not made" in text for text in sheet.missing)
    assert [finding.answer == "not measured" for finding in sheet.findings] == [True, True, False, False]
    assert sheet.cells[0][:6] == ["tinyimagenet 1/255", "IBP", ABSENT, "25.92", ABSENT, "18.50"]
    assert sheet.rows[4]["clean"] > 0
    text = markdown(sheet)
    assert text.count("- missing: tinyimagenet 1/255") == 4
    assert "**not measured**: tinyimagenet 1/255: CITRUS has the highest clean accuracy" in text


def test_a_method_that_does_not_exist(scale: Scale, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "CERTIFIED", ("ibp", "tarps", "citrus"))
    [sheet] = make(Study(scale, tmp_path / "out"), "tiny", ["main"])
    assert ["error" in row for row in sheet.rows] == [False, True, False]
    assert "Unknown method 'tarps'" in sheet.missing[0]


def test_a_run_that_fails(scale: Scale, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = bench_methods.train

    def flaky(config: Any, folder: Path, **settings: Any) -> Any:
        if folder.name in ("citrus", "citrus-tau0.25"):
            raise RuntimeError("no luck")
        return train(config, folder, **settings)

    monkeypatch.setattr(bench_methods, "train", flaky)
    sheets = make(Study(scale, tmp_path / "out"), "tiny", ["ablation-tau", "figure-loss", "ablation-si"])
    assert all("RuntimeError: no luck" in sheet.missing[0] for sheet in sheets)
    assert all(finding.answer == "not measured" for sheet in sheets for finding in sheet.findings)
    assert not sheets[0].figures
    assert sheets[1].rows == ()
    assert sheets[2].rows[1]["clean"] > 0


def test_a_folder_belongs_to_one_scale_and_seed(scale: Scale, tmp_path: Path) -> None:
    Study(scale, tmp_path)
    Study(scale, tmp_path)
    for other, seed in ((replace(scale, images=5), 0), (scale, 1)):
        with pytest.raises(CitrusError, match="another scale or seed"):
            Study(other, tmp_path, seed=seed)
    (tmp_path / "study.json").write_text("{")
    with pytest.raises(CitrusError, match="no description of a study"):
        Study(scale, tmp_path)


# --------------------------------------------------------------------------------------------------------- the command


def test_the_command(
    scale: Scale, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_paper, "SCALES", {"demo": scale})
    words = ["bench", "paper", "--device", "cpu", "--out", str(tmp_path / "out"), "--table"]
    train, steps = bench_methods.train, iter((None, 2))

    def stopping(*arguments: Any, **settings: Any) -> Any:
        return train(*arguments, **settings, stop_after=next(steps, None))

    monkeypatch.setattr(bench_methods, "train", stopping)
    assert main([*words, "ablation-si,ablation-tau"]) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert main([*words, "ablation-si,ablation-tau"]) == 0
    out, err = capsys.readouterr()
    assert "[2/3] blobs 0.05 citrus_si" in err
    assert out.startswith("Scale demo: mlp, 1 epochs")
    assert out.index("CITRUS with same-input boxes") < out.index("The size of the boxes")
    assert f"results  {tmp_path / 'out' / 'paper.md'}" in out
    wide = replace(scale, main=(Setting(str(tmp_path / "none.npz"), 0.05, "mnist-0.1"),))
    monkeypatch.setattr(bench_paper, "SCALES", {"demo": wide})
    assert main([*words[:-2], str(tmp_path / "wide"), "--table", "main"]) == 2
    assert "missing: none 0.05 ibp: not made" in capsys.readouterr().out


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
