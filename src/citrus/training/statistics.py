"""BatchNorm statistics: the running ones that training leaves behind, and the population's for the network to keep."""

import torch
from torch import nn

from citrus.data import Dataset, as_float
from citrus.networks import Statistics, Trace, trace


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
