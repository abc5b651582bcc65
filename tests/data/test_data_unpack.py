"""Archives are unpacked whole and only into their folder."""

import hashlib
import io
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from citrus.data import download, fetch
from citrus.data.places import ORIGINALS, Download
from citrus.errors import CitrusError

CONTENT = bytes(range(256)) * 400


def tar_of(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def zip_of(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as pack:
        for name, content in members.items():
            pack.writestr(name, content)
    return buffer.getvalue()


def offer_nowhere(monkeypatch: pytest.MonkeyPatch, name: str, archive: str, content: bytes) -> None:
    """A table entry whose archive no server has: it must be found on disk."""
    file = Download(archive, len(content), f"sha256:{hashlib.sha256(content).hexdigest()}")
    monkeypatch.setitem(ORIGINALS, name, replace(ORIGINALS[name], downloads=(file,), mirrors=()))


@pytest.mark.parametrize(
    ("name", "archive", "top"),
    [("cifar10", "cifar-10-python.tar.gz", "cifar-10-batches-py"), ("tinyimagenet", "t.zip", "tiny-imagenet-200")],
)
def test_an_archive_put_there_by_hand_is_checked_and_unpacked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, archive: str, top: str
) -> None:
    content = (zip_of if archive.endswith(".zip") else tar_of)({f"{top}/a": b"new", f"{top}/sub/b": b"b"})
    offer_nowhere(monkeypatch, name, archive, content)
    (tmp_path / archive).write_bytes(content)
    (tmp_path / top).mkdir()
    (tmp_path / top / "a").write_bytes(b"damaged")
    (tmp_path / top / "mine").write_bytes(b"kept")
    assert fetch(name, tmp_path) == tmp_path / top
    contents = {path.name: path.read_bytes() for path in (tmp_path / top).rglob("*") if path.is_file()}
    assert contents == {"a": b"new", "b": b"b", "mine": b"kept"}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([archive, top])


def test_cifar10_that_is_unpacked_and_right_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    contents = {"data_batch_1": f"sha256:{hashlib.sha256(b'one').hexdigest()}"}
    monkeypatch.setitem(ORIGINALS, "cifar10", replace(ORIGINALS["cifar10"], mirrors=(), contents=contents))
    folder = tmp_path / "cifar10"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(b"one")
    assert fetch("cifar10", tmp_path) == folder


@pytest.mark.parametrize("member", ["../evil", "/tmp/citrus-evil", "a/../../evil"])
@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_archives_cannot_write_outside(tmp_path: Path, member: str, kind: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    archive = root / f"bad.{kind}"
    archive.write_bytes((zip_of if kind == "zip" else tar_of)({"fine": b"1", member: b"2"}))
    if kind == "tar.gz" and member.startswith("/"):
        download.unpack(archive, root)  # the tar filter strips the leading slash: harmless
        assert (root / "tmp" / "citrus-evil").read_bytes() == b"2"
    else:
        with pytest.raises(CitrusError, match=r"bad\."):
            download.unpack(archive, root)
        assert [path.name for path in root.iterdir()] == [archive.name]  # nothing, not even the harmless member
    assert not (tmp_path / "evil").exists()
    assert not Path("/tmp/citrus-evil").exists()


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_a_damaged_archive_is_named(tmp_path: Path, kind: str) -> None:
    archive = tmp_path / f"bad.{kind}"
    content = (zip_of if kind == "zip" else tar_of)({"fine": CONTENT})
    for damaged in (b"", b"garbage", content[: len(content) // 2]):
        archive.write_bytes(damaged)
        with pytest.raises(CitrusError, match="cannot be unpacked"):
            download.unpack(archive, tmp_path)


def encrypted(content: bytes) -> bytes:
    """The flag of every member, in both directories of the file."""
    for mark, place in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        start = content.index(mark) + place
        content = content[:start] + b"\1\0" + content[start + 2 :]
    return content


DAMAGE = {
    "a zip with a password": ("zip", encrypted(zip_of({"a": b"1"}))),
    "a zip of a later version": ("zip", zip_of({"a": b"1"}).replace(b"PK\1\2\x14\3\x14\0", b"PK\1\2\x14\3\xff\0")),
    "a zip with a name that is empty": ("zip", zip_of({"/": b"1"}).replace(b"/PK", b"\0PK")),
    "a tar with a zero in a name": ("tar.gz", tar_of({"a/" + "b" * 150 + "\0c": b"1"})),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_archives_that_python_stumbles_over_are_named(tmp_path: Path, name: str) -> None:
    """Found by `make fuzz`: the libraries raise whatever they meet."""
    kind, content = DAMAGE[name]
    archive = tmp_path / f"bad.{kind}"
    archive.write_bytes(content)
    with pytest.raises(CitrusError, match="cannot be unpacked"):
        download.unpack(archive, tmp_path)
