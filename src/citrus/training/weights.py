"""The network that a configuration trains: its architecture and normalisation, the weights it begins with, and the
BatchNorm statistics that training leaves behind (running) and that the network keeps (the population's)."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from citrus.data import Dataset, DatasetInfo, Splits, as_float
from citrus.errors import CitrusError
from citrus.networks import Statistics, Trace, build, trace
from citrus.networks.saved import read_weights, weights_file
from citrus.training.config import TrainConfig
from citrus.training.schedule import stream
from citrus.training.shi import initialize


def description(config: TrainConfig, info: DatasetInfo) -> dict[str, Any]:
    """The arguments of `build` by name, as a file of weights keeps them."""
    channels = info.shape[0]
    mean, std = (info.mean, info.std) if config.normalize else ([0.0] * channels, [1.0] * channels)
    made = {"name": config.network, "shape": list(info.shape), "classes": info.classes}
    return made | {"mean": list(mean), "std": list(std)}


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


@torch.no_grad()
def update_running(traced: Trace, statistics: Statistics, count: int) -> None:
    """Move running statistics towards those of a batch of `count` images, as torch's BatchNorm does."""
    shapes = {layer.name: layer.shape for layer in traced.layers}
    for name, layer in traced.batch_norms().items():
        if layer.running_mean is None or layer.running_var is None:
            continue
        mean, variance = statistics[name]
        places = count * torch.Size(shapes[name][1:]).numel()
        momentum = 0.1 if layer.momentum is None else layer.momentum
        if layer.num_batches_tracked is not None:
            layer.num_batches_tracked += 1
        layer.running_mean.lerp_(mean, momentum)
        layer.running_var.lerp_(variance * (places / (places - 1)), momentum)


@torch.no_grad()
def estimate_statistics(network: nn.Module, data: Dataset, batch_size: int) -> None:
    """Running mean and variance become the average of the statistics of all full batches."""
    traced = trace(network, data.shape)
    layers = traced.batch_norms()
    if not layers:
        return
    batches = [images for images in data.images.split(batch_size) if len(images) == batch_size]
    found = [traced.forward_with_statistics(as_float(images))[1] for images in batches]
    for name, layer in layers.items():
        for k, running in enumerate((layer.running_mean, layer.running_var)):
            assert running is not None
            running.zero_()
            for statistics in found:
                running += statistics[name][k] / len(found)
