"""The one training loop: it knows order, schedules and what to keep; what a step does is `training/step.py`.

trainer = Trainer(config, splits)
for row in trainer.epochs():
    print(row)
network = trainer.finish()
"""

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from citrus.data import Dataset, DatasetInfo, Splits, as_float
from citrus.data.augment import shuffle
from citrus.errors import CitrusError
from citrus.files import load_tensors
from citrus.networks import build
from citrus.training.capture import Glance, Recorded
from citrus.training.checkpoint import flatten_optimizer, restore_optimizer
from citrus.training.config import TrainConfig
from citrus.training.evaluation import clean_accuracy, ibp_accuracy
from citrus.training.folder import RunFolder
from citrus.training.randomness import seed_of, stream
from citrus.training.schedule import Moment, moment
from citrus.training.shi import initialize
from citrus.training.statistics import estimate_statistics
from citrus.training.step import SUMS, Step, normalisation


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
        if config.batch_size > len(self.data):
            raise CitrusError(f"batch_size {config.batch_size} is larger than the {len(self.data)} training images.")
        self.steps_per_epoch = len(self.data) // config.batch_size
        self.steps = self.steps_per_epoch * config.epochs
        self.network = make_network(config, splits).to(self.device)
        self.inner = Step(config, self.network, self.data, splits.info)
        self.run_step = Recorded(self.inner, self.inner.generator, config.record)
        self.glance = Glance(self.inner.sums)
        self.step = 0
        self.average: dict[str, Tensor] = {}
        self.averaged = 0

    # ------------------------------------------------------------------------------------------------- the loop

    def epochs(self, on_step: Callable[[Progress], None] | None = None) -> Iterator[dict[str, Any]]:
        """Train to the end, yielding one row of metrics per epoch. `on_step` may raise `Stopped` between two steps."""
        while self.step < self.steps:
            epoch, done = divmod(self.step, self.steps_per_epoch)
            started, first = time.perf_counter(), done
            order = shuffle(len(self.data), stream(self.config.seed, "shuffle", epoch)).to(self.device)
            moments = [self._moment(epoch * self.steps_per_epoch + i) for i in range(self.steps_per_epoch)]
            rows = [Step.numbers(epoch * self.steps_per_epoch + i, now) for i, now in enumerate(moments)]
            numbers = torch.tensor(rows, dtype=torch.float64).to(self.device)
            while done < self.steps_per_epoch:
                self.inner.index.copy_(order[done * self.config.batch_size : (done + 1) * self.config.batch_size])
                self.inner.scalars.copy_(numbers[done])
                self._train_step(moments[done])
                done += 1
                progress = Progress(self.step, self.steps, epoch, moments[done - 1].eps, self.glance()[0] / done)
                if done < self.steps_per_epoch and on_step:
                    on_step(progress)
            yield self._epoch_row(epoch, moments, started, done - first)
            if on_step:
                on_step(progress)

    def _moment(self, step: int) -> Moment:
        return moment(self.config, step, self.steps_per_epoch)

    def _train_step(self, now: Moment) -> None:
        while True:
            self.inner.generator.manual_seed(seed_of(self.config.seed, "step", self.step))
            try:
                self.run_step(now.phase)
                break
            except torch.OutOfMemoryError as error:
                self._use_less_memory(error)
        if self.device.type == "cpu":
            self.check_finite()
        self.step += 1
        self._update_average()

    def _use_less_memory(self, error: Exception) -> None:
        """Bound fewer boxes at a time, the same result in more pieces; the step that failed has changed nothing yet."""
        boxes = min(self.inner.max_boxes, 2 * self.config.batch_size) // 2
        if boxes < 1:
            raise CitrusError(
                f"The GPU's memory does not suffice for batch_size {self.config.batch_size}: make it smaller, or look "
                "with nvidia-smi whether another process holds the memory."
            ) from error
        self.inner.max_boxes = boxes
        self.run_step.forget()
        self.inner.optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()

    def check_finite(self) -> None:
        """Stop a run whose loss is no number any more. The loop asks after each epoch and before each checkpoint."""
        step = self.inner.first_bad.item()
        if step < float("inf"):
            raise CitrusError(
                f"The loss became infinite or NaN at step {step:.0f} (eps {self._moment(int(step)).eps:g}); the last "
                "checkpoint is kept. Try a smaller lr, a longer ramp or clip_norm 10."
            )

    def _update_average(self) -> None:
        config = self.config
        due = self.step % config.average_every == 0 and self.step > config.average_from * self.steps_per_epoch
        if config.average_from and due:
            self.averaged += 1
            for name, p in self.network.named_parameters():
                self.average.setdefault(name, torch.zeros_like(p.detach())).lerp_(p.detach(), 1 / self.averaged)

    # ------------------------------------------------------------------------------------------- after an epoch

    def _epoch_row(self, epoch: int, moments: list[Moment], started: float, steps: int) -> dict[str, Any]:
        self.check_finite()
        row: dict[str, Any] = {"epoch": epoch, "step": self.step, "lr": moments[-1].lr, "eps": moments[-1].eps}
        row |= dict(zip(SUMS, (self.inner.sums / self.steps_per_epoch).tolist(), strict=True))
        self.inner.sums.zero_()
        if not moments[0].phase.regularized:
            del row["regularizer"]
        seconds = time.perf_counter() - started
        if len(self.validation) and ((epoch + 1) % self.config.validate_every == 0 or self.step == self.steps):
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
        self.check_finite()
        tensors = {f"network.{k}": v.contiguous() for k, v in self.network.state_dict().items()}
        tensors |= {f"optimizer.{k}": v.contiguous() for k, v in flatten_optimizer(self.inner.optimizer).items()}
        tensors |= {f"average.{k}": v.contiguous() for k, v in self.average.items()}
        tensors |= {f"method.{k}": v for k, v in self.inner.method_state.items()}
        return tensors | {"sums": self.inner.sums}, {"step": self.step, "averaged": self.averaged}

    def restore(self, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        def part(prefix: str) -> dict[str, Tensor]:
            return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

        try:
            self.network.load_state_dict(part("network."))
            restore_optimizer(self.inner.optimizer, part("optimizer."))
            self.step, self.averaged = int(header["step"]), int(header["averaged"])
            self.inner.sums.copy_(tensors["sums"])
            for name, value in self.inner.method_state.items():
                value.copy_(tensors[f"method.{name}"])
        except (RuntimeError, KeyError, ValueError) as error:
            raise CitrusError(f"The checkpoint does not belong to this configuration: {error}") from error
        self.average = {k: v.to(self.device) for k, v in part("average.").items()}


def make_network(config: TrainConfig, splits: Splits) -> nn.Module:
    """The network that a configuration begins with, freshly initialised unless it names one: the same for a seed."""
    made = description(config, splits.info)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        network = build(*made.values())
    if config.start:
        network.load_state_dict(weights_of(Path(config.start), made))
    elif config.init == "shi":
        initialize(network, stream(config.seed, "init"))
    return network.train()


def description(config: TrainConfig, info: DatasetInfo) -> dict[str, Any]:
    """The arguments of `build` by name, as a file of weights keeps them."""
    mean, std = normalisation(config, info)
    numbers = {"mean": list(mean), "std": list(std)}
    return {"name": config.network, "shape": list(info.shape), "classes": info.classes, **numbers}


def weights_of(path: Path, made: dict[str, Any]) -> dict[str, Tensor]:
    """The weights of a finished run, by its folder or its file; it must have trained the very same function."""
    path = RunFolder(path).model if path.is_dir() else path
    if not path.exists():
        raise CitrusError(f"start: there is no {path}: train that network first, or name another one with --start.")
    tensors, header = load_tensors(path)
    theirs = header.get("network")
    if not isinstance(theirs, dict):
        raise CitrusError(f"start: {path} holds no network of Citrus.")
    other = [name for name, value in made.items() if theirs.get(name) != value]
    if other:
        raise CitrusError(f"start: {path} holds another network than this run trains: {', '.join(other)} differ.")
    return tensors
