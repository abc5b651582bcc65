"""Files that survive a crash: written beside their place, then moved over the old one in one step; rows are appended.

Tensors are stored as safetensors, so reading a stranger's file runs no code; a checksum tells damage.
"""

import contextlib
import json
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from citrus.errors import CitrusError


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a new file beside `path`, then put it in its place; a failure leaves the old file as it was."""
    partial = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(partial)
        partial.chmod(0o644)  # safetensors writes files that only their owner can read
        os.replace(partial, path)
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise CitrusError(f"Cannot write {path}: {error}; what was there before is untouched.") from error


def write_text(path: Path, text: str) -> None:
    replace_file(path, lambda part: part.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


def append_line(path: Path, row: Mapping[str, Any]) -> None:
    """Add a row to a file of JSON lines; it is on the disk when this returns. A line that a crash cut short goes."""
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
        file.write(json.dumps(row).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The rows of such a file (none where there is no file), and how many lines are none: cut short by a crash,
    damaged, or a stranger's."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise CitrusError(f"Cannot read {path}: {error}.") from error
    found = [parse_object(line) for line in lines if line.strip()]
    rows = [row for row in found if row is not None]
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
    except (SafetensorError, OSError, ValueError) as error:
        raise CitrusError(f"{path} is damaged or no safetensors file ({error}); restore it or make it anew.") from error
    if not isinstance(header, dict):
        raise CitrusError(f"{path} was not written by Citrus.")
    if header.pop("checksum", None) != _checksum(tensors, header):
        raise CitrusError(f"{path} is damaged: its checksum does not match; restore it or make it anew.")
    return tensors, header


def _checksum(tensors: dict[str, Tensor], header: dict[str, Any]) -> str:
    value = zlib.crc32(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        value = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), value)
        value = zlib.crc32(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes(), value)
    return f"{value:08x}"
