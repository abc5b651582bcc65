"""Initialisation and regularisers of Shi et al. (NeurIPS 2021), which keep interval bounds from exploding."""

import math

import torch
from torch import Tensor, nn

from citrus.bounds import Box

TOLERANCE = 0.5


def initialize(network: nn.Module, generator: torch.Generator) -> None:
    """N(0, 2 pi / fan_in^2) for every convolution and linear weight but the last, which keeps torch's own.

    With a tiny last layer training collapsed in our trials; the published code leaves it alone too.
    """
    weights = [m.weight for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    with torch.no_grad():
        for weight in weights[:-1]:
            fan_in = weight[0].numel()
            noise = torch.empty(weight.shape).normal_(0.0, math.sqrt(2 * math.pi) / fan_in, generator=generator)
            weight.copy_(noise)


def tightness(input_radius: Tensor | float, boxes: tuple[Box, ...]) -> Tensor:
    """(1/m) sum_i relu(tol - r_input / mean(r_i)) / tol: boxes must not grow to more than twice the input's."""
    terms = [(TOLERANCE - input_radius / box.radius.mean().clamp(min=1e-12)).relu() for box in boxes]
    return torch.stack(terms).sum() / TOLERANCE / len(boxes)


def balance(boxes: tuple[Box, ...]) -> Tensor:
    """Active and inactive ReLUs should weigh the same, in mean and in variance of the centres.

    (1/m) sum_i [relu(tol - rho(alpha_i)) + relu(tol - rho(beta_i))] / tol with rho(z) = min(z, 1/z). A layer without
    any stable unit has no ratio: it adds nothing, yet counts in the mean.
    """
    return torch.stack([_balance(box) for box in boxes]).sum() / TOLERANCE / len(boxes)


def _balance(box: Box) -> Tensor:
    centre = box.centre
    active, inactive = (box.lower > 0).to(centre.dtype), (box.upper < 0).to(centre.dtype)
    spread = (centre - centre.mean()).square()
    alpha = _ratio((centre * active).mean(), -(centre * inactive).mean())
    beta = _ratio((spread * active).sum(), (spread * inactive).sum())
    term = (TOLERANCE - alpha).relu() + (TOLERANCE - beta).relu()
    defined = (active.sum() + inactive.sum() > 0) & (spread.max() > 0)
    return torch.where(defined, term, torch.zeros_like(term))


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """min(a/b, b/a), written so that its gradient stays finite when one of them is 0."""
    largest = torch.maximum(a, b)
    return torch.minimum(a, b) / torch.where(largest > 0, largest, torch.ones_like(largest))
