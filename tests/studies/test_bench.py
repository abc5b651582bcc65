"""The comparison of all methods: equal budgets, rows that survive stops and errors, and the command."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.synthetic import SHAPE, blobs
from torch import Tensor

import citrus.bench.methods as module
from citrus.attacks import Ascent
from citrus.bench import Bench, Contest, Listener, Plan, Row
from citrus.bench.contest import contestants, scaled
from citrus.bench.results import HEADER, caption, cells, markdown, write_results
from citrus.certify.settings import CertifySettings
from citrus.cli import main
from citrus.data import DatasetInfo, Splits
from citrus.errors import CitrusError, SoundnessError
from citrus.methods import METHODS, Batch, MethodLoss, Standard
from citrus.recipes import recipe
from citrus.training import Stopped, load_run

BLOBS = Contest(data="blobs", network="mlp", eps=0.1, images=12, methods=("standard", "ibp", "pgd"))
PLAN = Plan(epochs=2, proof_seconds=0.05)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short attack in certification."""
    short = lambda **kwargs: CertifySettings(**kwargs, attack=Ascent(steps=5, restarts=2))  # noqa: E731
    monkeypatch.setattr(module, "CertifySettings", short)


@pytest.fixture
def splits() -> Splits:
    train, test = blobs(150, 1), blobs(20, 3)
    return Splits(train, train.subset([]), test, DatasetInfo("blobs", SHAPE, 3, (0.5,), (0.5,)))


# ---------------------------------------------------------------------------------------------------- equal budgets


@pytest.mark.parametrize("images", [4_000, 60_000])
@pytest.mark.parametrize("epochs", [1, 2, 3, 8, 40])
@pytest.mark.parametrize("data", ["mnist", "digits", "cifar10"])
def test_all_methods_take_part_with_the_same_budget(data: str, epochs: int, images: int) -> None:
    contest = Contest(data=data, eps=0.1 if data != "cifar10" else 2 / 255, seed=3, images=50)
    found = contestants(contest, epochs, images)
    assert {config.method.name for config in found.values()} == set(METHODS)
    for config in found.values():
        assert (config.data, config.network, config.eps) == (data, "convsmall", contest.eps)
        assert (config.epochs, config.seed, config.validation) == (epochs, 3, 0)
        assert config.batch_size == (125 if images == 60_000 else 50)
        assert (config.test_images, config.group_size, config.clip) == (50, 5, False)
        assert all(m < epochs for m in config.milestones)


def test_hyper_parameters_are_those_of_the_recipes_of_the_nearest_setting() -> None:
    for data, eps, setting in (
        ("mnist", 0.1, "mnist-0.1"),
        ("mnist", 0.25, "mnist-0.3"),
        ("cifar10", 0.03, "cifar10-8-255"),
        ("cifar10", 0.001, "cifar10-2-255"),
        ("digits", 0.1, "mnist-0.1"),
    ):
        found = contestants(Contest(data=data, eps=eps), 10, 60_000)
        for name in ("citrus", "sabr", "pgd"):
            theirs = recipe(f"{setting}-{name}-cpu")
            assert found[name].method == theirs.method
            assert (found[name].lr, found[name].init, found[name].l1) == (theirs.lr, theirs.init, theirs.l1)


def test_a_method_without_recipe_takes_part_with_its_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    import citrus.bench.contest as place

    class Stranger(Standard):
        name = "stranger"

    monkeypatch.setattr(place, "METHODS", {**METHODS, "stranger": Stranger})
    found = contestants(Contest(), 4, 60_000)
    assert isinstance(found["stranger"].method, Stranger)
    assert found["stranger"].init == "default"


@pytest.mark.parametrize(
    ("epochs", "milestones", "warmup", "ramp"),
    [(24, (17, 21), 1, 8), (12, (8, 10), 0, 4), (48, (34, 42), 2, 16), (2, (1,), 0, 1), (1, (), 0, 1)],
)
def test_schedules_are_scaled(epochs: int, milestones: tuple[int, ...], warmup: int, ramp: int) -> None:
    config = scaled(recipe("mnist-0.1-citrus-cpu"), epochs)
    assert (config.milestones, config.warmup_epochs, config.ramp_epochs) == (milestones, warmup, ramp)
    plain = scaled(recipe("mnist-0.1-standard-cpu"), epochs)
    assert plain.ramp_epochs == 0


# --------------------------------------------------------------------------------------------------------- the plan


def test_the_number_of_epochs_fits_the_time(splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = {"standard": 0.1, "ibp": 0.3, "pgd": 0.6}
    monkeypatch.setattr(Bench, "_step_seconds", lambda self, name, config: costs[name])
    monkeypatch.setattr(Bench, "_pass_seconds", lambda self: 0.01)
    bench = Bench(BLOBS, splits, tmp_path)
    plan = bench.plan(minutes=10)
    # 420 s are planned; 3 x (1500 passes of 10 ms + a third of 60 s) of them leave 315 s; an epoch is 3 steps of 1 s
    assert plan.proof_seconds == pytest.approx(60 / 3 / 3)
    assert plan.epochs in (104, 105)  # the planning itself takes a moment
    assert plan.step_seconds == costs
    with pytest.raises(CitrusError, match=r"1 minutes do not suffice .* 3 methods"):
        Bench(BLOBS, splits, tmp_path / "other").plan(minutes=1)


def test_measured_steps_give_a_plan(splits: Splits, tmp_path: Path) -> None:
    heard: dict[str, float] = {}
    listener = Listener(on_measured=lambda name, seconds: heard.update({name: seconds}))
    plan = Bench(BLOBS, splits, tmp_path, listener=listener).plan(minutes=2)
    assert set(heard) == {"standard", "ibp", "pgd"} == set(plan.step_seconds)
    assert all(0 < seconds < 10 for seconds in heard.values())
    assert plan.epochs > 1


def test_a_method_that_cannot_start_costs_nothing(splits: Splits, tmp_path: Path) -> None:
    contest = replace(BLOBS, network="cnn7", methods=("colt", "standard"))
    bench = Bench(contest, splits, tmp_path)
    configs = bench.configs(3)
    assert bench._step_seconds("colt", configs["colt"]) == 0
    assert bench._step_seconds("standard", configs["standard"]) > 0


def test_a_folder_keeps_its_plan(splits: Splits, tmp_path: Path) -> None:
    first = Bench(BLOBS, splits, tmp_path).plan(minutes=5, epochs=3)
    again = Bench(replace(BLOBS, methods=()), splits, tmp_path).plan(minutes=99)
    assert again == first
    for changed, says in (
        ({"eps": 0.2}, "eps"),
        ({"network": "smallcnn", "seed": 1}, "network, seed"),
    ):
        with pytest.raises(CitrusError, match=rf"another benchmark \({says} differ\)"):
            Bench(replace(BLOBS, **changed), splits, tmp_path).plan(minutes=5)
    with pytest.raises(CitrusError, match="epochs differ"):
        Bench(BLOBS, splits, tmp_path).plan(minutes=5, epochs=4)
    for text in ("{", "[]", "{}", '{"contest": {}, "lapses": 3}'):
        (tmp_path / "plan.json").write_text(text)
        with pytest.raises(CitrusError, match="is no plan of a benchmark"):
            Bench(BLOBS, splits, tmp_path).plan(minutes=5)


def test_bad_numbers(splits: Splits, tmp_path: Path) -> None:
    for minutes in (0, -1, float("nan")):
        with pytest.raises(CitrusError, match="minutes must be positive"):
            Bench(BLOBS, splits, tmp_path).plan(minutes=minutes)
    with pytest.raises(CitrusError, match="at least 1 epoch, got 0"):
        Bench(BLOBS, splits, tmp_path).plan(minutes=1, epochs=0)
    with pytest.raises(CitrusError, match="at least one image"):
        Contest(images=0)
    with pytest.raises(CitrusError, match="got 5 and 0"):
        Contest(images=5, group_size=0)
    with pytest.raises(CitrusError, match="did you mean 'citrus'"):
        contestants(Contest(methods=("citru",)), 1, 100)
    assert not (tmp_path / "plan.json").exists()


# ------------------------------------------------------------------------------------------------------ the contest


def test_rows_are_sound_and_what_is_finished_is_not_redone(
    splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(BLOBS, splits, tmp_path)
    rows = bench.compete(PLAN)
    assert [row.name for row in rows] == ["standard", "ibp", "pgd"]
    for row in rows:
        assert not row.error
        assert 0 <= row.certified_single <= row.certified_uap <= row.uap <= 100
        assert row.certified_single <= row.pgd <= row.uap
        assert row.clean > 0
        assert 0 <= row.training_seconds < row.seconds
        network = load_run(tmp_path / row.name).network
        x = splits.test.images.float() / 255
        assert row.clean == pytest.approx(100 * (network(x).argmax(1) == splits.test.labels).float().mean().item())
        assert sorted(p.name for p in (tmp_path / row.name / "certify").iterdir())[0].startswith(
            "citrus-0.1-n5-dataset"
        )
    monkeypatch.setattr(module, "train", lambda *a, **k: pytest.fail("trained again"))
    assert bench.compete(PLAN) == rows


class Broken(Exception):
    """Something that no one expected."""


def test_an_error_of_one_method_is_its_row_and_is_tried_again(
    splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, started = module.train, []

    def flaky(config: Any, *arguments: Any, **settings: Any) -> Any:
        started.append(config.method.name)
        if config.method.name == "ibp" and len(started) < 4:
            raise Broken("no luck\nand more")
        return train(config, *arguments, **settings)

    monkeypatch.setattr(module, "train", flaky)
    bench = Bench(BLOBS, splits, tmp_path)
    rows = bench.compete(PLAN)
    assert [row.error for row in rows] == ["", "Broken: no luck", ""]
    assert "Traceback" in (tmp_path / "ibp" / "error.txt").read_text()
    again = bench.compete(PLAN)
    assert started == ["standard", "ibp", "pgd", "ibp"]
    assert not any(row.error for row in again)
    assert again[::2] == rows[::2]


def test_a_loss_that_is_no_number_is_told(splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METHODS["ibp"], "loss", lambda self, batch: MethodLoss(batch.clean_loss * torch.nan))
    rows = Bench(BLOBS, splits, tmp_path).compete(PLAN)
    assert "NaN" in rows[1].error
    assert not rows[0].error
    assert not rows[2].error


def test_a_stopped_contest_goes_on_where_it_stopped(
    splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Bench(BLOBS, splits, tmp_path / "whole").compete(PLAN)
    train, steps = module.train, iter((None, 3, None, None))

    def stopping(*arguments: Any, **settings: Any) -> Any:
        return train(*arguments, **settings, stop_after=next(steps))

    monkeypatch.setattr(module, "train", stopping)
    bench = Bench(BLOBS, splits, tmp_path / "parts")
    with pytest.raises(Stopped):
        bench.compete(PLAN)
    assert not (tmp_path / "parts" / "ibp" / "row.json").exists()
    parts = bench.compete(PLAN)
    assert next(steps, "end") == "end"
    for a, b in zip(whole, parts, strict=True):
        timeless = {"training_seconds": 0.0, "seconds": 0.0}
        assert replace(a, **timeless) == replace(b, **timeless)
        one, two = (load_run(tmp_path / folder / a.name).network.state_dict() for folder in ("whole", "parts"))
        assert all(torch.equal(one[key], two[key]) for key in one)


def test_certified_beyond_an_attack_stops_everything(
    splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bench, "_certify", lambda *_: SimpleNamespace(errors=0, certified=101.0))
    with pytest.raises(SoundnessError, match="an attack leaves"):
        Bench(BLOBS, splits, tmp_path).compete(PLAN)


def test_groups_that_failed_are_an_error(splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "_certify", lambda *_: SimpleNamespace(errors=2, certified=0.0))
    rows = Bench(replace(BLOBS, methods=("standard",)), splits, tmp_path).compete(PLAN)
    assert "2 groups could not be certified" in rows[0].error


# ------------------------------------------------------------------------------------------------------ the results


ROWS = [Row("citrus", 98.53, 96.0, 95.5, 90.0, 94.25, 61, 130.5), Row("colt", error="BatchNorm is not supported.")]


def test_results_as_files(tmp_path: Path) -> None:
    write_results(tmp_path, BLOBS, PLAN, ROWS)
    found = json.loads((tmp_path / "results.json").read_text())
    assert [Row(**row) for row in found["rows"]] == ROWS
    assert Plan(**found["plan"]) == PLAN
    assert found["contest"]["network"] == "mlp"
    title, _, *lines = (tmp_path / "results.md").read_text().splitlines()
    assert title.startswith("# ")
    assert lines[0].startswith(caption(BLOBS, PLAN))
    assert f"torch {torch.__version__}; 2:10 in all." in lines[0]
    assert lines[2] == "| method | clean | PGD | UAP attack | certified single | certified UAP | training | in all |"
    assert lines[4] == "| citrus | 98.5 | 96.0 | 95.5 | 90.0 | 94.2 | 1:01 | 2:10 |"
    assert lines[5].count("-") == 7
    assert lines[-1] == "- colt failed: BatchNorm is not supported."
    assert {len(cells(row)) for row in ROWS} == {len(HEADER)}
    assert "failed" not in markdown(BLOBS, PLAN, ROWS[:1], "here")


@pytest.fixture
def file(tmp_path: Path) -> str:
    parts = {"train": blobs(150, 1), "test": blobs(20, 3)}
    arrays = {f"{name}_images": part.images.numpy() for name, part in parts.items()}
    np.savez(tmp_path / "blobs.npz", **arrays, **{f"{n}_labels": part.labels.numpy() for n, part in parts.items()})
    return str(tmp_path / "blobs.npz")


def test_the_command(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "methods", "--data", file, "--network", "mlp", "--images", "10", "--minutes", "1"]
    words += ["--out", str(tmp_path / "out"), "--methods", "standard,citrus"]
    assert main([*words, "--epochs", "1"]) == 0
    out, err = capsys.readouterr()
    table = out.splitlines()
    assert table[2].split()[:3] == ["method", "clean", "PGD"]
    assert [line.split()[0] for line in table[4:6]] == ["standard", "citrus"]
    assert "[2/2] citrus" in err
    assert (tmp_path / "out" / "results.md").exists()
    assert main(words) == 0
    again, err = capsys.readouterr()
    assert again == out
    assert "[2/2]" not in err
    assert main([*words[:-1], "colt,ibp"]) == 0, "more methods join with the same plan"
    assert "1 epoch for every method" in capsys.readouterr().out


def test_a_failed_method_shows_in_table_and_exit_code(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: object, batch: Batch) -> Tensor:
        raise Broken("no luck")

    monkeypatch.setattr(METHODS["ibp"], "loss", fail)
    words = ["bench", "methods", "--data", file, "--network", "mlp", "--images", "10", "--epochs", "1"]
    assert main([*words, "--methods", "ibp,standard", "--out", str(tmp_path / "out")]) == 2
    out = capsys.readouterr().out
    assert "ibp failed: Broken: no luck" in out
    assert [line.split()[0] for line in out.splitlines()[4:6]] == ["ibp", "standard"]


def test_a_stop_is_told(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise Stopped("Stopped at step 1.")

    monkeypatch.setattr(module, "train", stop)
    words = ["bench", "methods", "--data", file, "--network", "mlp", "--images", "10", "--epochs", "1"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 130
    assert "the same command goes on" in capsys.readouterr().err


def test_which_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--help"]) == 0
    assert "methods" in capsys.readouterr().out
    assert main(["bench", "methods", "--help"]) == 0
    assert "--minutes" in capsys.readouterr().out
    for words, says in (
        (["bench"], "Which benchmark?"),
        (["bench", "method"], "did you mean 'methods'?"),
        (["bench", "methods", "--minute", "3"], "--minutes"),
        (["bench", "methods", "--eps", "two"], "eps"),
        (["bench", "methods", "--data", "digits", "--images", "0"], "at least one image"),
    ):
        assert main(words) == 1
        assert says in capsys.readouterr().err
    assert asdict(Contest())["methods"] == ()
