"""A network as a file: its weights, and in the header all that is needed to build it again without the data."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from citrus.data import DatasetInfo, Splits
from citrus.errors import CitrusError
from citrus.files import load_tensors, save_tensors
from citrus.networks import build
from citrus.training.config import TrainConfig, to_dict
from citrus.training.folder import RunFolder
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


def save_network(path: Path, network: nn.Module, config: TrainConfig, splits: Splits) -> None:
    """Write a network that `load_network` can read."""
    made = description(config, splits.info)
    save_tensors(path, dict(network.state_dict()), {"network": made, "config": to_dict(config)})


def load_network(path: Path) -> nn.Module:
    """The network that `save_network` wrote, in eval mode."""
    tensors, made = _read(path)
    shape, mean, std = (tuple(made[key]) for key in ("shape", "mean", "std"))
    network = build(made["name"], shape, made["classes"], mean, std)
    network.load_state_dict(tensors)
    return network.eval()


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights and description."""
    tensors, header = load_tensors(path)
    made = header.get("network")
    if not isinstance(made, dict):
        raise CitrusError(f"{path} holds no network of Citrus.")
    return tensors, made


def _start(path: Path, made: dict[str, Any]) -> dict[str, Tensor]:
    """The weights of a finished run, by its folder or its file; it must have trained the very same function."""
    path = RunFolder(path).model if path.is_dir() else path
    if not path.exists():
        raise CitrusError(f"start: there is no {path}: train that network first, or name another one with --start.")
    tensors, theirs = _read(path)
    other = [name for name, value in made.items() if theirs.get(name) != value]
    if other:
        raise CitrusError(f"start: {path} holds another network than this run trains: {', '.join(other)} differ.")
    return tensors
