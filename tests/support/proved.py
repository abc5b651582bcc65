"""Groups of images with all that the bounds and the search prove about them: what certificates are made of."""

from pathlib import Path

import torch
from torch import Tensor, nn

from citrus.bounds import AlphaSettings, LinearSettings, alpha, crown, interval, margin_rows, wrong_labels
from citrus.certify.search.planes import ChoicePlanes
from citrus.certify.search.search import SubsetSearch
from citrus.checker.check import check
from citrus.checker.planes import PlaneSource
from citrus.checker.proofs import Certificate, Intermediate, Proof
from citrus.networks import Graph
from support.helpers import CLASSES, Case, case_named, images

MLP = Case(
    "mlp", lambda: [nn.Flatten(), nn.Linear(72, 16), nn.ReLU(), nn.Linear(16, 9), nn.ReLU(), nn.Linear(9, CLASSES)], 2
)
CONV, RESIDUAL = case_named("normalize padded conv bn"), case_named("residual pre-activation")


def certify(
    plain: Graph,
    eps: float,
    intermediate: Intermediate = "crown",
    optimised: bool = False,
    count: int = 8,
    number: int = 0,
) -> Certificate:
    """A group with all that the search proves about it, from bounds in float32."""
    x = images(count, seed=1 + number)
    y = plain(x).argmax(1)
    wrong, spec = wrong_labels(y, CLASSES), margin_rows(y, CLASSES)
    by_interval = interval(plain, x, eps, spec).lower > 0
    settings = LinearSettings(planes=True, intersect=False, intermediate=intermediate)
    bounds = crown(plain, x, eps, spec, settings)
    slopes: tuple[Tensor, ...] = ()
    if optimised:
        bounds = alpha(plain, x, eps, spec, AlphaSettings(iterations=5, linear=settings))
        assert bounds.slopes is not None
        slopes = bounds.slopes
    assert bounds.lower_planes is not None
    planes = ChoicePlanes.of(bounds.lower_planes.a.flatten(2), bounds.lower_planes.b, wrong, eps, ~by_interval)
    result = SubsetSearch(planes).run()
    where = {(i, int(wrong[i, k])): (i, k) for i in range(count) for k in range(CLASSES - 1)}
    sources = {
        (i, j): PlaneSource(i, j, torch.cat([s[where[i, j]].flatten() for s in slopes]) if slopes else None)
        for i, j in planes.choices
    }
    proofs = [Proof((choice,)) for choice, place in where.items() if by_interval[place]]
    for conflict in result.conflicts:
        rows = tuple(sources[planes.choices[int(planes.owner[p])]] for p in conflict.planes)
        proofs.append(Proof(conflict.choices, rows, conflict.lambdas))
    index = torch.arange(count) + 100 * number
    return Certificate(number, index, x, y, eps, intermediate, tuple(proofs), result.survivors, result.parts)


def failures(path: Path, plain: Graph) -> str:
    return "\n".join(check(path, plain).failures)
