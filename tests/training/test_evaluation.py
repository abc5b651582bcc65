"""An attack that breaks a proof of an evaluation is an error of its image, with both witnesses kept, and is told."""

from pathlib import Path

import pytest
import torch
from support.helpers import case_named, images
from torch import Tensor

from citrus.attacks.alarm import load_alarm
from citrus.cli import main
from citrus.commands.attack import exit_code
from citrus.networks import Graph, graph
from citrus.networks.onnx import save_onnx
from citrus.training import evaluate, evaluation

EPS = 0.3


@pytest.fixture(scope="module")
def fallen() -> tuple[Graph, Tensor, Tensor]:
    """A network and images that are right, and that all attacks fool."""
    plain = graph(case_named("residual").build(), (2, 6, 6)).map(Tensor.detach)
    x = images(6)
    return plain, x, plain(x).argmax(1)


@pytest.mark.parametrize("clip", [False, True])
def test_broken_proofs_do_not_count_and_are_kept(
    clip: bool,
    fallen: tuple[Graph, Tensor, Tensor],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain, x, y = fallen
    save_onnx(plain, tmp_path / "net.onnx")
    honest, _ = evaluate(plain, x, y, EPS, clip=clip, out=tmp_path / "honest")
    assert (honest.ibp_certified, honest.pgd, honest.errors) == (0, 0, 0)
    assert exit_code(honest, tmp_path / "honest") == 0
    assert not list((tmp_path / "honest").glob("broken/*"))
    monkeypatch.setattr(evaluation, "proves", lambda lower: torch.arange(len(lower))[:, None] < 2)
    found, _ = evaluate(plain, x, y, EPS, clip=clip, out=tmp_path, name=str(tmp_path / "net.onnx"))
    assert (found.ibp_certified, found.errors) == (0, 2)
    files = sorted((tmp_path / "broken" / "0.3").iterdir())
    assert [file.name for file in files] == ["image-00000.safetensors", "image-00001.safetensors"]
    assert torch.equal(load_alarm(files[1]).images, x[1:2])
    assert exit_code(found, tmp_path) == 2
    assert str(files[0].parent) in capsys.readouterr().err
    assert main(["check", str(files[1])]) == 1
    shown = capsys.readouterr().out
    assert "Image 1 of the data set is certified alone by intervals" in shown
    assert "fooled    1 of 1 images" in shown
