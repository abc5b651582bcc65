"""Augmentation as batched tensor code: every image its own mirror and crop, without a loop over images.

Works on uint8 or float images (n, C, H, W) on any device and never waits for it. Random numbers are drawn on the
generator's device: a CPU generator gives the same crops on every machine, a generator on the images' device saves
the copy.
"""

import torch
from torch import Tensor

from citrus.errors import CitrusError


def shuffle(n: int, generator: torch.Generator) -> Tensor:
    """A random order of 0..n-1 (int64), on the generator's device."""
    return torch.randperm(n, generator=generator, device=generator.device)


def flip_and_crop(images: Tensor, pad: int, flip: bool, generator: torch.Generator) -> Tensor:
    """Pad each image by repeating its edge `pad` times, cut the original size out at a random place, mirror half.

    Never builds the padded image: a position outside repeats the edge, so clamped coordinates say where each pixel
    comes from, and one gather fetches all of them. With `pad=0, flip=False` the images come back as they are.
    """
    if pad < 0:
        raise CitrusError(f"flip_and_crop: pad={pad} is negative; use 0 for no crop.")
    if pad == 0 and not flip:
        return images
    n, channels, height, width = images.shape
    rows = torch.arange(height, device=images.device).expand(n, height)
    columns = torch.arange(width, device=images.device).expand(n, width)
    if pad:
        shift = _draw(2 * pad + 1, (2, n, 1), images.device, generator) - pad
        rows = (rows + shift[0]).clamp(0, height - 1)
        columns = (columns + shift[1]).clamp(0, width - 1)
    if flip:
        mirrored = _draw(2, (n, 1), images.device, generator).bool()
        columns = torch.where(mirrored, columns.flip(1), columns)
    source = (rows[:, :, None] * width + columns[:, None, :]).view(n, 1, height * width)
    return images.flatten(2).gather(2, source.expand(n, channels, -1)).view(n, channels, height, width)


def _draw(high: int, shape: tuple[int, ...], device: torch.device, generator: torch.Generator) -> Tensor:
    """Random integers in 0..high-1, moved to `device` without waiting for it."""
    numbers = torch.randint(high, shape, generator=generator, device=generator.device)
    if numbers.device.type == "cpu" and device.type == "cuda":
        numbers = numbers.pin_memory()  # a copy from pageable memory would block until the GPU has caught up
    return numbers.to(device, non_blocking=True)
