"""BatchNorm statistics: what the saved network keeps of the training."""

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.steps import make_network, random, tiny_splits
from support.steps import one_thread as one_thread
from torch import Tensor, nn

from citrus.data import as_float
from citrus.methods import IBP, Standard
from citrus.networks import ARCHITECTURES, Normalize, trace
from citrus.training import TrainConfig, Trainer
from citrus.training.weights import estimate_statistics, update_running

CONFIG = TrainConfig(
    data="tiny", network="tiny", method=IBP(), eps=0.05, epochs=3, batch_size=5, ramp_epochs=1, lr=1e-2
)


def tiny_layers(shape: tuple[int, int, int], classes: int) -> list[nn.Module]:
    layers: list[nn.Module] = [nn.Conv2d(shape[0], 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()]
    return [*layers, nn.Linear(100, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, classes)]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network with BatchNorm, small enough to train in a blink, under the name "tiny"."""
    monkeypatch.setitem(ARCHITECTURES, "tiny", tiny_layers)


def batch_norms(network: nn.Module) -> list[nn.BatchNorm1d | nn.BatchNorm2d]:
    return [m for m in network.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]


def batch_statistics(network: nn.Module, batches: list[Tensor]) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """Mean and variance of what enters each BatchNorm layer in train mode, by NumPy: (layer, batch)."""
    twin = copy.deepcopy(network).train()
    found: list[list[tuple[np.ndarray, np.ndarray]]] = []

    def watch(entries: list[tuple[np.ndarray, np.ndarray]]) -> Callable[..., None]:
        def hook(layer: nn.Module, inputs: tuple[Tensor]) -> None:
            x = inputs[0].detach().numpy()
            axes = (0, 2, 3) if x.ndim == 4 else (0,)
            entries.append((x.mean(axes), x.var(axes)))

        return hook

    for layer in batch_norms(twin):
        found.append([])
        layer.register_forward_pre_hook(watch(found[-1]))
    for batch in batches:
        twin(batch)
    return found


def assert_population(network: nn.Module, batches: list[Tensor]) -> None:
    found = batch_statistics(network, batches)
    assert len(found) == 2
    for layer, entries in zip(batch_norms(network), found, strict=True):
        mean, variance = (np.mean([entry[k] for entry in entries], axis=0) for k in (0, 1))
        assert layer.running_mean is not None
        assert layer.running_var is not None
        np.testing.assert_allclose(layer.running_mean.numpy(), mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(layer.running_var.numpy(), variance, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------------------------------- population statistics


@pytest.mark.parametrize(("count", "batch_size"), [(20, 5), (20, 20), (23, 5)])
def test_population_statistics_are_the_average_of_batch_statistics(count: int, batch_size: int) -> None:
    """An incomplete last batch does not enter, as in training."""
    data = tiny_splits(count).train
    network = nn.Sequential(Normalize((0.5,) * 3, (0.25,) * 3), *tiny_layers((3, 12, 12), 3))
    weights = {name: p.clone() for name, p in network.named_parameters()}
    estimate_statistics(network, data, batch_size)
    full = len(data.images) // batch_size * batch_size
    assert_population(network, list(as_float(data.images[:full]).split(batch_size)))
    assert all(torch.equal(p, weights[name]) for name, p in network.named_parameters())


def test_a_network_without_batch_norm_is_left_alone() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(432, 3))
    before = copy.deepcopy(network.state_dict())
    estimate_statistics(network, tiny_splits(6).train, 3)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


@pytest.mark.usefixtures("tiny")
def test_the_saved_network_has_population_statistics() -> None:
    trainer = Trainer(CONFIG, tiny_splits(20))
    list(trainer.epochs())
    before = copy.deepcopy(trainer.network.state_dict())
    network = trainer.finish()
    assert not network.training
    assert all(torch.equal(value, before[name]) for name, value in trainer.network.state_dict().items())
    assert_population(network, [as_float(trainer.data.images)])


# ------------------------------------------------------------------------------------------------- running statistics


@pytest.mark.parametrize("momentum", [0.1, 0.3])
def test_running_statistics_move_as_in_torch(momentum: float) -> None:
    network, traced = make_network()
    for layer in batch_norms(network):
        layer.momentum = momentum
    twin = copy.deepcopy(network).train()
    for seed in range(4):
        images = random(3 + seed, 2, 5, 5, seed=seed)
        logits, statistics = traced.forward_with_statistics(images)
        update_running(traced, statistics, len(images))
        torch.testing.assert_close(logits, twin(images), rtol=1e-9, atol=1e-9)
        for ours, torchs in zip(batch_norms(network), batch_norms(twin), strict=True):
            torch.testing.assert_close(ours.running_mean, torchs.running_mean, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(ours.running_var, torchs.running_var, rtol=1e-9, atol=1e-9)


def test_without_running_statistics_there_is_nothing_to_move() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(50, 4), nn.BatchNorm1d(4, track_running_stats=False))
    traced = trace(network, (2, 5, 5))
    _, statistics = traced.forward_with_statistics(random(3, 2, 5, 5).float())
    update_running(traced, statistics, 3)
    assert network[2].running_mean is None


@pytest.mark.usefixtures("tiny")
def test_training_moves_running_statistics_once_per_step_with_clean_images() -> None:
    """Whatever the method bounds or attacks, its statistics are those of an ordinary forward pass per step."""
    for method in (Standard(), IBP()):
        trainer = Trainer(replace(CONFIG, method=method, epochs=1, ramp_epochs=0), tiny_splits(5))
        twin = copy.deepcopy(trainer.network).train()
        list(trainer.epochs())
        twin(as_float(trainer.data.images))
        for ours, torchs in zip(batch_norms(trainer.network), batch_norms(twin), strict=True):
            torch.testing.assert_close(ours.running_mean, torchs.running_mean, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(ours.running_var, torchs.running_var, rtol=1e-4, atol=1e-5)
