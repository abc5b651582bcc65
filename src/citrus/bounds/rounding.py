"""How far a computed number may be from the true one: the rule that every proof goes through.

The model of the machine: IEEE arithmetic with unit roundoff u, 2^-24 in float32 and 2^-53 in float64; sums in any
order, with or without fused operations, subnormal numbers kept or flushed to zero. A computed sum of n products is then
off by at most gamma_n = n u / (1 - n u) times the sum of their absolute values (Higham, "Accuracy and Stability of
Numerical Algorithms", section 3.1). `gamma` has a few terms more for what stands around a sum, and a factor for the
rounding of the bound itself, a sum of numbers >= 0.

What is computed once for an image is computed in float64 (`Graph.double`): the values at the centre of its box, and
boxes. What is computed for many rows of it, backward substitution, may be in float32. A step x -> W x + w is then off
by

    gamma (|W| |x| + |w|)  forward,   gamma |P| |W| D  backward, for rows P and all x no further than D from the centre.

Where layers were folded into one, its weights may be `off` or `stray` and its bias has some `slack`, and |w| stands for
all that was summed into the bias, its `mass` (networks/operations.py): what is proved is true of the layers. A network
whose `arithmetic` is float32 is every program that runs them in float32, one by one or folded: each step is off by an
error of float32 once more.

NaN and infinity pass through all of this and prove nothing.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from citrus.errors import CitrusError
from citrus.networks.operations import Affine, Arithmetic, Conv, Flatten, Linear

UNIT = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}
TINY = {torch.float32: 1e-30, torch.float64: 1e-300}
"""More than the underflow of 10^7 products, even where subnormal numbers are flushed to zero."""
UNFOLDED = 16
"""Roundings more where a program runs normalisation, BatchNorm and pooling as layers of their own."""


def gamma(terms: int, dtype: torch.dtype) -> float:
    """The share of a sum of so many products that it may be off by; infinite where there are too many."""
    if dtype not in UNIT:
        raise CitrusError(f"Bounds are computed in float32 or float64, not in {dtype}: convert the network.")
    share = (terms + 4) * UNIT[dtype]
    return share / (1 - share) ** 4 if share < 0.25 else float("inf")


def proves(lower: Tensor) -> Tensor:
    """Which lower bounds, with all rounding in them, are a proof that what they bound is positive."""
    return (lower > 0) & lower.isfinite()


def less(value: Tensor, size: Tensor, terms: int) -> Tensor:
    """A sum of `terms` numbers, less what it may be off by; `size` is the sum of their absolute values."""
    return value - gamma(terms, value.dtype) * size


def radius_above(radius: float, like: Tensor) -> Tensor:
    """A radius as one row of pixels, rounded up where the numbers of `like` do not hold it."""
    number = torch.tensor(radius, dtype=like.dtype)
    number = number if float(number) >= radius else number.nextafter(torch.tensor(torch.inf, dtype=like.dtype))
    return number.to(like.device).expand(1, *like.shape[1:])


def below(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Lower bounds in another precision."""
    if dtype == values.dtype:
        return values
    return less(values.to(dtype), values.to(dtype).abs(), 0) - TINY[dtype]


class Shares(NamedTuple):
    """What an affine step may be off by."""

    forward: float  # of |W| |x|, where it is computed in float64
    bias: float  # of the numbers summed into the bias
    backward: float  # of |P| |W| D, in the precision of the rows P
    least: float  # for underflow


def shares(op: Affine, arithmetic: Arithmetic, dtype: torch.dtype) -> Shares:
    """The shares of a step for rows of this precision, with what the network itself may be."""
    if isinstance(op, Flatten):
        return Shares(0.0, 0.0, 0.0, 0.0)
    terms = terms_of(op)
    exact, rows = gamma(terms, torch.float64), gamma(terms, dtype)
    if arithmetic == "real":
        return Shares(exact + op.off, exact, rows + op.off, TINY[dtype])
    runs = gamma(terms + UNFOLDED, torch.float32)
    return Shares(exact + op.off + runs, exact + runs, rows + op.off + runs, TINY[torch.float32])


def sum_share(arithmetic: Arithmetic, dtype: torch.dtype) -> float:
    """The sum of two branches is off by at most this share of their size."""
    return gamma(0, dtype) + (gamma(0, torch.float32) if arithmetic == "float32" else 0.0)


def terms_of(op: Affine) -> int:
    """The most products that are summed for one number of W x or of rows W."""
    if isinstance(op, Conv):
        kernel = op.weight[0, 0].numel()
        return max(op.weight[0].numel(), len(op.weight) // op.groups * kernel)
    return max(op.weight.shape) if isinstance(op, Linear) else 1


def beside_terms(op: Affine, share: Shares, size: Tensor) -> Tensor:
    """What an affine step may be off by for other reasons than the size of its terms W x, where `size` bounds |x|: its
    bias, underflow, and weights next to nothing. Of the shape of the result, or one that it broadcasts to."""
    if isinstance(op, Flatten):
        return size.new_zeros(())
    error = share.bias * (op.bias.abs() if op.mass is None else op.mass) + share.least
    error = (error if op.slack is None else error + op.slack).to(size.dtype)
    error = error[:, None, None] if isinstance(op, Conv) and error.dim() == 1 else error
    if not op.stray:
        return error
    whole = size.flatten(1).sum(1) * (1 + gamma(size[0].numel(), size.dtype))
    return error + op.stray * whole.view(-1, *[1] * len(size.shape[1:]))
