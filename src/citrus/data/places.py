"""Where data sets lie on disk: the folders searched, the layouts accepted, and the sentence when nothing is there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from citrus.errors import CitrusError

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
CIFAR_FILES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


@dataclass(frozen=True)
class Layout:
    """How one data set may lie below a data folder.

    `folders` are the places of its files relative to the data folder (the first is where a download goes, "" is the
    data folder itself); `files` must all be there, also as ".gz" where `gzipped`; `archive` is the one file that may
    stand for all of them.
    """

    folders: tuple[str, ...]
    files: tuple[str, ...]
    archive: str | None = None
    gzipped: bool = False

    def missing(self, folder: Path) -> list[str]:
        """Those of the files that are not in `folder`."""
        found = file_in if self.gzipped else lambda folder, file: (folder / file).exists()
        return [file for file in self.files if not found(folder, file)]


# MNIST and Fashion-MNIST have the same file names: only a folder tells them apart, so loose files are always MNIST.
LAYOUTS: dict[str, Layout] = {
    "mnist": Layout(("MNIST/raw", "mnist", ""), IDX_FILES, gzipped=True),
    "fashion-mnist": Layout(("FashionMNIST/raw", "fashion-mnist"), IDX_FILES, gzipped=True),
    "cifar10": Layout(("cifar-10-batches-py", "cifar10"), CIFAR_FILES, "cifar-10-python.tar.gz"),
    "tinyimagenet": Layout(("tiny-imagenet-200",), ("train", "val")),
}


def cache_folder() -> Path:
    """The user's cache folder for data sets."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "citrus" / "data"


def data_folders(data_dir: str | Path | None = None) -> list[Path]:
    """The data folders in the order they are searched: the argument, CITRUS_DATA, the user's cache folder."""
    named = [data_dir, os.environ.get("CITRUS_DATA")]
    folders = [Path(folder).expanduser() for folder in named if folder]
    return list(dict.fromkeys([*folders, cache_folder()]))


def file_in(folder: Path, name: str) -> Path | None:
    """`name` in `folder`, packed or not. The packed original comes first: it is the one whose checksum is known."""
    return next((path for path in (folder / f"{name}.gz", folder / name) if path.exists()), None)


def candidates(name: str, root: Path) -> list[Path]:
    """The folders below `root` that may hold the files of data set `name`."""
    ends = [Path(folder).parts for folder in LAYOUTS["fashion-mnist"].folders]
    fashion = any(root.absolute().parts[-len(end) :] == end for end in ends)
    # Loose files in a folder that is itself called fashion-mnist are not MNIST.
    return [root / folder for folder in LAYOUTS[name].folders if folder or not fashion]


def locate(name: str, data_dir: str | Path | None = None) -> Path | None:
    """The folder (or archive) that holds all files of data set `name`, None when there is none."""
    layout = LAYOUTS[name]
    for root in data_folders(data_dir):
        for folder in candidates(name, root):
            if not layout.missing(folder):
                return folder
        if layout.archive and (root / layout.archive).is_file():
            return root / layout.archive
    return None


def not_found(name: str, data_dir: str | Path | None = None) -> CitrusError:
    """The error for a data set that `locate` does not find: which files, which folders, what to do."""
    layout, roots = LAYOUTS[name], data_folders(data_dir)
    # Where some of the files do lie, only the others are missing.
    lists = [layout.missing(folder) for root in roots for folder in candidates(name, root)]
    missing = ", ".join(sorted(lists, key=len)[0])
    shapes = " or ".join(f"{folder}/" if folder else "the folder itself" for folder in layout.folders)
    archive = f", or {layout.archive}" if layout.archive else ""
    return CitrusError(
        f"data set {name!r} not found: {missing} missing from {', '.join(map(str, roots))} (expected in {shapes}"
        f"{archive}); run `citrus data fetch {name}` or name the folder with data_dir or CITRUS_DATA."
    )
