"""What every training method must do. What each of them is by its own formula: test_sabr.py and test_citrus.py."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from steps import EPS, FEW_STEPS, SHAPE, STD, BoxSpy, gradients, make_batch, make_network, random
from steps import one_thread as one_thread

from citrus.bounds import margin_loss
from citrus.errors import CitrusError
from citrus.methods import IBP, METHODS, SABR, AnyMethod, Citrus, CitrusSI, Standard
from citrus.networks import trace
from citrus.training.loop import regularizer

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
}
BOUNDING = [name for name, method in CASES.items() if method.certified]
every_case = pytest.mark.parametrize("name", CASES)
bounding_case = pytest.mark.parametrize("name", BOUNDING)


def test_every_method_is_under_contract() -> None:
    assert {method.name for method in CASES.values()} == set(METHODS)
    assert all(METHODS[method.name] is type(method) for method in CASES.values())


@every_case
@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("clip", [False, True])
def test_loss_and_gradient_are_finite(name: str, batch_norm: bool, dtype: torch.dtype, clip: bool) -> None:
    network, traced = make_network(batch_norm, dtype)
    batch = make_batch(traced, clip=clip)
    CASES[name].check(len(batch.images))
    result = CASES[name].loss(batch)
    assert result.loss.shape == ()
    assert result.loss.dtype == dtype
    assert result.loss.isfinite()
    found = gradients(network, result.loss)
    assert all(g.isfinite().all() for g in found)
    assert all(g.abs().sum() > 0 for g in (found[0], found[-1]))
    if result.boxes is not None:
        assert regularizer(result.boxes, STD).isfinite()


@every_case
@pytest.mark.parametrize("clip", [False, True])
def test_a_tiny_eps_gives_the_clean_loss(name: str, clip: bool) -> None:
    network, traced = make_network()
    batch = make_batch(traced, eps=1e-7, clip=clip)
    loss = CASES[name].loss(batch).loss
    torch.testing.assert_close(loss, batch.clean_loss, rtol=0, atol=1e-4)
    assert loss >= batch.clean_loss - 1e-4
    for a, b in zip(gradients(network, loss), gradients(network, batch.clean_loss), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", [name for name in BOUNDING if "shrink" not in name])
@pytest.mark.parametrize("clip", [False, True])
def test_a_box_loss_is_at_least_the_loss_anywhere_in_the_box(
    name: str, clip: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, traced = make_network()
    batch = make_batch(traced, clip=clip)
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
    assert torch.cat(bounded).min() - 1e-9 <= losses <= torch.cat(bounded).max() + 1e-9


@every_case
def test_boxes_stay_within_eps_of_some_image(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, traced = make_network()
    batch = make_batch(traced)
    spy = BoxSpy(monkeypatch)
    CASES[name].loss(batch)
    for lower, upper in zip(spy.lower, spy.upper, strict=True):
        copies = batch.images.repeat_interleave(len(lower) // 6, 0)
        assert (lower >= copies - EPS - 1e-9).all()
        assert (upper <= copies + EPS + 1e-9).all()


@every_case
def test_the_generator_decides_everything(name: str) -> None:
    _, traced = make_network()
    first, again, other = (CASES[name].loss(make_batch(traced, seed=seed)).loss for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (name in ("standard", "ibp"))


@every_case
def test_nothing_is_changed_on_the_way(name: str) -> None:
    network, traced = make_network()
    batch = make_batch(traced)
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
    kept = CASES[name].loss(make_batch(traced, clip=clip))
    assert kept.boxes is not None
    assert [tuple(box.radius.shape[1:]) for box in kept.boxes.pre_activations] == [(4, 3, 3), (6,)]
    assert all((box.radius >= 0).all() for box in kept.boxes.pre_activations)
    radius = (torch.cat(spy.upper) - torch.cat(spy.lower)) / 2
    torch.testing.assert_close(kept.boxes.input_radius, radius.mean((0, 2, 3)))
    plain = CASES[name].loss(replace(make_batch(traced, clip=clip), keep_boxes=False))
    assert plain.boxes is None
    assert torch.equal(kept.loss, plain.loss)


@bounding_case
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_chunks_change_nothing_but_memory(name: str, clip: bool, keep: bool) -> None:
    network, traced = make_network(dtype=torch.float32)
    whole, pieces = (
        CASES[name].loss(replace(make_batch(traced, clip=clip), keep_boxes=keep, max_boxes=m)) for m in (10**6, 4)
    )
    compared = [(whole.loss, pieces.loss)]
    if keep:
        assert whole.boxes
        assert pieces.boxes
        torch.testing.assert_close(whole.boxes.input_radius, pieces.boxes.input_radius)
        compared.append((regularizer(whole.boxes, STD), regularizer(pieces.boxes, STD)))
    for a, b in compared:
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
        for x, y in zip(gradients(network, a), gradients(network, b), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)


def test_a_float64_network_is_traced() -> None:
    network = make_network()[0]
    assert len(trace(network, SHAPE).steps) == len(network)


BAD: list[tuple[AnyMethod, int, str]] = [
    *((kind(tau_ratio=tau), 10, str(tau)) for kind in (SABR, Citrus, CitrusSI) for tau in (1.01, -0.1, math.nan)),
    *((SABR(shrink=shrink), 10, f"shrink .* {shrink}") for shrink in (0, -1, 1.1, math.nan)),
    *((kind(group_size=6), 5, "group_size 6 is larger than batch_size 5") for kind in (Citrus, CitrusSI)),
    *((kind(group_size=4), 10, "batch_size 10 is no multiple of group_size 4") for kind in (Citrus, CitrusSI)),
    *((Citrus(group_size=size), 10, "at least 2 images") for size in (1, -5)),
    (Citrus(group_size=0), 1, "at least 2 images"),
    *((Citrus(group_size=5, partners=b), 10, f"0 .* to 4 partners, got {b}") for b in (5, 6, -1)),
    (Citrus(group_size=0, partners=10), 10, "to 9 partners, got 10"),
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
