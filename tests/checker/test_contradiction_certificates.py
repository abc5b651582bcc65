"""Proofs by contradiction in certificates: they survive the way through a file, and no way to spoil one is missed."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from support.helpers import CLASSES, case_named, folded
from support.joint_cases import DEEP, instance_of, pairs_of, small
from support.proved import failures
from torch import Tensor

from citrus.certify.cascade import Cascade
from citrus.certify.export import Exporter
from citrus.certify.refine.sets import Instance, JointResult, JointSettings, prove_sets
from citrus.certify.settings import CertifySettings
from citrus.checker.arithmetic import LinearForms, Network
from citrus.checker.certificate import read_certificate, store, write_certificates
from citrus.checker.check import check
from citrus.checker.enclosure import Enclosure
from citrus.checker.planes import PlaneSource
from citrus.checker.proofs import Certificate, Evaluator, Intermediate, Proof, Round
from citrus.checker.tightening import UndecidedNeurons, least_where, tightened
from citrus.networks.operations import Linear

EPS = {"deep": 0.1, "residual pre-activation": 0.06}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """The tensors are small: a second thread only waits when the machine is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def proof_of(result: JointResult) -> Proof:
    def rows(slopes: tuple[Tensor, ...]) -> tuple[PlaneSource, ...]:
        flat = torch.cat([s.flatten(1) for s in slopes], 1)
        return tuple(PlaneSource(i, j, flat[m]) for m, (i, j) in enumerate(result.choices))

    rounds = tuple(Round(rows(part.slopes), part.neurons, part.multipliers) for part in result.assumptions)
    return Proof(result.choices, rows(result.slopes), tuple(result.lambdas.tolist()), rounds)


def found(name: str) -> tuple[Instance, list[Proof]]:
    """An instance with pairs that are proved by contradiction."""
    instance = small(DEEP if name == "deep" else case_named(name), eps=EPS[name])
    results = prove_sets(instance, pairs_of(instance), JointSettings(iterations=25, assume=6))
    return instance, [proof_of(result) for result in results if result.proved and result.assumptions]


def written(folder: Path, instance: Instance, proofs: list[Proof]) -> Path:
    index = torch.arange(len(instance.images))
    given = Certificate(0, index, instance.images, instance.labels, instance.eps, "crown", tuple(proofs), 0)
    (file,) = write_certificates(folder, instance.graph, [given])
    assert not file.lost
    return file.path


@pytest.fixture(scope="module", params=EPS)
def honest(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Instance, Path]:
    """A certificate whose proofs all need their rounds."""
    instance, proofs = found(request.param)
    evaluator = Evaluator(Network(instance.graph), instance.images, instance.labels, instance.eps, "crown")
    without = evaluator.values([replace(proof, rounds=()) for proof in proofs])
    proofs = [proof for proof, value in zip(proofs, without, strict=True) if not value.holds]
    assert len(proofs) >= 3
    return instance, written(tmp_path_factory.mktemp("honest"), instance, proofs)


def test_a_file_gives_back_the_rounds(honest: tuple[Instance, Path], tmp_path: Path) -> None:
    instance, path = honest
    report = check(path, instance.graph)
    assert not report.failures
    assert report.holding == report.proofs >= 3
    first = read_certificate(path)
    store(tmp_path / "again", first)
    for old, new in zip(first.proofs, read_certificate(tmp_path / "again").proofs, strict=True):
        assert (old.choices, old.lambdas, len(old.rounds)) == (new.choices, new.lambdas, len(new.rounds))
        for one, two in zip(old.rounds, new.rounds, strict=True):
            assert [(r.image, r.label) for r in one.rows] == [(r.image, r.label) for r in two.rows]
            for name in ("neurons", "multipliers"):
                assert all(torch.equal(a, b) for a, b in zip(getattr(one, name), getattr(two, name), strict=True))
                assert len(getattr(one, name)) == len(one.rows) == len(old.choices)
        assert old.rounds


def in_rounds(change: Callable[[Round], Round]) -> Callable[[Proof], Proof]:
    return lambda proof: replace(proof, rounds=tuple(map(change, proof.rounds)))


def multipliers(change: Callable[[Tensor], Tensor]) -> Callable[[Proof], Proof]:
    return in_rounds(lambda part: replace(part, multipliers=tuple(map(change, part.multipliers))))


def one_is(value: float) -> Callable[[Tensor], Tensor]:
    return lambda mu: torch.cat([torch.full((1,), value), mu.flatten()[1:]]).view_as(mu)


def unsloped(part: Round) -> Round:
    return replace(part, rows=tuple(replace(row, slopes=None) for row in part.rows))


SPOILED: dict[str, Callable[[Proof], Proof]] = {
    "a multiplier is negative": multipliers(one_is(-1e-3)),
    "a multiplier is nan": multipliers(one_is(float("nan"))),
    "a multiplier is infinite": multipliers(one_is(float("inf"))),
    "multipliers are zero": multipliers(torch.zeros_like),
    "multipliers are huge": multipliers(lambda mu: mu * 0 + 1e38),
    "multipliers are missing": multipliers(lambda mu: mu[1:]),
    "a neuron does not exist": in_rounds(lambda part: replace(part, neurons=tuple(n + 9999 for n in part.neurons))),
    "a neuron is negative": in_rounds(lambda part: replace(part, neurons=tuple(n - 9999 for n in part.neurons))),
    "a plane has no slopes": in_rounds(unsloped),
    "rounds are dropped": lambda proof: replace(proof, rounds=()),
    "rounds are empty": in_rounds(lambda part: Round((), (), ())),
    "a choice is dropped": lambda proof: replace(proof, choices=proof.choices[:1]),
    "a choice is dropped with its plane": lambda proof: replace(
        proof, choices=proof.choices[:1], rows=proof.rows[:1], lambdas=proof.lambdas[:1]
    ),
    "a choice is another": lambda proof: replace(proof, choices=(proof.choices[0], (proof.choices[1][0], CLASSES))),
    "there are no planes": lambda proof: replace(proof, rows=(), lambdas=(), choices=proof.choices[:1]),
}


@pytest.mark.parametrize("name", SPOILED)
def test_no_spoiled_proof_holds(name: str, honest: tuple[Instance, Path]) -> None:
    instance, path = honest
    evaluator = Evaluator(Network(instance.graph), instance.images, instance.labels, instance.eps, "crown")
    proofs = read_certificate(path).proofs
    assert all(value.holds for value in evaluator.values(proofs))
    assert not any(value.holds for value in evaluator.values([SPOILED[name](proof) for proof in proofs]))


def test_another_claim_does_not_hold(honest: tuple[Instance, Path], tmp_path: Path) -> None:
    instance, path = honest
    certificate = read_certificate(path)

    def holding(changed: Certificate) -> int:
        store(tmp_path / "changed", changed)
        return check(tmp_path / "changed", instance.graph).holding

    assert holding(certificate) == len(certificate.proofs)
    assert holding(replace(certificate, eps=1.2 * instance.eps)) == 0
    assert holding(replace(certificate, images=certificate.images.roll(1, 3))) < len(certificate.proofs)
    assert holding(replace(certificate, images=certificate.images * torch.nan)) == 0
    shorter = tuple(replace(proof, choices=proof.choices[1:]) for proof in certificate.proofs)
    store(tmp_path / "changed", replace(certificate, proofs=shorter))
    assert "is malformed" in failures(tmp_path / "changed", instance.graph)


def test_another_network_does_not_hold(honest: tuple[Instance, Path]) -> None:
    instance, path = honest
    proofs = read_certificate(path).proofs
    last = instance.graph.nodes[-1]
    assert isinstance(last.op, Linear)
    for factor, count in ((-1.0, 0), (torch.nan, 0)):
        node = replace(last, op=replace(last.op, weight=factor * last.op.weight, bias=factor * last.op.bias))
        other = replace(instance.graph, nodes=(*instance.graph.nodes[:-1], node))
        evaluator = Evaluator(Network(other), instance.images, instance.labels, instance.eps, "crown")
        assert sum(value.holds for value in evaluator.values(proofs)) == count


@pytest.mark.parametrize(("name", "eps"), [("deep", 0.08), ("residual pre-activation", 0.06)])
def test_boxes_hold_where_all_margins_are_violated(name: str, eps: float) -> None:
    """At sampled delta below the planes of two margins the neurons are inside the boxes; at others some are not."""
    instance = small(DEEP if name == "deep" else case_named(name), eps=eps)
    plain = instance.graph.map(Tensor.double)
    network, generator = Network(plain), torch.Generator().manual_seed(0)
    value = network.nodes[network.relus[-1]].inputs[0]
    inside = outside = 0
    for pair in pairs_of(instance)[:60:5]:
        boxes = [Enclosure(network, instance.images[i], eps, refined=99) for i, _ in pair]
        planes = [
            box.planes(int(instance.labels[i]), torch.tensor([j])) for box, (i, j) in zip(boxes, pair, strict=True)
        ]
        margins = LinearForms.joined(planes)
        for box, (i, _) in zip(boxes, pair, strict=True):
            neurons = UndecidedNeurons.of(box)
            assert neurons.planes is not None
            which = (neurons.place >= 0).nonzero()[:, 0]
            # In units in which mu = 1 gives a margin the weight of the neuron; each corner is the worst for some mu.
            unit = neurons.planes.values.abs().sum(1, keepdim=True) / margins.values.abs().sum(1)
            ends, corners = box.last, []
            for scale in (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2):
                mu = scale * unit * torch.rand(len(unit), 2, generator=generator, dtype=torch.float64)
                ends = tightened(ends, neurons, which, mu, margins, eps)
                corners.append(-eps * (neurons.planes.values + mu @ margins.values).sign())
            deltas = torch.cat(corners)
            violated = (deltas @ margins.values.T + margins.offset <= 0).all(1)
            values = [instance.images[i].double() + deltas.view(-1, *plain.input_shape)]
            for node in plain.nodes[:value]:
                values.append(node.op(*(values[k] for k in node.inputs)))
            z = values[value].flatten(1)
            fits = ((z >= ends[0]) & (z <= ends[1])).all(1)
            assert bool(fits[violated].all())
            inside, outside = inside + int(violated.sum()), outside + int((~fits).sum())
    assert inside > 1000
    assert outside > 1000


def test_bounds_are_below_rational_arithmetic() -> None:
    generator = torch.Generator().manual_seed(1)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    eps = 0.1
    for _ in range(50):
        rows = LinearForms(drawn(4, 5), drawn(4), drawn(4).abs() * 1e-12)
        margins = LinearForms(drawn(3, 5), drawn(3), drawn(3).abs() * 1e-12)
        mu = drawn(4, 3).abs()
        for r, bound in enumerate(least_where(rows, mu, margins, eps).tolist()):
            weights = [Fraction(x) for x in mu[r].tolist()]
            exact = Fraction(float(rows.offset[r])) - Fraction(float(rows.error[r]))
            mixed = [Fraction(x) for x in rows.values[r].tolist()]
            for k, weight in enumerate(weights):
                exact += weight * (Fraction(float(margins.offset[k])) - Fraction(float(margins.error[k])))
                mixed = [m + weight * Fraction(a) for m, a in zip(mixed, margins.values[k].tolist(), strict=True)]
            exact -= Fraction(eps) * sum(map(abs, mixed))
            assert exact - Fraction(1, 10**13) < Fraction(bound) < exact


def test_bounds_are_unknown_where_numbers_overflow() -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    rows, zero = LinearForms.of(one), replace(LinearForms.of(0 * one), offset=one[0])
    for mu in (1e308, float("inf"), float("nan")):
        huge = replace(zero, offset=zero.offset * 1e10)
        assert float(least_where(rows, mu * one, huge, 0.1)) == -float("inf")
    assert float(least_where(rows, 2 * one, zero, 0.1)) == pytest.approx(1.9)


@pytest.mark.parametrize("intermediate", ["crown", "early"])
def test_the_cascade_writes_what_it_proves(intermediate: Intermediate, tmp_path: Path) -> None:
    plain = folded(DEEP)
    instance = small(count=24, eps=0.045)
    settings = CertifySettings(4, intermediate=intermediate)
    cascade = Cascade(plain, instance.images, instance.labels, 0.045, settings)
    blocks = list(cascade.blocks())
    certificates = [given for block in blocks for given in Exporter(tmp_path, cascade.question).certificates(block)]
    assert any(proof.rounds for given in certificates for proof in given.proofs)
    files = write_certificates(tmp_path, plain, certificates)
    assert not any(file.lost for file in files)
    report = check(tmp_path, plain)
    assert not report.failures
    assert report.certified == sum(row.certified for block in blocks for row in block.rows)


def test_a_proof_keeps_floats_where_bytes_lose_it(tmp_path: Path) -> None:
    """At the largest radius at which a proof holds, bytes lose some: those are stored as floats and hold."""
    instance, proofs = found("deep")
    network, kept = Network(instance.graph), []
    for n, proof in enumerate(proofs[:8]):

        def holds(eps: float, proof: Proof = proof) -> bool:
            return Evaluator(network, instance.images, instance.labels, eps, "crown").values([proof])[0].holds

        low, high = instance.eps, 1.3 * instance.eps
        for _ in range(14):
            middle = (low + high) / 2
            low, high = (middle, high) if holds(middle) else (low, middle)
        same = instance_of(instance.graph, instance.images, low)
        back = read_certificate(written(tmp_path / str(n), same, [proof])).proofs[0]
        kept.append({row.slopes.dtype for row in back.sources if row.slopes is not None})
    assert {torch.float32} in kept
    assert {torch.uint8} in kept
