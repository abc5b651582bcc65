"""CIFAR-10 from hand-made batches in the original pickle format, and pickles that must be refused."""

import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from citrus.data import load
from citrus.data.readers import BATCHES
from citrus.errors import CitrusError

SIZE = 3  # images per batch


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CITRUS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))


def text(value: bytes) -> bytes:
    return b"U" + bytes([len(value)]) + value  # SHORT_BINSTRING, which only Python 2 writes


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def python2_array(pixels: np.ndarray) -> bytes:
    """The opcodes that Python 2's cPickle wrote for a uint8 matrix."""
    empty = (
        b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n" + number(0) + b"\x85" + text(b"b") + b"\x87R"
    )
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + number(0) + number(1) + b"\x87R"
    dtype += b"(" + number(3) + text(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    content = pixels.tobytes()
    rows, columns = pixels.shape
    shape = number(rows) + number(columns) + b"\x86"
    raw = b"T" + struct.pack("<I", len(content)) + content
    return empty + b"(" + number(1) + shape + dtype + b"\x89" + raw + b"tb"


def batch(labels: list[int], pixels: np.ndarray) -> bytes:
    """A batch as the original files are: protocol 2, strings of bytes, the array by numpy.core.multiarray."""
    label_list = b"](" + b"".join(number(label) for label in labels) + b"e"
    fields = text(b"batch_label") + text(b"hand made") + text(b"labels") + label_list
    return b"\x80\x02}(" + fields + text(b"data") + python2_array(pixels) + b"u."


def made_batch(index: int) -> bytes:
    """Image j of batch i is all i in red, j in green, 200 at its last blue pixel; its label is j."""
    pixels = np.zeros((SIZE, 3, 1024), np.uint8)
    pixels[:, 0], pixels[:, 1], pixels[:, 2, -1] = index, np.arange(SIZE)[:, None], 200
    return batch(list(range(SIZE)), pixels.reshape(SIZE, 3072))


def write(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for index, file in enumerate(BATCHES):
        (folder / file).write_bytes(made_batch(index))
    return folder


@pytest.mark.parametrize("place", ["cifar-10-batches-py", "cifar10"])
def test_every_layout_is_read(tmp_path: Path, place: str) -> None:
    write(tmp_path / place)
    splits = load("cifar10", tmp_path)
    assert (len(splits.train), len(splits.test)) == (5 * SIZE, SIZE)
    assert splits.train.shape == (3, 32, 32)
    assert splits.train.images[:, 0].amax((1, 2)).tolist() == [i for i in range(5) for _ in range(SIZE)]
    assert splits.train.images[:, 1, 5, 7].tolist() == splits.train.labels.tolist() == [0, 1, 2] * 5
    assert splits.test.images[0, 2, 31, 31] == 200
    assert splits.test.images[0, 0, 0, 0] == 5
    assert splits.train.classes[3] == "cat"
    assert (splits.info.flip, splits.info.pad) == (True, 2)


def test_a_missing_batch_is_named(tmp_path: Path) -> None:
    (write(tmp_path / "cifar10") / "data_batch_4").unlink()
    with pytest.raises(CitrusError, match="not found: data_batch_4 missing"):
        load("cifar10", tmp_path)


class Harmful:
    """Its pickle makes a folder when it is read."""

    def __init__(self, evidence: Path) -> None:
        self.evidence = evidence

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.evidence),)


def test_a_malicious_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    evidence = tmp_path / "owned"
    (write(tmp_path / "cifar10") / "data_batch_2").write_bytes(pickle.dumps({"data": Harmful(evidence)}))
    with pytest.raises(
        CitrusError, match=r"data_batch_2 cannot be read as a CIFAR-10 batch \(it asks for posix\.mkdir"
    ):
        load("cifar10", tmp_path)
    assert not evidence.exists()


@pytest.mark.parametrize("module", ["builtins\neval\n", "numpy\nload\n", "numpy.testing\nmeasure\n", "os\nsystem\n"])
def test_no_other_name_is_allowed(tmp_path: Path, module: str) -> None:
    content = b"\x80\x02c" + module.encode() + text(b"1+1") + b"\x85R."
    (write(tmp_path / "cifar10") / "test_batch").write_bytes(content)
    with pytest.raises(CitrusError, match="it asks for"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage",
        made_batch(0)[:-2000],
        pickle.dumps([1, 2]),
        pickle.dumps({"labels": [0]}),
        pickle.dumps({"data": 7, "labels": [0]}),
        pickle.dumps({"data": 7, "labels": 3}),
        batch([0, 1], np.zeros((3, 3072), np.uint8)),
        batch([0], np.zeros((1, 3071), np.uint8)),
        batch([10], np.zeros((1, 3072), np.uint8)),
        batch([-1], np.zeros((1, 3072), np.uint8)),
    ],
)
def test_a_damaged_batch_is_named(tmp_path: Path, content: bytes) -> None:
    (write(tmp_path / "cifar10") / "data_batch_3").write_bytes(content)
    with pytest.raises(CitrusError, match="data_batch_3"):
        load("cifar10", tmp_path)
