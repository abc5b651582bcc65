"""The command line: what people type, what they see, and what they are told when it is wrong."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.synthetic import blobs

from citrus.certify.result import Certification, GroupResult, Verdict
from citrus.cli import main
from citrus.commands import data
from citrus.commands.attack import evaluation_table
from citrus.commands.certify import by_size
from citrus.training import Evaluation


def test_the_package_is_the_command() -> None:
    shown = subprocess.run([sys.executable, "-m", "citrus", "no-such-command"], capture_output=True, text=True)
    assert shown.returncode == 1
    assert "no-such-command" in shown.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_any_command_with_a_sentence(
    number: signal.Signals, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    ctrl_c = signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells switch off in the background
    monkeypatch.setattr(data, "run", lambda words: os.kill(os.getpid(), number))
    try:
        assert main(["data", "list"]) == code
    finally:
        signal.signal(signal.SIGINT, ctrl_c)
    assert capsys.readouterr().err == "Interrupted; what was finished is kept.\n"
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("CUDA out of memory"), RuntimeError("can't allocate memory: 9 bytes")]
)
def test_memory_that_runs_out_is_told_in_a_sentence(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(words: list[str]) -> None:
        raise error

    monkeypatch.setattr(data, "run", run)
    assert main(["data", "list"]) == 1
    assert capsys.readouterr().err.startswith("error: Memory ran out; what was finished is kept: free some memory")
    with pytest.raises(type(error)):
        main(["data", "list", "--debug"])


def test_an_error_in_citrus_itself_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(words: list[str]) -> None:
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(data, "run", run)
    with pytest.raises(RuntimeError, match="shapes"):
        main(["data", "list"])


def test_tables_say_how_many_images_share_a_perturbation() -> None:
    evaluation = Evaluation(0.1, False, 10, 100.0, 50.0, 10, 90.0, 90.0, 5, 1.0)
    assert "universal perturbations 90.00 first 10, groups of 5" in " ".join(evaluation_table(evaluation).split())
    shared = " ".join(evaluation_table(replace(evaluation, group_size=10)).split())
    assert "universal perturbations 90.00 first 10, one for all" in shared
    row = GroupResult(0, tuple(range(10)), 10, 6, 7, Verdict.TIMEOUT)
    found = [Certification((row,), 10, 0.1, size, "dataset", "citrus") for size in (5, 10)]
    lines = by_size(found).splitlines()
    assert lines[0] == "percent of 10 images that stay right at eps 0.1; 100.00 are right without any"
    assert [line.split() for line in lines[-2:]] == [["5", "60.00", "70.00"], ["all", "10", "60.00", "70.00"]]


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    """A user's own data as one file."""
    train, test = blobs(60, 1), blobs(20, 3)
    path = tmp_path / "blobs.npz"
    parts = {"train": train, "test": test}
    images = {f"{name}_images": part.images.numpy() for name, part in parts.items()}
    np.savez(path, **images, **{f"{name}_labels": part.labels.numpy() for name, part in parts.items()})
    return path


FEW = {"epochs": 2, "ramp-epochs": 1, "milestones": 1, "batch-size": 10, "validation": 0, "test-images": 10}
SHORT = ["--network", "mlp", *(word for name, value in FEW.items() for word in (f"--{name}", str(value)))]


def test_train_attack_resume(
    arrays: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "quickstart", "--data", str(arrays), *SHORT, "--eps", "4/255"]) == 0
    shown = capsys.readouterr()
    assert "clean accuracy" in shown.out
    assert "attacked by universal perturbations" in shown.out
    assert "eps 4/255" in shown.out
    assert "next        citrus certify runs/quickstart --certificates" in shown.out
    lines = shown.out.partition("images that share one perturbation")[2].splitlines()[2:5]
    assert [line.split()[0] for line in lines] == ["1", "5", "all"]
    assert "ETA" in shown.err
    run = Path("runs/quickstart")
    assert (run / "uap" / "4-255.png").read_bytes().startswith(b"\x89PNG")
    written = json.loads((run / "config.json").read_text())
    assert written["eps"] == 4 / 255
    assert {"torch", "cpu", "git"} <= json.loads((run / "env.json").read_text()).keys()
    assert main(["attack", str(run), "--eps", "0.2", "--images", "10"]) == 0
    assert "perturbations  runs/quickstart/uap/0.2.safetensors" in capsys.readouterr().out
    assert main(["train", "--resume", "--out", str(run)]) == 0
    assert main(["train", "quickstart", "--data", str(arrays), *SHORT]) == 0  # a second run takes the next free name
    assert Path("runs/quickstart-2").is_dir()
    assert main(["train", "--config", str(run), "--out", "again", "--seed", "5"]) == 0
    assert json.loads(Path("again/config.json").read_text()) == {**written, "seed": 5}


def test_dry_run_keeps_nothing(
    arrays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "quickstart", "--data", str(arrays), *SHORT, "--dry-run"]) == 0
    assert "nothing was kept" in capsys.readouterr().out
    assert [p.name for p in tmp_path.iterdir()] == ["blobs.npz"]


def test_print_config_and_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "mnist-0.1-citrus", "--print-config", "--method.attack.steps=7"]) == 0
    assert json.loads(capsys.readouterr().out)["method"]["attack"]["steps"] == 7
    assert main(["train", "--list"]) == 0
    assert "cifar10-8-255-citrus" in capsys.readouterr().out
    assert main(["train", "quickstart", "--help"]) == 0
    assert "--method.tau-ratio" in capsys.readouterr().out
    assert main(["data", "list"]) == 0
    assert "tinyimagenet" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "did you mean 'train'?"),
        (["train"], "citrus train quickstart"),
        (["train", "quickstrat"], "did you mean 'quickstart'?"),
        (["train", "quickstart", "--epz", "1"], "did you mean '--eps'?"),
        (["train", "quickstart", "--eps", "abc"], "8/255"),
        (["train", "quickstart", "--eps", "-0.1"], "must lie in [0, 1]"),
        (["train", "quickstart", "--eps", "1/0"], "8/255"),
        (["train", "quickstart", "--eps"], "needs a value"),
        (["train", "quickstart", "--method.tau-ratio", "1.5"], "tau_ratio must lie in"),
        (["train", "quickstart", "--method.group-size", "200"], "larger than batch_size"),
        (["train", "quickstart", "--method.group-size", "7"], "no multiple of group_size"),
        (["train", "quickstart", "--epochs", "2.5"], "whole number"),
        (["train", "quickstart", "--clip", "maybe"], "true or false"),
        (["train", "quickstart", "--network", "resnet"], "Unknown network"),
        (["train", "quickstart", "--data", "imagenet"], "imagenet"),
        (["train", "quickstart", "--data", "nowhere.npz"], "nowhere.npz"),
        (["train", "quickstart", "--config", "x"], "not both"),
        (["train", "--config", "missing.json"], "Cannot read"),
        (["train", "--resume", "--out", "missing"], "Cannot read"),
        (["train", "quickstart", "--resume"], "--resume needs --out"),
        (["attack"], "RUN_FOLDER"),
        (["attack", "missing"], "missing"),
        (["data"], "list"),
        (["data", "info"], "needs the name"),
        (["data", "info", "mnits"], "mnist"),
    ],
)
def test_mistakes_are_told_in_one_sentence(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 1
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in shown.err
    assert not list(tmp_path.iterdir())


def test_debug_shows_the_traceback() -> None:
    with pytest.raises(ValueError, match="Unknown recipe"):
        main(["train", "quickstrat", "--debug"])


def test_an_unwritable_folder_is_one_sentence(arrays: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    words = ["train", "quickstart", "--data", str(arrays), *SHORT, "--out", str(tmp_path / "file" / "run")]
    assert main(words) == 1
    assert "Cannot write" in capsys.readouterr().err
