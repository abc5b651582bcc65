"""Multipliers for the dual, found on its other side: the semidefinite relaxation, with vectors of low rank.

    relaxed = LowRank(planes)
    relaxed.advance(20)
    multipliers, marked = relaxed.multipliers(), relaxed.marked

The relaxation has a vector v_p for each choice and u_j for each pixel, with |u_j| = 1 and |v_p|^2 = v_p . e for one
unit vector e. |v_p|^2 stands for z_p, v_p . u_j for z_p t_j and v_p . v_q for z_p z_q:

    largest  sum |v_p|^2   with   a_k . (U v_p) + b_k |v_p|^2 <= 0  for the planes k of p,
                                  v_p . v_q = 0  for pairs,   sum of |v_p|^2 over S <= q  for cuts.

Vectors of RANK numbers are enough to find its maximum (Burer and Monteiro, 2003), by an augmented Lagrangian: squared
penalties, maximised by L-BFGS over the spheres, and multipliers that follow the violations. These are weights, gamma
and theta of the dual; alpha and beta follow, because each vector is the best on its sphere beside all others:

    alpha_p = |c_p e - sum_j X_pj u_j - 2 sum_q gamma_pq v_q|,     beta_j = |sum_p X_pj v_p| / 2.

All of it is in float32 and proves nothing (rigorous.py does). What it also gives is where a choice falls in the
relaxation, t = U v_p / |v_p|^2: better planes are wanted there (leaves.py).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from citrus.certify.whole.dual import Multipliers, OpenPlanes

RANK = 24
PLANES, PAIRS, CUTS = 30.0, 10.0, 3.0
"""Penalties on violations, of planes with |a|_1 = 1, pairs, and cuts with one over the root of its choices."""
STEPS, MEMORY = 20, 6
"""L-BFGS between two updates of the multipliers, and its pairs of steps."""
FLOOR = 0.02
"""Beta is made for vectors no shorter than this: those of choices that never fall vanish, and leave no room for X."""
SETTLED = 1e-4
"""Violations up to this are none."""
NOISE = 1e-8
"""Share of the number of choices by which float32 may hide a descent."""


@dataclass(frozen=True)
class Vectors:
    """Unit vectors: s_p of each choice, with v_p = (e + s_p) / 2 for e = (1, 0, ...), and u_j of each pixel."""

    choices: Tensor  # (choice, rank)
    pixels: Tensor  # (pixel, rank)

    @staticmethod
    def random(choices: int, pixels: int, device: torch.device, rank: int = RANK) -> "Vectors":
        generator = torch.Generator().manual_seed(0)
        s, u = (torch.randn(count, rank, generator=generator).to(device) for count in (choices, pixels))
        s = 0.1 * s
        s[:, 0] += 0.5
        return Vectors(unit(s), unit(u))

    @staticmethod
    def of(v: Tensor, pixels: Tensor) -> "Vectors":
        """From v_p, which have |v_p|^2 = v_p . e, and u_j."""
        s = 2 * v
        s[:, 0] -= 1
        return Vectors(unit(s), pixels)

    @property
    def v(self) -> Tensor:
        return _lifted(self.choices)


@dataclass(frozen=True)
class Start:
    """Where the search begins: at vectors and multipliers of a similar problem."""

    vectors: Vectors
    weights: Tensor  # (use,): of planes with |a|_1 = 1
    gamma: Tensor  # (pair,)
    theta: Tensor  # (cut,)

    @staticmethod
    def cold(planes: OpenPlanes) -> "Start":
        one = planes.a.new_ones((), dtype=torch.float32)
        vectors = Vectors.random(planes.choices, planes.a.shape[1], one.device)
        weights, gamma, theta = (one.expand(len(t)) for t in (planes.uses, planes.pairs, planes.cuts))
        return Start(vectors, weights, 0 * gamma, 0 * theta)


class LowRank:
    """The relaxation of a problem, its vectors and multipliers so far."""

    def __init__(self, planes: OpenPlanes, start: Start | None = None) -> None:
        self.planes, start = planes, start or Start.cold(planes)
        norm = planes.a.abs().sum(1).clamp(min=1e-300)
        self.norm, self.a = norm, (planes.a / norm[:, None]).float()
        self.b = (planes.b / norm).float()[planes.plane]
        self.first, self.second = planes.pairs.T
        members = planes.cut_members.float()
        self.share = members.sum(1, keepdim=True).clamp(min=1).rsqrt()
        self.members, self.limits = members * self.share, planes.cut_limits.float() * self.share[:, 0]
        self.vectors, self.weights, self.gamma, self.theta = start.vectors, start.weights, start.gamma, start.theta
        self.value(self._flat(self.vectors))

    @property
    def marked(self) -> Tensor:
        """z of each choice: 0 where it never falls, 1 where it falls for sure."""
        return self.vectors.v[:, 0]

    def points(self, some: Tensor) -> Tensor:
        """Where some choices fall, as far as that is in the box: (choice, pixel)."""
        v = self.vectors.v[some]
        return (v @ self.vectors.pixels.T / v[:, :1].clamp(min=1e-3)).clamp(-1, 1)

    def advance(self, times: int, stop: Callable[[], bool] = lambda: False) -> None:
        """So many updates of the multipliers, each after a few steps on the vectors."""
        for _ in range(times):
            if stop():
                return
            self._climb()
            if self._is_settled():
                return
            self.weights = (self.weights + PLANES * self.above).clamp(min=0)
            self.gamma = self.gamma + PAIRS * self.met
            self.theta = (self.theta + CUTS * self.over).clamp(min=0)

    def _is_settled(self) -> bool:
        """Nothing is violated by more than float32 can tell, and nothing that is not met has a multiplier."""
        slack = torch.minimum(self.weights, -self.above).abs()
        loose = torch.minimum(self.theta, -self.over).abs()
        return all(not len(t) or float(t.max()) < SETTLED for t in (slack, loose, self.met.abs()))

    def multipliers(self) -> Multipliers:
        """Those of the dual, in float64. Q may miss being positive definite by a little."""
        planes, v, u = self.planes, self.vectors.v.double(), self.vectors.pixels.double()
        weights = self.weights.double() / self.norm[planes.plane]
        gamma, theta = self.gamma.double() / 2, (self.theta * self.share[:, 0]).double()
        mixed = planes.mixed(weights)
        pull = -mixed @ u
        pull[:, 0] += 1 - planes.summed(weights * planes.b[planes.plane]) - planes.cut_members.T @ theta
        pull.index_add_(0, self.first, -2 * gamma[:, None] * v[self.second])
        pull.index_add_(0, self.second, -2 * gamma[:, None] * v[self.first])
        beta = ((mixed.T @ v).square().sum(1) + (FLOOR * mixed).square().sum(0)).sqrt() / 2
        beta = beta + 1e-6 * beta.mean() + 1e-12
        return Multipliers(pull.norm(dim=1), beta, weights, gamma, theta)

    def value(self, x: Tensor) -> tuple[float, Tensor]:
        """The function that is minimised, and its gradient; the violations at x are kept."""
        planes, (raw_s, raw_u) = self.planes, self._apart(x)
        long_s, long_u = raw_s.norm(dim=1, keepdim=True), raw_u.norm(dim=1, keepdim=True)
        s, u = raw_s / long_s, raw_u / long_u
        v = _lifted(s)
        z = v[:, 0]
        across, own = (self.a @ u)[planes.plane], v[planes.owner]
        self.above = torch.linalg.vecdot(across, own) + self.b * z[planes.owner]
        self.met = torch.linalg.vecdot(v[self.first], v[self.second])
        self.over = self.members @ z - self.limits
        of_planes, weights = penalty(self.above, self.weights, PLANES)
        of_cuts, theta = penalty(self.over, self.theta, CUTS)
        gamma = (self.gamma + PAIRS * self.met)[:, None]
        of_pairs = self.met * (self.gamma + PAIRS / 2 * self.met)
        total = sum(part.sum(dtype=torch.float64) for part in (of_planes, of_pairs, of_cuts, -z))
        by_v = planes.summed(weights[:, None] * across)
        by_v[:, 0] += planes.summed(weights * self.b) + self.members.T @ theta - 1
        by_v.index_add_(0, self.first, gamma * v[self.second])
        by_v.index_add_(0, self.second, gamma * v[self.first])
        mixed = self.a.new_zeros(len(self.a), s.shape[1])
        by_u = self.a.T @ mixed.index_add_(0, planes.plane, weights[:, None] * own)
        gradient = torch.cat([_along(by_v / 2, s, long_s).flatten(), _along(by_u, u, long_u).flatten()])
        return float(total), gradient

    def _climb(self) -> None:
        """A few steps of L-BFGS on the vectors, from a fresh memory: the multipliers have changed."""
        x, pairs = self._flat(self.vectors), list[tuple[Tensor, Tensor, Tensor]]()
        value, gradient = self.value(x)
        noise = NOISE * self.planes.choices
        for _ in range(STEPS):
            step = direction(gradient, pairs)
            slope, length = float(gradient @ step), 1.0
            if -slope <= noise:
                break
            while length > 1e-3:
                there = x + length * step
                new, new_gradient = self.value(there)
                if new <= value + 1e-4 * length * slope + noise:
                    break
                length /= 2
            else:
                if not pairs:
                    break
                pairs = []
                continue
            moved, change = there - x, new_gradient - gradient
            product = moved @ change
            if float(product) > 1e-10 * float(change @ change):
                pairs = [*pairs, (moved, change, 1 / product)][-MEMORY:]
            x, value, gradient = there, new, new_gradient
        self.vectors = Vectors(*map(unit, self._apart(x)))
        self.value(self._flat(self.vectors))

    def _flat(self, vectors: Vectors) -> Tensor:
        return torch.cat([vectors.choices.flatten(), vectors.pixels.flatten()])

    def _apart(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rank = self.vectors.choices.shape[1]
        s, u = x.view(-1, rank).split([self.planes.choices, self.planes.a.shape[1]])
        return s, u


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=1, keepdim=True).clamp(min=1e-30)


def penalty(violation: Tensor, multiplier: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """What a constraint "<= 0" adds to an augmented Lagrangian, and the derivative of that."""
    pull = (multiplier + weight * violation).clamp(min=0)
    inside = -(multiplier**2) / (2 * weight)
    return torch.where(pull > 0, violation * (multiplier + weight / 2 * violation), inside), pull


def direction(gradient: Tensor, pairs: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Where L-BFGS goes: pairs are (step, change of the gradient, 1 / their product)."""
    q, shares = gradient.clone(), []
    for moved, change, inverse in reversed(pairs):
        shares.append(inverse * (moved @ q))
        q -= shares[-1] * change
    if pairs:
        moved, change, _ = pairs[-1]
        q *= (moved @ change) / (change @ change)
    else:
        q *= 0.5 / gradient.norm().clamp(min=1e-30)
    for (moved, change, inverse), share in zip(pairs, reversed(shares), strict=True):
        q += moved * (share - inverse * (change @ q))
    return -q


def _lifted(s: Tensor) -> Tensor:
    """(e + s) / 2."""
    v = s / 2
    v[:, 0] += 0.5
    return v


def _along(gradient: Tensor, point: Tensor, length: Tensor) -> Tensor:
    """The gradient with respect to a vector of this length, of which only its direction counts."""
    return (gradient - torch.linalg.vecdot(gradient, point)[:, None] * point) / length
