"""The verifier against published values: seven rows on public networks (RaVeN, RACoon), one command.

    python benchmarks/acceptance.py --nets FOLDER --data-dir FOLDER [--rows d20,c5] [--out docs/results/acceptance.md]

FOLDER of --nets holds the ONNX files named below (ERAN's and COLT's model zoo). Protocol of the papers: test images in
order, misclassified ones dropped, consecutive groups of k, the first P groups; percent of these k * P images. The box
is not clipped to [0, 1]. CROWN and I/O are deterministic and must be hit exactly.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from citrus.attacks import Ascent, fooled, universal_pgd
from citrus.certify import Certification, CertifySettings, certify
from citrus.data import as_float, load
from citrus.errors import SoundnessError
from citrus.files import write_json, write_text
from citrus.networks import Graph
from citrus.networks.onnx import load_onnx
from citrus.training.folder import environment


@dataclass(frozen=True)
class Row:
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
    "d20": Row("mnistconvSmallRELUDiffAI", "mnist", 20, 10, "0.12", 78.0, 80.5, 85.0, "RACoon"),
    "d5": Row("mnistconvSmallRELUDiffAI", "mnist", 5, 20, "0.12", 75.0, 76.0, 91.0, "RaVeN"),
    "pgd": Row("mnistconvSmallRELU__PGDK", "mnist", 20, 10, "0.1", 70.5, 72.0, 77.0, "RACoon"),
    "colt": Row("mnist_0.1", "mnist", 20, 10, "0.13", 83.5, 84.0, 92.0, "RACoon"),
    "c3": Row("cifar10convSmallRELUDiffAI", "cifar10", 10, 10, "3/255", 67.0, 69.0, 71.0, "RACoon"),
    "c5": Row("cifar10convSmallRELUDiffAI", "cifar10", 10, 10, "5/255", 38.0, 47.0, 49.0, "RACoon"),
    "pt": Row("convSmallRELU__Point", "cifar10", 10, 10, "1/255", 52.0, 55.0, 58.0, "RACoon"),
}
NORMALISED_BY_CALLER = {"mnist_0.1": ((0.1307,), (0.3081,))}


def instance(row: Row, options: argparse.Namespace) -> tuple[Graph, Tensor, Tensor]:
    """The network and the first k * P test images that it classifies right."""
    mean, std = NORMALISED_BY_CALLER.get(row.network, (None, None))
    plain = load_onnx(Path(options.nets) / f"{row.network}.onnx", mean=mean, std=std)
    plain = plain.map(lambda weight: weight.detach().to(options.device))
    test = load(row.data, data_dir=options.data_dir).test.to(options.device)
    count = row.k * row.groups
    images, labels = as_float(test.images[: 5 * count]), test.labels[: 5 * count]
    right = (plain(images).argmax(1) == labels).nonzero().flatten()[:count]
    assert len(right) == count
    return plain, images[right], labels[right]


def measure(row: Row, verifier: str, options: argparse.Namespace) -> tuple[Certification, float]:
    plain, images, labels = instance(row, options)
    started = time.perf_counter()
    result = certify(plain, images, labels, row.eps, CertifySettings(row.k, verifier=verifier, budget=options.budget))
    return result, (time.perf_counter() - started) / row.groups


def line(name: str, row: Row, options: argparse.Namespace) -> tuple[str, dict[str, object]]:
    plain, _ = measure(row, "zeng", options)
    ours, seconds = measure(row, "citrus", options)
    alone = 100 * sum(r.stages.get("crown", 0) for r in plain.rows) / plain.images
    print(f"{name}: CROWN {alone}, I/O {plain.certified}, citrus {ours.certified}, attack {ours.attacked}")
    cells = [row.network, row.k, row.groups, row.eps, f"{row.crown} / {alone}", f"{row.io} / {plain.certified}"]
    cells += [f"{row.best} {row.by}", f"**{ours.certified}**", ours.attacked, f"{seconds:.1f} s"]
    if options.challenge:
        network, images, labels = instance(row, options)
        attacked, corners = challenge(network, images, labels, ours)
        print(f"{name}: 100 restarts leave {attacked}, 10,000 corners {corners} images; no group falls below its count")
    stages = {k: round(v, 2) for k, v in ours.stage_seconds.items()}
    found = {"crown": alone, "io": plain.certified, "citrus": ours.certified, "attacked": ours.attacked}
    return _row(cells), {"row": vars(row), **found, "s_per_group": seconds, **stages}


def challenge(plain: Graph, images: Tensor, labels: Tensor, result: Certification) -> tuple[int, int]:
    """Fewest survivors over all groups in sum that 100 attack restarts, and 10,000 random corners, leave.

    Raises when a group keeps fewer images than it is certified for.
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
        raise SoundnessError(f"certified {certified.tolist()}, attacked {kept.tolist()}, corners {fewest.tolist()}")
    return int(kept.sum()), int(fewest.sum())


def _row(cells: list[object] | list[str]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


HEAD = """# Acceptance: public networks with published values

Percent of the k x P correctly classified images that are certified against one shared perturbation per group.
`published / ours` must be equal for CROWN (images proved alone) and I/O (exact minimum over the planes); our default
verifier is compared with the best published value. The attack is an upper bound.
Made by `python benchmarks/acceptance.py --nets FOLDER --data-dir FOLDER`.

"""
COLUMNS = ["network", "k", "P", "eps", "CROWN", "I/O", "best published", "citrus", "attack", "time per group"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nets", required=True)
    parser.add_argument("--data-dir")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--budget", type=float, default=20.0)
    parser.add_argument("--challenge", action="store_true", help="then attack: 100 restarts, 10,000 random corners")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", default="acceptance.md")
    options = parser.parse_args()
    lines, values = [], {}
    for name in options.rows.split(","):
        text, values[name] = line(name, ROWS[name], options)
        lines.append(text)
    machine = environment()
    foot = f"\nMachine: {machine['cpu']}, {machine['threads']} threads, torch {torch.__version__}, seed 0, budget "
    write_text(
        Path(options.out),
        HEAD
        + "\n".join([_row(COLUMNS), _row(["---"] * len(COLUMNS)), *lines])
        + "\n"
        + foot
        + f"{options.budget:g} s per group.\n",
    )
    write_json(Path(options.out).with_suffix(".json"), {"rows": values, "environment": machine})
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
