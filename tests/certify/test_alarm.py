"""An attack that breaks a proof is an error of its group, with both witnesses kept. A tie within rounding is none."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.helpers import case_named, images
from torch import Tensor, nn

from citrus.attacks import Ascent
from citrus.attacks.alarm import Alarm, load_alarm, save_alarm
from citrus.bounds import crown, lower_planes
from citrus.certify import CertifySettings, Verdict, alone, certify, certify_into
from citrus.certify.clock import Clock
from citrus.certify.refine.rounds import OpenGroup
from citrus.certify.search.planes import ChoicePlanes
from citrus.certify.search.search import SubsetSearch
from citrus.cli import main
from citrus.errors import CitrusError
from citrus.networks import Graph, graph
from citrus.networks.onnx import save_onnx

EPS = 0.3
SETTINGS = CertifySettings(group_size=2, verifier="zeng", attack=Ascent(steps=20, restarts=2))
BUGS = ("one of two twins", "every image", "planes")


@pytest.fixture(scope="module")
def twins() -> tuple[Graph, Tensor, Tensor]:
    """Groups of twins: what fools one fools the other, and here everything is fooled."""
    plain = graph(case_named("residual").build(), (2, 6, 6)).map(Tensor.detach)
    x = images(6).repeat_interleave(2, 0)
    y = plain(x).argmax(1)
    assert certify(plain, x, y, EPS, SETTINGS).attacked == 0
    return plain, x, y


def plant(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a bound unsound, for the first three groups alone, or the planes of all."""

    def unsound(*arguments: Any) -> Any:
        bounds = crown(*arguments)
        if len(bounds.lower) == 12:  # all images; those that stay open are bounded once more
            bounds.lower[: 6 : 2 if bug == "one of two twins" else 1] += 100
        return bounds

    def unsound_planes(*arguments: Any) -> Any:
        planes = lower_planes(*arguments)
        return replace(planes, b=planes.b + 100)

    monkeypatch.setattr(alone, *(("lower_planes", unsound_planes) if bug == "planes" else ("crown", unsound)))


@pytest.mark.parametrize("bug", BUGS)
def test_it_stops_its_groups_and_no_other(
    bug: str, twins: tuple[Graph, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(bug, monkeypatch)
    result = certify(*twins, EPS, SETTINGS)
    broken = [row for row in result.rows if row.verdict is Verdict.ERROR]
    groups = list(range(6 if bug == "planes" else 3))
    assert [row.group for row in broken] == groups
    assert all("certified alone, and yet an attack fools it" in row.note for row in broken)
    assert all(row.certified == 0 for row in broken)
    assert all(row.verdict is Verdict.ATTACKED for row in result.rows[len(groups) :])
    assert (result.certified, result.errors) == (0, len(groups))
    assert [alarm.group for alarm in result.alarms] == groups


@pytest.mark.parametrize("bug", BUGS)
def test_both_witnesses_are_kept_and_shown_again(
    bug: str,
    twins: tuple[Graph, Tensor, Tensor],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain, x, y = twins
    save_onnx(plain, tmp_path / "net.onnx")
    with monkeypatch.context() as planted:
        plant(bug, planted)
        result = certify_into(tmp_path, plain, x, y, EPS, SETTINGS, name=str(tmp_path / "net.onnx"))
    path = tmp_path / "zeng-0.3-n2-correct-broken" / "group-00001.safetensors"
    assert str(path) in result.rows[1].note
    alarm = load_alarm(path)
    assert torch.equal(alarm.images, x[2:4])
    assert alarm.delta.abs().max() <= EPS
    assert main(["check", str(path)]) == 1
    shown = capsys.readouterr().out
    assert "certified alone" in shown
    assert "fooled    2 of 2 images" in shown
    # What was an error is tried again, and here it is right.
    again = certify_into(tmp_path, plain, x, y, EPS, SETTINGS)
    assert (again.errors, again.certified, again.alarms) == (0, 0, ())


def test_a_proof_that_the_attack_contradicts_ends_its_group_alone() -> None:
    """A joint proof of what the attack violates on the network itself: nothing is believed of this group any more."""
    choices = ((0, 1), (1, 2))
    planes = ChoicePlanes(2, 0.1, choices, torch.arange(2), torch.ones(2, 3).double(), torch.zeros(2).double())
    search = SubsetSearch(planes)
    search.known.add_witness(torch.full((3,), -0.1), choices)
    group = OpenGroup([0, 1], search, Clock())
    assert not group.broken
    group.learn(SimpleNamespace(core=choices))  # type: ignore[arg-type]
    assert "violates" in group.broken
    assert group.stuck
    assert group.result.survivors == 0
    assert group.ask(4, alone=False) == []


def line(weight: float, bias: float, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Scores (weight x + bias, 0) of one pixel."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(1, 2)).to(dtype).eval()
    with torch.no_grad():
        network[1].weight.copy_(torch.tensor([[weight], [0.0]]))  # type: ignore[operator]
        network[1].bias.copy_(torch.tensor([bias, 0.0]))  # type: ignore[operator]
    return network


@pytest.mark.parametrize("verifier", ["citrus", "racoon", "zeng"])
@pytest.mark.parametrize(
    ("bias", "verdict"),
    [(-0.25, Verdict.UNKNOWN), (-0.25 + 1e-3, Verdict.CERTIFIED), (-0.25 - 1e-3, Verdict.ATTACKED)],
    ids=["tie", "above", "below"],
)
def test_a_tie_within_rounding_is_unknown(verifier: str, bias: float, verdict: Verdict) -> None:
    """x + bias at x = 1/2 with radius 1/4: 0 exactly is not positive, but no computer can tell it from what is."""
    settings = CertifySettings(group_size=1, verifier=verifier, attack=Ascent(steps=40))
    x, y = torch.full((1, 1, 1, 1), 0.5), torch.tensor([0])
    result = certify(line(1.0, bias), x, y, 0.25, settings)
    assert [row.verdict for row in result.rows] == [verdict]
    assert result.errors == 0


@pytest.mark.parametrize("verifier", ["citrus", "racoon", "zeng"])
def test_float32_is_the_stronger_claim(verifier: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A margin of 2^-21 beside terms of 1: true of the real function, but a program in float32 may round it away."""
    network, x, y = line(1.0, -0.25 + 2.0**-21), torch.full((1, 1, 1, 1), 0.5), torch.tensor([0])
    found = {}
    for arithmetic in ("real", "float32"):
        settings = CertifySettings(1, verifier=verifier, arithmetic=arithmetic, attack=Ascent(steps=5))  # type: ignore[arg-type]
        result = certify_into(tmp_path, network, x, y, 0.25, settings, certificates=True)
        assert result.arithmetic == arithmetic
        found[arithmetic] = result.certified
    assert found == {"real": 100.0, "float32": 0.0}
    clear = line(1.0, -0.2)
    save_onnx(graph(clear, (1, 1, 1)), tmp_path / "clear.onnx")
    settings = CertifySettings(1, verifier=verifier, arithmetic="float32", attack=Ascent(steps=5))
    result = certify_into(tmp_path / "clear", clear, x, y, 0.25, settings, certificates=True)
    assert result.certified == 100.0
    folder = next((tmp_path / "clear").glob("*float32-certificates"))
    capsys.readouterr()
    assert main(["check", str(folder), "--network", str(tmp_path / "clear.onnx")]) == 0
    assert "float32 arithmetic" in capsys.readouterr().out


def test_half_precision_is_certified_as_the_function_it_stores() -> None:
    """At 1.0005 times the radius up to which it holds, nothing is proved; just below it is."""
    network = line(1.0009765625, -0.25).half()
    x, y = torch.full((1, 1, 1, 1), 0.5), torch.tensor([0])
    radius = 0.5 - 0.25 / 1.0009765625
    for share, certified in ((0.9995, 100.0), (1.0005, 0.0)):
        for settings in (CertifySettings(1), CertifySettings(1, verifier="zeng")):
            assert certify(network, x, y, radius * share, settings).certified == certified


@pytest.mark.parametrize(
    "change",
    [
        {"network": 5},
        {"eps": "a"},
        {"eps": float("nan")},
        {"arithmetic": []},
        {"claim": None},
        {"delta": torch.zeros(3)},
    ],
)
def test_a_file_that_does_not_fit_together_is_damaged(change: dict[str, Any], tmp_path: Path) -> None:
    x, y = torch.rand(2, 1, 2, 2), torch.tensor([0, 1])
    alarm = Alarm(0, "2 of 2", 0.1, y, x, y, x[0], "real")
    save_alarm(tmp_path / "right", alarm)
    assert load_alarm(tmp_path / "right").claim == "2 of 2"
    save_alarm(tmp_path / "wrong", replace(alarm, **change))
    with pytest.raises(CitrusError, match="is damaged"):
        load_alarm(tmp_path / "wrong")
