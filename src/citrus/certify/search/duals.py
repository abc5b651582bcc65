"""Decide sets of choices: a dual proof that no perturbation violates them all, or a perturbation that does.

For a set S of choices, with planes as in planes.py,

    t(S) = min_{|delta| <= eps} max_{p in S} a_p . delta + b_p = max_{lambda in the simplex} g(lambda),

and S is violable iff t(S) <= 0. `ascend` approaches both sides by a primal-dual interior point method, batched over
sets. A set has few planes and many pixels, and a Newton step is a system of only (planes x planes): most sets need none
or two, a close call ten. What it returns is a proposal. `Oracle` believes a proof only through `dual_value` on the
planes as they were given, and a perturbation only by evaluating the planes there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from citrus.certify.search.planes import ChoicePlanes, Conflict, dual_value, without_lightest

TIE = 1e-9  # a plane this close to zero, relative to |b| + eps |a|_1, counts as violated: ties go to the adversary
STEPS = 40  # Newton steps before a set is left open; a close call takes about 12
CHUNK = 1 << 21  # numbers in one gathered (set, plane, pixel) tensor: 16 MB stay near the processor


@dataclass(frozen=True)
class DualAscent:
    """What `ascend` found per set: verdict +1 proved, -1 violable, 0 neither; weights lambda; delta in units of eps."""

    verdict: Tensor  # (set,)
    weights: Tensor  # (set, plane)
    delta: Tensor  # (set, pixel)


class _Point(NamedTuple):
    """Iterates of the sets that are still open, one row each."""

    rows: Tensor  # (set, plane, pixel), with eps inside
    offsets: Tensor  # (set, plane)
    weights: Tensor  # (set, plane): lambda
    mixed: Tensor  # (set, pixel): rows^T lambda
    delta: Tensor  # (set, pixel), in units of eps
    values: Tensor  # (set, plane): rows delta + offsets
    top: Tensor  # (set,): t, above every value
    upper: Tensor  # (set, pixel): multiplier of delta <= 1
    lower: Tensor  # (set, pixel): multiplier of delta >= -1


def ascend(rows: Tensor, offsets: Tensor, weights: Tensor) -> DualAscent:
    """Raise g over the simplex for rows (set, plane, pixel) that carry eps already, from positive starting weights.

    The iterates keep lambda in the simplex and delta in the box, rows^T lambda + upper - lower = 0, and slacks
    s = t - values. A step aims at a fifth of the mean of the products lambda s, upper (1 - delta), lower (1 + delta).
    A set leaves as soon as either side decides it.
    """
    sets, pixels = len(rows), rows.shape[2]
    out = DualAscent(rows.new_zeros(sets, dtype=torch.int8), weights.clone(), rows.new_zeros(sets, pixels))
    mixed = (weights[:, None] @ rows)[:, 0]
    corner = -mixed.sign()
    proved = (weights * offsets).sum(1) - mixed.abs().sum(1) > 0
    fallen = ~proved & (((rows @ corner[:, :, None])[:, :, 0] + offsets).amax(1) <= TIE / 2)
    out.verdict[proved], out.verdict[fallen], out.delta[fallen] = 1, -1, corner[fallen]
    left = (out.verdict == 0).nonzero()[:, 0]
    if not len(left):
        return out
    if len(left) < sets:
        rows, offsets, weights, mixed = rows[left], offsets[left], weights[left], mixed[left]
    mu = mixed.abs().mean(1, keepdim=True).clamp(min=1e-9 / pixels)
    delta = -mixed / (mu + (mu * mu + mixed * mixed).sqrt())  # the point of the central path that belongs to mixed
    values = (rows @ delta[:, :, None])[:, :, 0] + offsets
    top = values.amax(1) + mu[:, 0] * rows.shape[1]
    point = _Point(rows, offsets, weights, mixed, delta, values, top, mu / (1 - delta), mu / (1 + delta))
    for _ in range(STEPS):
        proved = (point.weights * point.offsets).sum(1) - point.mixed.abs().sum(1) > 0
        verdict = proved.to(torch.int8) - (~proved & (point.values.amax(1) <= TIE / 2)).to(torch.int8)
        out.verdict[left], out.weights[left], out.delta[left] = verdict, point.weights, point.delta
        still = verdict == 0
        if not bool(still.any()):
            break
        if not bool(still.all()):
            left, point = left[still], _Point(*(part[still] for part in point))
        point = _newton(point)
    return out


def _newton(at: _Point) -> _Point:
    """One Newton step on the perturbed optimality conditions, shortened so that everything stays positive."""
    above, below, slack = 1 - at.delta, 1 + at.delta, at.top[:, None] - at.values
    products = (at.weights * slack).sum(1) + (at.upper * above).sum(1) + (at.lower * below).sum(1)
    aim = (0.2 * products / (slack.shape[1] + 2 * above.shape[1]))[:, None]
    shift = aim / above - at.upper - aim / below + at.lower
    theta = 1 / (at.upper / above + at.lower / below)
    system = (at.rows * theta[:, None]) @ at.rows.transpose(1, 2)
    system.diagonal(dim1=1, dim2=2).add_(slack / at.weights)
    right = aim / at.weights - slack - (at.rows @ (theta * shift)[:, :, None])[:, :, 0]
    solved, info = torch.linalg.solve_ex(system, torch.stack([right, torch.ones_like(right)], 2))
    top = solved[:, :, 0].sum(1) / solved[:, :, 1].sum(1)
    weights = solved[:, :, 0] - top[:, None] * solved[:, :, 1]
    mixed = (weights[:, None] @ at.rows)[:, 0]
    delta = -theta * (mixed + shift)
    values = (at.rows @ delta[:, :, None])[:, :, 0]
    upper = (aim + at.upper * delta) / above - at.upper
    lower = (aim - at.lower * delta) / below - at.lower
    positive = ((at.weights, weights), (slack, top[:, None] - values), (at.upper, upper), (at.lower, lower))
    ratios = [(-change / part).amax(1) for part, change in (*positive, (above, -delta), (below, delta))]
    step = 0.95 / torch.stack(ratios).amax(0).clamp(min=0.95)
    usable = (info == 0) & step.isfinite() & top.isfinite()  # a singular system leaves its set where it is
    changes = (weights, mixed, delta, values, top, upper, lower)
    moved = []
    for part, change in zip(at[2:], changes, strict=True):
        shape = (-1,) + (1,) * (part.ndim - 1)
        moved.append(torch.where(usable.view(shape), part + step.view(shape) * change, part))
    return _Point(at.rows, at.offsets, *moved)


@dataclass(frozen=True)
class Answer:
    """What the planes say about one set of choices: `conflict` when it is proved, `delta` when one violates it.

    Neither where the ascent could not tell, as at a tie, where t(S) is 0 up to rounding. Ties go to the adversary:
    whatever has no conflict counts as violable.
    """

    conflict: Conflict | None = None
    delta: Tensor | None = None  # (pixel,)


class Oracle:
    """The planes of a group, each scaled to |b| + eps |a|_1 = 1, and what they decide about sets of choices.

    Planes that can never be positive say nothing and are left out, and so are planes with NaN or infinite numbers:
    fewer planes only help the adversary.
    """

    def __init__(self, planes: ChoicePlanes) -> None:
        self.planes = planes
        self.norms = planes.slopes.abs().sum(1)
        reach = planes.eps * self.norms
        scale = planes.offsets.abs() + reach
        rows, offsets = planes.eps * planes.slopes / scale[:, None], planes.offsets / scale
        useful = rows.isfinite().all(1) & offsets.isfinite() & scale.isfinite() & (planes.offsets + reach > 0)
        self.number = useful.nonzero()[:, 0]  # of each kept plane among all planes
        self.rows, self.offsets, self.scale = rows[useful], offsets[useful], scale[useful]
        self.products = self.rows @ self.rows.T
        ones, twos = self.rows.abs().sum(1), self.rows.norm(dim=1)
        self.ratio = float(ones.sum() / twos.sum().clamp(min=1e-30))
        self.owner = planes.owner[useful]
        self.members: list[list[int]] = [[] for _ in planes.choices]
        for row, choice in enumerate(self.owner.tolist()):
            self.members[choice].append(row)

    def violated(self, deltas: Tensor) -> list[int]:
        """For each delta (set, pixel) the choices it violates on all their planes, as a bit set."""
        inside = deltas.to(self.rows).clamp(-self.planes.eps, self.planes.eps)
        units = inside / self.planes.eps if self.planes.eps else inside
        positive = (units @ self.rows.T + self.offsets > TIE).long()
        safe = positive.new_zeros(len(deltas), len(self.planes.choices))
        safe.index_add_(1, self.owner, positive)
        return [sum(1 << c for c, planes in enumerate(row) if planes == 0) for row in safe.tolist()]

    def settle(self, sets: Sequence[tuple[int, ...]]) -> list[Answer]:
        """Decide each set of choices, given by their positions."""
        rows = [[row for choice in chosen for row in self.members[choice]] for chosen in sets]
        answers = [Answer(delta=self.rows.new_zeros(self.rows.shape[1]))] * len(sets)  # right for a set without planes
        order = sorted((k for k in range(len(sets)) if rows[k]), key=lambda k: len(rows[k]))
        while order:
            size = max(1, CHUNK // (len(rows[order[0]]) * max(1, self.rows.shape[1])))
            batch, order = order[:size], order[size:]
            width = len(rows[batch[-1]])  # others are padded by repeating a plane, which changes nothing
            index = torch.tensor([(rows[k] + rows[k][:1] * width)[:width] for k in batch], device=self.rows.device)
            found = ascend(self.rows[index], self.offsets[index], self._guess(index))
            for k, answer in zip(batch, self._answers(index, found), strict=True):
                answers[k] = answer
        return answers

    def _guess(self, index: Tensor) -> Tensor:
        """Weights that are right where the 1-norm of a mix follows its 2-norm, as it nearly does for dense planes."""
        offsets = self.offsets[index]
        weights = torch.full_like(offsets, 1 / offsets.shape[1])
        products = self.products[index[:, :, None], index[:, None, :]]
        for _ in range(12):
            pull = (products @ weights[:, :, None])[:, :, 0]
            length = (weights * pull).sum(1, keepdim=True).clamp(min=1e-30).sqrt()
            weights = weights * (2 * (offsets - self.ratio * pull / length)).exp()
            weights = (weights / weights.sum(1, keepdim=True)).clamp(min=1e-3)
        return weights / weights.sum(1, keepdim=True)

    def _answers(self, index: Tensor, found: DualAscent) -> list[Answer]:
        """Believe a proof only after `dual_value` on the planes as they were given."""
        lambdas = found.weights / self.scale[index]
        lambdas = lambdas / lambdas.sum(1, keepdim=True)
        number, deltas = self.number[index], found.delta * self.planes.eps
        holds = (found.verdict == 1) & lambdas.isfinite().all(1)
        slopes, offsets = self.planes.slopes[number[holds]], self.planes.offsets[number[holds]]
        value, rounding = dual_value(slopes, offsets, self.planes.eps, lambdas[holds], self.norms[number[holds]])
        margins = iter((value - rounding).tolist())
        answers: list[Answer] = []
        parts = (holds, number, lambdas, found.weights, self.owner[index], found.verdict)
        for proved, planes, multipliers, weights, owners, verdict in zip(*(p.tolist() for p in parts), strict=True):
            share, proof = dict.fromkeys(owners, 0.0), dict.fromkeys(planes, 0.0)
            for choice, plane, weight, multiplier in zip(owners, planes, weights, multipliers, strict=True):
                share[choice] += weight
                proof[plane] += multiplier
            margin = next(margins) if proved else 0.0
            conflict = self._conflict(share, proof, margin) if margin > 0 else None
            answers.append(Answer(conflict, deltas[len(answers)] if verdict == -1 else None))
        return answers

    def _conflict(self, share: dict[int, float], proof: dict[int, float], margin: float) -> Conflict:
        """The proof, without the choices of smallest weight as long as it holds without them."""
        heavy = sorted(share, key=share.__getitem__)
        if len(heavy) > 3:  # pairs are decided before larger sets, so a proof of three choices needs all three
            number = torch.tensor(list(proof), device=self.rows.device)
            owner = self.planes.owner[number].tolist()
            rank = torch.tensor([heavy.index(choice) for choice in owner], device=self.rows.device)
            lambdas = self.rows.new_tensor(list(proof.values()))
            slopes, offsets = self.planes.slopes[number], self.planes.offsets[number]
            left, holds = without_lightest(slopes, offsets, self.planes.eps, lambdas, rank, len(heavy))
            drop = max((r for r, proved in enumerate(holds) if proved), default=0)
            if drop:
                margin, heavy = float(left[drop]), heavy[drop:]
                proof = {plane: proof[plane] for plane, choice in zip(proof, owner, strict=True) if choice in heavy}
        choices = tuple(sorted(self.planes.choices[choice] for choice in heavy))
        return Conflict(choices, tuple(proof), tuple(proof.values()), margin)
