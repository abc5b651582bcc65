"""Certificates that an earlier version wrote (commit 44cd03c) still hold, with the values that they had then.

fixtures/NETWORK-INTERMEDIATE-EPS/ are certificates of `citrus certify` with all kinds of proofs: intervals, CROWN,
optimised slopes, conflicts of the search, and proofs by contradiction of up to seven rounds; those called dual are of
the version that first wrote duals of large groups (2026-11-20). The networks have a bias
per pixel (a folded normalisation), padding, strides, groups, dilation, a diagonal map and a value that is read twice.
"""

import json
from typing import get_args

import pytest
from support.kept import FIXTURES, kept_network
from torch import Tensor

from citrus.checker.arithmetic import Network
from citrus.checker.certificate import fingerprint, read_certificate
from citrus.checker.check import check
from citrus.checker.proofs import Evaluator
from citrus.networks import Graph, operations

KEPT: dict[str, list[tuple[float, float]]] = json.loads((FIXTURES / "values.json").read_text())
"""By file, the value of each proof and its rounding."""


@pytest.mark.parametrize("folder", sorted({file.split("/")[0] for file in KEPT}))
def test_they_are_confirmed(folder: str) -> None:
    plain = kept_network(folder.split("-")[0])
    files = sorted((FIXTURES / folder).iterdir())
    assert [f"{folder}/{file.name}" for file in files] == [name for name in KEPT if name.startswith(f"{folder}/")]
    assert all(read_certificate(file).network == fingerprint(plain) for file in files)
    for graph in (plain, plain.map(Tensor.double)):
        report = check(FIXTURES / folder, graph)
        assert not report.failures
        assert report.confirmed == len(files)
        assert report.holding == sum(len(KEPT[f"{folder}/{file.name}"]) for file in files)


@pytest.mark.parametrize("file", KEPT)
def test_values_are_what_they_were(file: str) -> None:
    given, plain = read_certificate(FIXTURES / file), Network(kept_network(file.split("-")[0]))
    evaluator = Evaluator(plain, given.images, given.labels, given.eps, given.intermediate)
    for value, (before, rounding) in zip(evaluator.values(given.proofs), KEPT[file], strict=True):
        assert value.value == pytest.approx(before, rel=1e-12, abs=1e-12)  # the numbers it is made of are about 1
        assert value.rounding == pytest.approx(rounding, rel=1e-9)


def test_all_kinds_of_proofs_are_among_them() -> None:
    certificates = [read_certificate(FIXTURES / file) for file in KEPT]
    proofs = [proof for certificate in certificates for proof in certificate.proofs]
    alone = [proof for proof in proofs if len(proof.choices) == 1 and not proof.rounds]
    assert {certificate.intermediate for certificate in certificates} == {"interval", "early", "crown"}
    assert any(not proof.rows for proof in alone)
    assert {proof.rows[0].slopes is None for proof in alone if proof.rows} == {True, False}
    assert any(len(proof.choices) > 1 and not proof.rounds for proof in proofs)
    assert max(len(proof.rounds) for proof in proofs) == 7


def test_nothing_is_computed_by_the_network_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker reads weights and shapes; whatever else an operation or a graph can do, it does not use."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError("the checker used the arithmetic of the prover")

    plain = {folder: kept_network(folder.split("-")[0]) for folder in ("deep-crown-0.045", "residual-crown-0.03")}
    for kind in (*get_args(operations.Operation), Graph):
        for name in {"__call__", "magnitude", "transpose", "reach", "values", "behind"} & set(vars(kind)):
            monkeypatch.setattr(kind, name, never)
    monkeypatch.setattr(operations, "window", never)
    assert not any(check(FIXTURES / folder, graph).failures for folder, graph in plain.items())
