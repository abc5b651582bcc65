"""What users give is checked once, here, and an error says what to do."""

import math
from collections.abc import Mapping
from fractions import Fraction

import torch
from torch import Tensor

from citrus.errors import CitrusError


def parse_number(text: str | float | int, name: str = "value") -> float:
    """A number, or a fraction such as 8/255."""
    try:
        value = float(Fraction(text)) if isinstance(text, str) and "/" in text else float(text)
    except (ValueError, ZeroDivisionError, OverflowError, TypeError):
        value = math.nan
    if not math.isfinite(value):
        raise CitrusError(f"{name} must be a number such as 0.1 or a fraction such as 8/255, got {text!r}.")
    return value


def parse_eps(text: str | float | int) -> float:
    """A perturbation radius in pixel units, between 0 and 1."""
    eps = parse_number(text, "eps")
    if not 0 <= eps <= 1:
        raise CitrusError(f"eps is in pixel units and must lie in [0, 1], got {text}; write 8/255 for 8 grey levels.")
    return eps


def format_eps(eps: float) -> str:
    """8/255 rather than 0.03137..., where that is what was meant."""
    levels = eps * 255
    if round(levels) and abs(levels - round(levels)) < 1e-6 and abs(eps * 1000 - round(eps * 1000)) > 1e-6:
        return f"{round(levels)}/255"
    return f"{eps:g}"


def eps_in_name(eps: float) -> str:
    """The same for the name of a file: 8-255."""
    return format_eps(eps).replace("/", "-")


def check_images(images: Tensor, labels: Tensor, classes: int, shape: tuple[int, ...] | None = None) -> None:
    """Images (n, C, H, W) of floats in [0, 1] with labels (n,) of integers below `classes`."""
    if classes < 2:
        raise CitrusError(f"A classifier needs at least two classes, got {classes}.")
    if images.dim() != 4 or not images.is_floating_point():
        raise CitrusError(f"Images must be floats of shape (n, C, H, W), got {images.dtype} of {tuple(images.shape)}.")
    if shape is not None and tuple(images.shape[1:]) != tuple(shape):
        raise CitrusError(f"The network takes images of shape {tuple(shape)}, got {tuple(images.shape[1:])}.")
    if labels.shape != images.shape[:1] or labels.dtype != torch.int64:
        raise CitrusError(
            f"Labels must be int64 of shape ({images.shape[0]},), got {labels.dtype} of {tuple(labels.shape)}."
        )
    if not len(images):
        raise CitrusError("There are no images.")
    low, high = images.min().item(), images.max().item()
    if not (low >= 0 and high <= 1):  # also refuses NaN
        raise CitrusError(
            f"Images must lie in [0, 1], got values from {low:g} to {high:g}; make normalisation the network's "
            "first layer (citrus.networks.Normalize), and divide bytes by 255."
        )
    if labels.min() < 0 or labels.max() >= classes:
        raise CitrusError(f"Labels must lie in 0..{classes - 1}, got {int(labels.min())} to {int(labels.max())}.")


def check_limits(settings: object, limits: Mapping[str, str]) -> None:
    """Refuse a field of `settings` whose number lies outside its interval, such as "(0, 1]"; a NaN always does."""
    for name, interval in limits.items():
        value = getattr(settings, name)
        low, high = (float(end) for end in interval[1:-1].split(","))
        inside = (value >= low) if interval[0] == "[" else (value > low)
        if inside and ((value <= high) if interval[-1] == "]" else (value < high)):
            continue
        least = f"{'at least' if interval[0] == '[' else 'larger than'} {low:g}"
        finite = "" if math.isfinite(value) else "finite and "
        where = f"lie in {interval}" if math.isfinite(high) else f"be {finite}{least}"
        raise CitrusError(f"{name} must {where}, got {value}.")
