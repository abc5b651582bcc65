"""Files made to hurt: whatever they claim, hold or point to, there is one sentence, soon and in little memory.

`make fuzz` looks for more of them (tests/fuzz); what it finds is tested beside the reader that it was found in.
"""

import gzip
import io
import json
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.limits import little_memory

from citrus.certify.run_folder import read_rows
from citrus.data import load
from citrus.data.download import unpack
from citrus.data.readers import BATCHES, read_cifar, read_digits, read_mnist
from citrus.errors import CitrusError
from citrus.files import load_tensors, read_lines
from citrus.networks import load_network
from citrus.networks.saved import save_network
from citrus.studies.plan import read_plan
from citrus.studies.rows import StudyRows
from citrus.training import read_config

TERA = 10**12


Make = Callable[[Path], None]
"""Writes the hostile file."""


def npy(shape: tuple[int, ...], content: bytes = b"", kind: str = "|u1") -> bytes:
    header = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}}}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


def npz(images: bytes, labels: bytes = npy((4,), bytes(4))) -> Make:
    def make(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as pack:
            pack.writestr("images.npy", images)
            pack.writestr("labels.npy", labels)

    return make


def npz_bomb(path: Path) -> None:
    """What three gigabytes of zeros look like from outside."""
    npz(npy((3 << 20, 32, 32), bytes(1 << 20)))(path)
    with zipfile.ZipFile(path, "a") as pack:
        pack.getinfo("images.npy").file_size = 3 << 30
        pack.writestr("more", b"")  # the directory is written again


def as_safetensors(header: bytes, size: int | None = None, content: bytes = b"") -> Make:
    length = struct.pack("<Q", len(header) if size is None else size)
    return lambda path: path.write_bytes(length + header + content) and None


def claim(shape: list[int]) -> bytes:
    size = int(np.prod(shape, dtype=object))
    return json.dumps({"images": {"dtype": "U8", "shape": shape, "data_offsets": [0, size]}}).encode()


def idx(*sizes: int, content: bytes = b"") -> bytes:
    return struct.pack(f">{1 + len(sizes)}I", 0x800 + len(sizes), *sizes) + content


def text(content: str | bytes) -> Make:
    content = content if isinstance(content, bytes) else content.encode()
    return lambda path: path.write_bytes(content) and None


def packed(content: bytes) -> Make:
    return text(gzip.compress(content))


def folder(path: Path) -> None:
    path.mkdir()


def nothing(path: Path) -> None:
    pass


def gzip_bomb(path: Path) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(100):
            file.write(bytes(1 << 22))


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('code ran')",)


def harmful_array(path: Path) -> None:
    np.savez(path, images=np.array([Harmful()] * 4, dtype=object), labels=np.zeros(4, np.int64))


def shared_lists() -> bytes:
    """A list of ten lists of ten lists ..., each only once in the file."""
    value: list[Any] = [0] * 10
    for _ in range(12):
        value = [value] * 10
    return pickle.dumps({"data": value, "labels": value})


def deep_tuple() -> bytes:
    """As a key its hash overflows the stack."""
    return b"\x80\x02}(" + b")" + b"\x85" * 1_000_000 + b"K\x01u."


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> Make:
    def make(path: Path) -> None:
        with tarfile.open(path, "w:gz") as tar:
            for member, content in members:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))

    return make


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member, b""


def tar_claiming(size: int, kind: bytes = tarfile.REGTYPE) -> Make:
    """A header that announces so many bytes, and none of them."""
    member = tarfile.TarInfo("a")
    member.type, member.size = kind, size
    return lambda path: path.write_bytes(gzip.compress(member.tobuf(tarfile.GNU_FORMAT))) and None


def zip_claiming(size: int) -> Make:
    def make(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as pack:
            pack.writestr("a", b"a" * 10)
            pack.getinfo("a").file_size = size

    return make


def network_of(**changes: Any) -> Make:
    made = {"name": "mlp", "shape": [1, 12, 12], "classes": 2, "mean": [0.5], "std": [0.2]} | changes

    def make(path: Path) -> None:
        save_network(path, torch.nn.Linear(2, 2), made, {})

    return make


def network(path: Path) -> object:
    return load_network(path)


def tensors(path: Path) -> object:
    return load_tensors(path)


def mnist(path: Path) -> object:
    for part in ("train", "t10k"):
        for kind, content in (("images-idx3", idx(2, 28, 28, content=bytes(1568))), ("labels-idx1", idx(2) + b"\0\1")):
            if not path.name.startswith(f"{part}-{kind}"):
                (path.parent / f"{part}-{kind}-ubyte").write_bytes(content)
    return read_mnist("mnist", path.parent)


def cifar(path: Path) -> object:
    for name in BATCHES:
        if name != path.name:
            batch = {"data": np.zeros((1, 3072), np.uint8), "labels": [0]}
            (path.parent / name).write_bytes(pickle.dumps(batch, protocol=4))
    return read_cifar("cifar10", path.parent)


def archive(path: Path) -> object:
    inside = path.parent / "inside"
    inside.mkdir()
    try:
        return unpack(path, inside)
    finally:
        assert not list(inside.iterdir())  # nothing is left, and nothing lies beside it
        assert {other.name for other in path.parent.iterdir()} == {"inside", path.name}


DEEP = "[" * 200_000
IMAGES, LABELS_FILE, BATCH = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte.gz", "data_batch_4"
CASES: list[tuple[str, str, Make, Callable[[Path], object]]] = [
    ("npz that claims terabytes", "a.npz", npz(npy((TERA, 4, 4))), load),
    ("npz that claims eight gigabytes", "a.npz", npz(npy((1 << 29, 4, 4))), load),
    ("npz whose sizes overflow", "a.npz", npz(npy((1 << 62, 4, 4))), load),
    ("npz with a negative size", "a.npz", npz(npy((-1, 4, 4))), load),
    ("npz with a deep header", "a.npz", npz(b"\x93NUMPY\x01\x00" + struct.pack("<H", 60_000) + b"(" * 60_000), load),
    ("npz of huge items", "a.npz", npz(npy((1,), kind="|V2000000000")), load),
    ("npz with a label of 10^18", "a.npz", npz(npy((4, 2, 2), bytes(16)), npy((1,), b"\xff" * 7 + b"\0", "<i8")), load),
    ("npz bomb", "a.npz", npz_bomb, load),
    ("npz with a pickle that runs code", "a.npz", harmful_array, load),
    ("npz that is a pickle", "a.npz", text(pickle.dumps(Harmful())), load),
    ("empty npz", "a.npz", text(b""), load),
    ("folder called npz", "a.npz", folder, load),
    ("no npz", "a.npz", nothing, load),
    ("safetensors of 2^60 header bytes", "a.safetensors", as_safetensors(b"{}", 1 << 60), load),
    ("safetensors that claims terabytes", "a.safetensors", as_safetensors(claim([TERA, 4, 4])), load),
    ("safetensors whose sizes overflow", "a.safetensors", as_safetensors(claim([1 << 40, 1 << 40])), load),
    ("deep safetensors", "a.safetensors", as_safetensors(DEEP.encode()), tensors),
    ("safetensors that is no UTF-8", "a.safetensors", as_safetensors(b'{"\xff": 1}'), tensors),
    ("empty safetensors", "a.safetensors", text(b""), tensors),
    ("folder called safetensors", "a.safetensors", folder, tensors),
    ("idx that claims terabytes", IMAGES, text(idx(0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF)), mnist),
    ("idx of no images of any size", IMAGES, text(idx(0xFFFFFFFF, 0xFFFFFFFF, 0)), mnist),
    ("packed idx that claims terabytes", f"{IMAGES}.gz", packed(idx(0xFFFFFFFF, 28, 28)), mnist),
    ("gzip bomb called idx", LABELS_FILE, gzip_bomb, mnist),
    ("empty idx", IMAGES, text(b""), mnist),
    ("folder called idx", IMAGES, folder, mnist),
    ("gzip bomb called digits", "digits.csv.gz", gzip_bomb, lambda path: read_digits("digits", path)),
    ("digits that are no numbers", "digits.csv.gz", packed(b"\xff,NaN,1e999\n"), lambda path: read_digits("d", path)),
    ("batch that runs code", BATCH, text(pickle.dumps({"data": Harmful(), "labels": [0]})), cifar),
    ("batch of lists that hold each other", BATCH, text(shared_lists()), cifar),
    ("batch with a deep key", BATCH, text(deep_tuple()), cifar),
    ("batch with a far place in its memo", BATCH, text(b"\x80\x02}r\xff\xff\xff\x7f."), cifar),
    ("batch that claims a long string", BATCH, text(b"\x80\x02T\xff\xff\xff\x7fa."), cifar),
    ("batch that claims bytes to write into", BATCH, text(b"\x80\x05\x96" + struct.pack("<Q", TERA) + b"."), cifar),
    ("batch with an array of terabytes", BATCH, text(b"\x80\x02cnumpy\nndarray\n(J\xff\xff\xff\x7ft\x85R."), cifar),
    ("batch with an enormous number", BATCH, text(b"\x80\x02I" + b"9" * 10**6 + b"\n."), cifar),
    ("folder called batch", BATCH, folder, cifar),
    ("deep configuration", "config.json", text('{"eps": ' + DEEP), read_config),
    ("configuration with NaN", "config.json", text('{"data": "demo", "eps": NaN}'), read_config),
    ("configuration with Infinity", "config.json", text('{"data": "demo", "eps": Infinity}'), read_config),
    ("configuration with a huge number", "config.json", text(f'{{"eps": {"9" * 4000}}}'), read_config),
    ("configuration with a longer number", "config.json", text(f'{{"eps": {"9" * 10**6}}}'), read_config),
    ("configuration that is no UTF-8", "config.json", text(b'{"data": "\xff"}'), read_config),
    ("empty configuration", "config.json", text(b""), read_config),
    ("configuration in no file", "config.json", nothing, read_config),
    ("deep plan", "plan.json", text(DEEP), read_plan),
    ("plan with a path for a name", "plan.json", text('[{"name": "../x", "recipe": "quickstart"}]'), read_plan),
    ("plan with NaN", "plan.json", text('[{"name": "x", "recipe": "quickstart", "set": {"eps": NaN}}]'), read_plan),
    ("plan that is no UTF-8", "plan.json", text(b"[\xff]"), read_plan),
    ("folder called plan", "plan.json", folder, read_plan),
    ("deep rows of a study", "rows.jsonl", text(DEEP + "\n"), lambda path: StudyRows(path, "a")),
    ("rows with NaN", "rows.jsonl", text('{"kind": "run", "study": "", "name": "", "images": NaN}\n'),
     lambda path: StudyRows(path, "a")),
    ("rows that are no UTF-8", "rows.jsonl", text(b"\xff\xfe\n"), lambda path: StudyRows(path, "a")),
    ("folder called rows", "rows.jsonl", folder, read_lines),
    ("folder called rows of groups", "rows.jsonl", folder, read_rows),
    ("network that claims terabytes", "a.safetensors", network_of(shape=[1, 1 << 19, 1 << 19]), network),
    ("network that claims 10^400 classes", "a.safetensors", network_of(classes=10**400), network),
    ("network of another size", "a.safetensors", network_of(), network),
    ("network with NaN", "a.safetensors", network_of(mean=[float("nan")]), network),
    ("network of no known kind", "a.safetensors", network_of(name=["mlp"]), network),
    ("empty network", "a.safetensors", text(b""), network),
    ("archive with a path out of it", "a.tar.gz", tar_of((tarfile.TarInfo("../evil"), b"1")), archive),
    ("archive with a link out of it", "a.tar.gz", tar_of(link("x", "/etc")), archive),
    ("archive that writes through links", "a.tar.gz", tar_of(link("x", ".."), (tarfile.TarInfo("x/a"), b"")), archive),
    ("archive with a hard link", "a.tar.gz", tar_of(link("x", "/etc/passwd", tarfile.LNKTYPE)), archive),
    ("archive with a pipe", "a.tar.gz", tar_of(link("x", "", tarfile.FIFOTYPE)), archive),
    ("archive with a device", "a.tar.gz", tar_of(link("x", "", tarfile.CHRTYPE)), archive),
    ("archive that claims terabytes", "a.tar.gz", tar_claiming(TERA), archive),
    ("archive with a name of terabytes", "a.tar.gz", tar_claiming(TERA, tarfile.GNUTYPE_LONGNAME), archive),
    ("archive with a description of gigabytes", "a.tar.gz", tar_claiming(8 << 30, tarfile.XHDTYPE), archive),
    ("zip that claims terabytes", "a.zip", zip_claiming(TERA), archive),
    ("empty archive", "a.tar.gz", text(b""), archive),
    ("folder called archive", "a.zip", folder, archive),
]  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("name", "file", "make", "read"), CASES, ids=[case[0].replace(" ", "-") for case in CASES])
def test_they_are_refused(name: str, file: str, make: Make, read: Callable[[Path], object], tmp_path: Path) -> None:
    make(tmp_path / file)
    with little_memory(), pytest.raises(CitrusError) as error:
        read(tmp_path / file)
    cause = error.value.__cause__
    assert not isinstance(cause, MemoryError)  # refused before memory is asked for
    assert len(str(error.value)) < 5000
