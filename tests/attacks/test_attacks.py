"""Attacks: known optima on linear models, the best iterate is kept, and nothing leaves its box."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support.helpers import SHAPE, images
from torch import Tensor, nn

from citrus.attacks import Ascent, UniversalResult, ascend, consecutive_groups, fooled, pgd, universal, universal_pgd
from citrus.attacks.pgd import uniform
from citrus.attacks.universal import LOSSES, clipped_cross_entropy, hinge, nearest
from citrus.bounds import margins
from citrus.errors import CitrusError

LABELS = torch.tensor([0, 1, 2, 0, 1, 2])
WILD = Ascent(steps=6, step_size=1.5, decay=1.0)
"""Steps so large that the ascent jumps about: its last point is rarely its best."""


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Recorder:
    """A model that remembers what it was asked."""

    def __init__(self, model: Callable[[Tensor], Tensor]) -> None:
        self.model, self.inputs = model, list[Tensor]()

    def __call__(self, x: Tensor) -> Tensor:
        self.inputs.append(x.detach().clone())
        return self.model(x)


def loss_of(model: Callable[[Tensor], Tensor], x: Tensor, labels: Tensor = LABELS) -> Tensor:
    with torch.no_grad():
        return F.cross_entropy(model(x), labels, reduction="none")


def fooled_by(model: Callable[[Tensor], Tensor], x: Tensor, labels: Tensor = LABELS) -> Tensor:
    """Which images are fooled, written once more: another class scores at least as high."""
    with torch.no_grad():
        logits = model(x)
    right = logits.gather(1, labels[:, None])
    others = logits.scatter(1, labels[:, None], float("-inf"))
    return (others >= right).any(1)


# Two classes, linear: the optimum is eps * sign(w_wrong - w_right).


def linear_model(seed: int = 0, classes: int = 2) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    weight = torch.randn(classes, 72, generator=seeded(seed))
    return lambda x: x.flatten(1) @ weight.T, weight


def test_pgd_finds_the_optimum_of_a_linear_model() -> None:
    model, weight = linear_model()
    labels = torch.tensor([0, 1, 0, 1, 0, 1])
    delta = pgd(model, images(6), labels, 0.1, Ascent(), generator=seeded())
    expected = 0.1 * (weight[1 - labels] - weight[labels]).sign().view(6, *SHAPE)
    torch.testing.assert_close(delta, expected, rtol=0, atol=1e-6)


def test_pgd_finds_the_optimum_among_images_in_0_1() -> None:
    model, weight = linear_model()
    labels, x = torch.tensor([0, 1, 0, 1, 0, 1]), images(6)
    delta = pgd(model, x, labels, 0.3, Ascent(), clip=True, generator=seeded())
    best = (x + 0.3 * (weight[1 - labels] - weight[labels]).sign().view(6, *SHAPE)).clamp(0, 1)
    torch.testing.assert_close(x + delta, best, rtol=0, atol=1e-6)


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 7])
def test_pgd_stays_in_its_box(network: nn.Module, clip: bool, steps: int) -> None:
    x = images(6)
    x[0] = 0.0
    x[1] = 1.0
    model = Recorder(network)
    delta = pgd(model, x, LABELS, 0.3, Ascent(steps=steps, restarts=2, step_size=1.0), clip=clip, generator=seeded())
    rounding = 1e-7 if clip else 0.0  # (x + delta) - x
    for seen in (*(point - x for point in model.inputs), delta):
        assert seen.abs().max() <= 0.3 + max(rounding, 1e-7)
    assert delta.abs().max() <= torch.tensor(0.3) + rounding
    perturbed = x + delta
    if clip:
        assert perturbed.min() >= -rounding
        assert perturbed.max() <= 1 + rounding
    else:
        assert perturbed.min() < 0
        assert perturbed.max() > 1


@pytest.mark.parametrize("steps", [0, 1, 7])
def test_pgd_calls_the_model_once_per_point(network: nn.Module, steps: int) -> None:
    model = Recorder(network)
    pgd(model, images(6), LABELS, 0.1, Ascent(steps=steps, restarts=3))
    assert len(model.inputs) == 3 * (steps + 1)


def test_pgd_with_a_radius_per_pixel(network: nn.Module) -> None:
    radius = images(6, seed=7) * 0.2
    radius[:, 0] = 0
    delta = pgd(network, images(6), LABELS, radius, Ascent(steps=5, step_size=1.0), generator=seeded())
    assert (delta.abs() <= radius).all()
    assert delta[:, 1].abs().sum() > 0
    number = pgd(network, images(6), LABELS, torch.tensor(0.1), Ascent(steps=5), generator=seeded())
    plain = pgd(network, images(6), LABELS, 0.1, Ascent(steps=5), generator=seeded())
    torch.testing.assert_close(number, plain, rtol=0, atol=1e-6)


def test_pgd_keeps_the_best_iterate(network: nn.Module) -> None:
    """Among all points tried: fooling ones first, then by cross-entropy; and the last point is not always the best."""
    x, model = images(6), Recorder(network)
    delta = pgd(model, x, LABELS, 0.02, WILD, generator=seeded())
    assert len(model.inputs) == WILD.steps + 1
    found, loss = fooled_by(network, x + delta), loss_of(network, x + delta)
    worse_last = 0
    for step, point in enumerate(model.inputs):
        tried, tried_loss = fooled_by(network, point), loss_of(network, point)
        assert (found | ~tried).all()
        assert (loss >= tried_loss - 1e-6)[found == tried].all()
        if step == WILD.steps:
            worse_last = int((loss > tried_loss + 1e-4).sum())
    assert worse_last > 0


def test_pgd_first_point_is_a_random_start_and_steps_follow_the_schedule(network: nn.Module) -> None:
    x, model, settings = images(6), Recorder(network), Ascent(steps=2, step_size=0.1, decay=0.5, decay_at=(0.5,))
    pgd(model, x, LABELS, 0.1, settings, generator=seeded())
    expected = (2 * torch.rand(x.shape, generator=seeded()) - 1) * 0.1
    torch.testing.assert_close(model.inputs[0] - x, expected, rtol=0, atol=1e-6)
    for step, size in enumerate((0.01, 0.005)):  # 0.1 of the radius, halved after half of the steps
        at = model.inputs[step].requires_grad_()
        (gradient,) = torch.autograd.grad(F.cross_entropy(network(at), LABELS), at)
        moved = (at.detach() - x + size * gradient.sign()).clamp(-0.1, 0.1)
        torch.testing.assert_close(model.inputs[step + 1] - x, moved, rtol=0, atol=1e-6)


def test_pgd_is_deterministic_with_a_generator(network: nn.Module) -> None:
    runs = [pgd(network, images(6), LABELS, 0.1, WILD, generator=seeded(s)) for s in (0, 0, 1)]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_restarts_never_reduce_the_best(network: nn.Module) -> None:
    x = images(6)
    before = None
    for restarts in (1, 2, 4):
        delta = pgd(network, x, LABELS, 0.02, Ascent(steps=2, restarts=restarts, step_size=1.0), generator=seeded())
        now = fooled_by(network, x + delta), loss_of(network, x + delta)
        if before is not None:
            assert (now[0] | ~before[0]).all()
            assert (now[1] >= before[1] - 1e-6)[now[0] == before[0]].all()
        before = now


@pytest.mark.parametrize("attack", ["pgd", "universal"])
def test_attacks_leave_everything_as_it_was(network: nn.Module, attack: str) -> None:
    x, labels, groups = images(6), LABELS.clone(), torch.tensor([0, 0, 1, 1, 1, 2])
    weights = [p.clone() for p in network.parameters()]
    with torch.no_grad():  # callers need not switch gradients on
        if attack == "pgd":
            delta = pgd(network, x, labels, 0.1, Ascent(steps=3), clip=True)
        else:
            delta = universal_pgd(network, x, labels, groups, 0.1, Ascent(steps=3)).delta
    assert torch.equal(x, images(6))
    assert torch.equal(labels, LABELS)
    assert groups.tolist() == [0, 0, 1, 1, 1, 2]
    assert not x.requires_grad
    assert not delta.requires_grad
    assert all(p.grad is None and torch.equal(p, w) for p, w in zip(network.parameters(), weights, strict=True))


# Fooled


def test_fooled_by_hand() -> None:
    nan, inf = float("nan"), float("inf")
    logits = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0], [nan, 0.0, 0.0], [1.0, nan, 0.0], [inf, inf, 0.0]]
    assert fooled(torch.tensor(logits), torch.zeros(6, dtype=torch.int64)).tolist() == [False, *[True] * 5]


def test_nan_logits_count_as_fooled() -> None:
    def broken(x: Tensor) -> Tensor:
        return x.flatten(1)[:, :3] * float("nan")

    result = universal_pgd(broken, images(6), LABELS, torch.tensor([0, 0, 1, 1, 1, 2]), 0.1, Ascent(steps=3))
    assert result.fooled.all()
    assert result.accuracy == 0
    assert result.delta.abs().max() <= 0.1
    assert pgd(broken, images(6), LABELS, 0.1, Ascent(steps=3)).abs().max() <= 0.1


@pytest.mark.parametrize("attack", ["pgd", "universal"])
def test_nan_gradient_never_leaves_the_box(attack: str) -> None:
    """A model that is right everywhere, but whose gradient is NaN: no perturbation may be made of NaN."""

    def right(x: Tensor) -> Tensor:
        nothing = 0 * (0 * x.flatten(1)[:, :1]).sqrt()  # 0, with gradient 0 * inf
        return F.one_hot(LABELS, 3) + nothing

    if attack == "pgd":
        delta = pgd(right, images(6), LABELS, 0.1, Ascent(steps=3))
    else:
        result = universal_pgd(right, images(6), LABELS, torch.arange(6), 0.1, Ascent(steps=3))
        delta = result.delta
        assert not result.fooled.any()
    assert (delta.abs() <= 0.1).all()


# Universal: scores (x0, x1, 1/2), so a pixel must fall to 1/2, or rise above it, to change the class.


def pixels(*values: tuple[float, float]) -> Tensor:
    return torch.tensor(values).view(-1, 1, 1, 2)


def by_pixels(x: Tensor) -> Tensor:
    x = x.flatten(1)
    return torch.cat([x, torch.full_like(x[:, :1], 0.5)], 1)


def test_universal_attack_with_known_answers() -> None:
    x = pixels((0.6, 0.0), (0.55, 0.1), (0.0, 0.6), (0.6, 0.0), (0.4, 0.0), (0.9, 0.1))
    labels = torch.tensor([0, 0, 1, 0, 2, 0])
    groups = torch.tensor([0, 0, 0, 1, 1, 2])
    result = universal_pgd(by_pixels, x, labels, groups, 0.15, Ascent(restarts=4), seeded())
    assert result.delta.shape == (3, 1, 1, 2)
    assert result.delta.abs().max() <= 0.15
    # Group 0: both pixels must fall by 0.1, and one delta does that.
    assert result.fooled[:3].all()
    assert (result.delta[0] <= -0.1 + 1e-6).all()
    # Group 1: pixel 0 must fall by 0.1 for one image and rise by 0.1 for the other. Group 2: out of reach.
    assert result.fooled[3:5].sum() == 1
    assert not result.fooled[5]
    assert result.accuracy == pytest.approx(2 / 6)


def test_universal_result_agrees_with_recomputation(network: nn.Module) -> None:
    x, groups = images(6), torch.tensor([2, 0, 0, 1, 0, 2])  # unequal, and not in order
    result = universal_pgd(network, x, LABELS, groups, 0.05, Ascent(steps=5), seeded())
    assert torch.equal(result.fooled, fooled_by(network, x + result.delta[groups]))
    assert torch.equal(result.groups, groups)
    assert result.accuracy == pytest.approx(1 - result.fooled.float().mean().item())


def count_by_group(mask: Tensor, groups: Tensor) -> list[int]:
    return [int(mask[groups == g].sum()) for g in range(int(groups.max()) + 1)]


def test_universal_attack_keeps_the_best_count_of_all_steps(network: nn.Module) -> None:
    x, groups = images(205, seed=2), torch.arange(205) // 7  # 29 groups of 7 and one of 2
    labels = network(x).argmax(1)  # all right at first
    model = Recorder(network)
    settings = Ascent(steps=6, restarts=5, step_size=1.5, decay=1.0)
    result = universal_pgd(model, x, labels, groups, 0.1, settings, seeded())
    tried = [count_by_group(fooled_by(network, point, labels), groups) for point in model.inputs]
    assert len(tried) == 5 * 7 + 1
    best = [max(counts) for counts in zip(*tried, strict=True)]
    assert count_by_group(result.fooled, groups) == best == tried[-1]
    last = [max(counts) for counts in zip(*tried[6:-1:7], strict=True)]
    assert last != best  # the last points of the five restarts alone would have fooled fewer


def test_universal_restarts_never_reduce_the_count(network: nn.Module) -> None:
    x, groups = images(30, seed=2), torch.arange(30) // 10
    labels = network(x).argmax(1)
    before = [0, 0, 0]
    for restarts in (1, 2, 3, 4, 5):
        result = universal_pgd(network, x, labels, groups, 0.1, Ascent(steps=3, restarts=restarts), seeded())
        now = count_by_group(result.fooled, groups)
        assert all(n >= b for n, b in zip(now, before, strict=True))
        before = now
    assert sum(before) > 0


def test_losses_by_hand() -> None:
    logits, labels = torch.tensor([[3.0, 1.0, 2.0], [0.0, 4.0, 4.25]]), torch.tensor([0, 1])  # margins 1 and -1/4
    assert [hinge(kappa)(logits, labels).tolist() for kappa in (0.0, 0.5)] == [[-1.0, 0.0], [-1.5, -0.25]]
    clipped = clipped_cross_entropy(3.0)(torch.tensor([[0.0, 0.0], [0.0, 9.0]]), torch.tensor([0, 0]))
    torch.testing.assert_close(clipped, torch.tensor([0.6931472, 3.0]))
    near = nearest(0.5)(logits, labels)  # the scores 3, 1, 2 have the standard deviation 1
    torch.testing.assert_close(near, torch.tensor([-math.log(3.0), 0.0]))
    torch.testing.assert_close(nearest(0.5)(7 * logits, labels), near)
    equal = nearest(0.5)(torch.ones(1, 3), torch.tensor([0]))
    assert equal.tolist() == [0.0]


def test_each_restart_follows_its_own_loss(network: nn.Module) -> None:
    x, model, groups = images(6), Recorder(network), torch.tensor([0, 0, 1, 1, 1, 2])
    universal_pgd(model, x, LABELS, groups, 0.1, Ascent(steps=1, restarts=5, step_size=0.1, decay=1.0), seeded())
    for restart in range(5):
        at, moved = model.inputs[2 * restart : 2 * restart + 2]
        at.requires_grad_()
        (gradient,) = torch.autograd.grad(LOSSES[restart % 4](network(at), LABELS).sum(), at)
        for group in range(3):
            step = 0.01 * gradient[groups == group].sum(0).sign()
            expected = ((at - x).detach()[groups == group] + step).clamp(-0.1, 0.1)
            torch.testing.assert_close((moved - x)[groups == group], expected, rtol=0, atol=1e-6)


def test_the_universal_attack_is_stronger_than_plain_hinges(
    network: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was before, with the same restarts: over forty groups in sum, for single groups are a matter of luck."""
    x, groups = images(400, seed=3), torch.arange(400) // 10
    labels = network(x).argmax(1)
    asked = Ascent(steps=20, restarts=4)
    now = universal_pgd(network, x, labels, groups, 0.06, asked, seeded()).fooled.sum()
    before = (hinge(0.0), hinge(0.5), hinge(2.0), clipped_cross_entropy(3.0))
    monkeypatch.setattr(universal, "LOSSES", before)
    monkeypatch.setattr(universal, "MOMENTA", (0.0,))
    then = universal_pgd(network, x, labels, groups, 0.06, asked, seeded()).fooled.sum()
    assert 0 < then < 400
    assert now >= then


def test_groups_do_not_feel_each_other(network: nn.Module) -> None:
    """With the same start, a group's perturbation does not depend on which groups stand beside it."""
    x = images(6)
    together = universal_pgd(network, x, LABELS, torch.tensor([0, 0, 0, 1, 1, 1]), 0.05, Ascent(steps=5), seeded())
    alone = universal_pgd(
        network, x[:3], LABELS[:3], torch.zeros(3, dtype=torch.int64), 0.05, Ascent(steps=5), seeded()
    )
    torch.testing.assert_close(together.delta[:1], alone.delta)


def test_groups_of_one_are_as_strong_as_pgd() -> None:
    """On a linear model of two classes, both fool exactly the images whose margin eps can bridge."""
    model, weight = linear_model(seed=1)
    x = images(200, seed=1)
    labels = model(x).argmax(1)
    difference = weight[labels] - weight[1 - labels]
    reach = 0.05 * difference.abs().sum(1)
    fragile = margins(model(x), labels)[:, 0] <= reach
    assert 50 < fragile.sum() < 150
    delta = pgd(model, x, labels, 0.05, Ascent(), generator=seeded())
    assert torch.equal(fooled_by(model, x + delta, labels), fragile)
    result = universal_pgd(model, x, labels, torch.arange(200), 0.05, Ascent(), seeded())
    assert torch.equal(result.fooled, fragile)


def test_universal_attack_is_deterministic_and_works_without_steps(network: nn.Module) -> None:
    def run(steps: int, seed: int) -> UniversalResult:
        groups = torch.tensor([0, 0, 1, 1, 1, 2])
        return universal_pgd(network, images(6), LABELS, groups, 0.1, Ascent(steps=steps, restarts=2), seeded(seed))

    assert torch.equal(run(3, 0).delta, run(3, 0).delta)
    assert not torch.equal(run(3, 0).delta, run(3, 1).delta)
    assert run(0, 0).delta.shape == (3, *SHAPE)
    assert 0 < run(0, 0).delta.abs().max() <= 0.1


def test_consecutive_groups() -> None:
    assert consecutive_groups(7, 3).tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert consecutive_groups(3, 1).tolist() == [0, 1, 2]
    assert consecutive_groups(2, 5).tolist() == [0, 0]
    with pytest.raises(CitrusError, match="at least one image, got 0"):
        consecutive_groups(7, 0)


# The loop


def test_ascend_prefers_score_then_loss_then_the_earlier_point() -> None:
    """Points 0, 1, 2, 3 of three units with scripted losses and scores."""
    losses = torch.tensor([[1.0, 5.0, 2.0, 9.0], [1.0, 2.0, 4.0, 3.0], [7.0, 7.0, 7.0, 7.0]])
    scores = torch.tensor([[0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0], [2.0, 2.0, 2.0, 2.0]])
    calls: list[int] = []

    def objective(delta: Tensor, restart: int) -> tuple[Tensor, Tensor]:
        step = len(calls)
        calls.append(restart)
        return losses[:, step] + 0 * delta.sum(1) + (delta - delta.detach()).sum(1), scores[:, step]

    best = ascend(lambda: torch.zeros(3, 1), objective, 10.0, Ascent(steps=3, step_size=0.1, decay=1.0))
    assert best.flatten().tolist() == [1.0, 2.0, 0.0]
    assert calls == [0, 0, 0, 0]


def test_step_sizes_by_hand() -> None:
    settings = Ascent(steps=10, step_size=0.25, decay=0.2, decay_at=(0.5, 0.8))
    expected = [0.25] * 5 + [0.05] * 3 + [0.01] * 2
    assert [settings.step_at(step) for step in range(10)] == pytest.approx(expected)


def test_momentum_by_hand() -> None:
    """One pixel, gradients by script: two steps up outweigh one down if nine tenths are kept, and not if half is."""
    assert points_of((1.0, 1.0, -1.0), 0.0) == pytest.approx([1.0, 2.0, 1.0])
    assert points_of((1.0, 1.0, -1.0), 0.9) == pytest.approx([1.0, 2.0, 3.0])  # 0.9 * 1.9 - 1 > 0
    assert points_of((1.0, 1.0, -1.0), 0.5) == pytest.approx([1.0, 2.0, 1.0])  # 0.5 * 1.5 - 1 < 0
    assert points_of((1.0, 1e-3, -1e3), 0.9) == pytest.approx([1.0, 2.0, 3.0])  # a long gradient counts no more


def points_of(slopes: tuple[float, ...], kept: float) -> list[float]:
    """Where the ascent stands after each step of size 1 along scripted gradients."""
    points: list[float] = []

    def objective(delta: Tensor, restart: int) -> tuple[Tensor, Tensor]:
        points.append(delta.item())
        slope = slopes[len(points) - 1] if len(points) <= len(slopes) else 0.0
        return slope * delta.sum(1), torch.zeros(1)

    asked = Ascent(steps=len(slopes), step_size=0.1, decay=1.0, momentum=(kept,))
    ascend(lambda: torch.zeros(1, 1), objective, 10.0, asked)
    return points[1:]


def test_momentum_of_each_restart_and_its_limits() -> None:
    assert [Ascent(momentum=(0.0, 0.75)).kept_in(restart) for restart in range(3)] == [0.0, 0.75, 0.0]
    assert Ascent().kept_in(5) == 0
    for wrong in (-0.1, 1.0, float("nan")):
        with pytest.raises(CitrusError, match=r"Each momentum must lie in \[0, 1\)"):
            Ascent(momentum=(0.5, wrong))


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": -1},
        {"restarts": 0},
        {"step_size": 0.0},
        {"step_size": -0.1},
        {"step_size": float("nan")},
        {"step_size": float("inf")},
        {"decay": 0.0},
        {"decay": 1.5},
        {"decay": float("nan")},
    ],
    ids=str,
)
def test_ascent_settings_are_checked(wrong: dict) -> None:
    says = {"steps": "at least 0", "restarts": "at least 1", "step_size": "larger than 0", "decay": r"lie in \(0, 1\]"}
    ((name, value),) = wrong.items()
    with pytest.raises(CitrusError, match=rf"{name} must (be )?(finite and )?{says[name]}, got {value}\.$"):
        Ascent(**wrong)


@pytest.mark.parametrize("shape", [(6, *SHAPE), (6, 5), (2, 3, 4, 5, 6)])
def test_noise_has_any_shape_beside_images_with_channels_last(shape: tuple[int, ...]) -> None:
    """As training on a GPU lays images out; noise for directions or hidden layers is no map."""
    like = images(6).contiguous(memory_format=torch.channels_last)
    noise = uniform(shape, 0.1, like, seeded())
    assert noise.shape == shape
    assert noise.abs().max() <= 0.1
    assert len(shape) != 4 or noise.stride() == like.stride()
