"""CIFAR-10 from its original Python batches.

The batches are pickles, and a pickle may run any code when it is read. So they are read with an unpickler that
knows only the three names which the original batches use; a file that asks for anything else is refused.
"""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from citrus.data.dataset import FETCH_AGAIN, Dataset, reading
from citrus.data.places import ORIGINALS

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FILES = tuple(ORIGINALS["cifar10"].contents)  # the test images come last
PIXELS = 3 * 32 * 32

# NumPy's function that rebuilds an array, taken from where NumPy itself puts it: its module has moved over the years.
_RECONSTRUCT = np.empty(0, np.uint8).__reduce__()[0]
_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,  # type: ignore[dict-item]
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,  # type: ignore[dict-item]
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class BatchUnpickler(pickle.Unpickler):
    """Reads numbers, strings, lists, dicts and NumPy arrays, nothing else."""

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which a CIFAR-10 batch never does") from None


def read(name: str, folder: Path) -> tuple[Dataset, Dataset]:
    """Training and test set from the six batches in `folder`."""
    batches = [_batch(folder / file) for file in FILES]
    return _joined(name, batches[:-1]), _joined(name, batches[-1:])


def _joined(name: str, batches: list[tuple[np.ndarray, np.ndarray]]) -> Dataset:
    images, labels = (torch.from_numpy(np.concatenate(arrays)) for arrays in zip(*batches, strict=True))
    return Dataset(name, images.view(-1, 3, 32, 32), labels, CLASSES)


def _batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 3072) uint8 and labels (n,) int64 of one batch."""
    with reading(path, "a CIFAR-10 batch", FETCH_AGAIN):
        batch = BatchUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        # Python 2 wrote the keys as bytes; a batch written again by Python 3 has strings.
        fields = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        images, labels = fields["data"], np.asarray(fields["labels"]).reshape(len(fields["labels"]))
        if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape != (len(labels), PIXELS):
            raise ValueError(f"it does not hold {PIXELS} bytes for each of its {len(labels)} labels")
        if labels.dtype.kind not in "iu" or labels.size == 0 or labels.min() < 0 or labels.max() > 9:
            raise ValueError("its labels are not numbers from 0 to 9")
        return images, labels.astype(np.int64)
