"""The leaves that stand for all open choices, the planes that each of them uses, and how leaves are split."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from citrus.bounds import Planes, proves
from citrus.certify.whole.choices import Facts
from citrus.certify.whole.dual import OpenPlanes
from citrus.certify.whole.leaves import Branching, Leaves
from citrus.certify.whole.lowrank import LowRank, Start, Vectors, unit

PIECE = {"cpu": 32, "cuda": 1024}
"""Leaves that are split between two looks at the clock, by device."""
FALLS = 0.02
"""A leaf whose z is below this is left as it is."""
UNUSED = 0.02
"""A plane whose share of its leaf's weight is below this is dropped when leaves are split."""
SIBLINGS = 1.0
"""The multiplier of a pair of two new sides, to start from."""


@dataclass(frozen=True)
class Pool:
    """Planes of leaves: with adaptive slopes of a whole choice, or with those of a leaf of `made`."""

    a: Tensor  # in units of the radius: (plane, pixel)
    b: Tensor  # (plane,)
    choice: Tensor  # (plane,)
    row: Tensor  # (plane,): the leaf of `made`, -1 for adaptive slopes
    made: Leaves

    @staticmethod
    def adaptive(planes: Planes, eps: float, none: Leaves) -> "Pool":
        """One plane for each choice."""
        order = torch.arange(len(planes.b), device=planes.b.device)
        return Pool(*_scaled(planes, eps), order, torch.full_like(order, -1), none)

    def __len__(self) -> int:
        return len(self.row)

    def grown(self, leaves: Leaves, planes: Planes, eps: float) -> "Pool":
        """With the planes of these leaves, too."""
        order = torch.arange(len(leaves), device=self.row.device) + len(self.made)
        a, b = _scaled(planes, eps)
        return Pool(
            torch.cat([self.a, a]),
            torch.cat([self.b, b]),
            torch.cat([self.choice, leaves.choice]),
            torch.cat([self.row, order]),
            Leaves.joined([self.made, leaves]),
        )

    def of(self, used: Tensor) -> "Pool":
        """Only these planes, and the leaves that made them."""
        row = self.row[used]
        rows, number = row[row >= 0].unique(return_inverse=True)
        row = row.masked_scatter(row >= 0, number)
        return Pool(self.a[used], self.b[used], self.choice[used], row, self.made[rows])


@dataclass(frozen=True)
class Front:
    """Leaves and their planes."""

    leaves: Leaves
    closed: Leaves  # leaves that are proved, each by its own plane
    uses: Tensor  # (use, 2): a leaf, and a plane of the pool with b > 0; in the order of leaves
    weights: Tensor  # (use,): to start from
    pool: Pool

    @staticmethod
    def of(leaves: Leaves, closed: Leaves, uses: Tensor, weights: Tensor, pool: Pool) -> "Front":
        """Without planes that nobody uses, or that are below zero at the image itself."""
        sound = (pool.b > 0) & pool.a.isfinite().all(1) & pool.b.isfinite()
        counts = sound[uses[:, 1]]
        uses, weights = uses[counts], weights[counts]
        used, plane = uses[:, 1].unique(return_inverse=True)
        order = uses[:, 0].argsort(stable=True)
        uses = torch.stack([uses[:, 0], plane], 1)[order]
        return Front(leaves, closed, uses, weights[order], pool.of(used))

    @staticmethod
    def first(branching: Branching, leaves: Leaves, adaptive: Planes) -> "Front":
        """Every choice as one leaf, with an adaptive plane and one with its own slopes, if it has any."""
        order = leaves.choice
        pool, uses = Pool.adaptive(adaptive, branching.eps, leaves[:0]), [torch.stack([order, order], 1)]
        if leaves.slopes.shape[1]:
            pool = pool.grown(leaves, branching.planes(leaves), branching.eps)
            uses.append(torch.stack([order, order + len(order)], 1))
        joined = torch.cat(uses)
        return Front.of(leaves, leaves[:0], joined, torch.ones(len(joined), device=order.device), pool)

    @property
    def bare(self) -> Tensor:
        """Leaves without a plane, which nothing excludes: (leaf,)."""
        none = torch.ones_like(self.leaves.choice, dtype=torch.bool)
        return none.index_fill_(0, self.uses[:, 0], False)

    def problem(self, facts: Facts) -> OpenPlanes:
        pairs, cuts = facts.about(self.leaves.choice)
        return OpenPlanes(len(self.leaves), self.uses, self.pool.a, self.pool.b, pairs, cuts)

    def split(
        self, branching: Branching, relaxed: LowRank, facts: Facts, stop: Callable[[], bool] = lambda: False
    ) -> "tuple[Front, LowRank]":
        """The leaves that fall in the relaxation are split, those first that fall most: the new front, and its
        relaxation, begun from this one. What is not done when `stop` says so stays as it is."""
        bare, order = self.bare, relaxed.marked.argsort(descending=True, stable=True)
        parts: list[tuple[Tensor, Leaves, Planes]] = []
        for some in order[(bare | (relaxed.marked > FALLS))[order]].split(PIECE.get(order.device.type, 1024)):
            if stop():
                break
            both = branching.split(self.leaves[some], relaxed.points(some), bare[some])
            parts.append((some, both, branching.planes(both)))
        return self._after(parts, branching.eps, relaxed, facts)

    def _after(
        self, parts: list[tuple[Tensor, Leaves, Planes]], eps: float, relaxed: LowRank, facts: Facts
    ) -> "tuple[Front, LowRank]":
        """With both sides of some leaves in their place, but for sides that their planes prove."""
        if not parts:
            return self, relaxed
        where = torch.cat([some for some, _, _ in parts])
        halves = [slice(None, len(some)) for some, _, _ in parts], [slice(len(some), None) for some, _, _ in parts]
        sides = [
            (leaves[at], planes[at]) for half in halves for at, (_, leaves, planes) in zip(half, parts, strict=True)
        ]
        both = Leaves.joined([leaves for leaves, _ in sides])
        planes = Planes(torch.cat([p.a for _, p in sides]), torch.cat([p.b for _, p in sides]))
        is_open = ~proves(planes.lower(eps))[:, 0]
        kept = is_open.nonzero()[:, 0]
        stay = torch.ones_like(relaxed.marked, dtype=torch.bool).index_fill_(0, where, False).nonzero()[:, 0]
        parent = torch.cat([stay, where.repeat(2)[kept]])
        children = torch.arange(len(stay), len(parent), device=parent.device)
        uses, weights = self._inherited(relaxed, parent)
        own = torch.stack([children, torch.arange(len(kept)).to(children) + len(self.pool)], 1)
        front = Front.of(
            Leaves.joined([self.leaves[stay], both[kept]]),
            Leaves.joined([self.closed, both[~is_open]]),
            torch.cat([uses, own]),
            torch.cat([weights, weights.new_zeros(len(own))]),
            self.pool.grown(both[kept], planes[kept], eps),
        )
        problem, v = front.problem(facts), relaxed.vectors.v
        v = torch.cat([v[stay], _divided(v[where], is_open)[kept]])
        vectors = Vectors.of(v, relaxed.vectors.pixels)
        gamma = _carried(relaxed, problem.pairs, parent)
        return front, LowRank(problem, Start(vectors, front.weights, gamma, relaxed.theta))

    def _inherited(self, relaxed: LowRank, parent: Tensor) -> tuple[Tensor, Tensor]:
        """Uses and weights of leaves from those of their parents that carry weight."""
        owner, weights = self.uses[:, 0], relaxed.weights
        most = weights.new_zeros(len(self.leaves)).scatter_reduce_(0, owner, weights, "amax")
        carries = weights > UNUSED * most[owner]
        owner, plane, weights = owner[carries], self.uses[carries, 1], weights[carries]
        count = owner.bincount(minlength=len(self.leaves))
        first, many = (count.cumsum(0) - count)[parent], count[parent]
        leaf = torch.arange(len(parent), device=parent.device).repeat_interleave(many)
        among = torch.arange(len(leaf), device=parent.device) - (many.cumsum(0) - many).repeat_interleave(many)
        place = first[leaf] + among
        return torch.stack([leaf, plane[place]], 1), weights[place]


def _scaled(planes: Planes, eps: float) -> tuple[Tensor, Tensor]:
    """Planes in units of the radius, less what the product with it rounds."""
    a, b = planes.a.flatten(1) * eps, planes.b.flatten()
    return a, b - 2.0**-51 * (b.abs() + a.abs().sum(1))


def _divided(v: Tensor, is_open: Tensor) -> Tensor:
    """Vectors of both sides of leaves: they add up to the leaf's, and are orthogonal; a side that is alone has all."""
    generator = torch.Generator().manual_seed(len(v))
    way, beside = torch.randn(v.shape, generator=generator).to(v), -v
    beside[:, 0] += 1  # e - v
    beside = unit(beside)
    way = unit(way - torch.linalg.vecdot(way, beside)[:, None] * beside)
    one = (v + v.norm(dim=1, keepdim=True) * way) / 2
    first, second = is_open.chunk(2)
    alone = (first ^ second)[:, None]
    return torch.cat([torch.where(alone, v, one), torch.where(alone, v, v - one)])


def _carried(relaxed: LowRank, pairs: Tensor, parent: Tensor) -> Tensor:
    """Gamma of pairs from that of their parents; of two sides of one leaf SIBLINGS."""
    planes = relaxed.planes
    before = planes.pairs[:, 0] * planes.choices + planes.pairs[:, 1]
    order = before.argsort()
    ends = parent[pairs].sort(1).values
    key = ends[:, 0] * planes.choices + ends[:, 1]
    sides = ends[:, 0] == ends[:, 1]
    if not len(before):
        return torch.where(sides, SIBLINGS, 0.0).to(relaxed.gamma)
    place = torch.searchsorted(before[order], key).clamp(max=len(before) - 1)
    return torch.where(sides, SIBLINGS, relaxed.gamma[order[place]])
