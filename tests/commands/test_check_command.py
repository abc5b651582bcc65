"""`citrus check` as people use it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.helpers import folded
from support.proved import RESIDUAL, certify
from support.synthetic import SHAPE, config, splits
from torch import Tensor

from citrus.bounds import interval, margin_rows, wrong_labels
from citrus.checker.certificate import read_certificate, store, write_certificates
from citrus.checker.proofs import Certificate, Proof
from citrus.cli import main
from citrus.data import as_float
from citrus.networks import graph
from citrus.training import train


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed (pip install 'citrus-uap[onnx]')")
    from citrus.networks.onnx import load_onnx, save_onnx

    folder, network = tmp_path / "certificates", tmp_path / "net.onnx"
    save_onnx(folded(RESIDUAL), network)
    plain = load_onnx(network)
    (written,) = write_certificates(folder, plain, [certify(plain, 0.03)], network)
    assert main(["check", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "proofs    17 of 17 hold" in shown
    assert "images    4 of 8 certified" in shown
    assert main(["check", str(written.path), "--network", str(network), "--mean", "0.5", "--std", "0.2"]) == 1
    assert "fingerprint" in capsys.readouterr().err
    store(written.path, replace(read_certificate(written.path), eps=0.06))
    assert main(["check", str(folder)]) == 1
    assert "FAILED" in capsys.readouterr().out
    assert main(["check", str(folder), "--network", str(tmp_path / "absent")]) == 1
    assert "There is no network" in capsys.readouterr().err


def test_the_command_reads_the_network_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(config("standard", epochs=2, milestones=(1,)), tmp_path / "run", splits=splits())
    plain = graph(run.network, SHAPE).map(Tensor.detach)
    test = splits().test
    x, y = as_float(test.images[:6]), test.labels[:6]
    by_interval = interval(plain, x, 0.01, margin_rows(y, 3)).lower > 0
    wrong = wrong_labels(y, 3)
    proofs = tuple(Proof(((i, int(wrong[i, k])),)) for i, k in by_interval.nonzero().tolist())
    survivors = int(by_interval.all(1).sum())
    assert survivors > 0
    given = Certificate(0, torch.arange(6), x, y, 0.01, "interval", proofs, survivors)
    write_certificates(tmp_path / "run" / "certificates", plain, [given], tmp_path / "run")
    assert main(["check", str(tmp_path / "run" / "certificates")]) == 0
    assert f"images    {survivors} of 6 certified" in capsys.readouterr().out
