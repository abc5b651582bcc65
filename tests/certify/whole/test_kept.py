"""The state of a master problem is kept, and taken up again by the same question only."""

from pathlib import Path

import pytest
import torch
from certify.whole.test_leaves import problem

from citrus.certify.whole.choices import Known, OpenChoices
from citrus.certify.whole.front import Front
from citrus.certify.whole.kept import State, keep, kept
from citrus.certify.whole.leaves import Branching
from citrus.certify.whole.master import Limits, solve_master


def solved(rounds: int) -> tuple[Branching, OpenChoices, State, float]:
    branching, choices = problem()
    states: list[State] = []
    with torch.no_grad():
        proof = solve_master(branching, choices, Limits(rounds=rounds), keeps=states.append)
    return branching, choices, states[-1], proof.bound


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    branching, choices, (front, relaxed), _ = solved(2)
    path, facts = tmp_path / "state.safetensors", Known().about(choices)
    assert kept(path, choices, branching, facts, "this") is None
    keep(path, choices, (front, relaxed), "this")
    with torch.no_grad():
        found = kept(path, choices, branching, facts, "this")
    assert found
    for name in ("uses", "weights"):
        assert torch.equal(getattr(found[0], name), getattr(relaxed if name == "weights" else front, name))
    assert torch.equal(found[0].leaves.sides, front.leaves.sides)
    torch.testing.assert_close(found[0].pool.a, front.pool.a)
    torch.testing.assert_close(found[0].pool.b, front.pool.b)
    assert float(found[1].marked.sum()) == pytest.approx(float(relaxed.marked.sum()))
    assert kept(path, choices, branching, facts, "another") is None
    assert kept(path, choices.of_images(torch.arange(3)), branching, facts, "this") is None
    path.write_bytes(path.read_bytes()[:-7])
    assert kept(path, choices, branching, facts, "this") is None


def test_what_goes_on_proves_no_less_than_what_was_stopped(tmp_path: Path) -> None:
    branching, choices, state, stopped = solved(1)
    with torch.no_grad():
        path, depths = tmp_path / "state.safetensors", list[int]()
        keep(path, choices, state, "this")
        begin = kept(path, choices, branching, Known().about(choices), "this")

        def keeps(state: State) -> None:
            depths.append(state[0].leaves.depth)

        more = solve_master(branching, choices, Limits(rounds=2), begin=begin, keeps=keeps)
    assert depths == [1, 2]
    assert more.bound <= stopped + 0.05


def test_a_clock_that_is_over_leaves_a_bound() -> None:
    branching, choices = problem()
    with torch.no_grad():
        proof = solve_master(branching, choices, Limits(seconds=0.0))
        front = Front.first(branching, choices.leaves, choices.adaptive)
    assert proof.timed_out
    assert proof.lost <= proof.images
    assert len(proof.front.leaves) == len(front.leaves)
