"""What every training method must do. What each of them is by its own formula: test_sabr.py and test_citrus.py."""

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.steps import EPS, FEW_STEPS, SHAPE, STD, BoxSpy, gradients, make_batch, make_network, random
from support.steps import one_thread as one_thread
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from citrus.attacks import Ascent
from citrus.bounds import margin_loss
from citrus.errors import CitrusError
from citrus.methods import (
    CCIBP,
    CWUAT,
    IBP,
    METHODS,
    MTLIBP,
    PGD,
    SABR,
    STAPS,
    TAPS,
    UAT,
    AnyMethod,
    Batch,
    Citrus,
    CitrusSI,
    Colt,
    CrownIBP,
    ExpIBP,
    Shared,
    Standard,
)
from citrus.methods.expressive import Expressive
from citrus.networks import Trace, fold, trace
from citrus.training.step import regularizer

TO_CORNERS = Ascent(steps=3, step_size=0.8, decay_at=())
CASES: dict[str, AnyMethod] = {
    "standard": Standard(),
    "ibp": IBP(),
    "sabr": SABR(tau_ratio=0.4, attack=FEW_STEPS),
    "sabr-shrink": SABR(tau_ratio=0.1, shrink=0.8, attack=FEW_STEPS),
    "sabr-pgd": SABR(tau_ratio=0.0, attack=FEW_STEPS),
    "citrus": Citrus(tau_ratio=0.4, group_size=3, attack=FEW_STEPS),
    "citrus-sampled": Citrus(tau_ratio=0.6, group_size=0, partners=2, attack=FEW_STEPS),
    "citrus_si": CitrusSI(tau_ratio=0.4, group_size=3, attack=FEW_STEPS),
    "citrus_si-sampled": CitrusSI(tau_ratio=0.4, group_size=0, partners=1, attack=FEW_STEPS),
    "citrus_si-k3": CitrusSI(tau_ratio=0.4, group_size=3, k=3, attack=FEW_STEPS),
    "citrus-k3": Citrus(tau_ratio=0.4, group_size=3, k=3, attack=FEW_STEPS),
    "citrus-k3-sampled": Citrus(tau_ratio=0.4, group_size=0, k=3, partners=2, attack=FEW_STEPS),
    "citrus-own": Citrus(tau_ratio=0.4, group_size=3, own=0.5, attack=FEW_STEPS),
    "citrus-linear": Citrus(tau_ratio=0.4, group_size=3, linear=0.3, attack=FEW_STEPS),
    "mtl_ibp": MTLIBP(alpha=0.3, attack=FEW_STEPS),
    "mtl_ibp-wide-attack": MTLIBP(alpha=0.1, attack_factor=2.0),
    "cc_ibp": CCIBP(alpha=0.3, attack=FEW_STEPS),
    "exp_ibp": ExpIBP(alpha=0.3, attack=FEW_STEPS),
    "pgd": PGD(attack=FEW_STEPS),
    "pgd-one-step": PGD(attack=Ascent(steps=1, step_size=2.0, decay_at=(), keep="last")),
    "uat": UAT(),
    "uat-low-cost": UAT(variant="low-cost"),
    "cw_uat": CWUAT(),
    "cw_uat-low-cost": CWUAT(variant="low-cost"),
    "shared": Shared(heap_size=3, attack=FEW_STEPS),
    "shared-one-heap": Shared(heap_size=0),
    "colt": Colt(attack=FEW_STEPS),
    "colt-one-stage": Colt(stages=1, mix=0.0, attack=FEW_STEPS),
    "taps": TAPS(latent_attack=TO_CORNERS),
    "staps": STAPS(tau_ratio=0.4, attack=FEW_STEPS, latent_attack=TO_CORNERS),
    "staps-shrink": STAPS(tau_ratio=0.2, shrink=0.8, attack=FEW_STEPS, latent_attack=TO_CORNERS),
    "crown_ibp": CrownIBP(),
    "crown_ibp-linear": CrownIBP(crown_end=0.7),
    "crown_ibp-margins": CrownIBP(crown_end=1.0, fused=False),
}
BOUNDING = [name for name, method in CASES.items() if method.certified]
every_case = pytest.mark.parametrize("name", CASES)
bounding_case = pytest.mark.parametrize("name", BOUNDING)


def batch_of(name: str, traced: Trace, **settings: Any) -> Batch:
    """A step of a method with the state that it starts from."""
    batch = make_batch(traced, **settings)
    return replace(batch, state=CASES[name].initial_state(batch.graph))


def clean_loss_of(method: AnyMethod, batch: Batch) -> Tensor:
    """What a method says of unperturbed images: the cross-entropy, for TAPS times itself with its gradient scaled."""
    clean = batch.clean_loss
    if isinstance(method, TAPS):
        return clean * (clean.detach() + method.gradient_scale * (clean - clean.detach()))
    return clean


def mixes_in_smaller_losses(method: AnyMethod) -> bool:
    """Of a point, or of a tighter bound, so that the loss may lie below that of every interval box."""
    return isinstance(method, Expressive | TAPS | CrownIBP)


def test_every_method_is_under_contract() -> None:
    assert {method.name for method in CASES.values()} == set(METHODS)
    assert all(METHODS[method.name] is type(method) for method in CASES.values())


@every_case
@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("clip", [False, True])
def test_loss_and_gradient_are_finite(name: str, batch_norm: bool, dtype: torch.dtype, clip: bool) -> None:
    network, traced = make_network(batch_norm, dtype)
    batch = batch_of(name, traced, clip=clip)
    CASES[name].check(len(batch.images))
    result = CASES[name].loss(batch)
    assert result.loss.shape == ()
    assert result.loss.dtype == dtype
    assert result.loss.isfinite()
    found = gradients(network, result.loss)
    assert all(g.isfinite().all() for g in found)
    assert all(g.abs().sum() > 0 for g in (found[0], found[-1]))
    if result.boxes is not None:
        assert regularizer(result.boxes, torch.tensor(STD)).isfinite()


@every_case
@pytest.mark.parametrize("clip", [False, True])
def test_a_tiny_eps_gives_the_clean_loss(name: str, clip: bool) -> None:
    network, traced = make_network()
    batch = batch_of(name, traced, eps=1e-7, clip=clip)
    loss = CASES[name].loss(batch).loss
    clean = clean_loss_of(CASES[name], batch)
    torch.testing.assert_close(loss, clean, rtol=0, atol=1e-4)
    assert loss >= clean - 1e-4
    for a, b in zip(gradients(network, loss), gradients(network, clean), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", [name for name in BOUNDING if "shrink" not in name])
@pytest.mark.parametrize("clip", [False, True])
def test_a_box_loss_is_at_least_the_loss_anywhere_in_the_box(
    name: str, clip: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, traced = make_network()
    batch = batch_of(name, traced, clip=clip)
    spy = BoxSpy(monkeypatch)
    losses = CASES[name].loss(batch).loss
    bounded = []
    for lower, upper, (spec, worst) in zip(spy.lower, spy.upper, spy.asked, strict=True):
        bounded.append(margin_loss(worst))
        for seed in range(100):
            share = random(*lower.shape, seed=seed)
            share = share.round() if seed % 2 else share  # corners, too
            margin = torch.einsum("brc,bc->br", spec, batch.graph(lower + share * (upper - lower)))
            assert (margin >= worst - 1e-9).all()
            assert (margin_loss(margin) <= bounded[-1] + 1e-9).all()
    losses = losses.sqrt() if isinstance(CASES[name], TAPS) else losses  # a product of two losses
    assert losses <= torch.cat(bounded).max() + 1e-9
    if not mixes_in_smaller_losses(CASES[name]):
        assert losses >= torch.cat(bounded).min() - 1e-9


@every_case
def test_boxes_stay_within_eps_of_some_image(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, traced = make_network()
    batch = batch_of(name, traced)
    spy = BoxSpy(monkeypatch)
    CASES[name].loss(batch)
    for lower, upper in zip(spy.lower, spy.upper, strict=True):
        copies = batch.images.repeat_interleave(len(lower) // 6, 0)
        assert (lower >= copies - EPS - 1e-9).all()
        assert (upper <= copies + EPS + 1e-9).all()


@every_case
def test_the_generator_decides_everything(name: str) -> None:
    _, traced = make_network()
    first, again, other = (CASES[name].loss(batch_of(name, traced, seed=seed)).loss for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert torch.equal(first, other) == isinstance(CASES[name], Standard | IBP | UAT | CrownIBP)


@every_case
@pytest.mark.parametrize("ramping", [False, True])
def test_a_loss_never_asks_for_a_value(name: str, ramping: bool) -> None:
    """A GPU records the step: here tensors have no values, so looking at one or letting a shape depend on it fails."""
    method = CASES[name]
    network, traced = make_network(batch_norm=not isinstance(method, Colt), dtype=torch.float32)
    plain = batch_of(name, traced)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        images, labels = mode.from_tensor(plain.images), mode.from_tensor(plain.labels)
        logits, statistics = traced.forward_with_statistics(images)
        eps, ramp = (mode.from_tensor(torch.tensor(v, dtype=torch.float64)) for v in (EPS, 0.5))
        clean = torch.nn.functional.cross_entropy(logits, labels)
        batch = replace(plain, images=images, labels=labels, clean_loss=clean, graph=fold(traced, statistics))
        state = {k: mode.from_tensor(v) for k, v in plain.state.items()}
        batch = replace(batch, eps=eps, ramp=ramp, ramping=ramping, max_boxes=4, state=state)
        loss = method.loss(batch).loss
        assert (loss.shape, loss.dtype) == ((), torch.float32)
        gradients(network, loss)


@every_case
def test_nothing_is_changed_on_the_way(name: str) -> None:
    network, traced = make_network()
    batch = batch_of(name, traced)
    before = copy.deepcopy((batch.images, batch.labels, network.state_dict()))
    state = torch.get_rng_state()
    CASES[name].loss(batch)
    assert torch.equal(batch.images, before[0])
    assert torch.equal(batch.labels, before[1])
    assert all(torch.equal(value, before[2][key]) for key, value in network.state_dict().items())
    assert all(p.grad is None for p in network.parameters())
    assert network.training
    assert torch.equal(torch.get_rng_state(), state), "only the given generator is used"


@bounding_case
@pytest.mark.parametrize("clip", [False, True])
def test_boxes_are_reported_to_the_regularisers_or_not_kept(
    name: str, clip: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, traced = make_network()
    spy = BoxSpy(monkeypatch)
    kept = CASES[name].loss(batch_of(name, traced, clip=clip))
    assert kept.boxes is not None
    assert [tuple(box.radius.shape[1:]) for box in kept.boxes.pre_activations] == [(4, 3, 3), (6,)]
    assert all((box.radius >= 0).all() for box in kept.boxes.pre_activations)
    radius = (torch.cat(spy.upper) - torch.cat(spy.lower)) / 2
    whole = 6 if getattr(CASES[name], "linear", 0) else 0  # the boxes of linear bounds, one per image, come last
    torch.testing.assert_close(kept.boxes.input_radius, radius[: len(radius) - whole].mean((0, 2, 3)))
    plain = CASES[name].loss(replace(batch_of(name, traced, clip=clip), keep_boxes=False))
    assert plain.boxes is None
    assert torch.equal(kept.loss, plain.loss)


@bounding_case
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_chunks_change_nothing_but_memory(name: str, clip: bool, keep: bool) -> None:
    network, traced = make_network(dtype=torch.float32)
    whole, pieces = (
        CASES[name].loss(replace(batch_of(name, traced, clip=clip), keep_boxes=keep, max_boxes=m)) for m in (10**6, 4)
    )
    compared = [(whole.loss, pieces.loss)]
    if keep:
        assert whole.boxes
        assert pieces.boxes
        torch.testing.assert_close(whole.boxes.input_radius, pieces.boxes.input_radius)
        compared.append((regularizer(whole.boxes, torch.tensor(STD)), regularizer(pieces.boxes, torch.tensor(STD))))
    for a, b in compared:
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
        expected = gradients(network, a)
        tolerance = 1e-6 * max(1.0, *(x.abs().max().item() for x in expected))
        for x, y in zip(expected, gradients(network, b), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-5, atol=tolerance)


def test_a_float64_network_is_traced() -> None:
    network = make_network()[0]
    assert len(trace(network, SHAPE).layers) == len(network)


BAD: list[tuple[AnyMethod, int, str]] = [
    *((kind(tau_ratio=tau), 10, str(tau)) for kind in (SABR, Citrus, CitrusSI) for tau in (1.01, -0.1, math.nan)),
    *((SABR(shrink=shrink), 10, f"shrink .* {shrink}") for shrink in (0, -1, 1.1, math.nan)),
    *((kind(group_size=6), 5, "group_size 6 is larger than batch_size 5") for kind in (Citrus, CitrusSI)),
    *((kind(group_size=4), 10, "batch_size 10 is no multiple of group_size 4") for kind in (Citrus, CitrusSI)),
    *((Citrus(group_size=size), 10, "at least 2 images") for size in (1, -5)),
    (Citrus(group_size=0), 1, "at least 2 images"),
    *((Citrus(group_size=5, partners=b), 10, f"0 .* to 4 partners, got {b}") for b in (5, 6, -1)),
    (Citrus(group_size=0, partners=10), 10, "to 9 partners, got 10"),
    *((kind(shrink=1.1), 10, "shrink .* 1.1") for kind in (TAPS, STAPS)),
    *((kind(classifier_relus=-1), 10, "classifier_relus .* got -1") for kind in (TAPS, STAPS)),
    *((TAPS(gradient_scale=scale), 10, f"gradient_scale .* {scale}") for scale in (0.0, -1.0, math.nan, math.inf)),
    *((TAPS(slack=slack), 10, f"slack .* {slack}") for slack in (0.0, -1.0, 1.1, math.nan)),
    *((STAPS(tau_ratio=tau), 10, str(tau)) for tau in (1.01, -0.1, math.nan)),
]


@pytest.mark.parametrize(("method", "batch_size", "says"), BAD)
def test_settings_that_do_not_fit_are_refused_in_one_sentence(method: AnyMethod, batch_size: int, says: str) -> None:
    with pytest.raises(CitrusError, match=says) as caught:
        method.check(batch_size)
    message = str(caught.value)
    assert message.endswith(".")
    assert ". " not in message


GOOD = [SABR(tau_ratio=0), SABR(tau_ratio=1), Citrus(group_size=10), Citrus(group_size=2), Citrus(partners=4)]


@pytest.mark.parametrize("method", [*GOOD, Citrus(group_size=0, partners=9), *CASES.values()])
def test_settings_at_the_edge_are_accepted(method: AnyMethod) -> None:
    method.check(30 if method in CASES.values() else 10)
