"""Certificates: the proofs of a group as one file that a stranger can check with nothing but the network.

    written = write_certificates(folder, graph, certificates)
    certificate = read_certificate(folder / "group-00012.safetensors")

One safetensors file per group, written in one step, so that a run that is stopped loses at most the unfinished group.
Its tensors, with p planes, k proofs and n images:

    about      JSON as bytes: version, eps, intermediate, arithmetic, network (fingerprint, path), number, survivors,
               parts
    images     (n, C, H, W) uint8 where float32(images / 255) gives the very images, else float32; labels, index (n,)
    planes     (p, 4): image, wrong label, 0 | 8 | 32 for adaptive slopes or bits of stored ones, row of that table
    slopes8    (rows, ReLUs) uint8, slope = number / 255; slopes32 float32
    proofs     (k, 3): how many entries of `choices` (., 2), of `members` (planes) and `lambdas`, of `rounds` each has
    rounds     (r,): how many entries m of `assumed` (., 2) each has: a plane, and how many entries of `neurons` belong
               to it, and with them (2, neurons, m) entries of `multipliers`

Everything is a tensor, the JSON too, because the checksum of files.py covers tensors. Boxes are not stored: the checker
makes its own. Any slope in [0, 1] is sound, so slopes are rounded to bytes and the proofs evaluated again; those that
are lost by it keep float32. Proofs that do not hold even so, for instance because they lived on rounding in float32,
are left out and the count is lowered to what the others imply: a file never claims more than it proves.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from citrus.checker.arithmetic import Network
from citrus.checker.proofs import Certificate, Evaluator, PlaneSource, Proof, Round, confirmed
from citrus.errors import CitrusError
from citrus.files import load_tensors, save_tensors
from citrus.networks.operations import Arithmetic, Graph

VERSION = 2
ADAPTIVE = 0


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
        kept, lost = _rounded(given.proofs, evaluator)
        survivors = given.survivors
        while survivors > 0 and not confirmed(given, evaluator.classes, kept, survivors):
            survivors -= 1
        path = certificate_path(Path(folder), given.number)
        store(path, replace(given, proofs=tuple(kept), survivors=survivors, network=name, network_path=where))
        written.append(Written(path, survivors, lost))
    return written


def certificate_path(folder: Path, number: int) -> Path:
    """The file of a group."""
    return folder / f"group-{number:05}.safetensors"


def _rounded(proofs: tuple[Proof, ...], evaluator: Evaluator) -> tuple[list[Proof], tuple[int, ...]]:
    """Proofs that hold, with slopes as bytes where they still hold so; and the positions of those that do not."""
    coarse = _stored(proofs, lambda slopes: (slopes.double().clamp(0, 1) * 255).round().byte())
    kept = {k: coarse[k] for k, value in enumerate(evaluator.values(coarse)) if value.holds}
    left = [k for k in range(len(proofs)) if k not in kept]
    fine = _stored([proofs[k] for k in left], lambda slopes: slopes.float().clamp(0, 1))
    kept |= {k: proof for k, proof, value in zip(left, fine, evaluator.values(fine), strict=True) if value.holds}
    return [kept[k] for k in sorted(kept)], tuple(k for k in left if k not in kept)


def _stored(proofs: Sequence[Proof], convert: Callable[[Tensor], Tensor]) -> list[Proof]:
    """The same proofs with numbers as they are stored, slopes converted; planes that are shared stay shared."""
    made: dict[PlaneSource, PlaneSource] = {}

    def rows(sources: tuple[PlaneSource, ...]) -> tuple[PlaneSource, ...]:
        for source in sources:
            slopes = None if source.slopes is None else convert(source.slopes.detach().cpu())
            made.setdefault(source, replace(source, slopes=slopes))
        return tuple(made[source] for source in sources)

    def rounded(part: Round) -> Round:
        neurons = tuple(which.cpu().int() for which in part.neurons)
        return Round(rows(part.rows), neurons, tuple(mu.cpu().float() for mu in part.multipliers))

    return [replace(p, rows=rows(p.rows), rounds=tuple(map(rounded, p.rounds))) for p in proofs]


def store(path: Path, certificate: Certificate) -> None:
    """Write one file as it is told, without evaluating anything. Slopes must be uint8 or float32."""
    proofs = certificate.proofs
    tables: dict[int, dict[bytes, tuple[int, Tensor]]] = {8: {}, 32: {}}
    numbers: dict[tuple[int, ...], int] = {}  # of planes, in the order they come

    def number(source: PlaneSource) -> int:
        kind, row = ADAPTIVE, 0
        if source.slopes is not None:
            kind = 8 * source.slopes.element_size()
            row = tables[kind].setdefault(source.slopes.numpy().tobytes(), (len(tables[kind]), source.slopes))[0]
        return numbers.setdefault((source.image, source.label, kind, row), len(numbers))

    members = [number(row) for proof in proofs for row in proof.rows]
    rounds = [part for proof in proofs for part in proof.rounds]
    assumed = [number(row) for part in rounds for row in part.rows]
    neurons = [which for part in rounds for which in part.neurons]
    tensors = {
        "images": _as_bytes(certificate.images),
        "labels": certificate.labels.long(),
        "index": certificate.index.long(),
        "planes": _table(numbers, 4),
        "proofs": _table([(len(p.choices), len(p.rows), len(p.rounds)) for p in proofs], 3),
        "choices": _table([choice for proof in proofs for choice in proof.choices], 2),
        "members": torch.tensor(members, dtype=torch.int32),
        "lambdas": torch.tensor([x for proof in proofs for x in proof.lambdas], dtype=torch.float64),
    }
    if rounds:
        tensors["rounds"] = torch.tensor([len(part.rows) for part in rounds], dtype=torch.int32)
        tensors["assumed"] = _table(zip(assumed, map(len, neurons), strict=True), 2)
        tensors["neurons"] = torch.cat(neurons).int()
        tensors["multipliers"] = torch.cat([mu.flatten() for part in rounds for mu in part.multipliers]).float()
    for bits, table in tables.items():
        if table:
            tensors[f"slopes{bits}"] = torch.stack([slopes for _, slopes in table.values()])
    about = {
        "version": VERSION,
        "eps": certificate.eps,
        "intermediate": certificate.intermediate,
        "arithmetic": certificate.arithmetic,
        "network": {"fingerprint": certificate.network, "path": certificate.network_path},
        "number": certificate.number,
        "survivors": certificate.survivors,
        "parts": certificate.parts,
    }
    tensors["about"] = torch.tensor(list(json.dumps(about).encode()), dtype=torch.uint8)
    save_tensors(path, tensors, {"kind": "certificate"})


def _table(rows: Iterable[tuple[int, ...]], width: int) -> Tensor:
    return torch.tensor(list(rows), dtype=torch.int32).reshape(-1, width)


def _as_bytes(images: Tensor) -> Tensor:
    images = images.detach().cpu().float()
    levels = (images * 255).round().clamp(0, 255).byte()
    return levels if torch.equal(levels.float() / 255, images) else images


def read_certificate(path: str | Path) -> Certificate:
    """What `write_certificates` wrote; nothing is proved yet."""
    path = Path(path)
    tensors, header = load_tensors(path)
    if header.get("kind") != "certificate":
        raise CitrusError(f"{path} is no certificate.")
    try:
        about = json.loads(bytes(tensors["about"].tolist()))
        if about["version"] != VERSION:
            raise ValueError(f"version {about['version']!r}, but this Citrus reads version {VERSION}")
        return _parse(tensors, about)
    except (KeyError, ValueError, TypeError, IndexError, RuntimeError, AttributeError, OverflowError) as error:
        raise CitrusError(f"{path} is no certificate that can be used ({type(error).__name__}: {error}).") from error


def _parse(tensors: dict[str, Tensor], about: dict[str, Any]) -> Certificate:
    images = tensors["images"].float()
    images = images / 255 if tensors["images"].dtype == torch.uint8 else images
    labels, index = (tensors[name].long().reshape(len(images)) for name in ("labels", "index"))
    tables = {bits: tensors[f"slopes{bits}"] for bits in (8, 32) if f"slopes{bits}" in tensors}
    planes = tensors["planes"].long().tolist()
    listed = {(i, j, bits, row if bits else ADAPTIVE) for i, j, bits, row in planes}
    if len(listed) < len(planes) or any(row < 0 for *_, row in planes):  # each one costs time and memory
        raise ValueError("a plane is listed twice, or has slopes that do not exist")
    sources = [PlaneSource(i, j, None if bits == ADAPTIVE else tables[bits][row]) for i, j, bits, row in planes]
    counts = tensors["proofs"].long().reshape(-1, 3).T.tolist()
    choices = tensors["choices"].long().reshape(-1, 2).split(counts[0])
    members = [part.tolist() for part in tensors["members"].long().split(counts[1])]
    lambdas = [part.tolist() for part in tensors["lambdas"].double().split(counts[1])]
    rounds = iter(_rounds(tensors, sources) if "rounds" in tensors else [])
    proofs = tuple(
        Proof(
            tuple((i, j) for i, j in chosen.tolist()),
            tuple(sources[k] for k in rows),
            tuple(weights),
            tuple(next(rounds) for _ in range(count)),
        )
        for chosen, rows, weights, count in zip(choices, members, lambdas, counts[2], strict=True)
    )
    eps, parts, where = float(about["eps"]), about["parts"], about["network"]["path"]
    if where is not None and not isinstance(where, str):
        raise ValueError(f"the network lies at {where!r}")
    if not 0 <= eps < float("inf"):
        raise ValueError(f"eps must be a finite number >= 0, got {eps}")
    return Certificate(
        number=int(about["number"]),
        index=index,
        images=images,
        labels=labels,
        eps=eps,
        intermediate=about["intermediate"],
        proofs=proofs,
        survivors=int(about["survivors"]),
        parts=None if parts is None else tuple(tuple(int(i) for i in part) for part in parts),
        arithmetic=_arithmetic(about.get("arithmetic", "real")),  # older files do not say
        network=str(about["network"]["fingerprint"]),
        network_path=where,
    )


def _arithmetic(name: Any) -> Arithmetic:
    if name not in get_args(Arithmetic):
        raise ValueError(f"arithmetic must be real or float32, got {name!r}")
    return name


def _rounds(tensors: dict[str, Tensor], sources: list[PlaneSource]) -> list[Round]:
    """All rounds, in the order of the proofs they belong to."""
    sizes = tensors["rounds"].long().tolist()
    planes, counts = tensors["assumed"].long().reshape(-1, 2).T.tolist()
    if min(sizes, default=0) < 0 or sum(sizes) != len(planes):
        raise ValueError(f"its rounds assume {sum(sizes)} planes, but {len(planes)} are listed")
    widths = [size for size in sizes for _ in range(size)]  # of each entry: planes in its round
    neurons = tensors["neurons"].split(counts)
    amounts = [2 * count * width for count, width in zip(counts, widths, strict=True)]
    parts = zip(tensors["multipliers"].split(amounts), widths, strict=True)
    entries = zip([sources[k] for k in planes], neurons, [mu.reshape(-1, width) for mu, width in parts], strict=True)
    return [Round(*zip(*islice(entries, size), strict=True)) for size in sizes]
