"""Trained networks by name: the files are those that the cards describe, and every way to name a network works."""

import hashlib
import importlib.resources
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.limits import little_memory
from torch import nn

from citrus.data import as_float, load
from citrus.errors import CitrusError
from citrus.files import load_tensors, save_tensors
from citrus.networks import build, graph
from citrus.networks.onnx import save_onnx
from citrus.networks.saved import load_network, save_network
from citrus.networks.zoo import cards

every_card = pytest.mark.parametrize("name", cards())


@every_card
def test_a_file_is_the_one_its_card_describes(name: str) -> None:
    card = cards()[name]
    content = card.path.read_bytes()
    assert hashlib.sha256(content).hexdigest() == card.sha256
    assert len(content) < 2**20
    assert 0 < card.certified_alone <= card.certified <= card.attacked <= card.clean < 100
    assert card.training
    assert card.measured


@every_card
def test_a_network_comes_by_its_name(name: str) -> None:
    network = load_network(name)
    assert isinstance(network, nn.Module)
    assert not network.training
    shape = (1, 28, 28) if cards()[name].data == "mnist" else (3, 32, 32)
    assert graph(network, shape).classes == 10


def test_the_demo_digits_are_classified_as_the_card_says() -> None:
    test = load("demo").test
    assert len(test) == 200
    network = load_network("mnist-0.1")
    assert isinstance(network, nn.Module)
    right = (network(as_float(test.images)).argmax(1) == test.labels).double().mean()
    assert right > 0.95


def test_the_zoo_travels_with_the_package() -> None:
    names = {file.name for file in importlib.resources.files("citrus.networks.zoo").iterdir()}
    assert {"cards.json", *(f"{name}.safetensors" for name in cards())} <= names


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    made = {"name": "mlp", "shape": [1, 12, 12], "classes": 3, "mean": [0.2], "std": [0.5]}
    network = build("mlp", (1, 12, 12), 3, (0.2,), (0.5,)).eval()
    save_network(tmp_path / "run" / "model.safetensors", network, made, {"config": {"epochs": 1}})
    save_onnx(network, tmp_path / "net.onnx", (1, 12, 12))
    return tmp_path


def test_folder_file_and_onnx_are_one_network(saved: Path) -> None:
    pytest.importorskip("onnx")
    x = torch.rand(4, 1, 12, 12)
    networks = [load_network(saved / name) for name in ("run", "run/model.safetensors", "net.onnx")]
    scores = [network(x) for network in networks]
    torch.testing.assert_close(scores[0], scores[1], rtol=0, atol=0)
    torch.testing.assert_close(scores[0], scores[2])


def test_mistakes_are_told_in_one_sentence(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(CitrusError, match="did you mean 'cifar10-2-255'"):
        load_network("cifar10-2-25")
    with pytest.raises(CitrusError, match="no finished network yet"):
        load_network(tmp_path)
    with pytest.raises(CitrusError, match="know their normalisation"):
        load_network("mnist-0.1", mean=(0.5,))
    save_tensors(tmp_path / "other.safetensors", {"x": torch.zeros(1)}, {"network": {"name": "mlp"}})
    with pytest.raises(CitrusError, match="holds no network of Citrus"):
        load_network(tmp_path / "other.safetensors")


@pytest.mark.parametrize(
    "change",
    [
        {"name": 3},
        {"name": ["mlp"]},
        {"shape": [1 << 19, 12, 12]},
        {"shape": [1, 1 << 19, 1 << 19]},
        {"shape": [1, 10**400, 12]},
        {"shape": [1, 12]},
        {"shape": [1, 12.0, 12]},
        {"shape": "112"},
        {"shape": []},
        {"classes": 10**9},
        {"classes": True},
        {"mean": 0.5},
        {"mean": ["a"]},
        {"std": [float("nan")]},
        {"std": [10**400]},
        {"std": [{}]},
        {"mean": [[0.2]], "std": [[0.5]]},
    ],
)
def test_a_description_that_cannot_be_is_refused(saved: Path, change: dict[str, Any]) -> None:
    """Found by `make fuzz`: with a right checksum, a file may describe anything."""
    file = saved / "run" / "model.safetensors"
    tensors, header = load_tensors(file)
    save_tensors(file, tensors, {**header, "network": {**header["network"], **change}})
    with little_memory(), pytest.raises(CitrusError):
        load_network(file)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.pop("0.mean"),
        lambda tensors: tensors.update(more=torch.zeros(1)),
        lambda tensors: tensors.update({"2.bias": torch.zeros(7)}),
        lambda tensors: tensors.update({"2.bias": torch.zeros(100, dtype=torch.int32)}),
    ],
)
def test_weights_of_another_network_are_refused(saved: Path, change: Callable[..., object]) -> None:
    file = saved / "run" / "model.safetensors"
    tensors, header = load_tensors(file)
    change(tensors)
    save_tensors(file, tensors, header)
    with pytest.raises(CitrusError, match="are not those of the network it describes"):
        load_network(file)
