"""Valid files made hostile: edits that any file can suffer, and edits that know the format.

An edit takes the content and a `random.Random`, which is Hypothesis's own under Hypothesis.
"""

import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any

from safetensors.torch import load, save

from citrus.files import _checksum

Edit = Callable[[bytes, Random], bytes]

NUMBERS = (0, 1, 2, 7, 127, 255, 256, *(1 << n for n in (15, 16, 24, 31, 40, 62)), (1 << 32) - 1, (1 << 64) - 1)
WORDS = (b"\0", b"\xff", b"../", b"/etc/passwd", b"NaN", b"[" * 2000, b"{", b'"', b"\n", b"1e999", b"\xed\xa0\x80")


class Deep:
    """Stands for lists in lists, too deep for `json` to write."""


VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 0.5, -0.0, 255, 1 << 31, 1 << 40, 1 << 63, 10**18, 10**400, -(10**400)),
    *(float("nan"), float("inf"), -float("inf"), 1e308, 5e-324),
    *("", "a", "0", "1/0", "8/255", "../../x", "/etc/passwd", "\0", "\ud800", "x" * 5000, "1" * 5000, "\u202e\n"),
    *([], {}, [[]], [None], [1, 2], {"a": 1}, {"name": []}, [0] * 1000),
    Deep(),
)


def bytes_edit(content: bytes, random: Random) -> bytes:
    """Flip, cut, insert, repeat or write a number over it."""
    at = random.randint(0, len(content))
    size = random.choice((1, 2, 4, 8, random.randint(0, 64), random.randint(0, max(1, len(content)))))
    match random.randint(0, 6):
        case 0:
            flipped = bytes(byte ^ 1 << random.randint(0, 7) for byte in content[at : at + 1])
            return content[:at] + flipped + content[at + 1 :]
        case 1:
            return content[:at]
        case 2:
            return content[:at] + content[at + size :]
        case 3:
            return content[:at] + content[at : at + size] * random.randint(2, 9) + content[at + size :]
        case 4:
            return content[:at] + random.choice(WORDS) + content[at:]
        case 5:
            return content[:at] + random.randbytes(min(size, 16)) + content[at + min(size, 16) :]
    width, order = random.choice((1, 2, 4, 8)), random.choice(("little", "big"))
    number = random.choice(NUMBERS) % (1 << 8 * width)
    return content[:at] + number.to_bytes(width, order) + content[at + width :]


def json_edit(content: bytes, random: Random) -> bytes:
    """One value of a JSON text is another, gone, or twice there."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return bytes_edit(content, random)
    return dump(changed(value, random)).encode(errors="surrogatepass")


def lines_edit(content: bytes, random: Random) -> bytes:
    """The same for one line of a file of lines."""
    lines = content.split(b"\n")
    at = random.randrange(len(lines))
    return b"\n".join((*lines[:at], json_edit(lines[at], random), *lines[at + 1 :]))


def changed(value: Any, random: Random) -> Any:
    """The value with something in it changed; not always deep inside."""
    if not isinstance(value, dict | list) or not value or random.randint(0, 9) == 0:
        return random.choice(VALUES)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key, copy = random.choice(keys), value.copy()
    match random.randint(0, 9):
        case 0:
            del copy[key]
        case 1 if isinstance(copy, dict):
            copy[random.choice((*keys, "unknown", "", "__class__", "\0"))] = random.choice(VALUES)
        case 2 if isinstance(copy, list):
            copy *= random.choice((2, 3, 100))
        case _:
            copy[key] = changed(value[key], random)
    return copy


def dump(value: Any) -> str:
    depth = "[" * 100_000 + "]" * 100_000
    return json.dumps(value, default=lambda _: "DEEP").replace('"DEEP"', depth)


def header_edit(content: bytes, random: Random) -> bytes:
    """The JSON header of a safetensors file: names, types, shapes and offsets that claim anything."""
    size = struct.unpack("<Q", content[:8])[0] if len(content) >= 8 else 0
    if not 0 < size <= len(content) - 8:
        return bytes_edit(content, random)
    header = json_edit(content[8 : 8 + size], random)
    return (
        struct.pack("<Q", random.choice((len(header), len(header), random.choice(NUMBERS))))
        + header
        + content[8 + size :]
    )


def tensors_edit(content: bytes, random: Random) -> bytes:
    """A file of Citrus with other values in its own header or its tensors, and the checksum right again."""
    size = struct.unpack("<Q", content[:8])[0] if len(content) >= 8 else 0
    try:
        tensors = load(content)
        about = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["citrus"])
        about.pop("checksum")
    except Exception:
        return header_edit(content, random)
    name = random.choice(sorted(tensors)) if tensors else ""
    match random.randint(0, 5):
        case 0 | 1 if name:
            plain = save({"x": tensors[name]})
            start = len(plain) - tensors[name].numel() * tensors[name].element_size()
            if name == "about":
                tensors[name] = tensors[name].new_tensor(list(json_edit(plain[start:], random)))
            else:
                body = bytes_edit(plain[start:], random)[: len(plain) - start].ljust(len(plain) - start, b"\0")
                tensors[name] = load(plain[:start] + body)["x"]
        case 2 if name:
            tensors.pop(name)
        case 3 if name:
            shapes = ((0,), (1,), (2, 2), (1, 1, 1, 1), (), (0, 3), (4096,))
            kinds = (tensors[name].dtype, *(t.dtype for t in tensors.values()))
            tensors[name] = tensors[name].new_zeros(random.choice(shapes), dtype=random.choice(kinds))
        case _:
            about = changed(about, random)
    if isinstance(about, dict):
        try:
            about["checksum"] = _checksum(tensors, about)
        except (TypeError, ValueError):  # the deep one
            about["checksum"] = ""
    return save(tensors, {"citrus": dump(about)})


def onnx_edit(content: bytes, random: Random) -> bytes:
    """One field of an ONNX file, found by walking its messages."""
    from google.protobuf.message import DecodeError, Message
    from onnx import ModelProto

    model = ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError:
        return bytes_edit(content, random)
    message: Any = model.graph if random.randint(0, 9) else model
    while True:
        fields = [(field, value) for field, value in message.ListFields()]
        if not fields:
            return model.SerializeToString()
        field, value = random.choice(fields)
        several = not isinstance(value, str | bytes | int | float | Message)
        inner = random.choice(value) if several and len(value) else value
        if isinstance(inner, Message) and random.randint(0, 7):
            message = inner
            continue
        break
    try:
        _set(message, field, several, random)
    except (TypeError, ValueError, AttributeError):
        return bytes_edit(content, random)
    return model.SerializeToString()


def _set(message: Any, field: Any, several: bool, random: Random) -> None:
    value = getattr(message, field.name)
    kinds = ("Conv", "Gemm", "MatMul", "Relu", "Add", "Mul", "Div", "Pad", "Reshape", "Transpose", "Concat", "Gather")
    other: dict[str, tuple[Any, ...]] = {
        "str": (*kinds, "Loop", "ConstantOfShape", "", "input", "output", "../x"),
        "bytes": (b"", b"\0" * 8, b"\xff" * 64, b"NOTSET", b"SAME_UPPER"),
        "int": (*NUMBERS[:-1], -1, -(1 << 40)),
        "float": (0.0, -1.0, float("nan"), float("inf"), 1e-45, 3e38),
    }
    if not several:
        setattr(message, field.name, random.choice(other.get(type(value).__name__, (0,))))
        return
    at = random.randrange(len(value))
    kind = type(value[at]).__name__
    match random.randint(0, 3):
        case 0:
            del value[at]
        case 1:
            value.extend(list(value)[: random.choice((1, len(value)))])
        case _ if kind in other:
            value[at] = random.choice(other[kind])
        case _:
            del value[at:]
