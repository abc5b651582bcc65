"""Small data sets made of numbers, so that no test of training needs a file."""

import torch

from citrus.attacks import Ascent
from citrus.data import Dataset, DatasetInfo, Splits
from citrus.methods import METHODS, AnyMethod, Standard
from citrus.training import TrainConfig

SHAPE = (1, 12, 12)


def blobs(count: int, seed: int, classes: int = 3) -> Dataset:
    """Images whose class is where the bright square lies: learnable in a few steps."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator)
    images = torch.randint(0, 60, (count, *SHAPE), generator=generator, dtype=torch.uint8)
    for image, label in zip(images, labels, strict=True):
        image[0, 4 * int(label) : 4 * int(label) + 4, 2:10] += 150
    return Dataset("blobs", images, labels, tuple(str(i) for i in range(classes)))


def splits(train: int = 60, validation: int = 12, test: int = 20) -> Splits:
    info = DatasetInfo("blobs", SHAPE, 3, (0.2,), (0.25,), flip=True, pad=1)
    return Splits(blobs(train, 1), blobs(validation, 2), blobs(test, 3), info)


def method(name: str) -> AnyMethod:
    """Any method with a short attack."""
    kind = METHODS[name]
    if kind is Standard or not hasattr(kind(), "attack"):
        return kind()
    return kind(attack=Ascent(steps=2, step_size=0.5))  # type: ignore[call-arg]


def config(name: str = "citrus", **changes: object) -> TrainConfig:
    """Three epochs of six steps: one at eps 0, one on the ramp, one at full eps."""
    values: dict[str, object] = {
        "data": "blobs",
        "network": "mlp",
        "method": method(name),
        "eps": 0.05,
        "epochs": 3,
        "batch_size": 10,
        "lr": 0.01,
        "milestones": (2,),
        "warmup_epochs": 1,
        "ramp_epochs": 1,
        "l1": 1e-6,
        "test_images": 10,
    }
    return TrainConfig(**(values | changes))  # type: ignore[arg-type]
