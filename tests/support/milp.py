"""The questions of the search put to HiGHS: a cross-check.

Planes are scaled to |b| + eps |a|_1 = 1 and delta to units of eps first, so that the solver's absolute tolerances mean
the same for every plane. Answers hold up to about 1e-6.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from citrus.certify.search.duals import Oracle
from citrus.certify.search.planes import Choice, ChoicePlanes

Array = NDArray[Any]


def solve(cost: Array, box: tuple[Array, Array], rows: tuple[Array, Array], whole: int = 0) -> Any:
    """min cost . x, lower <= x <= upper, A x <= right, the last `whole` variables integer; skips without highspy."""
    highspy = pytest.importorskip("highspy")
    matrix, right = rows
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(cost), len(right)
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = cost, box[0], box[1]
    lp.row_lower_, lp.row_upper_ = np.full(len(right), -np.inf), right
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    height, width = matrix.shape
    lp.a_matrix_.start_ = np.arange(height + 1, dtype=np.int32) * width
    lp.a_matrix_.index_ = np.tile(np.arange(width, dtype=np.int32), height)
    lp.a_matrix_.value_ = matrix.ravel()
    if whole:
        kinds = [highspy.HighsVarType.kContinuous] * (len(cost) - whole) + [highspy.HighsVarType.kInteger] * whole
        lp.integrality_ = kinds
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("primal_feasibility_tolerance", 1e-9)
    solver.setOptionValue("mip_feasibility_tolerance", 1e-9)
    solver.passModel(lp)
    solver.run()
    assert solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return solver


def solve_set(oracle: Oracle, chosen: Sequence[int]) -> float:
    """min over delta of the highest scaled plane of one set of choices, given by their positions."""
    rows = [row for choice in chosen for row in oracle.members[choice]]
    slopes, offsets = oracle.rows[rows].cpu().numpy(), oracle.offsets[rows].cpu().numpy()
    pixels = slopes.shape[1]
    matrix = np.hstack([slopes, -np.ones((len(rows), 1))])
    side = np.append(np.ones(pixels), 2.0)
    solver = solve(np.append(np.zeros(pixels), 1.0), (-side, side), (matrix, -offsets))
    delta = np.clip(np.array(solver.getSolution().col_value[:pixels]), -1, 1)
    return float((slopes @ delta + offsets).max(initial=-np.inf))


def solve_count(planes: ChoicePlanes, cuts: Sequence[Sequence[Choice]] = ()) -> int:
    """The most images one delta can violate, by a mixed integer program.

    z_c = 1 asks for a_p . delta + b_p <= 0 on every plane p of choice c, else the row is slack by its own maximum over
    the box (the tightest big-M); one label per image; a cut asks for sum z <= its size - 1.
    """
    oracle, count = Oracle(planes), len(planes.choices)
    if not count:
        return 0
    slopes, offsets = oracle.rows.cpu().numpy(), oracle.offsets.cpu().numpy()
    pixels, big = slopes.shape[1], offsets + np.abs(slopes).sum(1)
    switch = np.zeros((len(slopes), count))
    switch[np.arange(len(slopes)), oracle.owner.cpu().numpy()] = big
    position = {choice: c for c, choice in enumerate(planes.choices)}
    known = [[position[choice] for choice in cut] for cut in cuts if all(choice in position for choice in cut)]
    groups = [[position[c] for c in planes.choices if c[0] == image] for image in range(planes.images)]
    packing = np.zeros((len(groups) + len(known), count))
    for row, group in enumerate(groups + known):
        packing[row, group] = 1
    matrix = np.vstack([np.hstack([slopes, switch]), np.hstack([np.zeros((len(packing), pixels)), packing])])
    right = np.concatenate([big - offsets, np.ones(len(groups)), [len(cut) - 1 for cut in known]])
    cost = np.append(np.zeros(pixels), -np.ones(count))
    box = (np.append(-np.ones(pixels), np.zeros(count)), np.ones(pixels + count))
    solver = solve(cost, box, (matrix, right), count)
    return int((np.array(solver.getSolution().col_value[pixels:]) > 0.5).sum())
