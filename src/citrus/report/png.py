"""Small images as PNG bytes, with nothing but zlib."""

import struct
import zlib

import torch
from torch import Tensor

BLUE, WHITE, ORANGE = (0.13, 0.40, 0.67), (0.97, 0.97, 0.97), (0.84, 0.35, 0.0)
"""Less, nothing, more: told apart by colour-blind eyes too."""


def png(image: Tensor) -> bytes:
    """An image (C, H, W) of 1 or 3 channels in [0, 1]; values outside are clipped."""
    channels, height, width = image.shape
    if channels not in (1, 3):
        raise ValueError(f"A PNG has 1 or 3 channels here, got {channels}.")
    pixels = (image.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)  # 0: no filter
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def perturbation(delta: Tensor, largest: float) -> Tensor:
    """A perturbation (C, H, W) as an image in which `largest` is the end of the scale.

    One channel runs from blue over white to orange; three are colours around grey.
    """
    share = (delta / largest if largest else delta).clamp(-1, 1)
    if len(delta) == 3:
        return (share + 1) / 2
    less, zero, more = (torch.tensor(colour).view(3, 1, 1) for colour in (BLUE, WHITE, ORANGE))
    return zero + share.clamp(min=0) * (more - zero) + (-share).clamp(min=0) * (less - zero)
