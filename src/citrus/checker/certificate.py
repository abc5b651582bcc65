"""Certificates: the proofs of a group as one file that a stranger can check with nothing but the network.

    written = write_certificates(folder, graph, certificates)
    certificate = read_certificate(folder / "group-00012.safetensors")

One safetensors file per group (format.py says what is in it), written in one step, so that a run that is stopped loses
at most the unfinished group. Any slope in [0, 1] is sound, so slopes are rounded to bytes and the proofs evaluated
again; those that are lost by it keep float32. Proofs that do not hold even so are left out and the count is lowered to
what the others imply: a file never claims more than it proves.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from citrus.checker.arithmetic import Network
from citrus.checker.cover import Conflicts
from citrus.checker.dual import DualSums, justified
from citrus.checker.format import read_certificate as read_certificate
from citrus.checker.format import store as store
from citrus.checker.planes import PlaneSource
from citrus.checker.proofs import Certificate, Evaluator, Proof, Round, implied
from citrus.networks.operations import Graph

SLACK = 1e-4
"""Is added to the bound of a dual before it is rounded down, so that last digits of other computers do not matter."""


@dataclass(frozen=True)
class Written:
    """What a file claims in the end: fewer survivors than asked for when proofs do not hold in float64."""

    path: Path
    survivors: int
    lost: tuple[int, ...]  # positions of the proofs that were left out


def fingerprint(graph: Graph) -> str:
    """sha256 over the operations with their inputs, shapes, strides and weights; names and precision do not count, nor
    what folding may have rounded."""
    digest = hashlib.sha256(repr(tuple(graph.input_shape)).encode())
    for node in graph.nodes:
        fields = {name: value for name, value in vars(node.op).items() if name not in ("mass", "slack", "off", "stray")}
        plain = {name: value for name, value in fields.items() if not isinstance(value, Tensor)}
        place = (type(node.op).__name__, tuple(node.inputs), tuple(node.shape), sorted(plain.items()))
        digest.update(repr(place).encode())
        for name, value in sorted(fields.items()):
            if isinstance(value, Tensor):
                digest.update(f"{name} {tuple(value.shape)}".encode())
                digest.update(_plain_numbers(value.detach().cpu()))
    return digest.hexdigest()


def _plain_numbers(weights: Tensor) -> Any:
    """The bytes of weights: float32 where that is exact, so that a network in double precision keeps its name."""
    short = weights.float()
    if torch.equal(short.double(), weights.double()):
        return short.contiguous().numpy().astype("<f4", copy=False)
    return weights.double().contiguous().numpy().astype("<f8", copy=False)


def write_certificates(
    folder: str | Path, graph: Graph, certificates: Iterable[Certificate], network_path: str | Path | None = None
) -> list[Written]:
    """Write a file per group, each as soon as its certificate comes; files of other groups stay.

    `network_path` tells `citrus check` where the network lies.
    """
    network, name, where = Network(graph), fingerprint(graph), None if network_path is None else str(network_path)
    written = []
    for given in certificates:
        given = replace(given, images=given.images.detach().cpu().float())  # what is evaluated is what is stored
        evaluator = Evaluator(network, given.images, given.labels, given.eps, given.intermediate)
        sums = evaluator.sums(given.duals)
        kept, lost = _rounded(given.proofs, evaluator, sums)
        conflicts = Conflicts(proof.choices for proof in kept)
        for one in sums:
            one.dual = justified(one.dual, conflicts)
        survivors = min(given.survivors, implied(given, evaluator.classes, kept, sums, SLACK))
        path = certificate_path(Path(folder), given.number)
        store(
            path,
            replace(
                given,
                proofs=tuple(kept),
                survivors=survivors,
                network=name,
                network_path=where,
                duals=tuple(one.dual for one in sums),
            ),
        )
        written.append(Written(path, survivors, lost))
    return written


def certificate_path(folder: Path, number: int) -> Path:
    """The file of a group."""
    return folder / f"group-{number:05}.safetensors"


def _rounded(
    proofs: tuple[Proof, ...], evaluator: Evaluator, sums: Sequence[DualSums]
) -> tuple[list[Proof], tuple[int, ...]]:
    """Proofs that hold, with slopes as bytes where they still hold so; and the positions of those that do not."""
    coarse = _stored(proofs, lambda slopes: (slopes.double().clamp(0, 1) * 255).round().byte())
    kept = {k: coarse[k] for k, value in enumerate(evaluator.values(coarse, sums)) if value.holds}
    left = [k for k in range(len(proofs)) if k not in kept]
    fine = _stored([proofs[k] for k in left], lambda slopes: slopes.float().clamp(0, 1))
    kept |= {k: proof for k, proof, value in zip(left, fine, evaluator.values(fine), strict=True) if value.holds}
    return [kept[k] for k in sorted(kept)], tuple(k for k in left if k not in kept)


def _stored(proofs: Sequence[Proof], convert: Callable[[Tensor], Tensor]) -> list[Proof]:
    """The same proofs with numbers as they are stored, slopes converted; planes that are shared stay shared."""
    made: dict[PlaneSource, PlaneSource] = {}

    def rows(sources: tuple[PlaneSource, ...]) -> tuple[PlaneSource, ...]:
        for source in sources:
            slopes = None if source.slopes is None else convert(source.exact_slopes)
            made.setdefault(source, replace(source, slopes=slopes))
        return tuple(made[source] for source in sources)

    def rounded(part: Round) -> Round:
        neurons = tuple(which.cpu().int() for which in part.neurons)
        return Round(rows(part.rows), neurons, tuple(mu.cpu().float() for mu in part.multipliers))

    return [replace(p, rows=rows(p.rows), rounds=tuple(map(rounded, p.rounds))) for p in proofs]
