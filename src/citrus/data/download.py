"""Download of the original files: resumed, checked, and moved into place only when whole.

A file grows as `NAME.part`. When the connection breaks the part stays, and the next call asks the server for the
rest (HTTP Range). Nothing becomes visible under its own name before its checksum is right.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from citrus.data import digits, places
from citrus.data.mirrors import REMOTE, Remote, RemoteFile
from citrus.errors import CitrusError, suggest

Progress = Callable[[str, int, int], None]  # file name, bytes so far, bytes in all

TIMEOUT = 30.0  # seconds without a byte
CHUNK = 1 << 18


class _Unreachable(Exception):
    """A mirror gave nothing: no network, an error page, another file."""


class _Cut(Exception):
    """A mirror stopped in the middle; the part is kept."""


def fetch(name: str, data_dir: str | Path | None = None, progress: Progress | None = None) -> Path:
    """Download data set `name` into `data_dir`, CITRUS_DATA or the user's cache folder; returns where it lies.

    What is already there and right is not downloaded again. `progress(file, bytes so far, bytes in all)` is called
    as each file grows.
    """
    if name == "digits":
        place = digits.locate()
        if place is None:
            raise digits.not_found()
        return place
    if name not in REMOTE:
        raise CitrusError(f"there is no data set {name!r} to fetch; {suggest(name, ['digits', *REMOTE])}")
    root, remote = places.data_folders(data_dir)[0], REMOTE[name]
    present = _present(name, remote, root)
    if present is not None:
        return present
    home = root / places.LAYOUTS[name].folders[0]
    folder = root if remote.archive else home
    for file in remote.files:
        if not is_right(folder / file.name, file):
            _download(name, file, folder, progress)
    if remote.archive:
        unpack(folder / remote.files[0].name, root)
    return home


def _present(name: str, remote: Remote, root: Path) -> Path | None:
    """The folder below `root` where the data set already lies, whole and right."""
    for folder in places.candidates(name, root):
        if not remote.archive:
            right = all(is_right(folder / file.name, file) for file in remote.files)
        elif remote.contents:
            right = all(_digest(folder / file, "sha256") == sha256 for file, sha256 in remote.contents)
        else:
            # Unpacking is atomic, and a user may keep fewer images on purpose: the folders being there is enough.
            right = not places.LAYOUTS[name].missing(folder)
        if right:
            return folder
    return None


def is_right(path: Path, file: RemoteFile) -> bool:
    """Whether `path` is the file that the table describes."""
    return path.is_file() and path.stat().st_size == file.size and _digest(path, _kind(file)) == _expected(file)


def _download(name: str, file: RemoteFile, folder: Path, progress: Progress | None) -> None:
    """Bring one file into `folder`, trying its mirrors in turn."""
    part = folder / f"{file.name}.part"
    wrong: list[CitrusError] = []
    cut: list[_Cut] = []
    unreachable: list[_Unreachable] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for url in file.urls:
            try:
                _complete(url, file, part, progress)
                os.replace(part, folder / file.name)
                return
            except CitrusError as error:
                wrong.append(error)
            except _Cut as error:
                cut.append(error)
            except _Unreachable as error:
                unreachable.append(error)
    except OSError as error:
        raise CitrusError(f"{part} cannot be written: {error}.") from error
    if wrong:
        raise wrong[-1]
    if cut:
        raise CitrusError(
            f"the download of {file.name} broke off ({cut[-1]}), what came is kept in {part}: run "
            f"`citrus data fetch {name}` again to resume."
        )
    missing = [other.name for other in REMOTE[name].files if not (folder / other.name).exists()]
    raise CitrusError(
        f"{', '.join(missing or [file.name])} of data set {name!r} cannot be downloaded ({unreachable[-1]}); put what "
        f"is missing into {folder} by hand, or run `citrus data fetch {name}` again with a network connection."
    )


def _complete(url: str, file: RemoteFile, part: Path, progress: Progress | None) -> None:
    """Grow `part` to the whole file and check it. A part that turns out to be of another file is thrown away once."""
    while True:
        start = part.stat().st_size if part.exists() else 0
        if start > file.size:
            part.unlink()
            start = 0
        if start < file.size:
            start = _transfer(url, file, part, start, progress)
        found = _digest(part, _kind(file))
        if found == _expected(file):
            return
        part.unlink()
        if start == 0:  # the whole file came from this mirror
            raise CitrusError(
                f"{url} has the {_kind(file)} sum {found}, not {_expected(file)}: the file was changed or damaged "
                f"on its way and is deleted; try again later or from another network."
            )


def _transfer(url: str, file: RemoteFile, part: Path, start: int, progress: Progress | None) -> int:
    """Append what is missing to `part`; returns the byte at which the transfer really began."""
    try:
        reply, start = _open(url, start)
    except (OSError, http.client.HTTPException) as error:  # OSError covers URLError, timeouts and resets
        raise _Unreachable(f"{url}: {getattr(error, 'reason', None) or error}") from error
    with reply:
        length = reply.headers.get("Content-Length", "")
        if length.isdigit() and start + int(length) != file.size:
            raise _Unreachable(f"{url} offers {start + int(length)} bytes instead of {file.size}")
        done = start
        with part.open("ab" if start else "wb") as sink:
            while done < file.size:
                try:
                    chunk = reply.read(min(CHUNK, file.size - done))
                except (OSError, http.client.HTTPException) as error:
                    raise _Cut(f"{done} of {file.size} bytes came: {error}") from error
                if not chunk:
                    raise _Cut(f"{done} of {file.size} bytes came")
                sink.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(file.name, done, file.size)
            sink.flush()
            os.fsync(sink.fileno())
    return start


def _open(url: str, start: int) -> tuple[http.client.HTTPResponse, int]:
    """The server's reply and the byte it begins with: `start`, or 0 when it does not serve ranges."""
    headers = {"User-Agent": "citrus-uap", "Accept-Encoding": "identity"}
    if start:
        try:
            request = urllib.request.Request(url, headers=headers | {"Range": f"bytes={start}-"})
            reply = urllib.request.urlopen(request, timeout=TIMEOUT)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise
        else:
            if reply.status == http.HTTPStatus.OK:
                return reply, 0
            if reply.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
                return reply, start
            reply.close()  # some other range: of no use, ask for everything
    request = urllib.request.Request(url, headers=headers)
    try:
        return urllib.request.urlopen(request, timeout=TIMEOUT), 0
    except urllib.error.HTTPError as error:
        error.close()
        raise


def unpack(archive: Path, root: Path) -> None:
    """Unpack `archive` into `root`, refusing paths that leave it. All or nothing: unpacked aside, then moved."""
    try:
        with tempfile.TemporaryDirectory(prefix=".unpack-", dir=root) as aside:
            if archive.suffix == ".zip":
                with zipfile.ZipFile(archive) as pack:
                    for member in pack.namelist():
                        target = Path(os.path.normpath(Path(aside, member.replace("\\", "/"))))
                        if not target.is_relative_to(aside):
                            raise CitrusError(f"{archive} holds the path {member!r}, which leads out of its folder.")
                    pack.extractall(aside)
            else:
                with tarfile.open(archive) as pack:
                    pack.extractall(aside, filter="data")
            for top in list(Path(aside).iterdir()):
                _move(top, root / top.name)
    except (OSError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as error:
        raise CitrusError(f"{archive} cannot be unpacked into {root}: {error}.") from error


def _move(source: Path, target: Path) -> None:
    """Move a file or folder to `target`, into a folder that is already there, over old files."""
    if source.is_dir() and target.is_dir():
        for child in list(source.iterdir()):
            _move(child, target / child.name)
    else:
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(source, target)


def _kind(file: RemoteFile) -> str:
    return "sha256" if file.sha256 else "md5"


def _expected(file: RemoteFile) -> str:
    return file.sha256 or file.md5


def _digest(path: Path, kind: str) -> str:
    """The checksum of a file in hex, "" when it is not there."""
    if not path.is_file():
        return ""
    with path.open("rb") as source:
        return hashlib.file_digest(source, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
