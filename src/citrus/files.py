"""Files that survive a crash: written beside their place, then moved over the old one in one step; rows are appended.

Tensors are stored as safetensors, so reading a stranger's file runs no code. Checksums of files of tensors and of rows
tell damage. A folder is written by one process at a time, which holds its lock.
"""

import fcntl
import json
import os
import re
import secrets
import socket
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from citrus.errors import CannotWrite, CitrusError

LOCK = ".lock"
PART = re.compile(r"\.(\d+)-[0-9a-f]{8}\.part$")
REMEDY = "restore it, or delete it and make it anew"


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a new file beside `path`, then put it in its place; a failure leaves the old file as it was."""
    partial = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(partial)
        partial.chmod(0o644)  # safetensors writes files that only their owner can read
        os.replace(partial, path)
    except (OSError, SafetensorError) as error:
        raise _cannot_write(path, error) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _cannot_write(path: Path, error: Exception) -> CannotWrite:
    reason = getattr(error, "strerror", None) or str(error)
    return CannotWrite(
        f"Cannot write {path}: {reason}; what was there before is untouched, and once the folder can be written and "
        "has room the same command goes on (`citrus train` with --resume)."
    )


def write_text(path: Path, text: str) -> None:
    replace_file(path, lambda part: part.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


def append_line(path: Path, row: Mapping[str, Any]) -> None:
    """Add a row to a file of JSON lines; it is on the disk when this returns. A line that a crash cut short goes."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            file.seek(max(0, file.tell() - 1))
            if file.read() not in (b"", b"\n"):
                file.seek(0)
                last = file.read().rpartition(b"\n")[2]
                if parse_object(last.decode(errors="replace")) is None:
                    file.truncate(file.tell() - len(last))
                else:
                    file.write(b"\n")
            file.write(line_of(row).encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _cannot_write(path, error) from error


def line_of(row: Mapping[str, Any]) -> str:
    """A row as a line of such a file: with the checksum `crc` of its values."""
    values = {name: value for name, value in json.loads(json.dumps(row)).items() if name != "crc"}
    return json.dumps({**values, "crc": _crc(values)}) + "\n"


def _crc(values: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(values, sort_keys=True).encode()):08x}"


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The rows of such a file (none where there is no file), and how many lines are none: cut short by a crash,
    damaged, or a stranger's. A row without a checksum, as older versions wrote it, is believed."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise CitrusError(f"Cannot read {path}: {error}.") from error
    found = [parse_object(line) for line in lines if line.strip()]
    rows = [row for row in found if row is not None and row.pop("crc", None) in (None, _crc(row))]
    return rows, len(found) - len(rows)


def parse_object(text: str) -> dict[str, Any] | None:
    """A JSON object, or None where the text is anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def save_tensors(path: Path, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    """Write tensors and a JSON header; an interrupted or failed write leaves the old file as it was."""
    tensors = {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}
    header = {**header, "checksum": _checksum(tensors, header)}
    replace_file(path, lambda part: save_file(tensors, part, metadata={"citrus": json.dumps(header)}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_tensors` wrote; a damaged or foreign file is an error."""
    if not path.is_file():
        raise CitrusError(f"There is no file {path}.")
    try:
        with safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {}).get("citrus", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise CitrusError(f"{path} is damaged or no safetensors file ({error}); {REMEDY}.") from error
    if not isinstance(header, dict):
        raise CitrusError(f"{path} was not written by Citrus.")
    if header.pop("checksum", None) != _checksum(tensors, header):
        raise CitrusError(f"{path} is damaged: its checksum does not match; {REMEDY}.")
    return tensors, header


@contextmanager
def locked(folder: Path, name: str = "") -> Iterator[None]:
    """Hold a folder, or what is called `name` in it, for writing; another process that wants it is refused.

    The kernel gives the lock back when a process ends, however it ends. What it had not finished writing then is
    removed by the next one. A folder that was made for nothing goes.
    """
    path = folder / (f".{name}{LOCK}" if name else LOCK)
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b", buffering=0)
    except OSError as error:
        raise _cannot_write(path, error) from error
    with file:
        if _taken(file.fileno()):
            file.seek(0)
            holder = file.read().decode(errors="replace")
            if holder != _this_process():  # else a caller of this function holds it
                raise CitrusError(
                    f"{path.with_name(name) if name else folder} is being written by {holder or 'another process'}: "
                    "wait for it to end, or stop it, or choose another --out."
                )
        else:
            try:
                _remove_parts(folder)
                file.truncate(0)
                file.write(_this_process().encode())
            except OSError as error:
                raise _cannot_write(path, error) from error
        try:
            yield
        finally:
            with suppress(OSError):
                if new and [entry.name for entry in folder.iterdir()] == [path.name]:
                    path.unlink()
                    for each in new:
                        each.rmdir()


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    return os.fstat(lock).st_nlink == 0  # its last holder has just removed it


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _remove_parts(folder: Path) -> None:
    """What processes that have ended were writing, in the folder or one in it."""
    for part in (*folder.glob("*.part"), *folder.glob("*/*.part")):
        found = PART.search(part.name)
        if found and not _is_alive(int(found[1])):
            part.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _checksum(tensors: dict[str, Tensor], header: dict[str, Any]) -> str:
    value = zlib.crc32(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        value = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), value)
        value = zlib.crc32(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes(), value)
    return f"{value:08x}"
