"""The one training loop: it knows order, schedules and what to keep; what a step does is `training/step.py`.

trainer = Trainer(config, splits)
for row in trainer.epochs():
    print(row)
network = trainer.finish()
"""

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from citrus.data import Dataset, Splits, as_float, shuffle
from citrus.errors import CitrusError, memory_ran_out
from citrus.training.config import TrainConfig
from citrus.training.evaluation import ibp_certified, percent, predictions
from citrus.training.schedule import Moment, Phase, moment, seed_of, stream
from citrus.training.step import SUMS, Recorded, TrainingStep
from citrus.training.weights import estimate_statistics, make_network


@dataclass(frozen=True)
class Progress:
    """Where a run stands, after every step."""

    step: int
    steps: int
    epoch: int
    eps: float
    loss: float
    """Mean of the epoch so far."""
    row: dict[str, Any] | None = None
    """The metrics of the epoch that this step ends."""


class Trainer:
    """The state of one run: network, optimiser, position. `state` and `restore` carry it over a stop exactly."""

    def __init__(self, config: TrainConfig, splits: Splits, device: torch.device | str = "cpu") -> None:
        self.config = config
        self.device = torch.device(device)
        self.data: Dataset = splits.train.to(self.device)
        self.validation: Dataset = splits.validation.to(self.device)
        if config.batch_size > len(self.data):
            raise CitrusError(f"batch_size {config.batch_size} is larger than the {len(self.data)} training images.")
        self.steps_per_epoch = len(self.data) // config.batch_size
        self.total_steps = self.steps_per_epoch * config.epochs
        self.network = make_network(config, splits).to(self.device)
        self.training_step = TrainingStep(config, self.network, self.data, splits.info)
        self.recorded = Recorded(self.training_step, self.training_step.generator, config.record)
        self.position = 0
        """Steps taken so far."""

    def epochs(self) -> Iterator[dict[str, Any]]:
        """Train to the end, with one row of metrics per epoch."""
        return (progress.row for progress in self.steps() if progress.row)

    def steps(self) -> Iterator[Progress]:
        """Train to the end, step by step; between two steps a run may be stopped."""
        count = self.steps_per_epoch
        while self.position < self.total_steps:
            epoch, first = divmod(self.position, count)
            started = time.perf_counter()
            order = shuffle(len(self.data), stream(self.config.seed, "shuffle", epoch)).to(self.device)
            batches = order.split(self.config.batch_size)
            moments = [moment(self.config, step, count) for step in range(epoch * count, (epoch + 1) * count)]
            numbers = torch.tensor([now[:-1] for now in moments], dtype=torch.float64).to(self.device)
            for i in range(first, count):
                self.training_step.prepare(batches[i], numbers[i])
                self._train_step(moments[i].phase)
                loss = self.training_step.glance()[0] / (i + 1)
                row = self._epoch_row(epoch, moments, started, count - first) if i + 1 == count else None
                yield Progress(self.position, self.total_steps, epoch, moments[i].eps, loss, row)

    def _train_step(self, phase: Phase) -> None:
        kept = {name: tensor.clone() for name, tensor in self.training_step.method_state.items()}
        while True:
            self.training_step.generator.manual_seed(seed_of(self.config.seed, "step", self.position))
            try:
                self.recorded(phase)
                break
            except (RuntimeError, MemoryError) as error:
                if not memory_ran_out(error):
                    raise
                self._use_less_memory(error)
                for name, tensor in kept.items():
                    self.training_step.method_state[name].copy_(tensor)
        if self.device.type == "cpu":
            self.check_finite()
        self.position += 1

    def _use_less_memory(self, error: Exception) -> None:
        """Bound fewer boxes at a time: the same result in more pieces.

        Memory runs out in losses and gradients, before the weights move; only what the method keeps has changed.
        """
        boxes = min(self.training_step.max_boxes, 2 * self.config.batch_size) // 2
        if self.training_step.moved:
            raise CitrusError(
                f"Memory ran out while step {self.position} moved the weights; the last checkpoint is kept: see which "
                "other process holds the memory, and resume."
            ) from error
        if boxes < 1:
            raise CitrusError(
                f"The memory does not suffice for batch_size {self.config.batch_size}: make it smaller, or see "
                "(on a GPU with nvidia-smi) whether another process holds the memory."
            ) from error
        self.training_step.max_boxes = boxes
        self.recorded.forget()
        self.training_step.optimizer.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def check_finite(self) -> None:
        """Stop a run whose loss is no number any more. The loop asks after each epoch and before each checkpoint."""
        step = self.training_step.first_bad.item()
        if step < float("inf"):
            eps = moment(self.config, int(step), self.steps_per_epoch).eps
            raise CitrusError(
                f"The loss became infinite or NaN at step {step:.0f} (eps {eps:g}); the last "
                "checkpoint is kept. Try a smaller lr, a longer ramp or clip_norm 10."
            )

    def _epoch_row(self, epoch: int, moments: list[Moment], started: float, steps: int) -> dict[str, Any]:
        self.check_finite()
        row: dict[str, Any] = {"epoch": epoch, "step": self.position, "lr": moments[-1].lr, "eps": moments[-1].eps}
        row |= dict(zip(SUMS, (self.training_step.sums / self.steps_per_epoch).tolist(), strict=True))
        self.training_step.sums.zero_()
        if not moments[0].phase.regularized:
            del row["regularizer"]
        seconds = time.perf_counter() - started
        due = (epoch + 1) % self.config.validate_every == 0 or self.position == self.total_steps
        if len(self.validation) and due:
            self.network.eval()
            images, labels = as_float(self.validation.images), self.validation.labels
            row["validation_clean"] = percent(predictions(self.network, images) == labels)
            proved = ibp_certified(self.network, images, labels, self.config.eps, self.config.clip)
            row["validation_ibp"] = percent(proved)
            self.network.train()
        row |= {"seconds": round(seconds, 3), "images_per_second": round(steps * self.config.batch_size / seconds, 1)}
        return row

    def finish(self) -> nn.Module:
        """The network to keep, its BatchNorm statistics estimated over the whole training set."""
        network = copy.deepcopy(self.network)
        # Batches of 5, as the paper's, would give variances that are a fifth too small behind linear layers.
        estimate_statistics(network, self.data, min(len(self.data), max(self.config.batch_size, 256)))
        return network.eval()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and numbers from which `restore` continues as if nothing had happened."""
        self.check_finite()
        return self.training_step.state(), {"step": self.position}

    def restore(self, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        try:
            for name, place in self.training_step.state().items():
                place.copy_(tensors[name].view_as(place))
            self.position = int(header["step"])
        except (RuntimeError, KeyError, ValueError, TypeError, OverflowError) as error:
            raise CitrusError(f"The checkpoint does not belong to this configuration: {error}") from error
