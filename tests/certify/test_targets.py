"""How many images one perturbation sends to a class: true beside samples and by hand, and told if broken."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.helpers import Case, folded, images
from support.joint_cases import DEEP
from support.proved import CONV, RESIDUAL
from torch import nn

from citrus.attacks import Ascent
from citrus.attacks.target import attack_target
from citrus.certify import CertifySettings, certify_targets, targets
from citrus.certify.targets import save_targets, targets_path
from citrus.errors import CitrusError
from citrus.report.targets import read_targets

ATTACK = Ascent(steps=15, restarts=3)
SETTINGS = CertifySettings(budget=20.0, attack=ATTACK)


@pytest.mark.parametrize(("case", "eps"), [(DEEP, 0.05), (CONV, 0.1), (RESIDUAL, 0.04)], ids=str)
def test_no_sampled_perturbation_sends_more_images_than_is_proved(case: Case, eps: float) -> None:
    net, x = folded(case), images(24)
    found = certify_targets(net, x, eps, SETTINGS, ATTACK)
    before = net(x).argmax(1)
    assert [one.label for one in found.classes] == list(range(net.classes))
    generator = torch.Generator().manual_seed(0)
    for one in found.classes:
        others = before != one.label
        assert one.candidates == int(others.sum())
        assert one.attacked <= one.most <= one.candidates
        assert not one.is_broken
        for _ in range(200):
            delta = (torch.rand(x.shape[1:], generator=generator) - 0.5).sign() * eps
            assert int((net(x[others] + delta).argmax(1) == one.label).sum()) <= one.most
    assert found.worst.most == max(one.most for one in found.classes)
    assert any(0 < one.most < one.candidates for one in found.classes)


def test_by_hand() -> None:
    """Scores are the pixel, its negative, and -1: images at 0.1, 0.3 and 0.5 above the middle, two below. Within 0.2
    one image changes sides at most, because 0.3 + delta and -0.1 + delta do not lie beyond the middle together; nothing
    comes to the third class."""
    linear = nn.Linear(1, 3)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[1.0], [-1.0], [0.0]]))
        linear.bias.copy_(torch.tensor([-0.5, 0.5, -1.0]))
    network = nn.Sequential(nn.Flatten(), linear).eval()
    x = torch.tensor([0.6, 0.8, 1.0, 0.4, 0.1]).view(-1, 1, 1, 1)
    found = certify_targets(network, x, 0.2, SETTINGS, ATTACK)
    assert [(one.candidates, one.most, one.attacked) for one in found.classes] == [(2, 1, 1), (3, 1, 1), (5, 0, 0)]


def test_the_attack_finds_what_there_is() -> None:
    """Two pixels, of which one moves every image to the class that is wanted and the other does not matter."""
    x = torch.rand(40, 1, 1, 2, generator=torch.Generator().manual_seed(0))

    def model(points: torch.Tensor) -> torch.Tensor:
        pixels = points.flatten(1)
        return torch.stack([pixels[:, 0] * 0 + 0.5, pixels[:, 0] + 0.01 * pixels[:, 1]], 1)

    delta = attack_target(model, x, 1, 0.3, ATTACK, torch.Generator().manual_seed(1))
    best = model(x + torch.full_like(delta, 0.3)).argmax(1) == 1
    assert float(delta.abs().max()) <= 0.3 + 1e-6
    assert int((model(x + delta).argmax(1) == 1).sum()) == int(best.sum())


def test_an_attack_that_breaks_a_proof_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "solve_masters", lambda *_: [])
    found = certify_targets(folded(DEEP), images(24), 0.3, SETTINGS, ATTACK)
    assert any(one.is_broken for one in found.classes)


def test_what_cannot_be_asked_is_told() -> None:
    with pytest.raises(CitrusError, match="need the verifier citrus"):
        certify_targets(folded(DEEP), images(3), 0.05, replace(SETTINGS, verifier="zeng"))


def test_the_report_reads_what_is_written(tmp_path: Path) -> None:
    found = certify_targets(folded(DEEP), images(6), 0.02, SETTINGS, ATTACK)
    path = targets_path(tmp_path, found.eps, SETTINGS)
    save_targets(path, found, ("cat", "dog"))
    assert [one["name"] for one in json.loads(path.read_text())["classes"]] == ["cat", "dog", "2"]
    (shown,) = read_targets(tmp_path, [])
    assert [(one.label, one.most) for one in shown.classes] == [(one.label, one.most) for one in found.classes]
