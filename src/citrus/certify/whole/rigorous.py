"""What multipliers prove, with all rounding in it: float64 on whatever computed it.

X as it was summed is taken as it is: by how much it may differ from the true sum goes into c, for |t| <= 1. A computed
entry of Q is off by at most E = gamma (|X| |X|^T / beta / 4 + |alpha| + |Gamma|), whose norm its largest row sum
bounds. If the Cholesky factorisation of Q - s I succeeds, its smallest eigenvalue is above -gamma tr(Q) (Rump,
"Verification of positive definiteness", 2006), so that lam = s - gamma tr(Q) - |E| bounds that of the true Q. For any y

    h^T Q^-1 h <= h.y + y.r + |r|^2 / lam,     r = h - Q y.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from citrus.bounds.rounding import TINY, gamma
from citrus.certify.whole.dual import Multipliers, OpenPlanes
from citrus.networks.kernels import exact

DOUBLE = torch.float64
ROOM = 3e-5
"""How far Q is kept from singular: a checker computes the same planes to about seven digits only."""
TRIES = 20
"""Times that this is doubled, as long as nothing is proved or more is."""
EASE = 0.05
"""A larger alpha costs z - z^2 and this share: alphas of choices that fall for sure or never are moved first."""


class Form(NamedTuple):
    """Q with rows and columns scaled by powers of two, which is exact, so that its diagonal is about 1."""

    q: Tensor
    height: Tensor  # c + alpha, rounded up
    rows: Tensor  # (choice,): by how much the entries of a row may be off, in sum
    scale: Tensor


def proved_bound(planes: OpenPlanes, m: Multipliers) -> float:
    """At most so many choices are violated by one perturbation; infinite if these multipliers prove nothing."""
    signs = (m.weights, m.beta, m.theta)
    if not planes.choices or any(not bool((v >= 0).all()) for v in signs) or not bool((m.beta > 0).all()):
        return math.inf if planes.choices else 0.0
    return _bound(planes, m, _form(planes, m))


@exact
def firmest(planes: OpenPlanes, m: Multipliers, marked: Tensor) -> tuple[Multipliers, float]:
    """The multipliers with as much more on alpha as Q needs to be positive definite, and what they prove.

    `marked` is about the z of each choice.
    """
    if not planes.choices:
        return m, 0.0
    marked = marked.double().clamp(0, 1)
    ease = 1 / (marked * (1 - marked) + EASE)
    form = _form(planes, m)
    lift, least = ease * form.scale**2, 0.0
    for least in (0.0, *(ROOM * 2.0**k for k in range(24))):
        moved = form.q.clone()
        moved.diagonal().add_(least * lift)
        if not int(torch.linalg.cholesky_ex(moved)[1]):
            break
    best, more = (m, math.inf), least + ROOM
    for _ in range(TRIES):
        tried = replace(m, alpha=m.alpha + more * ease)
        bound = proved_bound(planes, tried)
        if bound >= best[1] < math.inf:
            break
        best, more = (tried, bound) if bound < best[1] else best, 2 * more
    return best


@exact
def _form(planes: OpenPlanes, m: Multipliers) -> Form:
    pixels, count = planes.a.shape[1], planes.choices
    per_choice = gamma(planes.most_uses + len(m.theta) + 8, DOUBLE)
    mixed = planes.mixed(m.weights)
    of_cuts = planes.cut_members.T @ m.theta
    given = planes.summed(m.weights * planes.b[planes.plane]) + of_cuts
    most = planes.b.abs() + planes.a.abs().sum(1)
    size = planes.summed(m.weights * most[planes.plane]) + of_cuts
    height = 1 - given + m.alpha
    # h only has to be an upper bound of the true one where z >= 0, so it may be taken as it is from here on.
    height = height + per_choice * (1 + size + m.alpha.abs()) + TINY[DOUBLE]
    scale = torch.exp2(-torch.log2(m.alpha.abs().clamp(1e-9, 1e9)).div(2).round())
    first, second = planes.pairs.T
    mixed, height, alpha = mixed * scale[:, None], height * scale, m.alpha * scale**2
    of_pairs = m.gamma * scale[first] * scale[second]
    q = (mixed / m.beta) @ mixed.T / -4
    q.diagonal().add_(alpha)
    q[first, second] += of_pairs
    q[second, first] += of_pairs
    beside = alpha.abs()
    for one in (first, second):
        beside = beside.index_add(0, one, of_pairs.abs())
    rows = mixed.abs() @ (mixed.abs().sum(0) / m.beta) / 4 + beside
    return Form(q, height, gamma(2 * pixels + count + 16, DOUBLE) * 2 * rows + TINY[DOUBLE], scale)


@exact
def _bound(planes: OpenPlanes, m: Multipliers, form: Form) -> float:
    q, height, rows, _ = form
    count = len(q)
    inverse, least = _smallest(q, float(rows.max()))
    if inverse is None:
        return math.inf
    y = inverse @ height
    across = height - q @ y
    more = gamma(count + 8, DOUBLE) * (height.abs() + q.abs() @ y.abs()) + rows * y.abs().max() + TINY[DOUBLE]
    residual = across.norm() + more.norm()
    total = height @ y + y @ across + y.abs() @ more + residual**2 / least
    size = height.abs() @ y.abs() + y.abs() @ (across.abs() + more)
    total = 0.25 * (total + gamma(2 * count + 16, DOUBLE) * size)
    rest = m.beta.sum() + planes.cut_limits @ m.theta
    terms = planes.a.shape[1] + 2 * count + len(m.theta) + 16
    bound = float((total + rest) * (1 + gamma(terms, DOUBLE)) + TINY[DOUBLE])
    return bound if math.isfinite(bound) else math.inf


def _smallest(q: Tensor, off: float) -> tuple[Tensor | None, float]:
    """An approximate inverse of Q, and a lower bound of the smallest eigenvalue of all matrices so near to it."""
    root, failed = torch.linalg.cholesky_ex(q)
    if int(failed):
        return None, 0.0
    inverse = torch.cholesky_inverse(root)
    v = torch.ones_like(q[0])
    for _ in range(30):
        v = inverse @ (v / v.norm())
    shift = 0.5 / float(v.norm())
    lost = gamma(2 * len(q) + 16, DOUBLE) * float(q.diagonal().abs().sum()) + off
    while shift > 2 * lost:
        moved = q.clone()
        moved.diagonal().sub_(shift)
        if not int(torch.linalg.cholesky_ex(moved)[1]):
            return inverse, (shift * (1 - gamma(0, DOUBLE)) - lost) * (1 - gamma(0, DOUBLE))
        shift /= 2
    return None, 0.0
