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
    """Draw the group in which a perturbation fools most images; wrong predictions are red."""
    from matplotlib.figure import Figure

    counts = torch.zeros(len(attack.delta)).index_add(0, attack.groups.cpu(), attack.fooled.float().cpu())
    worst = int(counts.argmax())
    members = (attack.groups == worst).nonzero().flatten()[:MOST_IMAGES]
    delta, clean, truth = attack.delta[worst], images[members], labels[members]
    fooled = int(counts[worst])
    size = int((attack.groups == worst).sum())
    figure = Figure(figsize=(1.5 * (len(members) + 1.6), 4.0), dpi=120)
    grid = figure.add_gridspec(2, len(members) + 1, width_ratios=[1.6] + [1.0] * len(members))
    axes = figure.add_subplot(grid[:, 0])
    _show(axes, delta / (2 * eps) + 0.5 if eps else delta + 0.5)
    axes.set_title(f"one perturbation\neps {format_eps(eps)}, contrast raised", fontsize=9)
    for row, (shown, name) in enumerate(((clean, "without"), (clean + delta, "with"))):
        predicted = network(shown).argmax(1)
        for column in range(len(members)):
            axes = figure.add_subplot(grid[row, column + 1])
            _show(axes, shown[column])
            right = bool(predicted[column] == truth[column])
            axes.set_title(f"{name}: {int(predicted[column])}", fontsize=9, color="black" if right else "red")
    figure.suptitle(
        f"it fools {fooled} of the {size} images of its group (a red title is a wrong prediction)", fontsize=10
    )
    figure.tight_layout()
    replace_file(path, lambda part: figure.savefig(part, format="png"))
    return path


def _show(axes: Any, image: Tensor) -> None:
    pixels = image.clamp(0, 1).cpu()
    axes.imshow(pixels[0] if len(pixels) == 1 else pixels.permute(1, 2, 0), cmap="gray", vmin=0, vmax=1)
    axes.set_axis_off()
