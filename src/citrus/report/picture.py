"""One universal perturbation as a picture: the perturbation itself, and images with and without it."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

from citrus.files import replace_file
from citrus.inputs import format_eps
from citrus.report.uap import read_perturbed

MOST_IMAGES = 8


def draw_perturbation(file: Path) -> Path:
    """Draw what uap/EPS.safetensors says of the group that suffers most, beside it; wrong predictions are red."""
    p = read_perturbed(file)
    count = min(len(p.shown), MOST_IMAGES)
    figure = Figure(figsize=(1.5 * (count + 1.6), 4.0), dpi=120)
    grid = figure.add_gridspec(2, count + 1, width_ratios=[1.6] + [1.0] * count)
    raised = p.worst / (2 * p.eps) if p.eps else p.worst
    title = f"one perturbation, eps {format_eps(p.eps)}\ncontrast raised"
    _show(figure.add_subplot(grid[0, 0]), raised + 0.5, title, cmap="coolwarm")
    _show(figure.add_subplot(grid[1, 0]), p.worst + 0.5, "the same, true scale", cmap="coolwarm")
    for column, (place, image) in enumerate(zip(p.shown[:count], p.images, strict=False), start=1):
        rows = (("without", image, p.clean[place]), ("with", image + p.worst, p.perturbed[place]))
        for row, (name, shown, predicted) in enumerate(rows):
            colour = "black" if bool(predicted == p.labels[place]) else "red"
            _show(figure.add_subplot(grid[row, column]), shown, f"{name}: {int(predicted)}", colour)
    inside = p.groups == p.groups[p.shown[0]]
    falls, right = int((inside & p.falls).sum()), int((inside & p.right).sum())
    figure.suptitle(f"one perturbation turns {falls} of {right} right predictions wrong (red)", fontsize=10)
    figure.tight_layout()
    path = file.with_suffix(".png")
    replace_file(path, lambda part: figure.savefig(part, format="png"))
    return path


def _show(axes: Any, image: Tensor, title: str, colour: str = "black", cmap: str = "gray") -> None:
    pixels = image.clamp(0, 1).numpy()
    axes.imshow(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0), cmap=cmap, vmin=0, vmax=1)
    axes.set_title(title, fontsize=9, color=colour)
    axes.set_axis_off()
