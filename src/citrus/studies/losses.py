"""What same-input and cross-input boxes cost a network in the last epoch of its training (the paper's Figure 4).

For image i of a group with perturbations v_1..v_m: SI is L_IBP(x_i + v_i, y_i, tau), the box that CITRUS leaves out;
CI are the m - 1 others, L_IBP(x_i + v_j, y_i, tau). Measured on the batches of the last epoch, in their order.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from citrus.data import Splits, as_float, flip_and_crop, shuffle
from citrus.errors import CitrusError
from citrus.methods import Batch, Citrus, box_losses
from citrus.networks import fold, trace
from citrus.networks.kernels import true_float32
from citrus.training import TrainConfig
from citrus.training.schedule import stream
from citrus.training.step import augmentation

BoxLosses = dict[str, list[float]]
"""`same`, `cross_sum` and `cross_max`: means over the images of each batch."""


def last_epoch_losses(network: nn.Module, config: TrainConfig, splits: Splits, device: torch.device) -> BoxLosses:
    """SI, the sum of CI and the largest CI per batch, for a network as it was at the end of the epoch."""
    method = config.method
    if not isinstance(method, Citrus) or method.k != 2:
        raise CitrusError(f"Only CITRUS with k = 2 has same-input and cross-input boxes, not {method.name}.")
    found: BoxLosses = {"same": [], "cross_sum": [], "cross_max": []}
    with true_float32():
        for batch in _batches(network.to(device), config, splits, device):
            losses = _all_boxes(batch, method)
            cross = losses[:, 1:]
            for values, each in zip(found.values(), (losses[:, 0], cross.sum(1), cross.amax(1)), strict=True):
                values.append(each.mean().item())
    return found


def _batches(network: nn.Module, config: TrainConfig, splits: Splits, device: torch.device) -> Iterator[Batch]:
    """The batches as the training loop made them; BatchNorm is folded with each batch's statistics, as in training."""
    data, info, epoch = splits.train.to(device), splits.info, config.epochs - 1
    layers = trace(network, info.shape)
    order = shuffle(len(data), stream(config.seed, "shuffle", epoch)).to(device)
    steps = len(data) // config.batch_size
    for k, index in enumerate(order[: steps * config.batch_size].split(config.batch_size)):
        generator = stream(config.seed, "step", epoch * steps + k, device)
        images = as_float(flip_and_crop(data.images[index], *augmentation(config, info), generator))
        labels = data.labels[index]
        with torch.no_grad():
            logits, statistics = layers.forward_with_statistics(images)
            plain = fold(layers, statistics)
        clean = F.cross_entropy(logits, labels)
        yield Batch(images, labels, clean, plain, config.train_eps, config.clip, generator, keep_boxes=False)


def _all_boxes(batch: Batch, method: Citrus) -> Tensor:
    """The loss of each image's own box, then of those around the perturbations of the others of its group."""
    tau, count = method.tau(batch), len(batch.labels)
    size = method.group_size or count
    delta = batch.perturbations(batch.eps - tau, method.attack)
    shifts = torch.arange(size, device=delta.device).expand(count // size, -1)
    lenders, _ = method.lenders(batch, shifts)
    centre = (batch.images[:, None] + delta[lenders]).flatten(0, 1)
    with torch.no_grad():
        losses, _ = box_losses(batch, centre, tau, batch.labels.repeat_interleave(size))
    return losses.view(count, size)
