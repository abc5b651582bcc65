"""Weights, radii and images that nobody would choose: right answers, or one sentence."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn
from trial.exact import exact, most_violated, steps_of

from citrus.attacks import Ascent
from citrus.certify import Certification, CertifySettings, certify
from citrus.errors import CitrusError
from citrus.inputs import parse_eps

QUICK = CertifySettings(group_size=3, attack=Ascent(steps=10, restarts=4))
SHAPE = (1, 1, 2)


def made(change: Callable[[nn.Sequential], None] = lambda network: None, classes: int = 3) -> nn.Sequential:
    """A small network of three classes that all occur, changed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, classes)).eval()
    with torch.no_grad():
        network[3].bias -= network(images()).mean(0)  # type: ignore[operator]
        change(network)
    return network


def images(count: int = 9) -> Tensor:
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(1))


def is_right(network: nn.Sequential, x: Tensor, result: Certification) -> None:
    """Both counts of every row are true in exact numbers, and add up."""
    steps = steps_of(list(network), SHAPE)[0]
    labels = network.double()(x.double()).argmax(1)
    for row in result.rows:
        members = list(row.index)
        chosen = [exact(x[i]) for i in members]
        lost = most_violated(steps, chosen, labels[members].tolist(), Fraction(result.eps))
        assert row.certified <= len(members) - lost <= row.attacked <= row.correct
    assert sum(result.images_by_outcome().values()) == len(x)


def changed(layer: int, field: str, value: float) -> Callable[[nn.Sequential], None]:
    def change(network: nn.Sequential) -> None:
        getattr(network[layer], field).view(-1)[0] = value

    return change


def scaled(factor: float) -> Callable[[nn.Sequential], None]:
    def change(network: nn.Sequential) -> None:
        for weight in network.parameters():
            weight *= factor

    return change


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(("layer", "field"), [(1, "weight"), (3, "bias")])
def test_weights_that_are_no_numbers_are_refused(layer: int, field: str, value: float) -> None:
    with pytest.raises(CitrusError, match=f"Layer '{layer}' of the network has weights that are NaN or infinite"):
        certify(made(changed(layer, field, value)), images(), torch.zeros(9, dtype=torch.int64), 0.1, QUICK)


STRANGE = {
    "weight 1e30": changed(1, "weight", 1e30),
    "bias -1e30": changed(1, "bias", -1e30),
    "last bias 1e38": changed(3, "bias", 1e38),
    "subnormal weight": changed(1, "weight", 1e-42),
    "subnormal bias": changed(3, "bias", 1e-45),
    "all 1e15": scaled(1e15),
    "all too large for scores in float32": scaled(1e30),
    "all subnormal": scaled(1e-40),
    "all 0": scaled(0.0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", STRANGE)
def test_strange_weights(name: str, dtype: torch.dtype) -> None:
    network = made(STRANGE[name]).to(dtype)
    x = images().to(dtype)
    labels = made(STRANGE[name]).double()(x.double()).argmax(1)
    result = certify(network, x, labels, 0.05, QUICK)
    assert result.correct == 100  # right in float64, so also where float32 overflows
    is_right(network, x, result)


@pytest.mark.parametrize("eps", [0, 5e-324, 1e-45, 1e-30, 0.1, 1, "8/255"])
def test_radii(eps: float | str) -> None:
    network, x = made(), images()
    result = certify(network, x, network(x).argmax(1), eps, QUICK)
    assert result.eps == parse_eps(eps)
    is_right(network, x, result)
    if result.eps < 1e-20:
        assert result.certified == 100


@pytest.mark.parametrize("eps", [1.5, -0.1, float("nan"), float("inf"), "", "1/0", "eight"])
def test_radii_that_are_none(eps: float | str) -> None:
    with pytest.raises(CitrusError, match=r"^eps (must be a number|is in pixel units)"):
        certify(made(), images(), torch.zeros(9, dtype=torch.int64), eps, QUICK)


@pytest.mark.parametrize("grouping", ["dataset", "correct", "adaptive"])
def test_copies_of_one_image_fall_together(grouping: str) -> None:
    """All of a group of copies survive, or none."""
    network = made()
    for image in images(4):
        x = image.expand(6, *SHAPE)
        settings = replace(QUICK, grouping=grouping)  # type: ignore[arg-type]
        alone = certify(network, x, network(x).argmax(1), 0.1, replace(settings, group_size=1))
        together = certify(network, x, network(x).argmax(1), 0.1, settings)
        assert {row.certified for row in together.rows} <= {0, 3}
        assert together.certified >= alone.certified
        is_right(made(), x, together)


@pytest.mark.parametrize("grouping", ["dataset", "correct", "adaptive"])
def test_no_image_is_classified_right(grouping: str) -> None:
    network, x = made(), images()
    labels = (network(x).argmax(1) + 1) % 3
    result = certify(network, x, labels, 0.1, replace(QUICK, grouping=grouping))  # type: ignore[arg-type]
    assert (result.correct, result.certified, result.attacked) == (0, 0, 0)
    assert result.images_by_outcome()["misclassified"] == 9


def test_a_class_that_never_occurs() -> None:
    """Neither among the labels nor among the answers: its margins count all the same."""

    def never(network: nn.Sequential) -> None:
        network[3].bias[2] = -100.0  # type: ignore[index]

    network, x = made(never), images()
    labels = network(x).argmax(1)
    assert 2 not in labels
    is_right(network, x, certify(network, x, labels, 0.05, QUICK))


def test_a_group_larger_than_the_data_set() -> None:
    network, x = made(), images()
    result = certify(network, x, network(x).argmax(1), 0.05, replace(QUICK, group_size=1000))
    assert [len(row.index) for row in result.rows] == [9]
    is_right(network, x, result)


def test_one_class_is_no_classifier() -> None:
    with pytest.raises(CitrusError, match="A classifier needs at least two classes, got 1"):
        certify(made(classes=1), images(), torch.zeros(9, dtype=torch.int64), 0.1, QUICK)
