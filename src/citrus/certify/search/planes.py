"""Planes under the margins of one group, and the one evaluation that every proof about them rests on.

A verifier gives planes m_ij(delta) >= a_p . delta + b_p for every |delta|_inf <= eps; several planes p may belong to
one *choice* (image i, wrong label j). A set S of choices is violable when one delta makes every plane of every choice
in S <= 0. Linear programming duality turns the opposite into a proof anybody can check: for every lambda >= 0

    g(lambda) = sum_p lambda_p b_p - eps * || sum_p lambda_p a_p ||_1,     g(lambda) > 0  =>  S is not violable,

because g is a lower bound of sum_p lambda_p (a_p . delta + b_p), and that sum is <= 0 wherever all planes are.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from citrus.bounds.rounding import TINY, gamma, proves
from citrus.errors import CitrusError

Choice = tuple[int, int]  # (image, wrong label)


@dataclass(frozen=True)
class ChoicePlanes:
    """Sound lower planes of the margins of one group. A choice without a finite plane may always be violated."""

    images: int
    eps: float
    choices: tuple[Choice, ...]  # open (image, wrong label) pairs; an image without any is safe
    owner: Tensor  # (plane,) position in `choices`
    slopes: Tensor  # (plane, pixel) float64
    offsets: Tensor  # (plane,) float64

    @staticmethod
    def of(
        slopes: Tensor, offsets: Tensor, labels: Tensor, eps: float, undecided: Tensor | None = None
    ) -> "ChoicePlanes":
        """From slopes (image, label, [plane,] pixel), offsets (image, label[, plane]) and labels (image, label).

        `undecided` (image, label) marks the labels that are still open; the others are left out as already proved.
        """
        if slopes.ndim == 3:
            slopes, offsets = slopes[:, :, None], offsets[:, :, None]
        keep = torch.ones_like(labels, dtype=torch.bool) if undecided is None else undecided.bool()
        choices = tuple((i, int(labels[i, j])) for i, j in keep.nonzero().tolist())
        return ChoicePlanes(
            images=len(slopes),
            eps=float(eps),
            choices=choices,
            owner=torch.arange(len(choices), device=slopes.device).repeat_interleave(slopes.shape[2]),
            slopes=slopes[keep].flatten(0, 1).detach().double(),
            offsets=offsets[keep].flatten().detach().double(),
        )


@dataclass(frozen=True)
class Conflict:
    """A proof that no delta violates all of `choices`: g(lambdas) on these planes is at least `value` > 0.

    One that was proved elsewhere, a cut, has neither planes nor lambdas, and its value is nan.
    """

    choices: tuple[Choice, ...]
    planes: tuple[int, ...] = ()
    lambdas: tuple[float, ...] = ()
    value: float = float("nan")


def dual_value(
    slopes: Tensor, offsets: Tensor, eps: float, lambdas: Tensor, norms: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """g of each row of lambdas (..., plane) in float64, and a bound of the rounding error of that number.

    On its way are as many additions and products as there are planes and pixels, and a few (bounds/rounding.py).
    `norms` may give the 1-norms of the slopes if the caller has them.
    """
    slopes, offsets, lambdas = slopes.double(), offsets.double(), lambdas.double()
    if not bool((lambdas >= 0).all()):
        raise CitrusError("the multipliers lambda of a proof must be numbers >= 0.")
    mixed = (lambdas[..., None, :] @ slopes)[..., 0, :]
    value = (lambdas * offsets).sum(-1) - eps * mixed.abs().sum(-1)
    norms = slopes.abs().sum(-1) if norms is None else norms
    size = (lambdas * (offsets.abs() + eps * norms)).sum(-1)
    share = gamma(slopes.shape[-2] + slopes.shape[-1] + 8, torch.float64)
    return value, share * size + TINY[torch.float64] * (1 + size)


def without_lightest(
    slopes: Tensor, offsets: Tensor, eps: float, lambdas: Tensor, rank: Tensor, most: int
) -> tuple[Tensor, list[bool]]:
    """What is left of a proof without the planes of rank < r, for each r < `most`: g less its rounding, and whether it
    proves."""
    trials = lambdas * (rank >= torch.arange(most, device=rank.device)[:, None])
    value, rounding = dual_value(slopes, offsets, eps, trials)
    return value - rounding, proves(value - rounding).tolist()
