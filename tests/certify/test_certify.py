"""The cascade: what it certifies is true, what it counts adds up, and what it cannot use is refused in words."""

import functools
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from support.helpers import case_named, folded, images
from support.joint_cases import small
from support.proved import CONV, MLP, RESIDUAL
from support.synthetic import config, splits
from torch import Tensor, nn

from citrus.attacks import Ascent, fooled, pgd, universal_pgd
from citrus.bounds import AlphaSettings, LinearSettings, alpha, crown, margin_rows
from citrus.certify import alone, cascade
from citrus.certify import settings as chosen
from citrus.certify.alone import prove_alone
from citrus.certify.cascade import Cascade, certify
from citrus.certify.result import ALONE, STAGES, Certification, GroupResult, Verdict
from citrus.certify.settings import VERIFIERS, CertifySettings, Intermediate, pick_verifier
from citrus.data import as_float
from citrus.errors import CitrusError
from citrus.networks import Graph, graph
from citrus.training import train

COUNT = 13  # no multiple of any group size below: the last group is never full
GROUPINGS = ("dataset", "correct", "adaptive")
EPS = {"mlp": 0.04, "conv": 0.08, "residual": 0.04, "trained": 0.2}
ATTACK = Ascent(steps=6, restarts=2)


@dataclass(frozen=True, eq=False)
class Task:
    """A network, images of which some are misclassified, and a radius at which some survive and some do not."""

    plain: Graph
    images: Tensor
    labels: Tensor
    eps: float

    @property
    def correct(self) -> Tensor:
        return self.plain(self.images).argmax(1) == self.labels


@functools.cache
def task(name: str) -> Task:
    if name == "trained":
        with tempfile.TemporaryDirectory() as folder:
            made = train(config("citrus", eps=0.1), Path(folder) / "run", splits=splits())
        plain, x = graph(made.network, (1, 12, 12)).map(Tensor.detach), as_float(splits(test=COUNT).test.images)
    else:
        plain, x = folded({"mlp": MLP, "conv": CONV, "residual": RESIDUAL}[name]), images(COUNT, seed=1)
    y = plain(x).argmax(1)
    y[::6] = (y[::6] + 1) % 3  # three are misclassified
    return Task(plain, x, y, EPS[name])


def found(name: str, verifier: str, size: int = 5, grouping: Any = "dataset") -> Certification:
    return _found(name, verifier, size, grouping)


@functools.cache
def _found(name: str, verifier: str, size: int, grouping: Any) -> Certification:
    t = task(name)
    settings = CertifySettings(size, grouping, verifier, budget=60, attack=ATTACK)
    return certify(t.plain, t.images, t.labels, t.eps, settings)


def total(result: Certification) -> int:
    return sum(row.certified for row in result.rows)


def plain_rows(rows: Iterable[GroupResult]) -> list[tuple[Any, ...]]:
    return [(r.group, r.index, r.correct, r.certified, r.attacked, r.verdict, r.stages, r.note) for r in rows]


@functools.cache
def survivors(name: str) -> Tensor:
    """(delta, image): right under 10,000 random corners, and under the best of 100 attacks on each kind of group."""
    t = task(name)
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(10_000, *t.images.shape[1:], generator=generator).sub(0.5).sign() * t.eps
    own = pgd(t.plain, t.images, t.labels, t.eps, Ascent(steps=40), generator=generator)
    x, y, place = t.images.repeat(2, 1, 1, 1), t.labels.repeat(2), torch.arange(COUNT)
    owner = torch.cat([place // 5, place // 7 + COUNT])
    strong = Ascent(steps=4, restarts=100, step_size=0.5)
    deltas = torch.cat([corners, own, universal_pgd(t.plain, x, y, owner, t.eps, strong, generator).delta])
    assert float(deltas.abs().max()) <= t.eps * (1 + 1e-6)
    with torch.no_grad():
        wrong = [fooled(t.plain(t.images[i] + deltas), t.labels[i].expand(len(deltas))) for i in range(COUNT)]
    return ~torch.stack(wrong, 1)


FEW = [(1, "dataset"), (7, "dataset"), (5, "adaptive")]
MANY = [*FEW, (2, "dataset"), (5, "dataset"), (5, "correct")]
CASES = {"mlp": MANY, "conv": FEW, "residual": FEW, "trained": MANY}  # convolutions are slow


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("name", EPS)
def test_counts_are_in_order_add_up_and_are_never_broken(name: str, verifier: str) -> None:
    t = task(name)
    clean = int(t.correct.sum())
    for size, grouping in CASES[name]:
        result = found(name, verifier, size, grouping)
        kept = [i for row in result.rows for i in row.index]
        assert sorted(kept) == (list(range(COUNT)) if grouping == "dataset" else t.correct.nonzero().flatten().tolist())
        for row in result.rows:
            assert row.correct == int(t.correct[list(row.index)].sum())
            assert 0 <= row.certified <= row.attacked <= row.correct <= len(row.index) <= size
            assert sum(row.stages.values()) == row.certified
            assert int(survivors(name)[:, list(row.index)].sum(1).min()) >= row.certified
            assert (row.verdict is Verdict.CERTIFIED) == (row.certified == len(row.index))
            assert (row.verdict is Verdict.ATTACKED) == (row.certified == row.attacked < len(row.index))
        parts = result.images_by_outcome()
        assert sum(parts.values()) == result.images == COUNT
        assert (parts["misclassified"], parts["error"], result.errors) == (COUNT - clean, 0, 0)
        assert result.correct == pytest.approx(100 * clean / COUNT)
        assert result.certified <= result.attacked <= result.correct
    assert 0 < total(found(name, verifier, 7)) < clean  # the radius asks something


@pytest.mark.parametrize("name", EPS)
def test_certified_images_are_those_that_bounds_prove_one_by_one(name: str) -> None:
    t = task(name)
    spec = margin_rows(t.labels, 3)
    by_crown = crown(t.plain, t.images, t.eps, spec, LinearSettings(intersect=False)).lower
    single = {v: [row.index[0] for row in found(name, v, 1).rows if row.certified] for v in VERIFIERS}
    assert single["zeng"] == (by_crown > 0).all(1).nonzero().flatten().tolist()
    slopes = {"citrus": AlphaSettings(), "racoon": AlphaSettings(linear=LinearSettings(intersect=False))}
    for verifier, settings in slopes.items():
        proved = (alpha(t.plain, t.images, t.eps, spec, settings).lower > 0).all(1).nonzero().flatten().tolist()
        assert set(proved) <= set(single[verifier])
    assert bool(survivors(name)[:, single["citrus"]].all())
    for size, grouping in CASES[name]:  # theorem 3: groups prove at least as much, and a stronger verifier never less
        counts = {v: total(found(name, v, size, grouping)) for v in VERIFIERS}
        assert counts["citrus"] >= counts["zeng"] >= len(single["zeng"])
        assert counts["racoon"] >= counts["zeng"]
        assert counts["citrus"] >= len(single["citrus"])


def test_the_verifiers_and_groupings_differ_where_they_should() -> None:
    assert any(total(found(n, "citrus", 7)) > total(found(n, "zeng", 7)) for n in EPS)
    assert any(total(found(n, "citrus", 7)) > total(found(n, "citrus", 1)) for n in EPS)
    stages = {stage for n in EPS for v in VERIFIERS for row in found(n, v, 7).rows for stage in row.stages}
    assert {"crown", "alpha", "search"} <= stages <= set(STAGES)
    assert set(ALONE) < set(STAGES)


def waking() -> Graph:
    """The scores of x are 0.1 and 10 relu(|x| - 1.5), with |x| as relu(x) + relu(-x).

    On [-1, 1] intervals allow |x| up to 2, which wakes a neuron that sleeps: the second score reaches 5. CROWN's two
    lines for |x| are x / 2 + 1 / 2 and -x / 2 + 1 / 2, so that it is at most 1 and the second score 0.
    """
    layers = nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1), nn.ReLU(), nn.Linear(1, 2)
    weights = ([[1.0], [-1.0]], [[1.0, 1.0]], [[0.0], [10.0]])
    for layer, weight, bias in zip(layers[::2], weights, (0, -1.5, 0), strict=True):
        layer.weight.data, layer.bias.data = torch.tensor(weight), torch.full((len(weight),), float(bias))
    layers[-1].bias.data[0] = 0.1
    return graph(nn.Sequential(nn.Flatten(), *layers).requires_grad_(False).eval(), (1, 1, 1))


def test_large_networks_get_early_boxes_by_crown(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, x, y = waking(), torch.zeros(1, 1, 1, 1), torch.zeros(1, dtype=torch.long)

    def proved(how: Intermediate) -> int:
        settings = CertifySettings(group_size=1, intermediate=how, verifier="zeng", attack=ATTACK)
        return certify(plain, x, y, 1.0, settings).rows[0].certified

    assert [proved(how) for how in ("interval", "early", "crown", "auto")] == [0, 1, 1, 1]
    assert pick_verifier("citrus", "auto", plain).linear.intermediate == "crown"
    monkeypatch.setattr(chosen, "MANY_NEURONS", 2)
    assert pick_verifier("citrus", "auto", plain).linear.intermediate == "early"
    assert proved("auto") == 1


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_eps_0_is_clean_accuracy_and_more_eps_never_proves_more_than_less_can_survive(verifier: str) -> None:
    for name in EPS:
        t, settings = task(name), CertifySettings(group_size=7, verifier=verifier, grouping="dataset", attack=ATTACK)
        given = (t.plain, t.images, t.labels)
        steps = [*(certify(*given, t.eps * f, settings) for f in (0, 0.5)), found(name, verifier, 7)]
        assert steps[0].certified == steps[0].attacked == steps[0].correct == 100 * int(t.correct.sum()) / COUNT
        for less, more in pairwise(steps):
            for a, b in zip(less.rows, more.rows, strict=True):
                assert b.certified <= a.attacked  # the true count lies between them, whatever the slopes
            assert total(more) <= total(less)  # no theorem for CROWN, but an increase here would be worth a look


@pytest.mark.parametrize(("verifier", "count"), [("zeng", 24), ("racoon", 8), ("citrus", 8)])
def test_rows_do_not_depend_on_blocks_skipped_groups_or_the_run(verifier: str, count: int) -> None:
    plain, x = folded(RESIDUAL), images(count, seed=1)
    given = (plain, x, plain(x).argmax(1), 0.06)
    settings = CertifySettings(group_size=4, verifier=verifier, budget=600, attack=Ascent(steps=4))
    whole = plain_rows(certify(*given, settings).rows)
    assert plain_rows(certify(*given, settings).rows) == whole
    for size, groups in ((1, 1), (7, 2)):
        blocks = list(Cascade(*given, replace(settings, block=size)).blocks())
        assert plain_rows(row for block in blocks for row in block.rows) == whole
        assert [len(block.rows) for block in blocks[:-1]] == [groups] * (len(blocks) - 1)
    for skip in ({0, 3}, {0, 1}):
        rest = Cascade(*given, replace(settings, block=8)).blocks(skip=frozenset(skip))
        again = plain_rows(row for block in rest for row in block.rows)
        wanted = [row for row in whole if {row[0], row[0] ^ 1} - skip]
        assert again == wanted, "blocks stay as they are, and those of which all groups are skipped are left out"


@pytest.mark.parametrize("verifier", ["citrus", "racoon"])
def test_rows_do_not_depend_on_the_groups_beside_them(verifier: str) -> None:
    instance = small(count=16, eps=0.05)
    settings = CertifySettings(4, "dataset", verifier, budget=600, attack=ATTACK)
    parts = torch.arange(16).split(4)
    answers = []
    for order, size in (((0, 1, 2, 3), 100), ((3, 1, 0, 2), 100), ((2, 3, 1, 0), 8), ((1, 0, 3, 2), 1)):
        place = torch.cat([parts[k] for k in order])
        given = (instance.graph, instance.images[place], instance.labels[place], instance.eps)
        rows = certify(*given, replace(settings, block=size)).rows
        answers.append({k: plain_rows([replace(row, group=0, index=())]) for k, row in zip(order, rows, strict=True)})
    assert all(answer == answers[0] for answer in answers)
    assert verifier == "racoon" or any(row.stages.get("joint") for row in rows)


def test_one_group_when_n_is_larger_and_none_when_nothing_is_right() -> None:
    t = task("conv")
    (row,) = certify(t.plain, t.images, t.labels, t.eps, CertifySettings(group_size=1000, verifier="zeng")).rows
    assert row.index == tuple(t.correct.nonzero().flatten().tolist())
    wrong = (t.plain(t.images).argmax(1) + 1) % 3
    for grouping in GROUPINGS:
        result = certify(t.plain, t.images, wrong, t.eps, CertifySettings(5, grouping))
        assert result.certified == result.attacked == result.correct == 0
        assert result.images_by_outcome()["misclassified"] == COUNT
        assert len(result.rows) == (3 if grouping == "dataset" else 0)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError("no room"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    ],
    ids=["cuda", "python", "cpu"],
)
def test_out_of_memory_is_an_error_of_its_block_only(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    t, calls = task("mlp"), []

    def sometimes(*arguments: Any, **more: Any) -> Any:
        calls.append(0)
        if len(calls) == 2:
            raise error
        return alone.prove_alone(*arguments, **more)

    monkeypatch.setattr(cascade, "prove_alone", sometimes)
    settings = CertifySettings(5, "dataset", verifier="zeng", attack=ATTACK, block=5)
    result = certify(t.plain, t.images, t.labels, t.eps, settings)
    expected = found("mlp", "zeng").rows
    assert [row.verdict is Verdict.ERROR for row in result.rows] == [False, True, False]
    assert str(error) in result.rows[1].note
    assert plain_rows(result.rows[2:]) == plain_rows(expected[2:])
    parts = result.images_by_outcome()
    assert (result.errors, parts["error"], sum(parts.values())) == (1, 5, COUNT)
    assert parts["certified"] == sum(expected[k].certified for k in (0, 2))
    assert result.certified <= result.attacked <= result.correct <= 100


def test_a_group_that_gives_up_is_unknown_and_one_without_time_a_timeout() -> None:
    """Whatever the others do: with an hour nobody runs out of time, with a nanosecond everybody who needs it does."""
    t = task("residual")
    verdicts = {}
    for budget in (3600.0, 1e-9):
        settings = CertifySettings(group_size=5, grouping="dataset", budget=budget, attack=ATTACK)
        rows = certify(t.plain, t.images, t.labels, t.eps, settings).rows
        verdicts[budget] = {row.verdict for row in rows if row.certified < row.attacked}
    assert verdicts == {3600.0: {Verdict.UNKNOWN}, 1e-9: {Verdict.TIMEOUT}}


def nan(layer: nn.Linear) -> nn.Linear:
    layer.weight.data[2, 1] = float("nan")
    return layer


@pytest.mark.parametrize(
    ("network", "change", "message"),
    [
        (lambda: nn.Sequential(nn.Flatten(), nan(nn.Linear(72, 3))).eval(), {}, "Layer '1' .* NaN"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(72, 3), nn.GELU()).eval(), {}, "Layer 2, GELU '2'"),
        (MLP.build, {"images": 2 * images(4)}, r"must lie in \[0, 1\]"),
        (CONV.build, {"images": images(4, shape=(3, 6, 6))}, "shape"),
        (lambda: folded(CONV), {"images": images(4, shape=(3, 6, 6))}, "shape"),
        (MLP.build, {"labels": torch.tensor([0, 1, 2, 3])}, r"0\.\.2"),
        (MLP.build, {"settings": {"verifier": "zheng"}}, "did you mean 'zeng'"),
        (MLP.build, {"settings": {"grouping": "corect"}}, "did you mean 'correct'"),
        (MLP.build, {"settings": {"group_size": 0}}, "from 1 on or 'all', got 0"),
        (MLP.build, {"settings": {"group_size": "many"}}, "got 'many'"),
        (MLP.build, {"settings": {"memory": 0}}, "positive number of bytes"),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(network: Any, change: dict[str, Any], message: str) -> None:
    given = {"images": images(4), "labels": torch.zeros(4).long(), "eps": 0.1, "settings": {}} | change
    with pytest.raises(CitrusError, match=message):
        certify(network(), given["images"], given["labels"], given["eps"], CertifySettings(**given["settings"]))


def test_a_network_in_training_mode_is_refused_and_left_as_it_is() -> None:
    t, network = task("conv"), CONV.build().train()
    with pytest.raises(CitrusError, match="training mode"):
        certify(network, t.images, t.labels, t.eps)
    assert all(module.training for module in network.modules())
    settings = CertifySettings(5, "dataset", verifier="zeng", attack=ATTACK)
    result = certify(network.eval(), t.images, t.labels, t.eps, settings)
    assert plain_rows(result.rows) == plain_rows(found("conv", "zeng").rows)


def test_clean_predictions_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole network is evaluated on the images as they are once, in groups and blocks of any kind."""
    t, seen = task("mlp"), []
    call = Graph.__call__

    def counted(self: Graph, x: Tensor) -> Tensor:
        seen.extend(image for image in range(COUNT) if any(torch.equal(t.images[image], row) for row in x))
        return call(self, x)

    monkeypatch.setattr(Graph, "__call__", counted)
    certify(t.plain, t.images, t.labels, t.eps, CertifySettings(5, "adaptive", attack=ATTACK, block=3))
    assert sorted(seen) == list(range(COUNT))


def test_published_verifiers_lose_nothing_to_the_rounding_of_inner_boxes() -> None:
    """Their bounds of images that stay open are those of float64, which are no lower; proofs stay what they were."""
    plain, x = folded(case_named("deep groups")), images(24)
    y = plain(x).argmax(1)
    for name in ("zeng", "racoon"):
        settings = CertifySettings(4, verifier=name, attack=ATTACK)
        one = Cascade(plain, x, y, 0.05, settings)
        block = one._block([(0, torch.arange(len(x)))])
        blunt = replace(one.question, verifier=replace(one.question.verifier, sharp=False))
        with torch.no_grad():
            sharp, before = prove_alone(one.question, block), prove_alone(blunt, block)
        assert bool((sharp.stage >= before.stage)[before.stage < 0].all())
        assert torch.equal(sharp.live, before.live)
        hard = before.open[before.live].any(1)
        radii = [(a.radius[hard].sum(), b.radius[hard].sum()) for a, b in zip(sharp.boxes, before.boxes, strict=True)]
        assert all(float(a) <= float(b) for a, b in radii)
        assert any(float(a) < float(b) for a, b in radii)
