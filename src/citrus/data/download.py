"""Download of the original files: checked, and moved into place only when whole.

A file grows as `NAME.part` and gets its own name when its checksum is right; what a broken connection left is no use.
"""

import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from citrus.data import places
from citrus.data.places import ORIGINALS, Download
from citrus.errors import CitrusError, suggest

Progress = Callable[[str, int, int], None]  # file name, bytes so far, bytes in all

TIMEOUT = 30.0  # seconds without a byte
CHUNK = 1 << 18
LARGEST = 1 << 32
"""Bytes in all that an archive may unpack to; the largest data set has 0.3 GB."""


class _Failed(Exception):
    """A mirror did not give the whole file: no network, an error page, another file, or it stopped in the middle."""


def fetch(name: str, data_dir: str | Path | None = None, progress: Progress | None = None) -> Path:
    """Download data set `name` into `data_dir`, CITRUS_DATA or the user's cache folder; returns where it lies.

    What is already there and right is not downloaded again. `progress(file, bytes so far, bytes in all)` is called
    as each file grows.
    """
    if name == "digits":  # comes with a package
        return places.find(name)
    if name not in ORIGINALS:
        raise CitrusError(f"there is no data set {name!r} to fetch; {suggest(name, ['digits', *ORIGINALS])}")
    original, root = ORIGINALS[name], places.data_folders(data_dir)[0]
    sums = original.contents or {file.name: file.checksum for file in original.downloads}
    for folder in places.candidates(name, root):
        if all(_is_right(folder / file, checksum) for file, checksum in sums.items()):
            return folder
    home = root / original.folders[0]
    folder = root if original.contents else home  # an archive is unpacked beside itself
    for file in original.downloads:
        if not _is_right(folder / file.name, file.checksum):
            _download(name, file, folder, progress)
    if original.contents:
        unpack(root / original.downloads[0].name, root)
    return home


def _download(name: str, file: Download, folder: Path, progress: Progress | None) -> None:
    """Bring one file into `folder`, trying its mirrors in turn."""
    part, failures = folder / f"{file.name}.part", []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for mirror in ORIGINALS[name].mirrors:
            try:
                _transfer(mirror + file.name, file, part, progress)
                os.replace(part, folder / file.name)
                return
            except _Failed as failure:
                failures.append(str(failure))
                part.unlink(missing_ok=True)
    except OSError as error:
        raise CitrusError(f"{part} cannot be written: {error}.") from error
    missing = [other.name for other in ORIGINALS[name].downloads if not (folder / other.name).exists()]
    raise CitrusError(
        f"{', '.join(missing or [file.name])} of data set {name!r} cannot be downloaded ({'; '.join(failures)}); run "
        f"`citrus data fetch {name}` again, later or from another network, or put them into {folder} by hand."
    )


def _transfer(url: str, file: Download, part: Path, progress: Progress | None) -> None:
    """Write what a mirror serves to `part`, and check that it is the whole file."""
    with part.open("wb") as sink:
        for chunk in _served(url, file.size):
            sink.write(chunk)
            if progress is not None:
                progress(file.name, sink.tell(), file.size)
    found = _checksum(part, file.checksum)
    if found != file.checksum:
        raise _Failed(f"{url} was changed or damaged on its way: its checksum is {found}, not {file.checksum}")


def _served(url: str, size: int) -> Iterator[bytes]:
    """What a mirror serves, piece by piece."""
    request = urllib.request.Request(url, headers={"User-Agent": "citrus-uap", "Accept-Encoding": "identity"})
    done, reason = 0, ""
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
            length = reply.headers.get("Content-Length", "")
            if length.isdigit() and int(length) != size:
                raise _Failed(f"{url} offers {length} bytes instead of {size}")
            while chunk := reply.read(min(CHUNK, size - done)):
                done += len(chunk)
                yield chunk
    except (OSError, http.client.HTTPException) as error:  # OSError covers URLError, timeouts and resets
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        reason = f" ({getattr(error, 'reason', None) or error})"
    if done < size:
        raise _Failed(f"{url} broke off: {done} of {size} bytes came{reason}")


def unpack(archive: Path, root: Path) -> None:
    """Unpack `archive` into `root`, refusing paths that leave it, links, and more bytes than any data set has. All or
    nothing: unpacked aside, then moved."""
    try:
        with tempfile.TemporaryDirectory(prefix=".unpack-", dir=root) as aside:
            (_unzip if archive.suffix == ".zip" else _untar)(archive, aside)
            for top in list(Path(aside).iterdir()):
                _move(top, root / top.name)
    except CitrusError:
        raise
    except Exception as error:  # a damaged archive can fail in any way
        raise CitrusError(f"{archive} cannot be unpacked into {root}: {error}.") from error


def _unzip(archive: Path, aside: str) -> None:
    with zipfile.ZipFile(archive) as pack:
        size = sum(member.file_size for member in pack.infolist())
        if size > LARGEST:
            raise ValueError(f"it unpacks to {size} bytes")
        for name in pack.namelist():
            target = Path(os.path.normpath(Path(aside, name.replace("\\", "/"))))
            if not target.is_relative_to(aside):
                raise CitrusError(f"{archive} holds the path {name!r}, which leads out of its folder.")
        pack.extractall(aside)


class _Member(tarfile.TarInfo):
    """What describes another member, such as a long name, is read into memory whole."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        member = super().frombuf(buf, encoding, errors)
        if not member.isreg() and member.size > CHUNK:
            raise tarfile.ReadError(f"it describes a member in {member.size} bytes")
        return member


def _untar(archive: Path, aside: str) -> None:
    size = 0

    def plain(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
        nonlocal size
        size += member.size
        if size > LARGEST or not (member.isreg() or member.isdir()):
            raise ValueError(f"{member.name!r} is a link or a device, or it unpacks to {size} bytes")
        return tarfile.data_filter(member, folder)

    with tarfile.open(archive, tarinfo=_Member) as pack:
        pack.extractall(aside, filter=plain)


def _move(source: Path, target: Path) -> None:
    """Move a file or folder to `target`, into a folder that is already there, over old files."""
    if source.is_dir() and target.is_dir():
        for child in list(source.iterdir()):
            _move(child, target / child.name)
    else:
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(source, target)


def _is_right(path: Path, checksum: str) -> bool:
    return path.exists() and (not checksum or _checksum(path, checksum) == checksum)


def _checksum(path: Path, like: str) -> str:
    """The checksum of a file, of the same kind as `like`."""
    kind = like.partition(":")[0]
    with path.open("rb") as source:
        return f"{kind}:{hashlib.file_digest(source, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()}"
