"""One training step as the device sees it: from picking images to the optimiser, without ever waiting for an answer.

Everything that changes from step to step lies in tensors of fixed place (`index`, `scalars`, the generator's seed), so
that a GPU can record a step once as a CUDA graph, and run all of it from one launch instead of waiting for hundreds
(`Recorded`). What robustness means is the method's word.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from citrus.data import Dataset, DatasetInfo, as_float, flip_and_crop
from citrus.methods import Batch, Boxes, box_losses
from citrus.networks import Statistics, fold, trace
from citrus.networks.kernels import compilable, compiling, in_device_layout, tf32
from citrus.training.config import TrainConfig
from citrus.training.schedule import Phase
from citrus.training.weights import balance, description, tightness, update_running

SMALL_EPS = 1e-6  # radius of the boxes that the regularisers see while eps is still 0
BYTES_PER_NEURON = 40  # kept for the backward pass of an interval bound: ten float32 values, measured on CNN7
WARM_UP = 3  # ordinary calls before a recording: libraries choose their kernels, compilers finish
SUMS = ("loss", "clean_loss", "robust_loss", "regularizer", "accuracy")


class TrainingStep:
    """A network, its optimiser and the place of every number they need; called, it trains on one batch."""

    def __init__(self, config: TrainConfig, network: nn.Module, data: Dataset, info: DatasetInfo) -> None:
        self.config, self.network, self.data, self.info = config, network, data, info
        device = data.images.device
        on_gpu = device.type == "cuda"
        if on_gpu:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.trace = trace(network, info.shape)
        self.lr = torch.tensor(config.lr, device=device)
        self.optimizer = torch.optim.Adam(network.parameters(), lr=self.lr, fused=True, capturable=on_gpu)
        for p in network.parameters():  # what Adam would make at its first step: a checkpoint is put back in its place
            moments = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            self.optimizer.state[p] = {"step": torch.zeros((), device=device), **moments}
        plain = fold(self.trace)
        config.method.check_graph(plain)
        self.method_state = {k: v.to(device) for k, v in config.method.initial_state(plain).items()}
        self.index = torch.zeros(config.batch_size, dtype=torch.long, device=device)
        self.scalars = torch.zeros(5, dtype=torch.float64, device=device)
        self.generator = torch.Generator(device)
        self.std = torch.tensor(description(config, info)["std"], device=device)
        self.sums = torch.zeros(len(SUMS), device=device)
        self.seen = torch.zeros(len(SUMS), pin_memory=on_gpu)
        self.first_bad = torch.full((), torch.inf, dtype=torch.float64, device=device)
        """The first step whose loss was not finite."""
        self.moved = False
        """Whether the last call came to the optimiser: then it cannot be tried again."""
        self.max_boxes = max(1, int(config.memory_gb * 2**30 / (plain.neurons * BYTES_PER_NEURON)))

    def prepare(self, index: Tensor, numbers: Tensor) -> None:
        """Put in place which images the next step trains on, and the numbers of its moment."""
        self.index.copy_(index)
        self.scalars.copy_(numbers)

    def __call__(self, phase: Phase) -> None:
        config, self.moved = self.config, False
        step, _, _, weight, lr = self.scalars.unbind()
        self.lr.copy_(lr)
        images, labels = self._images(), self.data.labels[self.index]
        fast = config.precision != "float32"
        kernels = torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=fast)
        with tf32(fast), kernels, compiling(config.compile):
            logits, statistics = self.trace.forward_with_statistics(images)
            clean = F.cross_entropy(logits, labels)
            robust, boxes = self._method_loss(phase, images, labels, clean, statistics)
            # 0 * clean would give layers that a method leaves alone a gradient of zeros, and Adam would move them
            mixed = config.clean_weight * clean + (1 - config.clean_weight) * robust
            loss = mixed if config.clean_weight else robust
            parts = {"clean_loss": clean, "robust_loss": robust}
            if boxes:
                parts["regularizer"] = regularizer(boxes, self.std)
                loss = loss + weight * parts["regularizer"]
            if config.l1:
                weights = [m.weight for m in self.network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
                loss = loss + config.l1 * torch.stack([w.abs().sum() for w in weights]).sum()
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
        if config.clip_norm:
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), config.clip_norm)
        self.moved = not (self.lr.is_cuda and torch.cuda.is_current_stream_capturing())
        self.optimizer.step()
        update_running(self.trace, statistics, len(images))
        with torch.no_grad():
            parts |= {"loss": loss, "accuracy": (logits.argmax(1) == labels).float().mean()}
            self.sums += torch.stack([parts.get(name, torch.zeros_like(loss)).detach() for name in SUMS])
            bad = torch.where(loss.isfinite(), torch.inf, step)
            self.first_bad.copy_(torch.minimum(self.first_bad, bad))

    def _images(self) -> Tensor:
        images = self.data.images[self.index]
        images = flip_and_crop(images, *augmentation(self.config, self.info), self.generator)
        return in_device_layout(as_float(images))

    def _method_loss(
        self, phase: Phase, images: Tensor, labels: Tensor, clean: Tensor, statistics: Statistics
    ) -> tuple[Tensor, Boxes | None]:
        """What the method says, and the boxes for the regularisers; before the ramp boxes of next to no size."""
        config = self.config
        if not phase.robust and not phase.regularized:
            return clean, None
        _, eps, ramp, *_ = self.scalars.unbind()
        batch = Batch(
            images=images,
            labels=labels,
            clean_loss=clean,
            graph=fold(self.trace, statistics),
            eps=eps,
            clip=config.clip,
            generator=self.generator,
            keep_boxes=phase.regularized,
            max_boxes=self.max_boxes,
            ramp=ramp,
            ramping=phase.ramping,
            stage=phase.stage,
            state=self.method_state,
            half=config.precision == "half" and images.is_cuda,
        )
        if phase.robust:
            result = config.method.loss(batch)
            return result.loss, result.boxes
        return clean, box_losses(batch, images, SMALL_EPS, labels)[1]

    def glance(self) -> list[float]:
        """The sums, without waiting for the device: what it shows may be some steps old."""
        self.seen.copy_(self.sums, non_blocking=True)
        return list(self.seen.tolist())

    def state(self) -> dict[str, Tensor]:
        """The tensors that steps change, by name; the optimiser's settings are in the configuration already."""
        tensors = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        for i, entry in enumerate(self.optimizer.state.values()):
            tensors |= {f"optimizer.{i}.{name}": tensor for name, tensor in entry.items()}
        return tensors | {f"method.{name}": tensor for name, tensor in self.method_state.items()} | {"sums": self.sums}


class Recorded:
    """A function of a kind that reads and writes the same tensors every time: after its first calls it is recorded,
    once per kind, and replayed. Without CUDA, or `record`, it is just called."""

    def __init__(self, function: Callable[[Any], None], generator: torch.Generator, record: bool = True) -> None:
        self.function = function
        self.generator = generator
        self.recordings: dict[Hashable, Any] = {}
        self.calls: Counter[Hashable] = Counter()
        self.stream: Any = torch.cuda.Stream(generator.device) if record and generator.device.type == "cuda" else None
        self.pool: Any = None

    def __call__(self, kind: Hashable) -> None:
        if self.stream is None:
            self.function(kind)
        elif self.calls[kind] < WARM_UP:
            self.calls[kind] += 1
            self.stream.wait_stream(torch.cuda.current_stream())  # beside all else, as a recording wants it
            with torch.cuda.stream(self.stream):
                self.function(kind)
            torch.cuda.current_stream().wait_stream(self.stream)
        else:
            if kind not in self.recordings:
                self.recordings[kind] = self._record(kind)
            self.recordings[kind].replay()

    def forget(self) -> None:
        """Drop all recordings, so that the next calls run as they are and record anew."""
        self.recordings, self.calls, self.pool = {}, Counter(), None

    def _record(self, kind: Hashable) -> Any:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
            self.function(kind)
        self.pool = graph.pool()
        return graph


def augmentation(config: TrainConfig, info: DatasetInfo) -> tuple[int, bool]:
    """Pixels by which crops are shifted at most, and whether half of the images are mirrored."""
    if not config.augment:
        return 0, False
    return info.pad if config.crop < 0 else config.crop, info.flip


@compilable
def regularizer(boxes: Boxes, std: Tensor) -> Tensor:
    """Both Shi terms; the input's radius is taken after normalisation."""
    return tightness((boxes.input_radius / std).mean(), boxes.pre_activations) + balance(boxes.pre_activations)
