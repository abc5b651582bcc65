"""The comparison of all methods: equal budgets, one table, and the command."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from citrus.cli import main
from citrus.errors import CitrusError
from citrus.methods import METHODS, Batch, Standard
from citrus.recipes import recipe
from citrus.report.document import ABSENT
from citrus.studies import Study, StudyResult, methods, run_study
from citrus.studies.methods import COLUMNS, Contest, contestants, methods_sheet, methods_study, scaled


@pytest.fixture
def contest(blobs_file: str) -> Contest:
    return Contest(blobs_file, "mlp", epochs=2, images=12, budget=0.05, methods="standard,ibp,pgd")


def study(out: Path) -> Study:
    return Study("methods", out, device="cpu")


# ---------------------------------------------------------------------------------------------------- equal budgets


@pytest.mark.parametrize("epochs", [1, 2, 3, 8, 40])
@pytest.mark.parametrize("data", ["mnist", "digits", "cifar10"])
def test_all_methods_take_part_with_the_same_budget(data: str, epochs: int) -> None:
    contest = Contest(data, eps=0.1 if data != "cifar10" else "2/255", epochs=epochs, batch_size=60, seed=3, images=50)
    found = contestants(contest)
    assert {config.method.name for config in found.values()} == set(METHODS)
    for config in found.values():
        assert (config.data, config.network, config.eps) == (data, "convsmall", 2 / 255 if data == "cifar10" else 0.1)
        assert (config.epochs, config.seed, config.validation) == (epochs, 3, 0)
        assert (config.batch_size, config.test_images, config.group_size, config.clip) == (60, 50, 5, False)
        assert all(m < epochs for m in config.milestones)


def test_hyper_parameters_are_those_of_the_recipes_of_the_nearest_setting() -> None:
    for data, eps, setting in (
        ("mnist", 0.1, "mnist-0.1"),
        ("mnist", 0.25, "mnist-0.3"),
        ("cifar10", 0.03, "cifar10-8-255"),
        ("cifar10", 0.001, "cifar10-2-255"),
        ("digits", 0.1, "mnist-0.1"),
    ):
        found = contestants(Contest(data=data, eps=eps))
        for name in ("citrus", "sabr", "pgd"):
            theirs = recipe(f"{setting}-{name}-cpu")
            assert found[name].method == theirs.method
            assert (found[name].lr, found[name].init, found[name].l1) == (theirs.lr, theirs.init, theirs.l1)


def test_a_method_without_recipe_takes_part_with_its_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stranger(Standard):
        name = "stranger"

    monkeypatch.setattr(methods, "METHODS", {**METHODS, "stranger": Stranger})
    found = contestants(Contest())
    assert isinstance(found["stranger"].method, Stranger)
    assert found["stranger"].init == "default"


@pytest.mark.parametrize(
    ("epochs", "milestones", "warmup", "ramp"),
    [(24, (17, 21), 1, 8), (12, (8, 10), 0, 4), (48, (34, 42), 2, 16), (2, (1,), 0, 1), (1, (), 0, 1)],
)
def test_schedules_are_scaled(epochs: int, milestones: tuple[int, ...], warmup: int, ramp: int) -> None:
    config = scaled(recipe("mnist-0.1-citrus-cpu"), epochs)
    assert (config.milestones, config.warmup_epochs, config.ramp_epochs) == (milestones, warmup, ramp)


def test_a_folder_is_for_one_contest(contest: Contest, tmp_path: Path) -> None:
    here = study(tmp_path / "out")
    methods_study(contest, here)
    assert len(methods_study(replace(contest, methods=""), here).entries) > len(METHODS) - 1, "more methods may join"
    methods_study(replace(contest, eps="0.1"), here)
    for changed, says in (({"eps": "2/255"}, "eps"), ({"network": "smallcnn", "seed": 1}, "network, seed")):
        with pytest.raises(CitrusError, match=rf"another study \({says} differ\)"):
            methods_study(replace(contest, **changed), here)  # type: ignore[arg-type]
    with pytest.raises(CitrusError, match="epochs differ"):
        methods_study(replace(contest, epochs=4), here)


def test_bad_numbers(contest: Contest, tmp_path: Path) -> None:
    here = study(tmp_path / "out")
    for name, value in (("epochs", 0), ("images", 0), ("group_size", -1), ("batch_size", 0)):
        with pytest.raises(CitrusError, match=f"{name} must be at least 1, got {value}"):
            methods_study(replace(contest, **{name: value}), here)  # type: ignore[arg-type]
    with pytest.raises(CitrusError, match="budget"):
        methods_study(replace(contest, budget=-1.0), here)
    with pytest.raises(CitrusError, match="did you mean 'citrus'"):
        methods_study(replace(contest, methods="citru"), here)
    assert not here.out.exists()


# -------------------------------------------------------------------------------------------------------- the table


def test_the_table_shows_what_the_rows_say(contest: Contest, tmp_path: Path) -> None:
    results = run_study(methods_study(contest, study(tmp_path / "out")))
    sheet = methods_sheet(contest, results)
    assert [row["method"] for row in sheet.rows] == ["standard", "ibp", "pgd"]
    for row, result in zip(sheet.rows, results, strict=True):
        assert 0 <= row["single"] <= row["certified"] <= row["uap"] <= 100
        assert row["single"] <= row["pgd"] <= row["uap"]
        assert (row["clean"], row["certified"]) == (result.run["clean"], result.proofs[0]["certified"])


def result(name: str, **proof: float) -> StudyResult:
    config = {"group_size": 5}
    run = {"clean": 98.53, "pgd": 96.0, "universal": 95.5, "attacked_images": 20, "config": config}
    run |= {"train_seconds": 61, "measure_seconds": 60.0}
    same = {"images": 20, "group_size": 5, "grouping": "dataset", "seconds": 9.5, "attacked": 99.0}
    return StudyResult(name, run, (same | {"single": 90.0, "certified": 94.25} | proof,))


def test_the_table_as_text(contest: Contest) -> None:
    failed = StudyResult("colt", error="BatchNorm is not supported.")
    sheet = methods_sheet(contest, [result("citrus"), failed])
    text = sheet.markdown()
    assert "| citrus | 98.53 | 95.50 | 95.50 | 90.00 | 94.25 | 1:01 | 2:10 |" in text
    assert f"| colt | {' | '.join([ABSENT] * 7)} |" in text
    assert "- missing: colt: BatchNorm is not supported." in text
    assert "2 epochs for every method" in text
    assert f"torch {torch.__version__}; 2:10 in all." in text
    assert {len(cells) for cells in sheet.cells} == {len(COLUMNS)}
    assert "missing" not in methods_sheet(contest, [result("citrus", attacked=94.5)]).markdown()


def test_the_smaller_of_two_attacks_on_the_same_groups_counts() -> None:
    assert result("a").uap == 95.5
    assert result("a", attacked=94.5).uap == 94.5
    assert result("a", attacked=94.5).pgd == 94.5, "what a shared perturbation fools, one of its own fools as well"
    for other in ({"images": 10}, {"group_size": 20}, {"grouping": "correct"}):
        assert result("a", attacked=94.5, **other).uap == 95.5  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------ the command


def test_the_command(blobs_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "methods", "--data", blobs_file, "--network", "mlp", "--images", "10", "--epochs", "1"]
    words += ["--out", str(tmp_path / "out"), "--methods", "standard,citrus"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[1].split()[:3] == ["method", "clean", "PGD"]
    assert [line.split()[0] for line in lines[3:5]] == ["standard", "citrus"]
    assert lines[-1] == f"results  {tmp_path / 'out' / 'results.md'}"
    assert "[2/2] citrus" in err
    assert "| citrus |" in (tmp_path / "out" / "results.md").read_text()
    assert main(words) == 0
    again, err = capsys.readouterr()
    assert again == out
    assert "[2/2]" not in err
    assert main([*words[:-1], "colt,ibp"]) == 0, "more methods join with the same budget"
    assert "1 epoch for every method" in capsys.readouterr().out


class Broken(Exception):
    """Something that no one expected."""


def test_a_failed_method_shows_in_table_and_exit_code(
    blobs_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: object, batch: Batch) -> Tensor:
        raise Broken("no luck")

    monkeypatch.setattr(METHODS["ibp"], "loss", fail)
    words = ["bench", "methods", "--data", blobs_file, "--network", "mlp", "--images", "10", "--epochs", "1"]
    assert main([*words, "--methods", "ibp,standard", "--out", str(tmp_path / "out")]) == 2
    out = capsys.readouterr().out
    assert "missing: ibp: Broken: no luck" in out
    assert [line.split()[0] for line in out.splitlines()[3:5]] == ["ibp", "standard"]


def test_which_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--help"]) == 0
    assert "methods" in capsys.readouterr().out
    assert main(["bench", "methods", "--help"]) == 0
    assert "--epochs" in capsys.readouterr().out
    for words, says in (
        (["bench"], "Which benchmark?"),
        (["bench", "method"], "did you mean 'methods'?"),
        (["bench", "methods", "--epoch", "3"], "--epochs"),
        (["bench", "methods", "--eps", "two"], "eps"),
        (["bench", "methods", "--data", "digits", "--images", "0"], "images must be at least 1"),
    ):
        assert main(words) == 1
        assert says in capsys.readouterr().err
