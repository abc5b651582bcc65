"""What every reader returns: whole data sets as uint8 tensors, checked once when they are made.

A data set is small enough to live on the device as one tensor, so there is no loader and no worker process: indexing
and augmentation are batched tensor operations. Augmentation works on uint8 or float images on any device and never
waits for it. Random numbers are drawn on the generator's device: a CPU generator gives the same crops on every machine,
a generator on the images' device saves the copy.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from citrus.errors import CitrusError

SPLIT_SEED = 7919  # of every split made here; never the training seed, so all runs see the same held-out images


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled images: `images` uint8 (n, C, H, W), `labels` int64 (n,), `classes` the name of each label."""

    name: str
    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        images, labels, classes, problem = self.images, self.labels, len(self.classes), ""
        if images.dtype != torch.uint8 or images.ndim != 4:
            problem = f"images are {_describe(images)}, but must be uint8 of shape (n, C, H, W)"
        elif labels.dtype != torch.int64 or labels.ndim != 1:
            problem = f"labels are {_describe(labels)}, but must be int64 of shape (n,)"
        elif len(images) != len(labels):
            problem = f"there are {len(images)} images but {len(labels)} labels; give one label per image"
        elif len(labels) and (labels.min() < 0 or labels.max() >= classes):
            low, high = int(labels.min()), int(labels.max())
            problem = f"labels go from {low} to {high}, but with {classes} classes they must lie in 0..{classes - 1}"
        if problem:
            raise CitrusError(f"data set {self.name!r}: {problem}.")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape (C, H, W) of one image."""
        _, channels, height, width = self.images.shape
        return channels, height, width

    def to(self, device: torch.device | str) -> "Dataset":
        """The same data set with both tensors on `device`."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def subset(self, index: Tensor | list[int] | slice) -> "Dataset":
        """The images that `index` selects, in its order: positions, a boolean mask or a slice."""
        return replace(self, images=self.images[index], labels=self.labels[index])

    def also_in(self, other: "Dataset") -> int:
        """How many of its images the other one has, too."""
        if self.shape != other.shape:
            return 0
        known = {image.tobytes() for image in other.images.cpu().numpy()}
        return sum(image.tobytes() in known for image in self.images.cpu().numpy())


@dataclass(frozen=True)
class DatasetInfo:
    """The facts of a data set that training needs.

    `mean` and `std` are the normalisation constants per channel (the network's first layer); `flip` and `pad` say
    which augmentation suits the set: mirror images, and crops after edge padding by `pad` pixels.
    """

    name: str
    shape: tuple[int, int, int]  # (C, H, W)
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool = False
    pad: int = 0


@dataclass(frozen=True, eq=False)
class Splits:
    """Training images, images held out of them for choosing settings (may be none), and the test set."""

    train: Dataset
    validation: Dataset
    test: Dataset
    info: DatasetInfo


def as_float(images: Tensor) -> Tensor:
    """uint8 images as float32 in [0, 1], the scale in which networks, bounds and eps are defined."""
    if images.dtype != torch.uint8:
        raise CitrusError(f"as_float takes uint8 images, not {_describe(images)}; pass the images of a Dataset.")
    return images.to(torch.float32).div_(255)


def permutation(n: int) -> Tensor:
    """A fixed random order of 0..n-1, the same on every machine and with every library version.

    Sorting raw words of PCG64 is slower than `randperm`, but NumPy guarantees the raw stream of a bit generator for
    ever, while no library guarantees its shuffle: a new release must not move images between training and test.
    """
    words = np.random.PCG64(SPLIT_SEED).random_raw(n)
    return torch.from_numpy(np.argsort(words, kind="stable"))


def hold_out(train: Dataset, count: int) -> tuple[Dataset, Dataset]:
    """Split `train` into what stays and `count` held-out images, chosen by a fixed seed.

    A larger `count` holds out all images of a smaller one and more.
    """
    if count < 0 or count >= len(train):
        raise CitrusError(
            f"validation={count} images cannot be held out of the {len(train)} training images of {train.name!r}; "
            f"choose a number from 0 to {len(train) - 1}."
        )
    order = permutation(len(train))
    # The order of what stays is the original one, so that count=0 changes nothing.
    return train if count == 0 else train.subset(order[count:].sort().values), train.subset(order[:count])


def shuffle(n: int, generator: torch.Generator) -> Tensor:
    """A random order of 0..n-1 (int64), on the generator's device."""
    return torch.randperm(n, generator=generator, device=generator.device)


def flip_and_crop(images: Tensor, pad: int, flip: bool, generator: torch.Generator) -> Tensor:
    """Pad each image by repeating its edge `pad` times, cut the original size out at a random place, mirror half.

    Never builds the padded image: a position outside repeats the edge, so clamped coordinates say where each pixel
    comes from, and one gather fetches all of them. With `pad=0, flip=False` the images come back as they are.
    """
    if pad < 0:
        raise CitrusError(f"flip_and_crop: pad={pad} is negative; use 0 for no crop.")
    if pad == 0 and not flip:
        return images
    n, channels, height, width = images.shape
    rows = torch.arange(height, device=images.device).expand(n, height)
    columns = torch.arange(width, device=images.device).expand(n, width)
    if pad:
        shift = _draw(2 * pad + 1, (2, n, 1), images.device, generator) - pad
        rows = (rows + shift[0]).clamp(0, height - 1)
        columns = (columns + shift[1]).clamp(0, width - 1)
    if flip:
        mirrored = _draw(2, (n, 1), images.device, generator).bool()
        columns = torch.where(mirrored, columns.flip(1), columns)
    source = (rows[:, :, None] * width + columns[:, None, :]).view(n, 1, height * width)
    return images.flatten(2).gather(2, source.expand(n, channels, -1)).view(n, channels, height, width)


def _draw(high: int, shape: tuple[int, ...], device: torch.device, generator: torch.Generator) -> Tensor:
    """Random integers in 0..high-1, moved to `device` without waiting for it."""
    numbers = torch.randint(high, shape, generator=generator, device=generator.device)
    if numbers.device.type == "cpu" and device.type == "cuda":
        numbers = numbers.pin_memory()  # a copy from pageable memory would block until the GPU has caught up
    return numbers.to(device, non_blocking=True)


@contextmanager
def reading(path: Path, kind: str, remedy: str) -> Iterator[None]:
    """A damaged file can fail in any way while it is read, and every way means the same to the user."""
    try:
        yield
    except Exception as error:
        raise CitrusError(f"{path} cannot be read as {kind} ({str(error).rstrip('.')}); {remedy}.") from error


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
