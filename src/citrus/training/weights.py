"""The network that a configuration trains: its architecture and normalisation, and the weights it begins with."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from citrus.data import DatasetInfo, Splits
from citrus.errors import CitrusError
from citrus.networks import build
from citrus.networks.saved import read_weights, weights_file
from citrus.training.config import TrainConfig
from citrus.training.randomness import stream
from citrus.training.shi import initialize


def normalisation(config: TrainConfig, info: DatasetInfo) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of the network's first layer."""
    return (info.mean, info.std) if config.normalize else ((0.0,) * info.shape[0], (1.0,) * info.shape[0])


def description(config: TrainConfig, info: DatasetInfo) -> dict[str, Any]:
    """The arguments of `build` by name, as a file of weights keeps them."""
    mean, std = (list(values) for values in normalisation(config, info))
    return {"name": config.network, "shape": list(info.shape), "classes": info.classes, "mean": mean, "std": std}


def make_network(config: TrainConfig, splits: Splits) -> nn.Module:
    """The network that a configuration begins with, freshly initialised unless it names one: the same for a seed."""
    made = description(config, splits.info)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        network = build(*made.values())
    if config.start:
        network.load_state_dict(_start(Path(config.start), made))
    elif config.init == "shi":
        initialize(network, stream(config.seed, "init"))
    return network.train()


def _start(path: Path, made: dict[str, Any]) -> dict[str, Tensor]:
    """The weights of a finished network; it must be the very same function that this run trains."""
    tensors, theirs = read_weights(weights_file(path))
    other = [name for name, value in made.items() if theirs.get(name) != value]
    if other:
        raise CitrusError(f"start: {path} holds another network than this run trains: {', '.join(other)} differ.")
    return tensors
