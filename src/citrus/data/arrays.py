"""A user's own images from one .npz or .safetensors file.

The file holds `train_images, train_labels, test_images, test_labels`, or only `images, labels`, of which a fixed
fifth becomes the test set. Images are uint8, or floats in [0, 1], which are rounded to the nearest multiple of 1/255
(what a picture file would store). They are (n, H, W), (n, C, H, W) or (n, H, W, C) with 1 or 3 channels. Class names
may be given: an array `classes` in the .npz file, a JSON list `classes` in the metadata of the .safetensors file.
"""

import json
import math
import zipfile
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from citrus.data.dataset import Dataset, hold_out, reading
from citrus.errors import CitrusError

SUFFIXES = (".npz", ".safetensors")
KINDS = (("train_images", "train_labels", "test_images", "test_labels"), ("images", "labels"))
TEST_SHARE = 0.2
SAVE_AGAIN = "save it again"
LARGEST_LABEL = 100_000
BOMB = (1 << 30, 100)
"""An archive of more bytes than this, and of so many times its size, is made to fill the memory."""

Arrays = tuple[dict[str, np.ndarray], tuple[str, ...]]
"""Arrays by name, and the names of the classes where the file gives them."""


def read(path: Path) -> tuple[Dataset, Dataset]:
    """Training and test set from the file at `path`; its name is the file's."""
    if not path.is_file():
        raise CitrusError(f"data file {path} does not exist.")
    arrays, names = _read_npz(path) if path.suffix == ".npz" else _read_safetensors(path)
    kinds = [keys for keys in KINDS if all(key in arrays for key in keys)]
    if len(kinds) != 1:
        problem = "both kinds of arrays" if kinds else f"the arrays {', '.join(sorted(arrays)) or '(none)'}"
        raise CitrusError(f"{path} holds {problem}, but must hold either {', '.join(KINDS[0])} or images, labels.")
    images = [_images(arrays[key], f"{path}: {key}") for key in kinds[0][::2]]
    labels = [_labels(arrays[key], f"{path}: {key}") for key in kinds[0][1::2]]
    names = names or tuple(str(i) for i in range(1 + max(int(part.max()) for part in labels)))
    parts = [Dataset(path.stem, x, y, names) for x, y in zip(images, labels, strict=True)]
    if len(parts) == 1:
        if len(parts[0]) < 2:
            raise CitrusError(f"{path} holds one image only, which cannot be split into training and test images.")
        return hold_out(parts[0], max(1, round(TEST_SHARE * len(parts[0]))))
    if parts[0].shape != parts[1].shape:
        raise CitrusError(f"{path}: training images are {parts[0].shape} but test images {parts[1].shape} (C, H, W).")
    return parts[0], parts[1]


def _read_npz(path: Path) -> Arrays:
    # Opened here, since np.load does not close a file in which it finds no archive.
    opened = reading(path, "an .npz file of plain arrays", SAVE_AGAIN)
    with opened, path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
        wanted = [key for key in file.files if key in (*KINDS[0], *KINDS[1], "classes")]
        _check_claims(file.zip, wanted)
        arrays = {key: file[key] for key in wanted}
    return arrays, tuple(str(name) for name in arrays.pop("classes", np.array([])).ravel())


def _check_claims(archive: zipfile.ZipFile, wanted: list[str]) -> None:
    """What is wanted of an archive fits into memory if the archive does, and arrays have the numbers they announce."""
    members = [member for member in archive.infolist() if member.filename.removesuffix(".npy") in wanted]
    size, packed = sum(member.file_size for member in members), sum(member.compress_size for member in members)
    if size > BOMB[0] and size > BOMB[1] * packed:
        raise ValueError(f"it unpacks to {size} bytes, {size // max(packed, 1)} times its size")
    for member in members:
        with archive.open(member) as file:
            version = np.lib.format.read_magic(file)
            header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, kind = header(file)
        if math.prod(shape) * kind.itemsize > member.file_size:
            raise ValueError(f"{member.filename} announces {shape} of {kind} in {member.file_size} bytes")


def _read_safetensors(path: Path) -> Arrays:
    with reading(path, "a .safetensors file", SAVE_AGAIN), safe_open(path, framework="pt") as file:
        wanted = [key for key in file.keys() if key in (*KINDS[0], *KINDS[1])]  # noqa: SIM118 (not a dict)
        tensors = {key: file.get_tensor(key) for key in wanted}
        names = json.loads((file.metadata() or {}).get("classes", "[]"))
        if not isinstance(names, list):
            raise ValueError("the metadata entry 'classes' must be a JSON list of names")
    # NumPy has no bfloat16; float64 holds every other floating-point number exactly.
    arrays = {key: (t.double() if t.is_floating_point() else t).numpy() for key, t in tensors.items()}
    return arrays, tuple(str(name) for name in names)


def _images(array: np.ndarray, where: str) -> Tensor:
    """uint8 images (n, C, H, W) from whatever accepted form they are in."""
    if array.size == 0:
        raise CitrusError(f"{where} is empty: its shape is {array.shape}.")
    array = _channels_first(array, where)
    if array.dtype.kind == "f":
        low, high = float(array.min()), float(array.max())
        if not (low >= 0 and high <= 1):  # written so that NaN fails too
            raise CitrusError(
                f"{where} go from {low:g} to {high:g}, but float images must lie in [0, 1]; divide by 255?"
            )
        array = np.rint(array.astype(np.float64, copy=False) * 255).astype(np.uint8)
    if array.dtype != np.uint8:
        raise CitrusError(f"{where} are {array.dtype}, but must be uint8 (0 to 255) or float (0 to 1).")
    return torch.from_numpy(np.ascontiguousarray(array))


def _channels_first(array: np.ndarray, where: str) -> np.ndarray:
    if array.ndim == 3:
        return array[:, None]
    channels = [axis for axis in (1, 3) if array.ndim == 4 and array.shape[axis] in (1, 3)]
    if len(channels) == 1:
        return np.moveaxis(array, channels[0], 1)
    raise CitrusError(
        f"{where} have the shape {array.shape}, which is not clearly (n, H, W), (n, C, H, W) or (n, H, W, C) with 1 or "
        f"3 channels; reshape them to (n, C, H, W)."
    )


def _labels(array: np.ndarray, where: str) -> Tensor:
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.size == 0:
        raise CitrusError(f"{where} are {array.dtype} of shape {array.shape}, but must be one integer for each image.")
    if array.max() >= LARGEST_LABEL:
        raise CitrusError(f"{where} go up to {array.max()}, but must be smaller than {LARGEST_LABEL}.")
    return torch.from_numpy(array.astype(np.int64))
