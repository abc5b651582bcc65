"""Large groups that nobody would choose: one image, none right, all proved, nothing to go by, copies, two classes."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from certify.whole.test_leaves import EPS, SETTINGS, problem
from support.helpers import folded, images
from support.joint_cases import DEEP
from torch import Tensor, nn

from citrus.bounds import Planes
from citrus.certify import Certification, certify
from citrus.certify.cascade import Cascade
from citrus.certify.whole.choices import OpenChoices
from citrus.certify.whole.dual import OpenPlanes
from citrus.certify.whole.group import LargeProof, prove_large
from citrus.certify.whole.lowrank import LowRank
from citrus.certify.whole.master import Limits, solve_master
from citrus.certify.whole.partition import partition
from citrus.certify.whole.rigorous import firmest
from citrus.errors import CitrusError

LARGE = replace(SETTINGS, searched=1, grouping="dataset")


def large(network: nn.Module, x: Tensor, y: Tensor, eps: float = EPS) -> LargeProof:
    one = Cascade(network, x, y, eps, LARGE)
    with torch.no_grad():
        return prove_large(one.question, one.parts(torch.arange(len(x))), search=True)


def counts(found: Certification) -> Sequence[tuple[int, int, int]]:
    return [(row.correct, row.certified, row.attacked) for row in found.rows]


@pytest.mark.parametrize("place", range(6))
def test_one_image(place: int) -> None:
    net, x = folded(DEEP), images(6)[place : place + 1]
    found = large(net, x, net(x).argmax(1))
    assert found.correct == 1
    assert 0 <= found.certified <= found.attacked <= 1


def test_no_image_is_right() -> None:
    net, x = folded(DEEP), images(8)
    found = certify(net, x, (net(x).argmax(1) + 1) % 3, EPS, LARGE)
    assert counts(found) == [(0, 0, 0)]


def test_all_images_are_proved_alone() -> None:
    net, x = folded(DEEP), images(8)
    found = certify(net, x, net(x).argmax(1), 1e-6, LARGE)
    assert counts(found) == [(8, 8, 8)]
    assert set(found.rows[0].stages) <= {"interval", "crown"}


def test_nothing_can_be_proved() -> None:
    """Every plane is below zero at its image: each image is lost, and no more than that."""
    net, x = folded(DEEP), images(8)
    found = large(net, x, net(x).argmax(1), eps=1.0)
    assert found.certified == 0
    assert sum(master.lost for master in found.masters) in (0, found.correct)  # none where parts prove as much


def test_planes_below_zero_everywhere() -> None:
    branching, choices = problem()
    hopeless = replace(choices, adaptive=Planes(choices.adaptive.a, -choices.adaptive.b.abs() - 10))
    none = replace(hopeless, slopes=hopeless.slopes[:, :0])
    with torch.no_grad():
        proof = solve_master(branching, none, Limits(rounds=0))
    assert proof.lost == proof.images


def test_copies_of_one_image_fall_together() -> None:
    net, x = folded(DEEP), images(30)
    y = net(x).argmax(1)
    alone = certify(net, x, y, 0.2, replace(LARGE, group_size=1))
    fallen = [place for place, row in enumerate(alone.rows) if row.attacked == 0]
    assert fallen
    copies = x[fallen[:1]].repeat(12, 1, 1, 1)
    assert counts(certify(net, copies, y[fallen[:1]].repeat(12), 0.2, LARGE)) == [(12, 0, 0)]


def test_two_classes() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 2)).eval()
    x = torch.rand(40, 1, 2, 2)
    with torch.no_grad():
        net[3].bias -= net(x).mean(0)  # type: ignore[operator]
        y = net(x).argmax(1)
    found = certify(net, x, y, 0.05, LARGE)
    generator = torch.Generator().manual_seed(0)
    fewest = min(
        int((net(x + ((torch.rand(1, 1, 2, 2, generator=generator) - 0.5).sign() * 0.05)).argmax(1) == y).sum())
        for _ in range(200)
    )
    assert found.rows[0].certified <= min(found.rows[0].attacked, fewest)
    assert found.rows[0].certified > 20


def test_multipliers_whose_factorisation_fails_are_mended() -> None:
    """Weights so large that Q is far from positive definite at first: more alpha makes it so, and the bound is true."""
    a, b = torch.eye(4, dtype=torch.float64), torch.full((4,), 0.5, dtype=torch.float64)
    order = torch.arange(4)
    planes = OpenPlanes(4, torch.stack([order, order], 1), a, b, torch.zeros(0, 2, dtype=torch.long))
    relaxed = LowRank(planes)
    relaxed.advance(20)
    m = relaxed.multipliers()
    spoilt = replace(m, weights=30 * m.weights, alpha=0 * m.alpha)
    bound = firmest(planes, spoilt, relaxed.marked)[1]
    assert 4 <= bound < 1e6


def test_many_images_are_parted_better_than_by_chance() -> None:
    choices = problem()[1]
    count, generator = 5000, torch.Generator().manual_seed(0)
    few = torch.zeros(count, dtype=torch.long)
    many = OpenChoices(
        images=choices.images[few],
        image=torch.arange(count),
        wrong=few,
        adaptive=Planes(torch.randn(count, 12, generator=generator), torch.ones(count)),
        slopes=torch.zeros(count, 0, dtype=torch.uint8),
    )
    parts = partition(many, 7)
    assert torch.cat(parts).sort().values.tolist() == list(range(count))
    assert max(map(len, parts)) <= -(-count // 7)
    ways = [torch.nn.functional.normalize(many.adaptive.a[part], dim=1) for part in parts]
    inside = sum(float((way @ way.T).clamp(min=0).sum()) for way in ways)
    chance = torch.arange(count).chunk(7)
    thrown = [torch.nn.functional.normalize(many.adaptive.a[part], dim=1) for part in chance]
    assert inside < 0.995 * sum(float((way @ way.T).clamp(min=0).sum()) for way in thrown)


@pytest.mark.parametrize("verifier", ["racoon", "zeng"])
def test_verifiers_of_small_groups_do_not_begin_with_a_large_one(verifier: str) -> None:
    net, x = folded(DEEP), images(1001)
    with pytest.raises(CitrusError, match="--group-size 5"):
        certify(net, x, torch.zeros(len(x), dtype=torch.long), EPS, replace(LARGE, verifier=verifier))
