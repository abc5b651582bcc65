"""One universal perturbation as a picture: the perturbation itself, and images with and without it."""

from pathlib import Path
from typing import Any

import matplotlib
import torch
from torch import Tensor, nn

from citrus.attacks import UniversalResult
from citrus.files import replace_file
from citrus.inputs import format_eps

matplotlib.use("Agg")
MOST_IMAGES = 8


@torch.no_grad()
def universal_picture(
    path: Path, eps: float, attack: UniversalResult, images: Tensor, labels: Tensor, network: nn.Module
) -> Path:
    """Draw the group in which a perturbation turns most right predictions wrong; wrong predictions are red."""
    from matplotlib.figure import Figure

    count = len(attack.groups)
    right = torch.cat([network(x).argmax(1) for x in images[:count].split(500)]) == labels[:count]
    worst = attack.worst_group(right)
    inside = attack.groups == worst
    members = inside.nonzero().flatten()[:MOST_IMAGES]
    delta, clean, truth = attack.delta[worst], images[members], labels[members]
    figure = Figure(figsize=(1.5 * (len(members) + 1.6), 4.0), dpi=120)
    grid = figure.add_gridspec(2, len(members) + 1, width_ratios=[1.6] + [1.0] * len(members))
    shown_delta = (
        (delta / (2 * eps) if eps else delta, f"one perturbation, eps {format_eps(eps)}\ncontrast raised"),
        (delta, "the same, true scale"),
    )
    for row, (values, name) in enumerate(shown_delta):
        axes = figure.add_subplot(grid[row, 0])
        _show(axes, values + 0.5, "coolwarm")
        axes.set_title(name, fontsize=9)
    for row, (shown, name) in enumerate(((clean, "without"), (clean + delta, "with"))):
        predicted = network(shown).argmax(1)
        for column in range(len(members)):
            axes = figure.add_subplot(grid[row, column + 1])
            _show(axes, shown[column])
            colour = "black" if bool(predicted[column] == truth[column]) else "red"
            axes.set_title(f"{name}: {int(predicted[column])}", fontsize=9, color=colour)
    wrong, whole = int((inside & right & attack.fooled).sum()), int((inside & right).sum())
    figure.suptitle(f"one perturbation turns {wrong} of {whole} right predictions wrong (red)", fontsize=10)
    figure.tight_layout()
    replace_file(path, lambda part: figure.savefig(part, format="png"))
    return path


def _show(axes: Any, image: Tensor, colours: str = "gray") -> None:
    pixels = image.clamp(0, 1).cpu().numpy()
    axes.imshow(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0), cmap=colours, vmin=0, vmax=1)
    axes.set_axis_off()
