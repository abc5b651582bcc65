"""Joint refinement: the slopes of all members of a subset and its multipliers lambda, raised together.

    results = refine_subsets(Instance(graph, images, labels, boxes, eps), [((0, 3), (4, 7)), ((1, 2), (2, 8), (5, 0))])
    cuts = [result.core for result in results if result.proved]

For a subset S of choices (image i, wrong label j) each member has lower slopes alpha_i of its own, which give a plane
a_i . delta + b_i under its margin (bounds/substitution.py). Since delta is shared, S is not violable if

    g(alpha, lambda) = sum_i lambda_i b_i(alpha_i) - eps * || sum_i lambda_i a_i(alpha_i) ||_1 > 0

for any slopes in [0, 1] and any lambda in the simplex. With the boxes of the ReLUs held fixed, the maximum of g is the
value of the linear program in which every member has the triangle relaxation of every layer and all share one delta:
what RaVeN solves as a program and RACoon (Banerjee and Singh, 2024) approaches by a few steps on few subsets. Here
every subset that decides a count climbs until it is proved or stops paying, all of them in one batch: members are
tasks, and a sum over the tasks of a subset makes its value. `assume` goes beyond that program (assume.py).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from citrus.bounds.chunks import MemoryLimit, in_chunks
from citrus.bounds.substitution import footprint
from citrus.certify.climb import Teams
from citrus.certify.refinement import Instance, JointResult, JointSettings, Run, Starts, Subset
from citrus.errors import CitrusError

__all__ = ["Instance", "JointResult", "JointSettings", "Starts", "Subset", "refine_subsets"]


def refine_subsets(
    instance: Instance,
    subsets: Sequence[Subset],
    settings: JointSettings = JointSettings(),  # noqa: B008 - frozen
    starts: Starts | None = None,
    teams: Sequence[int] | None = None,
) -> list[JointResult]:
    """Try to prove each subset of choices, (position in instance.images, wrong label), and return the best of each.

    Subsets of one team (a group's critical sets) are of use only if all of them are proved: once one is given up, the
    others of its team stop where they are. `teams` holds a number per subset.
    """
    subsets = [tuple((int(i), int(j)) for i, j in subset) for subset in subsets]
    _check(instance, subsets, teams)
    if not subsets:
        return []
    device = instance.images.device
    run = Run(instance, settings)
    lost: set[int] = set()
    results: dict[int, JointResult] = {}

    def work(chunk: slice, _: slice) -> tuple[Tensor, ...]:
        team = None if teams is None else Teams(torch.tensor(teams[chunk], device=device), lost)
        results.update(enumerate(run.refine(subsets[chunk], starts or {}, team), chunk.start))
        return (torch.empty(0),)

    mean = sum(len(subset) for subset in subsets) / len(subsets)
    row_bytes = int(12 * mean * footprint(run.graph, len(run.graph.nodes), (0, 0)) * instance.images.element_size())
    in_chunks((len(subsets), 1), row_bytes, MemoryLimit.of(settings.memory, device), work)
    return [results[n] for n in range(len(subsets))]


def _check(instance: Instance, subsets: Sequence[Subset], teams: Sequence[int] | None) -> None:
    """Refuse subsets that name no choice, or one that does not exist, or an image twice."""
    if teams is not None and len(teams) != len(subsets):
        raise CitrusError(f"There are {len(subsets)} subsets, but {len(teams)} teams.")
    truth = instance.labels.tolist()
    for subset in subsets:
        images = [i for i, _ in subset]
        known = all(0 <= i < len(truth) and 0 <= j < instance.graph.classes and j != truth[i] for i, j in subset)
        if not subset or not known or len(set(images)) < len(images):
            raise CitrusError(
                f"A subset names one wrong label of each of some of the {len(truth)} images, got {subset}."
            )
