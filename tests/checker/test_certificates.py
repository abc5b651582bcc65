"""Certificates: proofs survive the way through a file, and every way to spoil one is noticed."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from support.helpers import CLASSES, Case, case_named, folded, images
from support.limits import little_memory
from support.proved import CONV, MLP, RESIDUAL, certify, failures
from torch import Tensor

from citrus.bounds import wrong_labels
from citrus.checker.arithmetic import Network
from citrus.checker.certificate import fingerprint, read_certificate, store, write_certificates
from citrus.checker.check import WrongNetworkError, check
from citrus.checker.cover import covers
from citrus.checker.planes import PlaneSource
from citrus.checker.proofs import Certificate, Evaluator, Intermediate, Proof
from citrus.errors import CitrusError
from citrus.files import load_tensors, save_tensors
from citrus.networks import Graph
from citrus.networks.operations import Linear


@pytest.mark.parametrize("intermediate", ["crown", "early", "interval"])
@pytest.mark.parametrize(("case", "eps"), [(CONV, 0.08), (CONV, 0.05), (RESIDUAL, 0.03), (MLP, 0.06)], ids=str)
def test_what_the_search_proves_is_confirmed(
    case: Case, eps: float, intermediate: Intermediate, tmp_path: Path
) -> None:
    plain = folded(case)
    groups = [certify(plain, eps, intermediate, optimised, number=n) for n, optimised in enumerate((False, True))]
    written = write_certificates(tmp_path, plain, groups)
    assert [w.lost for w in written] == [(), ()]
    report = check(tmp_path, plain)
    assert not report.failures
    assert (report.groups, report.confirmed, report.images) == (2, 2, 16)
    assert report.proofs == report.holding == sum(len(group.proofs) for group in groups) > 0
    assert report.certified == sum(group.survivors for group in groups)


def test_proofs_hold_on_the_boxes_they_were_made_with_and_not_on_wider_ones(tmp_path: Path) -> None:
    plain, hows = folded(case_named("deep groups")), get_args(Intermediate)
    groups: dict[Intermediate, Certificate] = {how: certify(plain, 0.05, how) for how in hows}
    assert hows == ("interval", "early", "crown")
    assert groups["interval"].survivors < groups["early"].survivors < groups["crown"].survivors
    for k, made in enumerate(hows):
        for j, named in enumerate(hows):
            (written,) = write_certificates(tmp_path / made / named, plain, [replace(groups[made], intermediate=named)])
            assert (written.lost == ()) == (j >= k)


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    plain = folded(CONV)
    group = certify(plain, 0.08, optimised=True)
    levels = (group.images * 255).round() / 255
    for pixels, kind in ((group.images, torch.float32), (levels, torch.uint8)):
        store(tmp_path / "one", replace(group, images=pixels, proofs=(), network="ab", network_path="net.onnx"))
        back = read_certificate(tmp_path / "one")
        assert torch.equal(back.images, pixels)
        assert load_tensors(tmp_path / "one")[0]["images"].dtype == kind
        assert (back.network, back.eps, back.intermediate, back.network_path) == ("ab", 0.08, "crown", "net.onnx")
    (written,) = write_certificates(tmp_path, plain, [group])
    back = read_certificate(written.path)
    assert [(p.choices, p.lambdas) for p in back.proofs] == [(p.choices, p.lambdas) for p in group.proofs]
    assert (back.survivors, back.parts, back.number) == (group.survivors, group.parts, group.number)
    for old, new in zip(
        (r for p in group.proofs for r in p.rows), (r for p in back.proofs for r in p.rows), strict=True
    ):
        assert (old.image, old.label) == (new.image, new.label)
        assert old.slopes is not None
        assert new.slopes is not None
        assert (old.slopes.clamp(0, 1) - new.exact_slopes).abs().max() <= 0.5 / 255 + 1e-6


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> tuple[Graph, Path]:
    """A certificate whose count needs conflicts of several images, with optimised slopes."""
    plain = folded(RESIDUAL)
    folder = tmp_path_factory.mktemp("honest")
    (written,) = write_certificates(folder, plain, [certify(plain, 0.03, optimised=True)])
    group = read_certificate(written.path)
    alone = [proof.choices for proof in group.proofs if len(proof.choices) == 1]
    assert not covers(alone, wrong_labels(group.labels, CLASSES).tolist(), group.survivors)
    assert not failures(written.path, plain)
    return plain, written.path


def with_slopes(change: Callable[[Tensor], Tensor]) -> Callable[[Certificate], Certificate]:
    """The certificate with the slopes of all planes changed."""

    def mutate(certificate: Certificate) -> Certificate:
        sources: dict[PlaneSource, PlaneSource] = {}
        for row in (row for proof in certificate.proofs for row in proof.rows):
            assert row.slopes is not None
            sources[row] = replace(row, slopes=change(row.exact_slopes).float())
        proofs = (replace(p, rows=tuple(sources[row] for row in p.rows)) for p in certificate.proofs)
        return replace(certificate, proofs=tuple(proofs))

    return mutate


def in_group(**changes: Callable[[Certificate], object]) -> Callable[[Certificate], Certificate]:
    def mutate(certificate: Certificate) -> Certificate:
        return replace(certificate, **{k: f(certificate) for k, f in changes.items()})  # type: ignore[arg-type]

    return mutate


def lambdas(change: Callable[[float], float]) -> Callable[[Certificate], object]:
    return lambda group: tuple(replace(p, lambdas=tuple(map(change, p.lambdas))) for p in group.proofs)


def without_a_needed_conflict(group: Certificate) -> tuple[Proof, ...]:
    wrong = wrong_labels(group.labels, CLASSES).tolist()
    for k, proof in enumerate(group.proofs):
        rest = (*group.proofs[:k], *group.proofs[k + 1 :])
        if len(proof.choices) > 1 and not covers([p.choices for p in rest], wrong, group.survivors, group.parts):
            return rest
    raise AssertionError("no conflict is needed")


def nan_pixel(group: Certificate) -> Tensor:
    return group.images.index_fill(1, torch.tensor(0), torch.nan)


MUTATIONS: dict[str, tuple[Callable[[Certificate], Certificate], str]] = {
    "larger eps": (lambda c: replace(c, eps=0.035), "does not hold"),
    "negative eps": (lambda c: replace(c, eps=-0.03), "eps must be"),
    "nan eps": (lambda c: replace(c, eps=float("nan")), "eps must be"),
    "negative lambdas": (in_group(proofs=lambdas(lambda x: -x)), "does not hold"),
    "nan lambdas": (in_group(proofs=lambdas(lambda x: float("nan"))), "does not hold"),
    "zero lambdas": (in_group(proofs=lambdas(lambda x: 0.0)), "does not hold"),
    "negative slopes": (with_slopes(torch.neg), "does not hold"),
    "slopes above one": (with_slopes(lambda s: s + 1.001), "does not hold"),
    "nan slopes": (with_slopes(lambda s: s * torch.nan), "does not hold"),
    "too few slopes": (with_slopes(lambda s: s[1:]), "does not hold"),
    "swapped labels": (in_group(labels=lambda g: (g.labels + 1) % CLASSES), "does not hold"),
    "label out of range": (in_group(labels=lambda g: g.labels + CLASSES), "needs a label"),
    "another image": (in_group(images=lambda g: g.images.flip(0)), "does not hold"),
    "nan pixel": (in_group(images=nan_pixel), "does not hold"),
    "count raised": (in_group(survivors=lambda g: g.survivors + 1), "do not imply"),
    "count above images": (in_group(survivors=lambda g: 9), "do not imply"),
    "conflict removed": (in_group(proofs=without_a_needed_conflict), "do not imply"),
    "choice dropped": (
        in_group(proofs=lambda g: tuple(replace(p, choices=p.choices[:1]) for p in g.proofs)),
        "does not hold",
    ),
    "choice of the true label": (
        in_group(proofs=lambda g: (*g.proofs, Proof(((0, int(g.labels[0])),)))),
        "does not hold",
    ),
    "choice of no image": (in_group(proofs=lambda g: (*g.proofs, Proof(((99, 0),)))), "does not hold"),
    "proof of nothing": (in_group(proofs=lambda g: (*g.proofs, Proof(()))), "does not hold"),
    "parts overlap": (in_group(parts=lambda g: (tuple(range(8)), (0,))), "do not imply"),
    "image twice": (in_group(index=lambda g: g.index * 0), "counted before"),
    "another method": (lambda c: replace(c, intermediate="guess"), "Intermediate"),  # type: ignore[arg-type]
    "no name of a method": (lambda c: replace(c, intermediate=["crown"]), "Intermediate"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_forged_certificate_fails_with_a_right_checksum(
    name: str, honest: tuple[Graph, Path], tmp_path: Path
) -> None:
    plain, path = honest
    mutate, words = MUTATIONS[name]
    store(tmp_path / "same", read_certificate(path))
    assert not failures(tmp_path / "same", plain)
    store(tmp_path / "forged", mutate(read_certificate(path)))
    report = check(tmp_path / "forged", plain)
    assert words in "\n".join(report.failures)
    if words != "does not hold":
        assert report.confirmed == 0


def test_another_network_is_named_and_a_forged_name_does_not_help(honest: tuple[Graph, Path], tmp_path: Path) -> None:
    plain, path = honest
    assert fingerprint(plain) == fingerprint(plain.map(Tensor.double))
    changed = []
    last = plain.nodes[-1].op
    assert isinstance(last, Linear)
    for change in (-last.weight, last.weight + 2.0**-20):
        other = replace(plain, nodes=(*plain.nodes[:-1], replace(plain.nodes[-1], op=replace(last, weight=change))))
        with pytest.raises(WrongNetworkError, match=f"{fingerprint(plain)[:16]}.*{fingerprint(other)[:16]}"):
            check(path, other)
        changed.append(other)
    store(tmp_path / "forged", replace(read_certificate(path), network=fingerprint(changed[0])))
    assert "does not hold" in failures(tmp_path / "forged", changed[0])


def test_damage_is_noticed_wherever_it_is(honest: tuple[Graph, Path], tmp_path: Path) -> None:
    plain, path = honest
    whole, broken = path.read_bytes(), tmp_path / "group-00001.safetensors"
    generator = torch.Generator().manual_seed(0)
    places = [*range(0, 1600, 7), *torch.randint(len(whole), (100,), generator=generator).tolist()]
    for place in places:
        broken.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :])
        with pytest.raises(CitrusError, match="group-00001"):
            read_certificate(broken)
    for length in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        broken.write_bytes(whole[:length])
        with pytest.raises(CitrusError, match="damaged"):
            read_certificate(broken)
    (tmp_path / path.name).write_bytes(whole)
    report = check(tmp_path, plain)
    assert (report.groups, report.confirmed, len(report.failures)) == (2, 1, 1)
    assert "damaged" in report.failures[0]
    (tmp_path / "empty").mkdir()
    with pytest.raises(CitrusError, match="holds no certificates"):
        check(tmp_path / "empty", plain)
    with pytest.raises(CitrusError, match="no certificate"):
        check(tmp_path / "absent", plain)


def test_groups_are_added_up_only_when_they_belong_together(tmp_path: Path) -> None:
    plain = folded(RESIDUAL)
    for number, eps in enumerate((0.03, 0.02)):
        write_certificates(tmp_path, plain, [certify(plain, eps, number=number)])
    assert "about eps 0.02" in failures(tmp_path, plain)
    again = replace(certify(plain, 0.03), number=1)
    write_certificates(tmp_path, plain, [again])
    assert "counted before" in failures(tmp_path, plain)


def test_the_writer_claims_only_what_holds(tmp_path: Path) -> None:
    """Proofs made for a smaller radius: some hold no more, and the count is lowered to what the others imply."""
    plain = folded(RESIDUAL)
    group = certify(plain, 0.02)
    (written,) = write_certificates(tmp_path, plain, [replace(group, eps=0.03)])
    assert written.lost
    assert written.survivors < group.survivors
    report = check(tmp_path, plain)
    assert not report.failures
    assert (report.proofs, report.certified) == (len(group.proofs) - len(written.lost), written.survivors)


def test_slopes_stay_floats_where_bytes_would_lose_the_proof(tmp_path: Path) -> None:
    """At the largest radius that a proof survives, rounding its slopes to bytes loses about half of the proofs."""
    plain = folded(MLP)
    x = images(1)
    y = plain(x).argmax(1)
    generator = torch.Generator().manual_seed(0)
    kept = []
    for wrong in wrong_labels(y, CLASSES)[0].tolist() * 5:
        slopes = torch.rand(16 + 9, generator=generator)
        proof = Proof(((0, wrong),), (PlaneSource(0, wrong, slopes),), (1.0,))

        def holds(eps: float, proof: Proof = proof) -> bool:
            return Evaluator(Network(plain), x, y, eps, "crown").values([proof])[0].holds

        low, high = 0.0, 0.5
        for _ in range(16):
            middle = (low + high) / 2
            low, high = (middle, high) if holds(middle) else (low, middle)
        given = Certificate(0, torch.tensor([0]), x, y, low, "crown", (proof,), 0)
        (written,) = write_certificates(tmp_path, plain, [given])
        assert not written.lost
        assert not failures(written.path, plain)
        kept.append("slopes32" in load_tensors(written.path)[0])
    assert 1 <= sum(kept) <= 9


def with_about(**changes: object) -> Callable[[dict[str, Tensor]], None]:
    def change(tensors: dict[str, Tensor]) -> None:
        about = json.loads(bytes(tensors["about"].tolist())) | changes
        tensors["about"] = torch.tensor(list(json.dumps(about).encode()), dtype=torch.uint8)

    return change


def assuming(planes: int) -> Callable[[dict[str, Tensor]], None]:
    """A round that assumes so many planes."""

    def change(tensors: dict[str, Tensor]) -> None:
        tensors["rounds"] = torch.tensor([planes])
        tensors |= {"assumed": torch.zeros(1, 2), "neurons": torch.zeros(0), "multipliers": torch.zeros(0)}

    return change


def repeated(tensors: dict[str, Tensor]) -> None:
    tensors["planes"] = tensors["planes"].repeat(100_000, 1)


def behind(tensors: dict[str, Tensor]) -> None:
    """A row of slopes that is counted from the end, which names a row a second time."""
    tensors["planes"][:, 3] -= 1


FOUND: dict[str, Callable[[dict[str, Tensor]], None]] = {
    "a number that is infinite": with_about(number=float("inf")),
    "an eps of 400 digits": with_about(eps=10**400),
    "a network in no text": with_about(network={"fingerprint": "", "path": 5}),
    "a round of 2^40 planes": assuming(1 << 40),
    "a round of -1 planes": assuming(-1),
    "the same planes many times": repeated,
    "slopes counted from the end": behind,
}


@pytest.mark.parametrize("name", FOUND)
def test_claims_that_no_writer_makes_are_refused(name: str, honest: tuple[Graph, Path], tmp_path: Path) -> None:
    """Found by `make fuzz`: they crashed the reader, or cost it any time and memory."""
    tensors, header = load_tensors(next(path for path in sorted(honest[1].parent.glob("*.safetensors"))))
    FOUND[name](tensors)
    save_tensors(tmp_path / "group-00000.safetensors", tensors, header)
    with little_memory(), pytest.raises(CitrusError, match="no certificate that can be used"):
        read_certificate(tmp_path / "group-00000.safetensors")
