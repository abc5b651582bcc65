"""What is in the file of a certificate: safetensors, read and written without evaluating anything.

Its tensors, with p planes, k proofs and n images:

    about      JSON as bytes: version, eps, intermediate, arithmetic, network (fingerprint, path), number, survivors,
               parts, and how many duals there are
    images     (n, C, H, W) uint8 where float32(images / 255) gives the very images, else float32; labels, index (n,)
    planes     (p, 5): image, wrong label, 0 | 8 | 32 for adaptive slopes or bits of stored ones, row of that table, row
               of the table of sides
    slopes8    (rows, ReLUs) uint8, slope = number / 255; slopes32 float32
    sides      (rows, splits, 2): neuron and sign, -1 where there are fewer; the first row has none
    proofs     (k, 3): how many entries of `choices` (., 2), of `members` (planes) and `lambdas`, of `rounds` each has
    rounds     (r,): how many entries m of `assumed` (., 2) each has: a plane, and how many entries of `neurons` belong
               to it, and with them (2, neurons, m) entries of `multipliers`
    dual0.*    the fields of a Dual (dual.py): leaves (., 3) with rows of the table of sides; planes, closed, by number;
               cuts (., 2) with how many entries of `members` each has, and its limit

Everything is a tensor, the JSON too, because the checksum of files.py covers tensors. Boxes are not stored: the checker
makes its own.
"""

import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from citrus.checker.dual import Dual, Leaf
from citrus.checker.planes import PlaneSource, Side
from citrus.checker.proofs import Certificate, Proof, Round
from citrus.errors import CitrusError
from citrus.files import load_tensors, save_tensors
from citrus.networks.operations import Arithmetic

VERSION, OLDER = 3, 2
"""What is written, and what is read as well: the same without sides and duals."""
ADAPTIVE = 0


class _Numbers:
    """Planes, slopes and sides, each once, by their numbers."""

    def __init__(self) -> None:
        self.planes: dict[tuple[int, ...], int] = {}  # in the order they come
        self.slopes: dict[int, dict[bytes, tuple[int, Tensor]]] = {8: {}, 32: {}}
        self.sides: dict[tuple[Side, ...], int] = {(): 0}

    def plane(self, source: PlaneSource) -> int:
        kind, row = ADAPTIVE, 0
        if source.slopes is not None:
            kind = 8 * source.slopes.element_size()
            table = self.slopes[kind]
            row = table.setdefault(source.slopes.numpy().tobytes(), (len(table), source.slopes))[0]
        key = source.image, source.label, kind, row, self.side(source.sides)
        return self.planes.setdefault(key, len(self.planes))

    def side(self, sides: tuple[Side, ...]) -> int:
        return self.sides.setdefault(sides, len(self.sides))

    @property
    def tensors(self) -> dict[str, Tensor]:
        most = max(map(len, self.sides))
        sides = [[*some, *[(-1, -1)] * (most - len(some))] for some in self.sides]
        found = {
            "planes": _table(self.planes, 5),
            "sides": torch.tensor(sides, dtype=torch.int32).view(len(sides), most, 2),
        }
        return found | {
            f"slopes{bits}": torch.stack([slopes for _, slopes in table.values()])
            for bits, table in self.slopes.items()
            if table
        }


def store(path: Path, certificate: Certificate) -> None:
    """Write one file as it is told, without evaluating anything. Slopes must be uint8 or float32."""
    numbers = _Numbers()
    tensors = {
        "images": _as_bytes(certificate.images),
        "labels": certificate.labels.long(),
        "index": certificate.index.long(),
        **_proofs(certificate.proofs, numbers),
    }
    for k, dual in enumerate(certificate.duals):
        tensors |= {f"dual{k}.{name}": value for name, value in _dual(dual, numbers).items()}
    about = {
        "version": VERSION,
        "eps": certificate.eps,
        "intermediate": certificate.intermediate,
        "arithmetic": certificate.arithmetic,
        "network": {"fingerprint": certificate.network, "path": certificate.network_path},
        "number": certificate.number,
        "survivors": certificate.survivors,
        "parts": certificate.parts,
        "duals": len(certificate.duals),
    }
    tensors["about"] = torch.frombuffer(bytearray(json.dumps(about).encode()), dtype=torch.uint8)
    save_tensors(path, tensors | numbers.tensors, {"kind": "certificate"})


def _proofs(proofs: tuple[Proof, ...], numbers: _Numbers) -> dict[str, Tensor]:
    members = [numbers.plane(row) for proof in proofs for row in proof.rows]
    rounds = [part for proof in proofs for part in proof.rounds]
    assumed = [numbers.plane(row) for part in rounds for row in part.rows]
    neurons = [which for part in rounds for which in part.neurons]
    tensors = {
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
    return tensors


MULTIPLIERS = ("weights", "alpha", "beta", "gamma", "theta")


def _dual(dual: Dual, numbers: _Numbers) -> dict[str, Tensor]:
    return {
        "images": torch.tensor(dual.images, dtype=torch.int32),
        "leaves": _table([(leaf.image, leaf.label, numbers.side(leaf.sides)) for leaf in dual.leaves], 3),
        "closed": torch.tensor([numbers.plane(source) for source in dual.closed], dtype=torch.int32),
        "planes": torch.tensor([numbers.plane(source) for source in dual.planes], dtype=torch.int32),
        "uses": dual.uses.int(),
        "pairs": dual.pairs.int(),
        "cuts": _table([(len(some), most) for some, most in dual.cuts], 2),
        "members": torch.tensor([leaf for some, _ in dual.cuts for leaf in some], dtype=torch.int32),
        **{name: getattr(dual, name).double() for name in MULTIPLIERS},
    }


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
        if about["version"] not in (OLDER, VERSION):
            raise ValueError(f"version {about['version']!r}, but this Citrus reads version {VERSION}")
        return _parse(tensors, about)
    except (KeyError, ValueError, TypeError, IndexError, RuntimeError, AttributeError, OverflowError) as error:
        raise CitrusError(f"{path} is no certificate that can be used ({type(error).__name__}: {error}).") from error


def _parse(tensors: dict[str, Tensor], about: dict[str, Any]) -> Certificate:
    images = tensors["images"].float()
    images = images / 255 if tensors["images"].dtype == torch.uint8 else images
    labels, index = (tensors[name].long().reshape(len(images)) for name in ("labels", "index"))
    sides = _sides(tensors)
    sources = _sources(tensors, sides)
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
        duals=tuple(_read_dual(tensors, f"dual{k}.", sources, sides) for k in range(int(about.get("duals", 0)))),
        arithmetic=_arithmetic(about.get("arithmetic", "real")),  # older files do not say
        network=str(about["network"]["fingerprint"]),
        network_path=where,
    )


def _sources(tensors: dict[str, Tensor], sides: list[tuple[Side, ...]]) -> list[PlaneSource]:
    tables = {bits: tensors[f"slopes{bits}"] for bits in (8, 32) if f"slopes{bits}" in tensors}
    planes = [(*row, 0)[:5] for row in tensors["planes"].long().tolist()]  # older files do not name sides
    listed = {(i, j, bits, row if bits else ADAPTIVE, side) for i, j, bits, row, side in planes}
    if len(listed) < len(planes) or any(row < 0 or side < 0 for *_, row, side in planes):  # each costs time and memory
        raise ValueError("a plane is listed twice, or has slopes or sides that do not exist")
    return [PlaneSource(i, j, tables[bits][row] if bits else None, sides[side]) for i, j, bits, row, side in planes]


def _sides(tensors: dict[str, Tensor]) -> list[tuple[Side, ...]]:
    table = tensors.get("sides", torch.zeros(1, 0, 2))
    if table.dim() != 3 or table.shape[2] != 2 or bool((table[:1] != -1).any()):
        raise ValueError(f"sides have the shape (rows, splits, 2), the first without any, got {tuple(table.shape)}")
    return [tuple((neuron, on) for neuron, on in some if neuron != -1) for some in table.long().tolist()]


def _read_dual(
    tensors: dict[str, Tensor], name: str, sources: list[PlaneSource], sides: list[tuple[Side, ...]]
) -> Dual:
    given = {key.removeprefix(name): value for key, value in tensors.items() if key.startswith(name)}

    def whole(key: str, *width: int) -> Tensor:
        if given[key].shape[1:] != width or given[key].dim() != 1 + len(width) or given[key].is_floating_point():
            raise ValueError(f"{name}{key} has the wrong shape or type")
        return given[key].long()

    planes, closed = whole("planes").tolist(), whole("closed").tolist()
    for listed in (planes, closed):
        if len(set(listed)) < len(listed) or any(not 0 <= k < len(sources) for k in listed):
            raise ValueError("a dual names a plane twice, or one that is not listed")
    leaves = whole("leaves", 3).tolist()
    if any(not 0 <= side < len(sides) for *_, side in leaves):
        raise ValueError("a leaf has sides that do not exist")
    sizes, limits = whole("cuts", 2).T.tolist()
    members = [tuple(part.tolist()) for part in whole("members").split(sizes)]
    return Dual(
        images=tuple(whole("images").tolist()),
        leaves=tuple(Leaf(i, j, sides[side]) for i, j, side in leaves),
        closed=tuple(sources[k] for k in closed),
        planes=tuple(sources[k] for k in planes),
        uses=whole("uses", 2),
        pairs=whole("pairs", 2),
        cuts=tuple(zip(members, limits, strict=True)),
        **{key: given[key] for key in MULTIPLIERS},
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
