"""How many of many images one perturbation can violate at most: a dual, evaluated in float64 with all rounding in it.

A *leaf* is a choice together with sides of some ReLUs. Its planes hold where these do: margin(eps t) >= eps a_k . t +
b_k - e_k for t in [-1, 1]^D. If the leaves of a choice are those of a tree one of them applies at every t, so that each
violated image has a leaf all of whose planes are <= 0. Let z_p in {0, 1} mark one such leaf of each violated image. For
any weights w >= 0, beta > 0, theta >= 0 of cuts "at most q of these images", alpha, and gamma of pairs of which only
one can be marked, with

    X_p = sum_k w_k eps a_k,    c_p = 1 - sum_k w_k (b_k - e_k) - sum of the thetas of its cuts,
    Q = diag(alpha) + Gamma - X diag(1 / (4 beta)) X^T    positive definite,

    sum_p z_p <= c.z - z^T X t + theta.q <= (c + alpha)^T Q^-1 (c + alpha) / 4 + sum beta + theta . q

because z_p^2 = z_p, gamma_pq z_p z_q = 0 and beta_j (1 - t_j^2) >= 0; what is left is maximised over real t and z.

Nothing here asks who found the multipliers. X as it was summed is taken as it is, and by how much it may be off goes
into c, for |t| <= 1. That Q is positive definite is not believed of a factorisation: for *any* matrix L

    Q - s I = L L^T + R    has eigenvalues >= -|R|,    |R| <= its largest row sum,

so that lam = s - |R| bounds the smallest eigenvalue of Q. And for any y, with r = h - Q y,

    h^T Q^-1 h = h.y + y.r + r^T Q^-1 r <= h.y + y.r + |r|^2 / lam.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from citrus.checker.arithmetic import TINY, LinearForms, gamma
from citrus.checker.cover import Choice, Conflicts, most_violated
from citrus.checker.planes import PlaneSource, Side

NOTHING = math.inf
"""Bound of a dual that proves nothing."""
MOST_LEAVES = 30_000
"""Of a dual that is checked: Q has so many rows."""


class Leaf(NamedTuple):
    """A part of a choice."""

    image: int  # position in the group
    label: int  # the wrong label
    sides: tuple[Side, ...] = ()


@dataclass(frozen=True, eq=False)
class Dual:
    """A bound of how many of `images` are violated, with everything that it is made of."""

    images: tuple[int, ...]  # positions in the group
    leaves: tuple[Leaf, ...]
    closed: tuple[PlaneSource, ...]  # further leaves, each by the plane that is above zero where its sides hold
    planes: tuple[PlaneSource, ...]
    uses: Tensor  # (use, 2): a leaf, and one of the planes under it
    weights: Tensor  # (use,), >= 0
    alpha: Tensor  # (leaf,)
    beta: Tensor  # (pixel,), > 0
    pairs: Tensor  # (pair, 2): leaves of which only one can be marked
    gamma: Tensor  # (pair,)
    cuts: tuple[tuple[tuple[int, ...], int], ...]  # leaves, and how many of their images are violated at most
    theta: Tensor  # (cut,), >= 0

    @property
    def sources(self) -> tuple[PlaneSource, ...]:
        return (*self.planes, *self.closed)

    def is_well_formed(self, images: int, pixels: int, exists: Mapping[int, Sequence[int]]) -> bool:
        """Numbers exist, signs are right, and every plane holds on the leaves that use it; `exists` are the wrong
        labels of each image."""
        count, planes = len(self.leaves), len(self.planes)
        if count > MOST_LEAVES:
            return False
        numbers = ((self.uses, (count, planes)), (self.pairs, (count, count)))
        if any(t.dim() != 2 or t.shape[1:] != (2,) or t.is_floating_point() for t, _ in numbers):
            return False
        if any(bool(((t < 0) | (t >= torch.tensor(most))).any()) for t, most in numbers):
            return False
        lengths = (len(self.uses), count, pixels, len(self.pairs), len(self.cuts))
        given = (self.weights, self.alpha, self.beta, self.gamma, self.theta)
        if any(t.shape != (n,) or t.dtype != torch.float64 for t, n in zip(given, lengths, strict=True)):
            return False
        signs = bool((self.weights >= 0).all() & (self.beta > 0).all() & (self.theta >= 0).all())
        finite = all(bool(t.isfinite().all()) for t in given)
        named = [(*leaf[:2],) for leaf in self.leaves] + [(one.image, one.label) for one in self.sources]
        mine = set(self.images)
        known = all(i in mine and j in exists[i] for i, j in named) and all(0 <= i < images for i in mine)
        cuts = all(0 <= leaf < count for some, _ in self.cuts for leaf in some)
        sides = [*(leaf.sides for leaf in self.leaves), *(one.sides for one in self.closed)]
        once = all(len(dict(some)) == len(some) for some in sides)
        return signs and finite and len(mine) == len(self.images) and known and cuts and once and self._are_under()

    def _are_under(self) -> bool:
        """Every plane belongs to the choice of its leaf, and the leaf has all of its sides."""
        for leaf, plane in self.uses.tolist():
            one, other = self.leaves[leaf], self.planes[plane]
            if (one.image, one.label) != (other.image, other.label) or not set(other.sides) <= set(one.sides):
                return False
        return True


class DualSums:
    """X and what else a dual needs of its planes, added up as they are made, image by image."""

    def __init__(self, dual: Dual, eps: float) -> None:
        self.dual, self.eps = dual, eps
        count, pixels = len(dual.leaves), len(dual.beta)
        self.mixed = torch.zeros(count, pixels, dtype=torch.float64)
        self.given, self.size = (torch.zeros(count, dtype=torch.float64) for _ in range(2))
        self.uses = defaultdict[PlaneSource, list[tuple[int, float]]](list)
        for (leaf, plane), weight in zip(dual.uses.tolist(), dual.weights.tolist(), strict=True):
            self.uses[dual.planes[plane]].append((leaf, weight))
        self.most = max((len(some) for some in _by_leaf(dual).values()), default=0)
        self.closed = set(dual.closed)
        self.holding: set[PlaneSource] = set()
        """Closed leaves whose planes are above zero."""

    def take(self, source: PlaneSource, row: LinearForms) -> None:
        values, offset, error = self.eps * row.values[0].flatten(), float(row.offset[0]), float(row.error[0])
        reach = float(values.abs().sum())
        size = (abs(offset) + error + reach) * (1 + gamma(values.numel()))
        if source in self.closed and offset - error - reach > gamma(values.numel()) * size + TINY:
            self.holding.add(source)
        for leaf, weight in self.uses.get(source, ()):
            self.mixed[leaf].add_(values, alpha=weight)
            self.given[leaf] += weight * (offset - error)
            self.size[leaf] += weight * size

    def lost(self, conflicts: Conflicts, labels: Sequence[Sequence[int]], slack: float = 0.0) -> int:
        """At most so many of the dual's images are violated, given what is proved about sets of choices.

        An image with a label that is neither proved nor covered by leaves counts as violated.
        """
        count = len(self.dual.images)
        known = justified(self.dual, conflicts)
        if (len(known.pairs), len(known.cuts)) != (len(self.dual.pairs), len(self.dual.cuts)):
            return count
        leaves = defaultdict[Choice, list[tuple[Side, ...]]](list)
        closed = [Leaf(one.image, one.label, one.sides) for one in self.holding]
        for image, label, sides in (*self.dual.leaves, *closed):
            leaves[image, label].append(sides)
        bare = sum(
            not all(conflicts.settle((i, j)) or is_covered(leaves[i, j]) for j in labels[i]) for i in self.dual.images
        )
        bound = self.bound() + slack
        return min(count, bare + math.floor(bound)) if math.isfinite(bound) else count

    def bound(self) -> float:
        """At most so many leaves are marked."""
        dual, count = self.dual, len(self.dual.leaves)
        members = torch.zeros(len(dual.cuts), count, dtype=torch.float64)
        for row, (some, _) in zip(members, dual.cuts, strict=True):
            row[list(some)] = 1
        of_cuts, most = members.T @ dual.theta, torch.tensor([q for _, q in dual.cuts], dtype=torch.float64)
        height = 1 - self.given - of_cuts + dual.alpha
        size = 1 + self.size + of_cuts + dual.alpha.abs()
        height = height + gamma(self.most + len(dual.cuts)) * size + TINY  # larger is sound, for z >= 0
        rest = float(dual.beta.sum() + dual.theta @ most)
        form = _largest(self.mixed, height, dual) if count else 0.0
        terms = gamma(len(dual.beta) + len(dual.theta))
        bound = (form + rest) * (1 + terms) + terms * float(dual.theta @ most.abs()) + TINY
        return bound if math.isfinite(bound) else NOTHING


def _by_leaf(dual: Dual) -> dict[int, list[int]]:
    found = defaultdict[int, list[int]](list)
    for leaf, plane in dual.uses.tolist():
        found[leaf].append(plane)
    return found


def justified(dual: Dual, conflicts: Conflicts) -> Dual:
    """The dual with those pairs and cuts only that follow from what is proved about sets of choices."""
    choices = [leaf[:2] for leaf in dual.leaves]
    pairs = torch.tensor([_exclude(one, other, choices, conflicts) for one, other in dual.pairs.tolist()]).bool()
    cuts = torch.tensor([_holds(some, most, choices, conflicts) for some, most in dual.cuts]).bool()
    return replace(
        dual,
        pairs=dual.pairs[pairs],
        gamma=dual.gamma[pairs],
        cuts=tuple(cut for cut, holds in zip(dual.cuts, cuts.tolist(), strict=True) if holds),
        theta=dual.theta[cuts],
    )


def _exclude(one: int, other: int, choices: Sequence[Choice], conflicts: Conflicts) -> bool:
    """Whether only one of two leaves can be marked."""
    same = choices[one][0] == choices[other][0]
    return one != other and (same or conflicts.exclude(choices[one], choices[other]))


def _holds(some: Sequence[int], most: int, choices: Sequence[Choice], conflicts: Conflicts) -> bool:
    """Whether at most so many images are violated through these leaves."""
    labels = defaultdict[int, list[int]](list)
    for image, label in dict.fromkeys(choices[leaf] for leaf in some):
        labels[image].append(label)
    return most_violated(conflicts.within(labels), labels, list(labels)) <= most


def is_covered(leaves: Iterable[Sequence[Side]]) -> bool:
    """Whether one of these applies whatever the signs of all neurons are. They must be the leaves of a tree, the sides
    of each in order from its root."""
    waiting = [(0, list(leaves))]
    while waiting:
        depth, some = waiting.pop()
        if any(len(sides) == depth for sides in some):
            continue
        if len({sides[depth][0] for sides in some}) != 1:  # none, or no tree
            return False
        waiting += [(depth + 1, [sides for sides in some if sides[depth][1] == on]) for on in (0, 1)]
    return True


def _largest(mixed: Tensor, height: Tensor, dual: Dual) -> float:
    """An upper bound of h^T Q^-1 h / 4; infinite if Q is not proved to be positive definite."""
    count, pixels = mixed.shape
    scale = torch.exp2(-torch.log2(dual.alpha.abs().clamp(1e-9, 1e9)).div(2).round())  # a power of two: exact
    first, second = dual.pairs.T
    y, height, alpha = mixed * scale[:, None] * (0.25 / dual.beta).sqrt(), height * scale, dual.alpha * scale**2
    of_pairs = dual.gamma * scale[first] * scale[second]
    q = -(y @ y.T)
    q.diagonal().add_(alpha)
    beside = alpha.abs()
    for one, other in ((first, second), (second, first)):
        q.index_put_((one, other), of_pairs, accumulate=True)
        beside = beside.index_add(0, one, of_pairs.abs())
    # Each entry of Q is a sum of so many terms, the products of y each off by the rounding of its factors.
    terms = gamma(pixels + len(dual.pairs) + 16)
    off = terms * (y.abs() @ y.abs().sum(0) + beside) * (1 + gamma(count)) + TINY
    root, least = _smallest(q, float(off.max()))
    if root is None:
        return NOTHING
    x = torch.cholesky_solve(height[:, None], root)[:, 0]
    across = height - q @ x
    more = gamma(count) * (height.abs() + q.abs() @ x.abs()) + off * x.abs().max() + TINY
    residual = float(across.norm() + more.norm()) * (1 + gamma(count))
    total = float(height @ x + x @ across + x.abs() @ more) + residual**2 / least * (1 + gamma(4))
    size = float(height.abs() @ x.abs() + x.abs() @ (across.abs() + more))
    return 0.25 * (total + gamma(2 * count) * size + TINY)


def _smallest(q: Tensor, off: float) -> tuple[Tensor | None, float]:
    """A factor of Q, and a lower bound of the smallest eigenvalue of every matrix that differs from Q by a matrix with
    row sums up to `off`."""
    factor, failed = torch.linalg.cholesky_ex(q)
    if int(failed) or not math.isfinite(off):
        return None, 0.0
    v = torch.ones_like(q[:, :1])
    for _ in range(30):
        v = torch.cholesky_solve(v / v.norm(), factor)
    shift = 0.5 / float(v.norm())
    for _ in range(40):
        moved = q.clone()
        moved.diagonal().sub_(shift)
        root, failed = torch.linalg.cholesky_ex(moved)
        left = _row_sums(moved, root) if not int(failed) else math.inf
        least = (shift * (1 - gamma(0)) - left - off) * (1 - gamma(0))
        if least > 0.25 * shift:
            return factor, least
        shift /= 2
    return None, 0.0


def _row_sums(q: Tensor, root: Tensor) -> float:
    """At least the largest row sum of |Q - L L^T|, where the diagonal of Q was moved once."""
    count = len(q)
    left = (q - root @ root.T).abs().sum(1)
    rounding = gamma(count) * (root.abs() @ root.abs().sum(0) + q.abs().sum(1)) + TINY * count
    return float((left + rounding).max()) * (1 + gamma(count))
