"""What every reader returns: whole data sets as uint8 tensors, checked once when they are made.

A data set is small enough to live on the device as one tensor, so there is no loader and no worker process:
indexing and augmentation are batched tensor operations (see `augment`).
"""

from collections.abc import Iterator, Sequence
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
        images, labels, classes = self.images, self.labels, len(self.classes)
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise self._wrong(f"images are {_describe(images)}, but must be uint8 of shape (n, C, H, W)")
        if labels.dtype != torch.int64 or labels.ndim != 1:
            raise self._wrong(f"labels are {_describe(labels)}, but must be int64 of shape (n,)")
        if len(images) != len(labels):
            raise self._wrong(f"there are {len(images)} images but {len(labels)} labels; give one label per image")
        if len(labels):
            low, high = (int(end) for end in torch.aminmax(labels))
            if low < 0 or high >= classes:
                raise self._wrong(
                    f"labels go from {low} to {high}, but with {classes} classes they must lie in 0..{classes - 1}"
                )

    def _wrong(self, what: str) -> CitrusError:
        return CitrusError(f"data set {self.name!r}: {what}.")

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

    def subset(self, index: Tensor | Sequence[int] | slice) -> "Dataset":
        """The images that `index` selects, in its order: positions, a boolean mask or a slice."""
        if not isinstance(index, slice):
            index = torch.as_tensor(index, device=self.images.device)
            if index.numel() == 0 and index.dtype != torch.bool:
                index = index.to(torch.int64)  # an empty list becomes a float tensor, which cannot index
        return replace(self, images=self.images[index], labels=self.labels[index])


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


def permutation(n: int, seed: int = SPLIT_SEED) -> Tensor:
    """A fixed random order of 0..n-1, the same on every machine and with every library version.

    Sorting raw words of PCG64 is slower than `randperm`, but NumPy guarantees the raw stream of a bit generator for
    ever, while no library guarantees its shuffle: a new release must not move images between training and test.
    """
    words = np.random.PCG64(seed).random_raw(n)
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


@contextmanager
def reading(path: Path, kind: str, remedy: str) -> Iterator[None]:
    """A damaged file can fail in any way while it is read, and every way means the same to the user."""
    try:
        yield
    except Exception as error:
        raise CitrusError(f"{path} cannot be read as {kind} ({str(error).rstrip('.')}); {remedy}.") from error


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
