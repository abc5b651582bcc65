"""Small problems of open choices, and what is true of them."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from citrus.certify.whole.choices import Facts
from citrus.certify.whole.dual import Multipliers, OpenPlanes
from citrus.checker.arithmetic import LinearForms
from citrus.checker.dual import Dual, DualSums, Leaf
from citrus.checker.planes import PlaneSource
from support.milp import solve


def random_planes(seed: int, most: int = 12, pixels: int = 6) -> OpenPlanes:
    """Choices of images with several labels, planes of different sizes, some shared or below zero at the image, pairs
    that exclude each other, and cuts that hold for any perturbation because they say next to nothing."""
    generator = torch.Generator().manual_seed(seed)

    def whole(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, dtype=torch.float64, generator=generator)

    choices, width = whole(1, most + 1), whole(1, pixels)
    image = torch.randint(0, max(1, choices - whole(0, 3)), (choices,), generator=generator)
    uses = torch.cat([torch.arange(choices), torch.randint(0, choices, (whole(0, 6),), generator=generator)])
    uses = torch.stack([uses, torch.arange(len(uses))], 1)[whole(0, 2) :]
    shared = torch.stack([uses[:1, 0].flip(0) * 0 + whole(0, choices), uses[-1:, 1]], 1)
    uses = torch.cat([uses, shared]).unique(dim=0)
    count = int(uses[:, 1].max()) + 1 if len(uses) else 1
    a = 10 ** normal(count, 1) * normal(count, width)
    share = 1.1 * torch.rand(count, dtype=torch.float64, generator=generator) - 0.1  # 1 would prove a choice
    pairs, _ = Facts(image).about(torch.arange(choices))
    cuts = ((tuple(range(choices)), len(image.unique())),) if whole(0, 2) else ()
    return OpenPlanes(choices, uses, a, share * a.abs().sum(1), pairs, cuts)


def most_violated(planes: OpenPlanes) -> int:
    """The truth by a mixed integer program: choices, none of a pair, whose planes are all <= 0 somewhere in the box.

    Planes are lowered by what HiGHS may be off by, so that a tie counts as violated.
    """
    owner, a, b = planes.owner.numpy(), planes.a[planes.plane].numpy(), planes.b[planes.plane].numpy()
    size = np.abs(a).sum(1) + np.abs(b) + 1e-300
    a, b = a / size[:, None], b / size - 1e-7
    count, pixels = planes.choices, a.shape[1]
    switch = np.zeros((len(a), count))
    switch[np.arange(len(a)), owner] = most = b + np.abs(a).sum(1)
    packing = np.zeros((len(planes.pairs), pixels + count))
    for row, pair in zip(packing, planes.pairs.tolist(), strict=True):
        row[[pixels + p for p in pair]] = 1
    matrix = np.vstack([np.hstack([a, switch]), packing])
    right = np.concatenate([most - b, np.ones(len(packing))])
    if not len(matrix):
        return count
    box = np.append(-np.ones(pixels), np.zeros(count)), np.ones(pixels + count)
    solver = solve(np.append(np.zeros(pixels), -np.ones(count)), box, (matrix, right), count)
    return int((np.array(solver.getSolution().col_value[pixels:]) > 0.5).sum())


def relaxed_optimum(planes: OpenPlanes) -> float:
    """The value of the semidefinite relaxation, by an interior point solver for matrices: a moment matrix of
    (1, z, t), with z on its diagonal, t_j^2 <= 1 and all planes, pairs and cuts."""
    clarabel, sparse = pytest.importorskip("clarabel"), pytest.importorskip("scipy.sparse")
    count, pixels = planes.choices, planes.a.shape[1]
    size = 1 + count + pixels
    norm = planes.a.abs().sum(1)
    a, b = (planes.a / norm[:, None]).numpy(), (planes.b / norm).numpy()

    def entry(i: int, j: int) -> int:
        i, j = sorted((i, j))
        return j * (j + 1) // 2 + i

    def form(*terms: tuple[int, int, float]) -> NDArray[np.float64]:
        row = np.zeros(size * (size + 1) // 2)
        for i, j, value in terms:
            row[entry(i, j)] += value
        return row

    z = range(1, count + 1)
    equal = [form((0, 0, 1.0))] + [form((p, p, 1.0), (0, p, -1.0)) for p in z]
    equal += [form((p + 1, q + 1, 1.0)) for p, q in planes.pairs.tolist()]
    least = [form((j, j, 1.0)) for j in range(count + 1, size)]
    limits = [1.0] * pixels
    for p, k in planes.uses.tolist():
        least.append(form((0, p + 1, b[k]), *((p + 1, count + 1 + j, a[k, j]) for j in range(pixels))))
        limits.append(0.0)
    for some, most in planes.cuts:
        least.append(form(*((0, p + 1, 1.0) for p in some)))
        limits.append(float(most))
    weight = np.array([1.0 if i == j else 2**0.5 for j in range(size) for i in range(j + 1)])
    matrix = sparse.csc_matrix(np.vstack([*equal, *least, -np.diag(weight)]))
    right = np.concatenate([[1.0], np.zeros(len(equal) - 1), limits, np.zeros(len(weight))])
    cones = [clarabel.ZeroConeT(len(equal)), clarabel.NonnegativeConeT(len(least)), clarabel.PSDTriangleConeT(size)]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    cost = -sum(form((0, p, 1.0)) for p in z)
    solution = clarabel.DefaultSolver(
        sparse.csc_matrix((len(weight), len(weight))), cost, matrix, right, cones, settings
    ).solve()
    assert str(solution.status) in ("Solved", "AlmostSolved")
    return -solution.obj_val


def as_sums(planes: OpenPlanes, m: Multipliers) -> DualSums:
    """A problem of planes as the checker sees it, each choice as an image of its own."""
    sources = tuple(PlaneSource(0, k) for k in range(len(planes.a)))
    dual = Dual(
        images=tuple(range(planes.choices)),
        leaves=tuple(Leaf(p, 1) for p in range(planes.choices)),
        closed=(),
        planes=sources,
        uses=planes.uses,
        pairs=planes.pairs,
        cuts=planes.cuts,
        **{name: getattr(m, name) for name in ("weights", "alpha", "beta", "gamma", "theta")},
    )
    sums = DualSums(dual, 1.0)
    for k, source in enumerate(sources):
        zero = torch.zeros(1, dtype=torch.float64)
        sums.take(source, LinearForms(planes.a[k : k + 1], planes.b[k : k + 1], zero))
    return sums
