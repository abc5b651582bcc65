"""MNIST and Fashion-MNIST from hand-made idx files: layouts, search order, damage, and never one for the other."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from citrus.data import known, load
from citrus.data.readers import FIRST_LABELS
from citrus.errors import CitrusError

TRAIN, TEST = 12, 4


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data set of this machine is seen by a test."""
    monkeypatch.delenv("CITRUS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write(folder: Path, mark: int = 0, gz: bool = True, train_labels: np.ndarray | None = None) -> Path:
    """The four files; pixel (0, 0) of image i is i, pixel (0, 1) is `mark`."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, n in (("train", TRAIN), ("t10k", TEST)):
        images = np.zeros((n, 28, 28))
        images[:, 0, 0], images[:, 0, 1] = np.arange(n), mark
        labels = np.arange(n) % 10 if train_labels is None or part != "train" else train_labels
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            content = idx_bytes(array)
            path = folder / f"{part}-{kind}-ubyte{'.gz' if gz else ''}"
            path.write_bytes(gzip.compress(content) if gz else content)
    return folder


@pytest.mark.parametrize("gz", [True, False])
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("mnist", "MNIST/raw"),
        ("mnist", "mnist"),
        ("mnist", "."),
        ("fashion-mnist", "FashionMNIST/raw"),
        ("fashion-mnist", "fashion-mnist"),
    ],
)
def test_every_layout_is_read(tmp_path: Path, name: str, place: str, gz: bool) -> None:
    write(tmp_path / place, gz=gz)
    splits = load(name, tmp_path, validation=2)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (TRAIN - 2, 2, TEST)
    assert splits.train.shape == splits.info.shape == (1, 28, 28)
    assert splits.test.images[:, 0, 0, 0].tolist() == splits.test.labels.tolist() == [0, 1, 2, 3]
    assert splits.train.classes[9] == ("9" if name == "mnist" else "Ankle boot")
    assert not splits.info.flip
    assert splits.info.pad == 0


def test_validation_images_are_not_training_images(tmp_path: Path) -> None:
    write(tmp_path)
    splits = load("mnist", tmp_path, validation=5)
    seen = splits.train.images[:, 0, 0, 0].tolist() + splits.validation.images[:, 0, 0, 0].tolist()
    assert sorted(seen) == list(range(TRAIN))
    again = load("mnist", tmp_path, validation=5)
    assert again.validation.labels.tolist() == splits.validation.labels.tolist()
    with pytest.raises(CitrusError, match="validation=12"):
        load("mnist", tmp_path, validation=TRAIN)


def test_search_order_is_argument_environment_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> int:
        return int(load("mnist", tmp_path / "argument").test.images[0, 0, 0, 1])

    monkeypatch.setenv("CITRUS_DATA", str(tmp_path / "environment"))
    write(tmp_path / "xdg/citrus/data/MNIST/raw", mark=3)
    assert found() == 3
    write(tmp_path / "environment", mark=2)
    assert found() == 2
    write(tmp_path / "argument/mnist", mark=1)
    assert found() == 1
    places = {info.name: place for info, place in known(tmp_path / "argument")}
    assert places["mnist"] == tmp_path / "argument/mnist"


def test_mnist_is_never_taken_for_fashion_mnist(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path / "MNIST/raw")
    with pytest.raises(CitrusError, match="'fashion-mnist' not found"):
        load("fashion-mnist", tmp_path)


@pytest.mark.parametrize("place", ["FashionMNIST/raw", "fashion-mnist"])
def test_fashion_mnist_is_never_taken_for_mnist(tmp_path: Path, place: str) -> None:
    folder = write(tmp_path / place)
    for data_dir in (tmp_path, folder):
        with pytest.raises(CitrusError, match="'mnist' not found"):
            load("mnist", data_dir)


@pytest.mark.parametrize(("name", "other"), [("mnist", "fashion-mnist"), ("fashion-mnist", "mnist")])
def test_files_in_the_wrong_folder_are_noticed(tmp_path: Path, name: str, other: str) -> None:
    labels = np.array([*FIRST_LABELS[other], 0, 0])
    write(tmp_path / name, train_labels=labels)
    with pytest.raises(CitrusError, match=f"belongs to {other}, not to {name}"):
        load(name, tmp_path)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(CitrusError) as all_missing:
        load("mnist", tmp_path)
    message = str(all_missing.value)
    assert "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte" in message
    assert str(tmp_path) in message
    assert str(tmp_path / "xdg" / "citrus" / "data") in message
    assert "`citrus data fetch mnist`" in message
    write(tmp_path / "mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(CitrusError, match="not found: t10k-labels-idx1-ubyte missing"):
        load("mnist", tmp_path)


def damage(path: Path, kind: str) -> None:
    content = gzip.decompress(path.read_bytes())
    packed = {
        "truncated gz": path.read_bytes()[:-20],
        "not gz": b"<html>no such file</html>",
        "empty": b"",
        "wrong magic": gzip.compress(b"\0\0\x08\x04" + content[4:]),
        "too short": gzip.compress(content[:-1]),
        "too long": gzip.compress(content + b"\0"),
        "no header": gzip.compress(content[:3]),
    }
    path.write_bytes(packed[kind])


@pytest.mark.parametrize("file", ["train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"])
@pytest.mark.parametrize(
    "kind", ["truncated gz", "not gz", "empty", "wrong magic", "too short", "too long", "no header"]
)
def test_a_damaged_file_is_named(tmp_path: Path, file: str, kind: str) -> None:
    write(tmp_path)
    damage(tmp_path / file, kind)
    with pytest.raises(CitrusError, match=file):
        load("mnist", tmp_path)


@pytest.mark.parametrize(
    ("file", "array", "message"),
    [
        ("train-labels-idx1-ubyte.gz", np.zeros(TRAIN - 1), "train-labels.* 12 images but 11 labels.*fetch it again"),
        (
            "train-labels-idx1-ubyte.gz",
            np.full(TRAIN, 10),
            r"train-labels.* labels go from 10 to 10.*0\.\.9.*fetch it again",
        ),
        ("train-images-idx3-ubyte.gz", np.zeros((TRAIN, 14, 14)), "14x14"),
        ("train-images-idx3-ubyte.gz", np.zeros(TRAIN), "begins with 00000801 instead of 00000803"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path: Path, file: str, array: np.ndarray, message: str) -> None:
    write(tmp_path)
    (tmp_path / file).write_bytes(gzip.compress(idx_bytes(array)))
    with pytest.raises(CitrusError, match=message):
        load("mnist", tmp_path)
