"""The network that a configuration trains: its architecture and normalisation, the weights it begins with, and the
BatchNorm statistics that training leaves behind (running) and that the network keeps (the population's).

Initialisation and regularisers of Shi et al. (NeurIPS 2021) keep interval bounds from exploding.
"""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from citrus.bounds import Box
from citrus.data import Dataset, DatasetInfo, Splits, as_float
from citrus.errors import CitrusError
from citrus.networks import Statistics, Trace, build, trace
from citrus.networks.saved import read_weights, weights_file
from citrus.training.config import TrainConfig
from citrus.training.schedule import stream

TOLERANCE = 0.5  # of the regularisers


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


def initialize(network: nn.Module, generator: torch.Generator) -> None:
    """N(0, 2 pi / fan_in^2) for every convolution and linear weight but the last, which keeps torch's own.

    With a tiny last layer training collapsed in our trials; the published code leaves it alone too.
    """
    weights = [m.weight for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    with torch.no_grad():
        for weight in weights[:-1]:
            fan_in = weight[0].numel()
            noise = torch.empty(weight.shape).normal_(0.0, math.sqrt(2 * math.pi) / fan_in, generator=generator)
            weight.copy_(noise)


def tightness(input_radius: Tensor | float, boxes: tuple[Box, ...]) -> Tensor:
    """(1/m) sum_i relu(tol - r_input / mean(r_i)) / tol: boxes must not grow to more than twice the input's."""
    terms = [(TOLERANCE - input_radius / box.radius.mean().clamp(min=1e-12)).relu() for box in boxes]
    return torch.stack(terms).sum() / TOLERANCE / len(boxes)


def balance(boxes: tuple[Box, ...]) -> Tensor:
    """Active and inactive ReLUs should weigh the same, in mean and in variance of the centres.

    (1/m) sum_i [relu(tol - rho(alpha_i)) + relu(tol - rho(beta_i))] / tol with rho(z) = min(z, 1/z). A layer without
    any stable unit has no ratio: it adds nothing, yet counts in the mean.
    """
    return torch.stack([_balance(box) for box in boxes]).sum() / TOLERANCE / len(boxes)


def _balance(box: Box) -> Tensor:
    centre = box.centre
    active, inactive = (box.lower > 0).to(centre.dtype), (box.upper < 0).to(centre.dtype)
    spread = (centre - centre.mean()).square()
    alpha = _ratio((centre * active).mean(), -(centre * inactive).mean())
    beta = _ratio((spread * active).sum(), (spread * inactive).sum())
    term = (TOLERANCE - alpha).relu() + (TOLERANCE - beta).relu()
    defined = (active.sum() + inactive.sum() > 0) & (spread.max() > 0)
    return torch.where(defined, term, torch.zeros_like(term))


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """min(a/b, b/a), written so that its gradient stays finite when one of them is 0."""
    largest = torch.maximum(a, b)
    return torch.minimum(a, b) / torch.where(largest > 0, largest, torch.ones_like(largest))
