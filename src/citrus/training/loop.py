"""The one training loop. It knows schedules, statistics and optimisation; what robustness means is the method's word.

trainer = Trainer(config, splits)
for row in trainer.epochs():
    print(row)
network = trainer.finish()
"""

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from citrus.data import Dataset, DatasetInfo, Splits, as_float
from citrus.data.augment import flip_and_crop, shuffle
from citrus.errors import CitrusError
from citrus.methods import Batch, Boxes, box_losses
from citrus.networks import Statistics, build, fold, trace
from citrus.training.checkpoint import flatten_optimizer, restore_optimizer
from citrus.training.config import TrainConfig
from citrus.training.evaluation import clean_accuracy, ibp_accuracy
from citrus.training.randomness import stream
from citrus.training.schedule import eps_at, lr_at
from citrus.training.shi import balance, initialize, tightness
from citrus.training.statistics import estimate_statistics, update_running

SMALL_EPS = 1e-6  # radius of the boxes that the regularisers see while eps is still 0
BYTES_PER_NEURON = 40  # kept for the backward pass of an interval bound: ten float32 values, measured on CNN7


@dataclass(frozen=True)
class Progress:
    """Where a run stands, after every step."""

    step: int
    steps: int
    epoch: int
    eps: float
    loss: float


class Stopped(Exception):
    """A run was asked to stop and has kept its state."""


class Trainer:
    """The state of one run: network, optimiser, position. `state` and `restore` carry it over a stop exactly."""

    def __init__(self, config: TrainConfig, splits: Splits, device: torch.device | str = "cpu") -> None:
        self.config = config
        self.device = torch.device(device)
        self.data: Dataset = splits.train.to(self.device)
        self.validation: Dataset = splits.validation.to(self.device)
        self.info = splits.info
        if config.batch_size > len(self.data):
            raise CitrusError(f"batch_size {config.batch_size} is larger than the {len(self.data)} training images.")
        self.steps_per_epoch = len(self.data) // config.batch_size
        self.steps = self.steps_per_epoch * config.epochs
        self.network = make_network(config, splits).to(self.device)
        self.trace = trace(self.network, self.info.shape)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=config.lr)
        self.step = 0
        self.sums: dict[str, Tensor] = {}
        self.average: dict[str, Tensor] = {}
        self.averaged = 0
        neurons = sum(torch.Size(s.shape).numel() for s in self.trace.steps if isinstance(s.layer, nn.ReLU))
        self.max_boxes = max(1, int(config.memory_gb * 2**30 / (neurons * BYTES_PER_NEURON)))

    # ------------------------------------------------------------------------------------------------- the loop

    def epochs(self, on_step: Callable[[Progress], None] | None = None) -> Iterator[dict[str, Any]]:
        """Train to the end, yielding one row of metrics per epoch. `on_step` may raise `Stopped` between two steps."""
        while self.step < self.steps:
            epoch, done = divmod(self.step, self.steps_per_epoch)
            started, first = time.perf_counter(), done
            order = shuffle(len(self.data), stream(self.config.seed, "shuffle", epoch)).to(self.device)
            for group in self.optimizer.param_groups:
                group["lr"] = lr_at(self.config, epoch)
            while done < self.steps_per_epoch:
                index = order[done * self.config.batch_size : (done + 1) * self.config.batch_size]
                self._train_step(index)
                done += 1
                progress = self._progress(epoch, done)
                if done < self.steps_per_epoch and on_step:
                    on_step(progress)
            yield self._epoch_row(epoch, time.perf_counter() - started, done - first)
            if on_step:
                on_step(progress)

    def _train_step(self, index: Tensor) -> None:
        eps = eps_at(self.config, self.step, self.steps_per_epoch)
        generator = stream(self.config.seed, "step", self.step, self.device)
        images = self.data.images[index]
        if self.config.augment and (self.info.flip or self.info.pad):
            images = flip_and_crop(images, self.info.pad, self.info.flip, generator)
        images, labels = as_float(images), self.data.labels[index]
        logits, statistics = self.trace.forward_with_statistics(images)
        parts = self._loss(images, labels, logits, statistics, eps, generator)
        if not torch.isfinite(parts["loss"]):
            raise CitrusError(
                f"The loss became {parts['loss'].item()} at step {self.step} (eps {eps:g}); the last checkpoint is "
                "kept. Try a smaller lr, a longer ramp or clip_norm 10."
            )
        self.optimizer.zero_grad(set_to_none=True)
        parts["loss"].backward()
        if self.config.clip_norm:
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.config.clip_norm)
        self.optimizer.step()
        update_running(self.trace, statistics, len(images))
        self.step += 1
        self._update_average()
        parts["accuracy"] = (logits.argmax(1) == labels).float().mean()
        for name, value in parts.items():
            self.sums[name] = self.sums.get(name, torch.zeros((), device=self.device)) + value.detach()

    def _loss(
        self, images: Tensor, labels: Tensor, logits: Tensor, statistics: Statistics, eps: float, g: torch.Generator
    ) -> dict[str, Tensor]:
        """All parts of the loss; "loss" is what is minimised."""
        config = self.config
        clean = F.cross_entropy(logits, labels)
        weight = self._regularizer_weight(eps)
        robust, boxes = clean, None
        if eps > 0 or weight > 0:
            graph = fold(self.trace, statistics)
            batch = Batch(images, labels, clean, graph, eps, config.clip, g, weight > 0, self.max_boxes)
            if eps > 0:
                result = config.method.loss(batch)
                robust, boxes = result.loss, result.boxes
            else:
                boxes = box_losses(batch, images, SMALL_EPS, labels)[1]
        parts = {"clean_loss": clean, "robust_loss": robust}
        total = config.clean_weight * clean + (1 - config.clean_weight) * robust
        if boxes:
            parts["regularizer"] = regularizer(boxes, normalisation(config, self.info)[1])
            total = total + weight * parts["regularizer"]
        if config.l1:
            weights = [m.weight for m in self.network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
            total = total + config.l1 * torch.stack([w.abs().sum() for w in weights]).sum()
        return {"loss": total, **parts}

    def _regularizer_weight(self, eps: float) -> float:
        if not self.config.method.certified or not self.config.train_eps:
            return 0.0
        return self.config.regularizer * (1 - eps / self.config.train_eps)

    def _update_average(self) -> None:
        config = self.config
        due = self.step % config.average_every == 0 and self.step > config.average_from * self.steps_per_epoch
        if config.average_from and due:
            self.averaged += 1
            for name, p in self.network.named_parameters():
                mean = self.average.setdefault(name, torch.zeros_like(p.detach()))
                mean.add_((p.detach() - mean) / self.averaged)

    # ------------------------------------------------------------------------------------------- after an epoch

    def _progress(self, epoch: int, done: int) -> Progress:
        eps = eps_at(self.config, self.step - 1, self.steps_per_epoch)
        return Progress(self.step, self.steps, epoch, eps, self.sums["loss"].item() / done)

    def _epoch_row(self, epoch: int, seconds: float, steps: int) -> dict[str, Any]:
        row: dict[str, Any] = {"epoch": epoch, "step": self.step, "lr": lr_at(self.config, epoch)}
        row["eps"] = eps_at(self.config, self.step - 1, self.steps_per_epoch)
        row |= {name: value.item() / self.steps_per_epoch for name, value in self.sums.items()}
        self.sums = {}
        if len(self.validation):
            self.network.eval()
            images, labels = as_float(self.validation.images), self.validation.labels
            row["validation_clean"] = clean_accuracy(self.network, images, labels)
            row["validation_ibp"] = ibp_accuracy(self.network, images, labels, self.config.eps, self.config.clip)
            self.network.train()
        row |= {"seconds": round(seconds, 3), "images_per_second": round(steps * self.config.batch_size / seconds, 1)}
        return row

    def finish(self) -> nn.Module:
        """The network to keep: averaged weights and population statistics where the configuration asks for them."""
        network = copy.deepcopy(self.network)
        for name, parameter in network.named_parameters() if self.average else ():
            parameter.data.copy_(self.average[name])
        if self.config.population_bn:
            # Batches of 5, as the paper's, would give variances that are a fifth too small behind linear layers.
            estimate_statistics(network, self.data, min(len(self.data), max(self.config.batch_size, 256)))
        return network.eval()

    # ------------------------------------------------------------------------------------------------ its state

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and numbers from which `restore` continues as if nothing had happened."""
        tensors = {f"network.{k}": v for k, v in self.network.state_dict().items()}
        tensors |= {f"optimizer.{k}": v for k, v in flatten_optimizer(self.optimizer).items()}
        tensors |= {f"average.{k}": v for k, v in self.average.items()}
        tensors |= {f"sums.{k}": v for k, v in self.sums.items()}
        return tensors, {"step": self.step, "averaged": self.averaged}

    def restore(self, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        def part(prefix: str) -> dict[str, Tensor]:
            return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

        try:
            self.network.load_state_dict(part("network."))
            restore_optimizer(self.optimizer, part("optimizer."))
            self.step, self.averaged = int(header["step"]), int(header["averaged"])
        except (RuntimeError, KeyError, ValueError) as error:
            raise CitrusError(f"The checkpoint does not belong to this configuration: {error}") from error
        self.average = {k: v.to(self.device) for k, v in part("average.").items()}
        self.sums = {k: v.to(self.device) for k, v in part("sums.").items()}


def make_network(config: TrainConfig, splits: Splits) -> nn.Module:
    """A freshly initialised network for a configuration: the same for the same seed."""
    info = splits.info
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        network = build(config.network, info.shape, info.classes, *normalisation(config, info))
    if config.init == "shi":
        initialize(network, stream(config.seed, "init"))
    return network.train()


def normalisation(config: TrainConfig, info: DatasetInfo) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of the network's first layer."""
    return (info.mean, info.std) if config.normalize else ((0.0,) * info.shape[0], (1.0,) * info.shape[0])


def regularizer(boxes: Boxes, std: tuple[float, ...]) -> Tensor:
    """Both Shi terms; the input's radius is taken after normalisation."""
    radius = (boxes.input_radius / boxes.input_radius.new_tensor(std)).mean()
    return tightness(radius, boxes.pre_activations) + balance(boxes.pre_activations)
