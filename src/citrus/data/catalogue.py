"""The data sets known by name, and the one function that loads any of them or a user's file."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from citrus.data import arrays, download, places, readers, tinyimagenet
from citrus.data.dataset import Dataset, DatasetInfo, Splits, hold_out
from citrus.errors import CitrusError, suggest

# Pixels near the border of a digit are all background, and a mirrored digit is another sign: no augmentation there.
INFO: dict[str, DatasetInfo] = {
    info.name: info
    for info in (
        DatasetInfo("demo", (1, 28, 28), 10, (0.1307,), (0.3081,)),
        DatasetInfo("digits", (1, 28, 28), 10, (0.1307,), (0.3081,)),
        DatasetInfo("mnist", (1, 28, 28), 10, (0.1307,), (0.3081,)),
        DatasetInfo("fashion-mnist", (1, 28, 28), 10, (0.2860,), (0.3530,)),
        DatasetInfo("cifar10", (3, 32, 32), 10, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010), True, 2),
        DatasetInfo("tinyimagenet", (3, 64, 64), 200, (0.4802, 0.4481, 0.3975), (0.2302, 0.2265, 0.2262), True, 4),
    )
}
READERS: dict[str, Callable[[str, Path], tuple[Dataset, Dataset]]] = {
    "demo": lambda name, path: arrays.read(path),  # 200 test digits of MNIST that travel with the package
    "digits": readers.read_digits,
    "mnist": readers.read_mnist,
    "fashion-mnist": readers.read_mnist,
    "cifar10": readers.read_cifar,
    "tinyimagenet": tinyimagenet.read,
}


def load(
    name_or_path: str | Path, data_dir: str | Path | None = None, validation: int = 0, download: bool = False
) -> Splits:
    """A data set by name, or a user's .npz or .safetensors file (see `arrays` for what it may hold).

    Named sets are searched in `data_dir`, in the folder CITRUS_DATA and in the user's cache folder; `download=True`
    fetches what is in none of them. `validation` images are held out of the training set by a fixed seed.
    """
    train, test, info, _ = _read(name_or_path, data_dir, download)
    train, held = hold_out(train, validation)
    return Splits(train, held, test, info)


def known(data_dir: str | Path | None = None) -> list[tuple[DatasetInfo, Path | None]]:
    """Every data set known by name, and where it lies (None: not on this machine)."""
    return [(info, places.locate(name, data_dir)) for name, info in INFO.items()]


def describe(name_or_path: str | Path, data_dir: str | Path | None = None) -> dict[str, Any]:
    """What `citrus data info` shows: shape, class names, sizes, images per class, where found, mean training pixel."""
    train, test, info, place = _read(name_or_path, data_dir, False)
    parts = {"train": train, "test": test}
    # Summed as integers block by block: the whole set as float would take four times its memory.
    total = sum(block.sum((0, 2, 3), dtype=torch.int64) for block in train.images.split(4096))
    pixels = len(train) * info.shape[1] * info.shape[2]
    return {
        **asdict(info),
        "classes": train.classes,
        "sizes": {part: len(dataset) for part, dataset in parts.items()},
        "per_class": {
            part: torch.bincount(dataset.labels, minlength=info.classes).tolist() for part, dataset in parts.items()
        },
        "found": str(place),
        "mean_pixel": tuple(float(value) / pixels / 255 for value in torch.as_tensor(total)),
    }


def _read(
    name_or_path: str | Path, data_dir: str | Path | None, fetch: bool
) -> tuple[Dataset, Dataset, DatasetInfo, Path]:
    """Training set, test set, the facts and the place they were read from."""
    name = str(name_or_path)
    if name in INFO:
        if fetch and places.locate(name, data_dir) is None:
            download.fetch(name, data_dir)
        place = places.find(name, data_dir)
        train, test = READERS[name](name, place)
        return train, test, replace(INFO[name], classes=len(train.classes)), place
    path = Path(name_or_path).expanduser()
    if path.suffix not in arrays.SUFFIXES:
        if path.exists() or len(path.parts) > 1:
            raise CitrusError(f"{path} is not a data file: give a file that ends in {' or '.join(arrays.SUFFIXES)}.")
        raise CitrusError(f"unknown data set {name!r}; {suggest(name, INFO)}")
    train, test = arrays.read(path)
    channels = train.shape[0]
    info = DatasetInfo(path.stem, train.shape, len(train.classes), (0.0,) * channels, (1.0,) * channels)
    return train, test, info, path
