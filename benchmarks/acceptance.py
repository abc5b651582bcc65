"""The verifier against published values: seven rows on public networks (RaVeN, RACoon), one command.

    python benchmarks/acceptance.py --nets FOLDER --data-dir FOLDER [--rows d20,c5] [--out results/certifications.jsonl]

FOLDER of --nets holds the ONNX files named below (ERAN's and COLT's model zoo). Protocol of the papers: test images in
order, misclassified ones dropped, consecutive groups of k, the first P groups; percent of these k * P images. The box
is not clipped to [0, 1]. CROWN and I/O are deterministic and must be hit exactly.
"""

import argparse
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from citrus.attacks import Ascent, fooled, universal_pgd
from citrus.certify import Certification, CertifySettings, certify
from citrus.data import as_float, load
from citrus.networks import Graph
from citrus.networks.onnx import load_onnx
from citrus.studies.rows import Row, StudyRows


@dataclass(frozen=True)
class Published:
    """One published setting with its values in percent."""

    network: str
    data: str
    k: int
    groups: int
    eps: str
    crown: float
    io: float
    best: float
    by: str


ROWS = {
    "d20": Published("mnistconvSmallRELUDiffAI", "mnist", 20, 10, "0.12", 78.0, 80.5, 85.0, "RACoon"),
    "d5": Published("mnistconvSmallRELUDiffAI", "mnist", 5, 20, "0.12", 75.0, 76.0, 91.0, "RaVeN"),
    "pgd": Published("mnistconvSmallRELU__PGDK", "mnist", 20, 10, "0.1", 70.5, 72.0, 77.0, "RACoon"),
    "colt": Published("mnist_0.1", "mnist", 20, 10, "0.13", 83.5, 84.0, 92.0, "RACoon"),
    "c3": Published("cifar10convSmallRELUDiffAI", "cifar10", 10, 10, "3/255", 67.0, 69.0, 71.0, "RACoon"),
    "c5": Published("cifar10convSmallRELUDiffAI", "cifar10", 10, 10, "5/255", 38.0, 47.0, 49.0, "RACoon"),
    "pt": Published("convSmallRELU__Point", "cifar10", 10, 10, "1/255", 52.0, 55.0, 58.0, "RACoon"),
}
NORMALISED_BY_CALLER = {"mnist_0.1": ((0.1307,), (0.3081,))}


def instance(row: Published, options: argparse.Namespace, images: int | None = None) -> tuple[Graph, Tensor, Tensor]:
    """The network and the first k * P test images that it classifies right, or so many."""
    mean, std = NORMALISED_BY_CALLER.get(row.network, (None, None))
    plain = load_onnx(Path(options.nets) / f"{row.network}.onnx", mean=mean, std=std)
    plain = plain.map(lambda weight: weight.detach().to(options.device))
    test = load(row.data, data_dir=options.data_dir).test.to(options.device)
    count = images or row.k * row.groups
    x, y = as_float(test.images[: 5 * count]), test.labels[: 5 * count]
    right = (plain(x).argmax(1) == y).nonzero().flatten()[:count]
    assert len(right) == count
    return plain, x[right], y[right]


def measure(row: Published, verifier: str, options: argparse.Namespace) -> tuple[Certification, float]:
    plain, images, labels = instance(row, options)
    started = time.perf_counter()
    result = certify(plain, images, labels, row.eps, CertifySettings(row.k, verifier=verifier, budget=options.budget))
    return result, (time.perf_counter() - started) / row.groups


def measured(name: str, row: Published, options: argparse.Namespace) -> Row:
    """What we prove, beside what is published: CROWN and I/O must be equal."""
    plain, _ = measure(row, "zeng", options)
    ours, seconds = measure(row, "citrus", options)
    alone = 100 * sum(r.stages.get("crown", 0) for r in plain.rows) / plain.images
    print(
        f"{name}: CROWN {alone} (published {row.crown}), I/O {plain.certified} ({row.io}), citrus {ours.certified} "
        f"({row.best} {row.by}), attack {ours.attacked}, {seconds:.1f} s a group",
        flush=True,
    )
    if options.challenge:
        network, images, labels = instance(row, options)
        attacked, corners = challenge(network, images, labels, ours)
        print(f"{name}: 100 restarts leave {attacked}, 10,000 corners {corners} images; no group falls below its count")
    asked = asdict(row)
    return {
        **{key: asked[key] for key in ("network", "data", "groups", "eps")},
        "group_size": row.k,
        "grouping": "correct",
        "verifier": "citrus",
        "budget": options.budget,
        "published": {key: asked[key] for key in ("crown", "io", "best", "by")},
        "single": alone,
        "io": plain.certified,
        "certified": ours.certified,
        "attacked": ours.attacked,
        "s_per_group": seconds,
        "stages": ours.stage_seconds,
    }


def challenge(plain: Graph, images: Tensor, labels: Tensor, result: Certification) -> tuple[int, int]:
    """Fewest survivors over all groups in sum that 100 attack restarts, and 10,000 random corners, leave.

    Ends the benchmark when a group keeps fewer images than it is certified for.
    """
    generator = torch.Generator(images.device).manual_seed(1)
    groups = torch.arange(len(images), device=images.device) // result.group_size
    certified = torch.tensor([row.certified for row in result.rows], device=images.device)
    attack = Ascent(steps=40, restarts=100)
    found = universal_pgd(plain, images, labels, groups, result.eps, attack, generator)
    kept = torch.zeros_like(certified).index_add(0, groups, (~found.fooled).long())
    fewest = torch.full_like(certified, len(images))
    for _ in range(10_000):
        corner = torch.rand(images.shape[1:], generator=generator, device=images.device).sub(0.5).sign() * result.eps
        right = ~fooled(plain(images + corner), labels)
        fewest = torch.minimum(fewest, torch.zeros_like(certified).index_add(0, groups, right.long()))
    if bool((kept < certified).any()) or bool((fewest < certified).any()):
        raise SystemExit(f"certified {certified.tolist()}, attacked {kept.tolist()}, corners {fewest.tolist()}")
    return int(kept.sum()), int(fewest.sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nets", required=True)
    parser.add_argument("--data-dir")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--budget", type=float, default=20.0)
    parser.add_argument("--challenge", action="store_true", help="then attack: 100 restarts, 10,000 random corners")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default="acceptance.jsonl")
    options = parser.parse_args()
    rows = StudyRows(options.out, "acceptance")
    for name in options.rows.split(","):
        rows.add("certification", name, measured(name, ROWS[name], options))
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
