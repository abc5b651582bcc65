"""MNIST and Fashion-MNIST from their original idx files, gzipped or not.

An idx file is a big-endian header (magic number, then one 32-bit size per dimension) followed by bytes.
"""

import gzip
from pathlib import Path

import numpy as np
import torch

from citrus.data import digits
from citrus.data.dataset import FETCH_AGAIN, Dataset, reading
from citrus.data.places import file_in
from citrus.errors import CitrusError

CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
CLASSES = {"mnist": digits.CLASSES, "fashion-mnist": CLOTHES}

# The first ten training labels of each set. The files of both have the same names and sizes, so a file in the wrong
# folder shows itself only here.
FIRST_LABELS = {
    "mnist": (5, 0, 4, 1, 9, 2, 1, 3, 1, 4),
    "fashion-mnist": (9, 0, 0, 3, 0, 2, 7, 2, 5, 5),
}


def read(name: str, folder: Path) -> tuple[Dataset, Dataset]:
    """Training and test set of `name` ("mnist" or "fashion-mnist") from the four idx files in `folder`."""
    return _part(name, folder, "train"), _part(name, folder, "t10k")


def _part(name: str, folder: Path, part: str) -> Dataset:
    image_file, label_file = (file_in(folder, f"{part}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
    images, labels = read_idx(image_file, 3), read_idx(label_file, 1)
    if images.shape[1:] != (28, 28):
        raise CitrusError(f"{image_file} holds images of {images.shape[1]}x{images.shape[2]}, but {name} has 28x28.")
    for other, first in FIRST_LABELS.items():
        if other != name and part == "train" and tuple(labels[:10].tolist()) == first:
            raise CitrusError(f"{label_file} belongs to {other}, not to {name}: move the files to the right folder.")
    tensor = torch.from_numpy(images[:, None].copy())  # a copy, since the bytes of a file are read-only
    with reading(label_file, f"the labels of {name}", FETCH_AGAIN):
        return Dataset(name, tensor, torch.from_numpy(labels.astype(np.int64)), CLASSES[name])


def read_idx(path: Path, ndim: int) -> np.ndarray:
    """The uint8 array with `ndim` dimensions in the idx file at `path` (a name that ends in .gz is unpacked)."""
    magic = 0x0800 + ndim  # 08: unsigned bytes
    header = 4 + 4 * ndim
    with reading(path, f"an idx file of {ndim}-dimensional bytes", FETCH_AGAIN):
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if len(content) < header or int.from_bytes(content[:4], "big") != magic:
            raise ValueError(f"it begins with {content[:4].hex() or 'nothing'} instead of {magic:08x}")
        shape = tuple(int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(ndim))
        expected = header + int(np.prod(shape, dtype=object))
        if len(content) != expected:
            raise ValueError(f"it holds {len(content)} bytes, but its header {shape} announces {expected}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
