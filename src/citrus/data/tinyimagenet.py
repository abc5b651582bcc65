"""TinyImageNet from its original folder of JPEG files.

    tiny-imagenet-200/wnids.txt, words.txt             the classes and their names (both optional)
    tiny-imagenet-200/train/<wnid>/images/*.JPEG       up to 500 images per class
    tiny-imagenet-200/val/images/*.JPEG, val/val_annotations.txt, or val/<wnid>/... after the usual re-sorting

The labels of its own test set were never published, so the validation folder is the test set, as in the literature.
Decoding takes a minute for the whole set, so the arrays are kept as one file in the user's cache folder.
"""

import hashlib
import os
import stat
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from citrus.data.dataset import Dataset, reading
from citrus.data.places import cache_folder
from citrus.errors import CitrusError
from citrus.files import load_tensors, save_tensors

SIZE = 64
SUFFIXES = (".jpeg", ".jpg", ".png")
FORMATS = ("JPEG", "PNG")
CHUNK = 256  # images decoded by one task; small tasks would spend their time in the pool's queue
UNPACK_AGAIN = "unpack tiny-imagenet-200.zip again"

File = tuple[Path, int]  # an image file and its label


def read(name: str, folder: Path) -> tuple[Dataset, Dataset]:
    """Training and test set from `folder`, decoded or from the cache."""
    try:
        wnids = _wnids(folder)
        train, test = (_files(folder / part, wnids) for part in ("train", "val"))
        key, classes = _fingerprint(train + test), _names(folder, wnids)
    except CitrusError:
        raise
    except (OSError, ValueError) as error:  # names that no system knows, links to nowhere, text that is none
        raise CitrusError(f"{folder} cannot be read as TinyImageNet ({error}); {UNPACK_AGAIN}.") from error
    place = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]
    cache = cache_folder() / f"tinyimagenet-{place}.safetensors"
    images: dict[str, Tensor] = {}
    header: dict[str, Any] = {}
    with suppress(CitrusError):  # a damaged cache counts as none
        images, header = load_tensors(cache)
    if header.get("key") != key or images.keys() != {"train", "test"}:  # it was made from other files
        images = {"train": _decode(train), "test": _decode(test)}
        # A full disk or a read-only home costs time later, but is no error now.
        with suppress(CitrusError):
            save_tensors(cache, images, {"key": key})
    train_labels, test_labels = (torch.tensor([label for _, label in files]) for files in (train, test))
    return Dataset(name, images["train"], train_labels, classes), Dataset(name, images["test"], test_labels, classes)


def _wnids(folder: Path) -> list[str]:
    """The classes in alphabetical order, which is the order of labels that published networks use."""
    listed = folder / "wnids.txt"
    if listed.is_file():
        wnids = sorted(set(listed.read_text().split()))
        for wnid in wnids:
            if wnid != Path(wnid).name or wnid == "..":
                raise CitrusError(f"{listed} names the class {wnid[:60]!r}, which is no name of a folder.")
        return wnids
    return sorted(entry.name for entry in (folder / "train").iterdir() if entry.is_dir())


def _names(folder: Path, wnids: list[str]) -> tuple[str, ...]:
    """The first English word of each class, its wnid where there is none."""
    listed = folder / "words.txt"
    lines = listed.read_text().splitlines() if listed.is_file() else []
    rows = (line.split("\t", 1) for line in lines if "\t" in line)
    words = {wnid: names.split(",")[0].strip() for wnid, names in rows}
    names = [words.get(wnid, wnid) for wnid in wnids]
    count = Counter(names)  # two classes may share a word, as the two kinds of crane do
    return tuple(name if count[name] == 1 else f"{name} ({wnid})" for name, wnid in zip(names, wnids, strict=True))


def _files(folder: Path, wnids: list[str]) -> list[File]:
    """The images of train/ or val/ and their labels."""
    annotations = folder / "val_annotations.txt"
    annotated = annotations.is_file() and (folder / "images").is_dir()
    files = _annotated(annotations, wnids) if annotated else _class_folders(folder, wnids)
    if not files:
        raise CitrusError(f"{folder} holds no images; {UNPACK_AGAIN}.")
    return files


def _class_folders(folder: Path, wnids: list[str]) -> list[File]:
    """All images below folder/<wnid>/ or folder/<wnid>/images/."""
    files: list[File] = []
    for label, wnid in enumerate(wnids):
        place = folder / wnid
        place = place / "images" if (place / "images").is_dir() else place
        if not place.is_dir():
            raise CitrusError(f"{folder} has no folder for the class {wnid}; {UNPACK_AGAIN}.")
        files += [(path, label) for path in sorted(place.iterdir()) if path.suffix.lower() in SUFFIXES]
    return files


def _annotated(annotations: Path, wnids: list[str]) -> list[File]:
    """The images that val_annotations.txt lists, in its order: file name, wnid and a box per line, tab separated."""
    labels = {wnid: label for label, wnid in enumerate(wnids)}
    files: list[File] = []
    for number, line in enumerate(annotations.read_text().splitlines(), start=1):
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) < 2 or fields[1].strip() not in labels:
            raise CitrusError(f"{annotations}, line {number}: {line[:60]!r} does not name an image and a known class.")
        path = annotations.parent / "images" / fields[0]
        if path.name != fields[0] or not path.is_file():
            raise CitrusError(f"{annotations}, line {number} names {path}, which does not exist.")
        files.append((path, labels[fields[1].strip()]))
    return files


def _fingerprint(files: list[File]) -> str:
    """Changes when a file comes, goes, or changes its size or label."""
    rows = []
    for path, label in files:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):  # a pipe would keep its reader waiting for ever
            raise CitrusError(f"{path} is no file; {UNPACK_AGAIN}.")
        rows.append(f"{path.parent.parent.name}/{path.name} {label} {about.st_size}\n")
    return f"{len(files)} files, {hashlib.sha256(''.join(rows).encode(errors='surrogateescape')).hexdigest()}"


def _decode(files: list[File]) -> Tensor:
    """All images as one tensor (n, 3, 64, 64). Threads help, since Pillow decodes without the interpreter lock."""
    try:
        from PIL import Image
    except ImportError as error:
        raise CitrusError(
            "TinyImageNet is a folder of JPEG files, which Pillow decodes: run `pip install citrus-uap[images]`."
        ) from error
    images = np.empty((len(files), SIZE, SIZE, 3), np.uint8)

    def fill(start: int) -> None:
        for i, (path, _) in enumerate(files[start : start + CHUNK], start):
            # Pillow knows formats that start other programs, such as EPS.
            with reading(path, "an image", UNPACK_AGAIN), Image.open(path, formats=FORMATS) as image:
                if image.size != (SIZE, SIZE):
                    raise ValueError(f"it has {image.width}x{image.height} pixels instead of {SIZE}x{SIZE}")
                images[i] = np.asarray(image.convert("RGB"))  # some images are grey

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(fill, range(0, len(files), CHUNK)))  # raises what a task has raised
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
