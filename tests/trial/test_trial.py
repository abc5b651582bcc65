"""Nothing that certification claims about tiny networks is false, in exact arithmetic; `make trial` asks more often."""

from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from citrus.attacks import Ascent
from citrus.bounds import crown
from citrus.certify import Certification, CertifySettings, certify
from citrus.certify.refine.sets import Instance as Problem
from citrus.certify.refine.sets import JointSettings, Subset, prove_sets
from citrus.certify.result import STAGES
from citrus.certify.settings import VERIFIERS
from citrus.networks import Graph, graph
from trial.claims import Claims
from trial.exact import deepest, exact, least_margin, most_violated, pieces_of, steps_of, violated
from trial.instances import KINDS, Instance
from trial.noise import coarse

# The reference itself, by hand.


def tiny(*layers: nn.Module, **weights: list[float] | list[list[float]]) -> nn.Sequential:
    network = nn.Sequential(nn.Flatten(), *layers).eval()
    network.load_state_dict({name.replace("_", "."): torch.tensor(value) for name, value in weights.items()})
    return network


def test_least_margin_by_hand() -> None:
    """relu(x - 1/2) - relu(y) + 1 over 0, at (1/2, 1/4) with radius 1/4: least where x <= 1/2 and y = 1/2."""
    layers = [nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)]
    first = {"1_weight": [[1.0, 0.0], [0.0, 1.0]], "1_bias": [-0.5, 0.0]}
    network = tiny(*layers, **first, **{"3_weight": [[1.0, -1.0], [0.0, 0.0]], "3_bias": [1.0, 0.0]})
    steps, shape = steps_of(list(network), (1, 1, 2))
    assert shape == (2,)
    image = [Fraction(1, 2), Fraction(1, 4)]
    assert least_margin(steps, image, 0, 1, Fraction(1, 4)) == Fraction(1, 2)
    assert least_margin(steps, image, 1, 0, Fraction(1, 4)) == Fraction(-5, 4)


@pytest.mark.parametrize(("eps", "most"), [(0.125, 0), (0.25, 1), (0.5, 1), (0.75, 2)])
def test_what_one_perturbation_violates_by_hand(eps: float, most: int) -> None:
    """Two images at 1/4 and -1/4 left and right of 0 and labels either way: one step of 1/4 takes one of them,
    whichever; and the third image at 3/4 needs the same way as the second."""
    network = tiny(nn.Linear(2, 2), **{"1_weight": [[1.0, 0.0], [-1.0, 0.0]], "1_bias": [0.0, 0.0]})
    steps = steps_of(list(network), (1, 1, 2))[0]
    images = [[Fraction(x, 4), Fraction(0)] for x in (1, -1, -3)]
    assert most_violated(steps, images, [0, 1, 1], Fraction(eps)) == most


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_agrees_with_the_network(kind: str) -> None:
    """Exact margins at radius 0 are the module's in float64; sampled ones are never below the least."""
    instance = Instance.random(kind, 3, torch.float64)
    if kind == "denormal":
        return  # float64 is no judge of these
    noise = 2 * torch.rand(500, *instance.images.shape[1:], dtype=torch.float64) - 1
    for place in range(4):
        image, label = instance.images[place], int(instance.labels[place])
        with torch.no_grad():
            scores = instance.network(image + instance.eps * noise)
            centre = instance.network(image[None])[0]
        size = float(scores.abs().max())
        for wrong in set(range(len(centre))) - {label}:
            at = float(least_margin(instance.steps, exact(image), label, wrong, Fraction(0)))
            assert abs(at - float(centre[label] - centre[wrong])) <= 1e-7 * size
            least = float(least_margin(instance.steps, exact(image), label, wrong, Fraction(instance.eps)))
            assert float((scores[:, label] - scores[:, wrong]).min()) >= least - 1e-7 * size


# Claims.


def test_nothing_is_claimed_that_is_false() -> None:
    claims = Claims(seed=0).run(groups=1000)
    assert claims.false == []
    assert {verifier for _, _, verifier in claims.groups} == set(VERIFIERS)
    assert {(kind, weights) for kind, weights, _ in claims.groups} == {
        (kind, weights) for kind in KINDS for weights in ("float32", "float64")
    }
    assert claims.certified > 0.8 * claims.surviving
    assert claims.stages == set(STAGES)


class Coarse(Claims):
    """Certified on a machine that rounds worse than any. Networks are folded before: that rounds on the real one."""

    patch: pytest.MonkeyPatch

    def certification(self, instance: Instance, settings: CertifySettings) -> Certification:
        plain = folded(instance)
        with coarse(self.patch, self.seed):
            quick = replace(settings, attack=Ascent(steps=1, restarts=1), budget=0.5)
            return certify(plain, instance.images[:8], instance.labels[:8], instance.eps, quick)


def folded(instance: Instance) -> Graph:
    return graph(instance.network, tuple(instance.images.shape[1:])).map(Tensor.detach)


def test_nothing_is_claimed_that_is_false_where_rounding_is_coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever proves: a stage that forgets to count its rounding claims too much here."""
    claims = Coarse(seed=500, whole=10**6)
    claims.patch = monkeypatch
    claims.run(groups=100)
    assert claims.false == []
    # Joint proofs and duals of whole groups are rare where groups are so small: see below, and certify/whole.
    assert claims.stages >= set(STAGES) - {"joint", "whole"}


def violable(instance: Instance, subset: Subset) -> bool:
    """Whether one perturbation violates all choices (image, label) of a set."""
    slices = [pieces_of(instance.steps, exact(instance.images[i]), Fraction(instance.eps)) for i, _ in subset]
    for pieces in zip(*slices, strict=True):
        regions = [violated(own, int(instance.labels[i]), only=j) for own, (i, j) in zip(pieces, subset, strict=True)]
        if deepest(regions) == len(subset):
            return True
    return False


@pytest.mark.parametrize("machine", ["ieee", "coarse"])
def test_no_joint_proof_is_false(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of sets of two and three choices, with all boxes as they are and tightened where all choices are violated."""
    proved = contradicted = 0
    for seed, kind in enumerate(sorted(KINDS) * (3 if machine == "ieee" else 1)):
        instance = Instance.random(kind, seed, (torch.float32, torch.float64)[seed % 2])
        plain, label = folded(instance), instance.labels
        with coarse(monkeypatch, seed) if machine == "coarse" else nullcontext():
            boxes = crown(plain, instance.images, instance.eps, None).pre_activations
            problem = Problem(plain, instance.images, label, boxes, instance.eps)
            choices = [(i, (int(label[i]) + 1) % plain.classes) for i in range(8)]
            sets = [tuple(choices[k : k + size]) for size in (2, 3) for k in range(6)]
            results = prove_sets(problem, sets, JointSettings(iterations=8, assume=2))
        for result in results:
            if result.proved:
                proved += 1
                contradicted += bool(result.assumptions)
                assert not violable(instance, result.core), (kind, seed, result.core)
    assert proved > 40
    assert contradicted or machine == "coarse"
