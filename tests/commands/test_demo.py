"""Networks of the zoo on the command line: a certified network at once, from the package alone."""

from pathlib import Path

import pytest

from citrus.cli import main


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_certified_network_without_training_or_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certify", "demo", "--images", "40", "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    lines = {line.split()[0]: line.split() for line in shown.splitlines() if line.split()}
    assert {"1", "5", "20", "all"} <= lines.keys(), "one perturbation each, for groups, and for everybody"
    assert 90 <= float(lines["all"][-2]) <= float(lines["all"][-1]) <= 100
    assert "runs/demo/certify" in shown
    assert main(["attack", "demo", "--images", "10", "--device", "cpu"]) == 0
    assert main(["report", "runs/demo"]) == 0


def test_a_network_of_the_zoo_on_other_images_and_its_proofs(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["mnist-0.1", "--data", "demo", "--images", "10", "--device", "cpu"]
    assert main(["certify", *words, "--group-size", "2", "--certificates"]) == 0
    folder = next(line.split()[-1] for line in capsys.readouterr().out.splitlines() if line.startswith("next"))
    assert folder.startswith("runs/mnist-0.1/certify/")
    assert main(["check", folder]) == 0


def test_a_folder_of_that_name_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    Path("demo").mkdir()
    assert main(["certify", "demo"]) == 1
    assert "demo/config.json" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_what_is_no_network_is_told_with_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certify", "cifar10-2-25"]) == 1
    assert "did you mean 'cifar10-2-255'?" in capsys.readouterr().err
    assert main(["attack"]) == 1
    assert "cifar10-8-255" in capsys.readouterr().err
