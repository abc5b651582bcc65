"""At most so many of these choices are violated by one perturbation: the dual of a semidefinite relaxation.

A *choice* p is open, an (image, wrong label) or a leaf of one (leaves.py), with planes: margin_p(eps t) >= a_k . t +
b_k for all t in [-1, 1]^D, for each of its planes k. It is violated only if all of them are <= 0. Let z_p in {0, 1}
mark one violated choice of each violated image. For any weights w_k >= 0, beta_j > 0, alpha_p, any gamma_pq at pairs
that cannot both be marked, and any theta >= 0 of cuts "at most q of the choices S":

    X_p = sum w_k a_k,    c_p = 1 - sum w_k b_k - sum of the thetas of its cuts
    Q = diag(alpha) + Gamma - X diag(1 / beta) X^T / 4    positive definite, then
    violated images <= (c + alpha)^T Q^-1 (c + alpha) / 4 + sum beta + sum theta q

because sum_p z_p sum_k w_k (a_k . t + b_k) <= 0, z_p^2 = z_p, gamma_pq z_p z_q = 0, beta_j (1 - t_j^2) >= 0, and what
is left is maximised over real t and then over real z. Every multiplier is sound, so none has to be the best: lowrank.py
looks for good ones, rigorous.py says what they prove.
"""

from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

Cut = tuple[tuple[int, ...], int]
"""Of these choices at most so many are violated together."""


@dataclass(frozen=True)
class OpenPlanes:
    """Open choices with the planes under them, scaled to t in [-1, 1]^D; all in float64."""

    choices: int
    uses: Tensor  # (use, 2): a choice, and one of the planes under it; leaves of one choice may share planes
    a: Tensor  # (plane, pixel)
    b: Tensor  # (plane,)
    pairs: Tensor  # (pair, 2): choices p < q that cannot be violated together
    cuts: tuple[Cut, ...] = ()

    @property
    def owner(self) -> Tensor:
        return self.uses[:, 0]

    @property
    def plane(self) -> Tensor:
        return self.uses[:, 1]

    @cached_property
    def most_uses(self) -> int:
        """Planes of the choice that has most."""
        return int(self.owner.bincount(minlength=1).max())

    @cached_property
    def cut_members(self) -> Tensor:
        """Which choices a cut is about: (cut, choice) of zeros and ones."""
        members = self.a.new_zeros(len(self.cuts), self.choices)
        for row, (some, _) in zip(members, self.cuts, strict=True):
            row[list(some)] = 1
        return members

    @cached_property
    def cut_limits(self) -> Tensor:
        return self.a.new_tensor([most for _, most in self.cuts])

    def summed(self, values: Tensor) -> Tensor:
        """Of (use, ...) over the uses of each choice."""
        return values.new_zeros(self.choices, *values.shape[1:]).index_add_(0, self.owner, values)

    def mixed(self, weights: Tensor) -> Tensor:
        """X = sum w a of each choice: (choice, pixel)."""
        shape = (self.choices, len(self.a))
        return torch.sparse.mm(torch.sparse_coo_tensor(self.uses.T, weights, shape, check_invariants=False), self.a)


@dataclass(frozen=True)
class Multipliers:
    """What proves a bound: any such numbers do, if Q is positive definite."""

    alpha: Tensor  # (choice,)
    beta: Tensor  # (pixel,), > 0
    weights: Tensor  # (use,), >= 0
    gamma: Tensor  # (pair,)
    theta: Tensor  # (cut,), >= 0

    def to(self, device: torch.device | str) -> "Multipliers":
        return Multipliers(*(getattr(self, f.name).to(device) for f in fields(self)))
