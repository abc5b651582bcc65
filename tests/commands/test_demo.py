"""`citrus certify demo`: a certified network at once, from the package alone."""

from importlib.resources import files
from pathlib import Path

import pytest

from citrus.cli import main
from citrus.demo import unpack
from citrus.training import load_run


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_certified_network_without_training_or_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certify", "demo", "--images", "40", "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    proved = next(line for line in shown.splitlines() if "certified UAP accuracy" in line)
    assert float(proved.split()[-1]) >= 90
    assert "runs/demo" in shown
    # the folder is a run like any other
    assert main(["attack", "runs/demo", "--images", "10", "--device", "cpu"]) == 0
    assert main(["report", "runs/demo"]) == 0
    assert main(["certify", "runs/demo", "--images", "10", "--group-size", "2", "--device", "cpu"]) == 0


def test_a_folder_of_that_name_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    Path("demo").mkdir()
    assert main(["certify", "demo"]) == 1
    assert "demo/config.json" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_run_of_somebody_else_is_never_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    mine = Path("runs/demo")
    mine.mkdir(parents=True)
    (mine / "config.json").write_text("mine")
    (mine / "model.safetensors").write_bytes(b"mine")
    assert main(["certify", "demo"]) == 1
    assert "runs/demo is another run" in capsys.readouterr().err
    assert (mine / "config.json").read_text() == "mine"
    assert (mine / "model.safetensors").read_bytes() == b"mine"


def test_it_works_from_other_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = unpack().absolute()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["certify", str(folder), "--images", "10", "--device", "cpu"]) == 0


def test_unpacking_again_leaves_results_alone() -> None:
    folder = unpack()
    (folder / "certify").mkdir()
    (folder / "model.safetensors").write_bytes(b"damaged")
    unpack()
    assert (folder / "certify").is_dir()
    assert load_run(folder).config.eps == 0.1


def test_it_is_small() -> None:
    for file in files("citrus.demo").iterdir():
        if file.is_file():
            assert len(file.read_bytes()) < 2**20
