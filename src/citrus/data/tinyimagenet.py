"""TinyImageNet from its original folder of JPEG files.

    tiny-imagenet-200/wnids.txt, words.txt             the classes and their names (both optional)
    tiny-imagenet-200/train/<wnid>/images/*.JPEG       up to 500 images per class
    tiny-imagenet-200/val/images/*.JPEG, val/val_annotations.txt, or val/<wnid>/... after the usual re-sorting

The labels of its own test set were never published, so the validation folder is the test set, as in the literature.
Decoding takes a minute for the whole set, so the arrays are kept as one file in the user's cache folder.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from citrus.data.dataset import Dataset
from citrus.data.places import cache_folder
from citrus.errors import CitrusError

SIZE = 64
SUFFIXES = (".jpeg", ".jpg", ".png")
CHUNK = 256  # images decoded by one task; small tasks would spend their time in the pool's queue
TENSORS = ("train_images", "train_labels", "test_images", "test_labels")

File = tuple[Path, int]  # an image file and its label


def read(name: str, folder: Path) -> tuple[Dataset, Dataset]:
    """Training and test set from `folder`, decoded or from the cache."""
    wnids = _wnids(folder)
    train = _class_folders(folder / "train", wnids)
    val = folder / "val"
    annotations = val / "val_annotations.txt"
    annotated = annotations.is_file() and (val / "images").is_dir()
    test = _annotated(val, annotations, wnids) if annotated else _class_folders(val, wnids)
    for part, files in (("train", train), ("val", test)):
        if not files:
            raise CitrusError(f"{folder / part} holds no images; unpack tiny-imagenet-200.zip again.")

    key = _fingerprint(train + test)
    cache = (
        cache_folder() / f"tinyimagenet-{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]}.safetensors"
    )
    tensors = _read_cache(cache, key)
    if tensors is None:
        tensors = {}
        for part, files in (("train", train), ("test", test)):
            tensors[f"{part}_images"] = _decode([path for path, _ in files])
            tensors[f"{part}_labels"] = torch.tensor([label for _, label in files])
        _write_cache(cache, key, tensors)
    classes = _names(folder, wnids)
    train_set, test_set = (
        Dataset(name, tensors[f"{part}_images"], tensors[f"{part}_labels"], classes) for part in ("train", "test")
    )
    return train_set, test_set


def _wnids(folder: Path) -> list[str]:
    """The classes in alphabetical order, which is the order of labels that published networks use."""
    listed = folder / "wnids.txt"
    if listed.is_file():
        return sorted(listed.read_text().split())
    return sorted(entry.name for entry in (folder / "train").iterdir() if entry.is_dir())


def _names(folder: Path, wnids: list[str]) -> tuple[str, ...]:
    """The first English word of each class, its wnid where there is none."""
    words: dict[str, str] = {}
    listed = folder / "words.txt"
    if listed.is_file():
        rows = (line.split("\t", 1) for line in listed.read_text().splitlines() if "\t" in line)
        words = {wnid: names.split(",")[0].strip() for wnid, names in rows}
    names = [words.get(wnid, wnid) for wnid in wnids]
    count = Counter(names)  # two classes may share a word, as the two kinds of crane do
    return tuple(name if count[name] == 1 else f"{name} ({wnid})" for name, wnid in zip(names, wnids, strict=True))


def _class_folders(folder: Path, wnids: list[str]) -> list[File]:
    """All images below folder/<wnid>/ or folder/<wnid>/images/."""
    files: list[File] = []
    for label, wnid in enumerate(wnids):
        place = folder / wnid
        place = place / "images" if (place / "images").is_dir() else place
        if not place.is_dir():
            raise CitrusError(f"{folder} has no folder for the class {wnid}; unpack tiny-imagenet-200.zip again.")
        files += [(path, label) for path in sorted(place.iterdir()) if path.suffix.lower() in SUFFIXES]
    return files


def _annotated(val: Path, annotations: Path, wnids: list[str]) -> list[File]:
    """The images that val_annotations.txt lists, in its order: file name, wnid and a box per line, tab separated."""
    labels = {wnid: label for label, wnid in enumerate(wnids)}
    files: list[File] = []
    for number, line in enumerate(annotations.read_text().splitlines(), start=1):
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) < 2 or fields[1].strip() not in labels:
            raise CitrusError(f"{annotations}, line {number}: {line[:60]!r} does not name an image and a known class.")
        path = val / "images" / fields[0]
        if not path.is_file():
            raise CitrusError(f"{annotations}, line {number} names {path}, which does not exist.")
        files.append((path, labels[fields[1].strip()]))
    return files


def _fingerprint(files: list[File]) -> str:
    """Changes when a file comes, goes, or changes its size or label."""
    digest = hashlib.sha256()
    for path, label in files:
        digest.update(f"{path.parent.parent.name}/{path.name} {label} {path.stat().st_size}\n".encode())
    return f"{len(files)} files, {digest.hexdigest()}"


def _decode(paths: list[Path]) -> Tensor:
    """All images as one tensor (n, 3, 64, 64). Threads help, since Pillow decodes without the interpreter lock."""
    decode = _decoder()
    images = np.empty((len(paths), SIZE, SIZE, 3), np.uint8)

    def fill(start: int) -> None:
        for i in range(start, min(start + CHUNK, len(paths))):
            images[i] = decode(paths[i])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(fill, range(0, len(paths), CHUNK)):
            pass
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()


def _decoder() -> Callable[[Path], np.ndarray]:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise CitrusError(
            "TinyImageNet is a folder of JPEG files, which Pillow decodes: run `pip install citrus-uap[images]`."
        ) from error

    def decode(path: Path) -> np.ndarray:
        try:
            with Image.open(path) as image:
                pixels = np.asarray(image.convert("RGB"))  # some images are grey
        except (OSError, SyntaxError, ValueError, UnidentifiedImageError) as error:
            raise CitrusError(f"{path} cannot be decoded ({error}); unpack tiny-imagenet-200.zip again.") from error
        if pixels.shape != (SIZE, SIZE, 3):
            raise CitrusError(f"{path} is {pixels.shape[1]}x{pixels.shape[0]}, but TinyImageNet has {SIZE}x{SIZE}.")
        return pixels

    return decode


def _read_cache(path: Path, key: str) -> dict[str, Tensor] | None:
    """The cached tensors if they were made from exactly these files. A damaged cache counts as none."""
    try:
        with safe_open(path, framework="pt") as file:
            if json.loads((file.metadata() or {}).get("key", "null")) != key:
                return None
            return {name: file.get_tensor(name) for name in TENSORS}
    except (OSError, SafetensorError, ValueError):
        return None


def _write_cache(path: Path, key: str, tensors: dict[str, Tensor]) -> None:
    """Keep the tensors for the next time. A full disk or a read-only home costs time later, but is no error now."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with suppress(OSError, SafetensorError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            save_file(tensors, draft, metadata={"key": json.dumps(key)})
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)
