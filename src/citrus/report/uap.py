"""Universal perturbations: as training, `citrus attack` and certification wrote them, uap/EPS.safetensors and
certify/*-uap.safetensors, and as small images."""

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from citrus.files import load_tensors

BLUE, WHITE, ORANGE = (0.13, 0.40, 0.67), (0.97, 0.97, 0.97), (0.84, 0.35, 0.0)
"""Less, nothing, more: told apart by colour-blind eyes too."""


LARGEST_LABEL = 100_000


@dataclass(frozen=True)
class Perturbed:
    """What a universal attack found, as `training.perturbations` writes it, and what follows from it."""

    eps: float
    group_size: int
    classes: list[str]
    delta: Tensor
    groups: Tensor
    labels: Tensor
    clean: Tensor
    perturbed: Tensor
    fooled: Tensor
    shown: Tensor
    images: Tensor

    def __post_init__(self) -> None:
        rows = (self.groups, self.labels, self.clean, self.perturbed, self.fooled)
        predictions = all(row.dim() == 1 and len(row) == len(self.groups) > 0 for row in rows)
        labels = all(bool(((row >= 0) & (row < LARGEST_LABEL)).all()) for row in rows[1:4])
        places = ((self.shown, len(self.groups)), (self.groups, len(self.delta)))
        exist = all(row.dim() == 1 and bool(((row >= 0) & (row < count)).all()) for row, count in places)
        if not predictions or not labels or not exist or not 0 <= self.eps <= 1:
            raise ValueError("Perturbations and predictions do not fit together.")
        if self.images.shape != (len(self.shown), *self.worst.shape) or len(self.worst) not in (1, 3):
            raise ValueError("Images and perturbations do not fit together.")
        if not isinstance(self.classes, list) or type(self.group_size) is not int:
            raise ValueError("Names of classes are a list, and groups have a size.")

    @property
    def for_all(self) -> bool:
        """Whether all images share one perturbation."""
        return self.group_size >= len(self.labels) > 1

    @property
    def right(self) -> Tensor:
        """Which images are right without a perturbation."""
        return self.clean == self.labels

    @property
    def falls(self) -> Tensor:
        """Which images are right without a perturbation and wrong with it."""
        return self.right & self.fooled.bool()

    @property
    def worst(self) -> Tensor:
        """The perturbation of the group that suffers most, whose images are shown."""
        return self.delta[self.groups[self.shown[0]]]

    def class_name(self, label: int) -> str:
        return str(self.classes[label]) if label < len(self.classes) else str(label)


def read_perturbed(file: Path) -> Perturbed:
    """Raises CitrusError for a damaged file; other errors mean that it holds something else."""
    tensors, header = load_tensors(file)
    values: dict[str, Any] = header | tensors
    return Perturbed(**values)


def png(image: Tensor) -> bytes:
    """A PNG file, with nothing but zlib, of an image (C, H, W) of 1 or 3 channels; values are clipped to [0, 1]."""
    channels, height, width = image.shape
    pixels = (image.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)  # 0: no filter
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def perturbation(delta: Tensor, largest: float) -> Tensor:
    """A perturbation (C, H, W) as an image in which `largest` is the end of the scale.

    One channel runs from blue over white to orange; three are colours around grey.
    """
    share = (delta / largest if largest else delta).clamp(-1, 1)
    if len(delta) == 3:
        return (share + 1) / 2
    less, zero, more = (torch.tensor(colour).view(3, 1, 1) for colour in (BLUE, WHITE, ORANGE))
    return zero + share.clamp(min=0) * (more - zero) + (-share).clamp(min=0) * (less - zero)
