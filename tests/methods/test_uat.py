"""Universal adversarial training: its steps by hand, against universal PGD, and class by class."""

import math
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.steps import CLASSES, EPS, SHAPE, gradients, make_batch, make_network
from support.steps import one_thread as one_thread
from support.synthetic import config, splits
from torch import Tensor, nn

import citrus.attacks.universal as universal
from citrus.attacks import Ascent, universal_pgd
from citrus.attacks.pgd import uniform
from citrus.errors import CitrusError
from citrus.methods import CWUAT, UAT, Batch
from citrus.networks import Trace, fold, trace
from citrus.training import Trainer

VARIANTS = ("alternating", "low-cost")
every_variant = pytest.mark.parametrize("variant", VARIANTS)
both_methods = pytest.mark.parametrize("kind", [UAT, CWUAT])
clip_or_not = pytest.mark.parametrize("clip", [False, True])


def batch_for(method: UAT, traced: Trace, clip: bool = False, eps: float = EPS) -> Batch:
    batch = make_batch(traced, clip=clip, eps=eps)
    return replace(batch, state=method.initial_state(batch.graph))


def train_step(method: UAT, batch: Batch) -> Tensor:
    """What the loop does with a loss, without changing the weights."""
    loss = method.loss(batch).loss
    loss.backward(retain_graph=True)
    return loss.detach()


# ---------------------------------------------------------------------------------------------- steps by hand

WEIGHT = np.array([[1.0, -2.0], [-1.5, 0.5], [0.5, 3.0]])
IMAGES = np.array([[0.2, 0.7], [0.9, 0.4], [0.6, 0.1], [0.3, 0.3]])
LABELS = np.array([0, 2, 2, 0])


def linear_batch(method: UAT) -> Batch:
    layer = nn.Linear(2, 3, bias=False)
    traced = trace(nn.Sequential(nn.Flatten(), layer), (1, 1, 2))
    layer.double()
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(WEIGHT))
    images, labels = torch.from_numpy(IMAGES).view(4, 1, 1, 2), torch.from_numpy(LABELS)
    graph = fold(traced)
    return Batch(images, labels, images.new_zeros(()), graph, EPS, False, state=method.initial_state(graph))


def by_hand(perturbations: int, step: float, limit: float, steps: int) -> tuple[list[np.ndarray], list[float]]:
    """Perturbations and mean losses from the gradient of cross-entropy, sum over j of (p_j - [j = y]) w_j."""
    owner = LABELS if perturbations == 3 else np.zeros(4, dtype=int)
    delta = np.zeros((perturbations, 2))
    deltas, means = [delta.copy()], []
    for now in range(steps + 1):
        gradient, losses = np.zeros_like(delta), []
        for x, y, unit in zip(IMAGES, LABELS, owner, strict=True):
            scores = WEIGHT @ (x + delta[unit])
            p = np.exp(scores) / np.exp(scores).sum()
            losses.append(-math.log(p[y]))
            if losses[-1] < limit:
                gradient[unit] += sum((p[j] - (j == y)) * WEIGHT[j] for j in range(3))
        means.append(float(np.mean(losses)))
        if now < steps:
            delta = np.clip(delta + step * EPS * np.sign(gradient), -EPS, EPS)
            deltas.append(delta.copy())
    return deltas, means


@both_methods
@every_variant
@pytest.mark.parametrize("limit", [9.0, 1.0])
def test_five_steps_by_hand(kind: type[UAT], variant: str, limit: float) -> None:
    method = kind(variant=variant, step_size=0.3, limit=limit)  # type: ignore[arg-type]
    batch = linear_batch(method)
    count = len(batch.state["delta"])
    assert count == (1 if kind is UAT else 3)
    deltas, means = by_hand(count, 0.3, limit, 5)
    for step in range(5):
        loss = train_step(method, batch)
        assert loss.item() == pytest.approx(means[step + (variant == "alternating")], rel=1e-12)
        np.testing.assert_allclose(batch.state["delta"].view(count, 2).numpy(), deltas[step + 1], atol=1e-15)


def test_the_limit_matters_in_the_test_above() -> None:
    for count in (1, 3):
        assert not np.array_equal(by_hand(count, 0.3, 9.0, 5)[0][-1], by_hand(count, 0.3, 1.0, 5)[0][-1])


# -------------------------------------------------------------------------------- one batch repeated is an attack


class Recorder:
    """A model that remembers what it was asked."""

    def __init__(self, batch: Batch) -> None:
        self.model, self.inputs = batch.frozen(), list[Tensor]()

    def __call__(self, x: Tensor) -> Tensor:
        self.inputs.append(x.detach().clone())
        return self.model(x)


@every_variant
def test_one_batch_repeated_is_universal_pgd(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same start, same clipped cross-entropy, same steps: the same iterates."""
    _, traced = make_network()
    method = UAT(variant=variant, step_size=0.2, limit=2.0)  # type: ignore[arg-type]
    batch = batch_for(method, traced)
    monkeypatch.setattr(universal, "LOSSES", (universal.clipped_cross_entropy(2.0),))
    recorder, groups = Recorder(batch), torch.zeros(len(batch.images), dtype=torch.long)
    settings = Ascent(steps=12, step_size=0.2, decay_at=())
    result = universal_pgd(
        recorder, batch.images, batch.labels, groups, EPS, settings, torch.Generator().manual_seed(5)
    )

    start = uniform((1, *SHAPE), EPS, batch.images, torch.Generator().manual_seed(5))
    batch.state["delta"].copy_(start)
    trained = [start]
    for _ in range(12):
        train_step(method, batch)
        trained.append(batch.state["delta"].clone())
    for delta, asked in zip(trained, recorder.inputs[:13], strict=True):
        torch.testing.assert_close(batch.images + delta, asked, rtol=0, atol=1e-12)
    assert min((delta - result.delta).abs().max() for delta in trained) < 1e-12, "the attack's answer is one of them"
    losses = [F.cross_entropy(recorder.model(batch.images + d), batch.labels).item() for d in trained]
    assert losses[-1] > losses[0]


# ------------------------------------------------------------------------------------------------ its two variants


@both_methods
@clip_or_not
def test_the_variants_differ_only_in_when_the_weights_meet_the_new_delta(kind: type[UAT], clip: bool) -> None:
    network, traced = make_network()
    results = {}
    for variant in VARIANTS:
        method = kind(variant=variant, limit=1.5)  # type: ignore[arg-type]
        batch = batch_for(method, traced, clip)
        batch.state["delta"].copy_(uniform(tuple(batch.state["delta"].shape), EPS, batch.images, batch.generator))
        before = batch.state["delta"].clone()
        loss = method.loss(batch).loss
        assert torch.equal(batch.state["delta"], before) == (variant == "low-cost")
        found = gradients(network, loss)
        loss.backward(retain_graph=True)
        results[variant] = (before, batch.state["delta"].clone(), loss.detach(), found)
    old, new = results["low-cost"][:2]
    assert torch.equal(new, results["alternating"][1])
    assert not torch.equal(new, old)
    for variant, delta in (("low-cost", old), ("alternating", new)):
        batch = make_batch(traced, clip=clip)
        x = batch.images + (delta[batch.labels] if kind is CWUAT else delta)
        expected = F.cross_entropy(batch.graph(x.clamp(0, 1) if clip else x), batch.labels)
        torch.testing.assert_close(results[variant][2], expected.detach())
        for a, b in zip(results[variant][3], gradients(network, expected), strict=True):
            torch.testing.assert_close(a, b)


@both_methods
def test_the_low_cost_variant_evaluates_the_network_once(kind: type[UAT], monkeypatch: pytest.MonkeyPatch) -> None:
    from citrus.networks.operations import Relu

    calls: list[int] = []
    relu = Relu.__call__
    monkeypatch.setattr(Relu, "__call__", lambda op, x: calls.append(1) or relu(op, x))
    _, traced = make_network()
    for variant, passes in (("low-cost", 1), ("alternating", 2)):
        method = kind(variant=variant)  # type: ignore[arg-type]
        batch = batch_for(method, traced)
        calls.clear()
        train_step(method, batch)
        assert len(calls) == 2 * passes


@both_methods
@every_variant
def test_the_weights_get_the_gradient_of_every_image_also_beyond_the_limit(kind: type[UAT], variant: str) -> None:
    """Clipping is the perturbation's business: with a limit below all losses it stays, and the weights learn on."""
    network, traced = make_network()
    method = kind(variant=variant, limit=1e-9)  # type: ignore[arg-type]
    batch = batch_for(method, traced)
    loss = method.loss(batch).loss
    torch.testing.assert_close(loss, batch.clean_loss)
    for a, b in zip(gradients(network, loss), gradients(network, batch.clean_loss), strict=True):
        torch.testing.assert_close(a, b)
    loss.backward()
    assert not batch.state["delta"].any()


# --------------------------------------------------------------------------------------------------- their radius


@both_methods
@every_variant
@clip_or_not
def test_delta_never_leaves_its_box_and_climbs_as_eps_grows(kind: type[UAT], variant: str, clip: bool) -> None:
    _, traced = make_network(dtype=torch.float32)
    method = kind(variant=variant, step_size=0.7)  # type: ignore[arg-type]
    batch = batch_for(method, traced, clip)
    for eps in (0.01, 0.02, 0.05, EPS, EPS, EPS):
        scalar = torch.tensor(eps, dtype=torch.float64)
        train_step(method, replace(batch, eps=scalar))
        delta = batch.state["delta"]
        assert delta.dtype == torch.float32
        assert delta.abs().max() <= eps * (1 + 1e-6)
        assert delta.abs().max() > 0.6 * eps


@both_methods
@every_variant
def test_a_delta_from_a_larger_radius_is_projected_first(kind: type[UAT], variant: str) -> None:
    _, traced = make_network()
    method = kind(variant=variant)  # type: ignore[arg-type]
    losses = []
    for scale in (1.0, 10.0):
        batch = batch_for(method, traced)
        corners = uniform(tuple(batch.state["delta"].shape), 1.0, batch.images, torch.Generator().manual_seed(1)).sign()
        batch.state["delta"].copy_(scale * EPS * corners)
        losses.append(train_step(method, batch))
    assert torch.equal(*losses)


# ---------------------------------------------------------------------------------------------------- class by class


@every_variant
def test_each_class_trains_its_own_uat(variant: str) -> None:
    _, traced = make_network()
    together = CWUAT(variant=variant, limit=2.5)  # type: ignore[arg-type]
    batch = batch_for(together, traced)
    alone = UAT(variant=variant, limit=2.5)  # type: ignore[arg-type]
    deltas = [alone.initial_state(batch.graph) for _ in range(CLASSES)]
    for _ in range(3):
        loss, total = train_step(together, batch), 0.0
        for label in batch.labels.unique().tolist():
            mine = batch.labels == label
            part = replace(batch, images=batch.images[mine], labels=batch.labels[mine], state=deltas[label])
            total += train_step(alone, part).item() * int(mine.sum())
        assert loss.item() == pytest.approx(total / len(batch.images), rel=1e-12)
        for label in range(CLASSES):
            torch.testing.assert_close(batch.state["delta"][label], deltas[label]["delta"][0], rtol=0, atol=1e-15)


@every_variant
def test_classes_that_a_batch_lacks_keep_their_delta(variant: str) -> None:
    _, traced = make_network()
    method = CWUAT(variant=variant)  # type: ignore[arg-type]
    batch = batch_for(method, traced)
    batch = replace(batch, labels=torch.tensor([3, 1, 1, 3, 3, 1]))
    batch.state["delta"].copy_(uniform((CLASSES, *SHAPE), EPS, batch.images, torch.Generator().manual_seed(2)))
    before = batch.state["delta"].clone()
    train_step(method, batch)
    for label in range(CLASSES):
        assert torch.equal(before[label], batch.state["delta"][label]) == (label in (0, 2))


@both_methods
@every_variant
def test_the_order_of_the_batch_does_not_matter(kind: type[UAT], variant: str) -> None:
    _, traced = make_network()
    results = []
    for order in (torch.arange(6), torch.tensor([3, 5, 0, 1, 4, 2])):
        method = kind(variant=variant)  # type: ignore[arg-type]
        batch = batch_for(method, traced)
        batch = replace(batch, images=batch.images[order], labels=batch.labels[order])
        results.append([(train_step(method, batch), batch.state["delta"].clone()) for _ in range(3)])
    for (loss, delta), (other, moved) in zip(*results, strict=True):
        torch.testing.assert_close(loss, other, rtol=1e-12, atol=0)
        torch.testing.assert_close(delta, moved, rtol=0, atol=1e-15)


# --------------------------------------------------------------------------------------------------------- in the loop


@both_methods
@every_variant
def test_the_loop_moves_delta_and_a_checkpoint_carries_it_on(kind: type[UAT], variant: str) -> None:
    settings = config(method=kind(variant=variant))  # type: ignore[arg-type]
    whole, first, second = (Trainer(settings, splits()) for _ in range(3))
    list(whole.epochs())
    list(islice(first.steps(), 9))
    tensors, header = first.state()
    second.restore({k: v.clone() for k, v in tensors.items()}, header)
    list(second.epochs())
    (early,), (end,), (again,) = (
        [v for k, v in t.items() if k.endswith("delta")] for t in (tensors, whole.state()[0], second.state()[0])
    )
    assert torch.equal(end, again)
    assert not torch.equal(early, end)
    assert 0 < early.abs().max() < 0.05, "still on the ramp"
    assert end.abs().max() == pytest.approx(0.05)


# ------------------------------------------------------------------------------------------------------- bad input


@both_methods
@pytest.mark.parametrize("settings", [{"step_size": 0.0}, {"step_size": -1.0}, {"limit": 0.0}, {"limit": -3.0}])
def test_bad_settings_are_refused(kind: type[UAT], settings: dict[str, float]) -> None:
    ((name, value),) = settings.items()
    with pytest.raises(CitrusError, match=rf"{name} must be larger than 0, got {value}\.$"):
        kind(**settings).check(10)  # type: ignore[arg-type]


@both_methods
@pytest.mark.parametrize("settings", [{"step_size": math.nan}, {"step_size": math.inf}, {"limit": math.nan}])
def test_numbers_that_are_none_are_refused(kind: type[UAT], settings: dict[str, float]) -> None:
    with pytest.raises(CitrusError):
        kind(**settings).check(10)  # type: ignore[arg-type]
