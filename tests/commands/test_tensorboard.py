"""`citrus train --log tensorboard`: event files that say what metrics.jsonl says, also after a stop and a resume."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.synthetic import blobs

import citrus.commands.train as command
from citrus.cli import main
from citrus.files import read_lines
from citrus.training import train

SHORT = {"network": "mlp", "epochs": 4, "ramp-epochs": 1, "milestones": 1, "batch-size": 10, "test-images": 10}
STEPS_PER_EPOCH = 5


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A short run on a data set of 60 images, 10 of them held out, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    parts = {"train": blobs(60, 1), "test": blobs(20, 3)}
    arrays = {f"{name}_images": part.images.numpy() for name, part in parts.items()}
    np.savez("blobs.npz", **arrays, **{f"{name}_labels": part.labels.numpy() for name, part in parts.items()})
    settings = {"data": "blobs.npz", "validation": 10, **SHORT}
    return ["train", "quickstart", "--out", "run", *(w for k, v in settings.items() for w in (f"--{k}", str(v)))]


def metrics() -> dict[str, list[tuple[int, float]]]:
    """Of each name in metrics.jsonl its (step, value), in the precision of event files."""
    points: dict[str, list[tuple[int, float]]] = {}
    for row in read_lines(Path("run/metrics.jsonl"))[0]:
        for name in row.keys() - {"step"}:
            points.setdefault(name, []).append((row["step"], float(np.float32(row[name]))))
    return points


def scalars() -> dict[str, list[tuple[int, float]]]:
    """The same as TensorBoard reads it."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="no tensorboard")
    events = accumulator.EventAccumulator("run/tensorboard", size_guidance={"scalars": 0}).Reload()
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


def stop_after(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopping(*arguments: Any, **settings: Any) -> Any:
        return train(*arguments, **settings, stop_after=step)

    monkeypatch.setattr(command, "train", stopping)


def test_events_say_what_the_metrics_say(words: list[str]) -> None:
    pytest.importorskip("tensorboard", reason="the tensorboard package is not installed")
    assert main([*words, "--log", "tensorboard"]) == 0
    found = scalars()
    assert found == metrics()
    assert {"loss", "robust_loss", "validation_clean", "validation_ibp", "eps", "lr"} <= found.keys()
    assert [step for step, _ in found["loss"]] == [STEPS_PER_EPOCH * k for k in (1, 2, 3, 4)]


@pytest.mark.parametrize("first", [["--log", "tensorboard"], []], ids=["logged", "not logged"])
@pytest.mark.parametrize("step", [STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH + 2])
def test_a_resumed_run_has_every_point_once(
    words: list[str], first: list[str], step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard", reason="the tensorboard package is not installed")
    with monkeypatch.context() as patch:
        stop_after(step, patch)
        assert main([*words, *first]) == 130
    if first:
        assert scalars() == metrics()
    resume = ["train", "--resume", "--out", "run", "--log", "tensorboard"]
    assert main(resume) == 0
    assert [s for s, _ in scalars()["loss"]] == [STEPS_PER_EPOCH * k for k in (1, 2, 3, 4)]
    assert scalars() == metrics()
    assert main(resume) == 0, "a run that is complete already"
    assert scalars() == metrics()


def test_files_of_others_stay(words: list[str]) -> None:
    pytest.importorskip("tensorboard", reason="the tensorboard package is not installed")
    mine = Path("run/tensorboard/events.out.tfevents.1.elsewhere")
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"")
    assert main([*words, "--log", "tensorboard"]) == 0
    assert mine.exists()
    assert scalars() == metrics()


def test_without_the_flag_nothing_is_written(words: list[str]) -> None:
    assert main(words) == 0
    assert not Path("run/tensorboard").exists()


@pytest.mark.parametrize(("log", "says"), [("tensorboard", "pip install 'citrus-uap[tensorboard]'"), ("wand", "known")])
def test_what_cannot_be_written_is_told_before_training(
    words: list[str], log: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    assert main([*words, "--log", log]) == 1
    shown = capsys.readouterr().err
    assert says in shown
    assert shown.splitlines()[-1].startswith("error: ")
    assert not Path("run").exists()
