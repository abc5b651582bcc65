"""One perturbation for a whole data set: known optima, what it starts from is never made worse, and any size goes."""

import pytest
import torch
from support.helpers import SHAPE, images
from torch import Tensor, nn

from citrus.attacks import Ascent, attack_all, fooled, universal_pgd, whole

BRIEF = Ascent(steps=10, restarts=3)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a hundred images were many."""
    monkeypatch.setattr(whole, "CHUNK", 30)
    monkeypatch.setattr(whole, "BATCH", 20)
    monkeypatch.setattr(whole, "POLISHED", 50)


def counted(model: nn.Module, x: Tensor, labels: Tensor, delta: Tensor) -> int:
    with torch.no_grad():
        return int(fooled(model(x + delta), labels).sum())


def linear(classes: int = 2, seed: int = 0) -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, classes, bias=False))
    model[1].weight.data = torch.randn(classes, 72, generator=seeded(seed))
    return model


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("count", [1, 15, 25, 107])
def test_it_stays_in_the_box_and_is_deterministic(network: nn.Module, count: int) -> None:
    x = images(count)
    labels = network(x).argmax(1)
    starts = [torch.full(SHAPE, 7.0)]  # far outside
    runs = [attack_all(network, x, labels, 0.06, BRIEF, seeded(s), starts) for s in (3, 3)]
    assert runs[0].shape == SHAPE
    assert not runs[0].requires_grad
    assert runs[0].abs().max() <= 0.06
    assert torch.equal(runs[0], runs[1])


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("steps", [0, 10])
def test_starts_are_never_made_worse(network: nn.Module, steps: int) -> None:
    x = images(107)
    labels = network(x).argmax(1)
    strong = attack_all(network, x, labels, 0.06, Ascent(steps=40, restarts=4), seeded())
    starts = [0.06 * torch.ones(SHAPE), strong, torch.zeros(SHAPE)]
    found = counted(network, x, labels, attack_all(network, x, labels, 0.06, Ascent(steps=steps), seeded(), starts))
    assert found >= max(counted(network, x, labels, start) for start in starts) > 0


@pytest.mark.parametrize("many", [False, True])
def test_the_best_shared_perturbation_of_a_linear_model(many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two classes, all images of the first: eps * sign(w1 - w0) takes as much from every margin as can be taken."""
    if many:
        for name, size in (("CHUNK", 30), ("BATCH", 20), ("POLISHED", 50)):
            monkeypatch.setattr(whole, name, size)
    model, x = linear(), images(400)
    x = x[model(x).argmax(1) == 0][:100]
    labels = torch.zeros(len(x), dtype=torch.int64)
    away = model[1].weight.data[1] - model[1].weight.data[0]
    with torch.no_grad():
        gap = -(model(x) @ torch.tensor([-1.0, 1.0])) / away.abs().sum()
    order = gap.sort().values
    half = len(x) // 2
    eps = float((order[half - 1] + order[half]) / 2)
    found = attack_all(model, x, labels, eps, Ascent(steps=40, restarts=2), seeded())
    assert counted(model, x, labels, found) == half
    assert counted(model, x, labels, eps * away.sign().view(SHAPE)) == half


def test_a_batch_of_all_images_is_a_full_batch(network: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums chunk by chunk have the gradient of the sum, and a batch that holds all images is all of them, in order."""
    x = images(40).double()
    labels, plain = torch.arange(40) % 3, network.double()
    among, delta = whole._Images(plain, x, labels), 0.01 * torch.ones(1, *SHAPE, dtype=torch.float64)
    delta.requires_grad_()
    (expected,) = torch.autograd.grad(whole.LOSSES[0](plain(x + delta), labels).sum(), delta)
    monkeypatch.setattr(whole, "CHUNK", 7)
    loss, wrong = whole._batches(among, seeded())().pull(delta, whole.LOSSES[0])
    torch.testing.assert_close(torch.autograd.grad(loss.sum(), delta)[0], expected)
    torch.testing.assert_close(loss[0], whole.LOSSES[0](plain(x + delta), labels).sum())
    assert int(wrong) == int(fooled(plain(x + delta), labels).sum())
    network.float()


def test_every_image_is_in_a_batch_once_before_one_comes_again(network: nn.Module, small_batches: None) -> None:
    among = whole._Images(network, torch.arange(60.0)[:, None], torch.zeros(60, dtype=torch.int64))
    batch = whole._batches(among, seeded())
    for _ in range(2):
        seen = torch.cat([batch().images.flatten() for _ in range(3)])
        assert sorted(seen.tolist()) == list(range(60))


def test_memory_holds_a_chunk(network: nn.Module, small_batches: None) -> None:
    sizes = list[int]()

    def model(x: Tensor) -> Tensor:
        sizes.append(len(x))
        return network(x)

    x = images(107)
    attack_all(model, x, network(x).argmax(1), 0.05, BRIEF, seeded())
    assert max(sizes) <= 30


def test_a_small_set_is_attacked_no_less_than_a_group(network: nn.Module) -> None:
    x = images(60, seed=2)
    labels = network(x).argmax(1)
    group = universal_pgd(network, x, labels, torch.zeros_like(labels), 0.06, BRIEF, seeded()).fooled.sum()
    assert counted(network, x, labels, attack_all(network, x, labels, 0.06, BRIEF, seeded())) >= int(group) > 0


@pytest.mark.usefixtures("small_batches")
def test_images_that_are_fooled_already(network: nn.Module) -> None:
    x = images(50)
    labels = (network(x).argmax(1) + 1) % 3
    delta = attack_all(network, x, labels, 1e-6, BRIEF, seeded())
    assert counted(network, x, labels, delta) == 50
    assert delta.abs().max() <= 1e-6
