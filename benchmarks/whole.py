"""One perturbation for many images: what is proved for which N, and what the master problem costs.

    python benchmarks/whole.py table --nets FOLDER --data-dir FOLDER [--sizes 5,20,200] [--images 200]
    python benchmarks/whole.py growth --data-dir FOLDER [--choices 250,500,1000,2000] [--device cuda]

    python benchmarks/whole.py blocks --data-dir FOLDER [--choices 500] [--parts 2,4,8]

`table` certifies the first correct images of public networks with published values (acceptance.py) in groups of N.
`growth` takes so many open choices of our ConvSmall for CIFAR-10 at 2/255 and solves one dual without splits and one
with: seconds until the bound is within a hundredth of the best one of the run, and the whole curve of bound against
time as a row. `blocks` cuts the same choices into several problems whose bounds add up, at random, by class, and as
partition.py chooses.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from acceptance import ROWS, instance
from step import seconds as timed

from citrus.certify import CertifySettings, certify
from citrus.certify.alone import prove_alone
from citrus.certify.cascade import Cascade
from citrus.certify.whole.choices import Known, OpenChoices
from citrus.certify.whole.front import Front
from citrus.certify.whole.leaves import Branching
from citrus.certify.whole.lowrank import LowRank
from citrus.certify.whole.master import Limits, solve_master
from citrus.certify.whole.partition import partition
from citrus.console import table
from citrus.data import as_float, load
from citrus.networks import load_network
from citrus.networks.kernels import true_float32
from citrus.studies.rows import StudyRows

NETWORK, EPS = "cifar10-2-255", "2/255"
CLOSE = 1.01
"""Within a hundredth of the best bound."""


def networks(options: argparse.Namespace) -> None:
    """Each public network at its radius, for all sizes of groups."""
    rows, lines, sizes = StudyRows(options.out, "whole"), [], [int(n) for n in options.sizes.split(",")]
    for name in options.rows.split(","):
        row = ROWS[name]
        plain, images, labels = instance(row, options, options.images)
        cells = [row.network, row.eps]
        for size in sizes:
            started = time.perf_counter()
            found = certify(plain, images, labels, row.eps, CertifySettings(size, budget=options.budget))
            measured: dict[str, Any] = {
                "network": row.network,
                "data": row.data,
                "eps": row.eps,
                "images": len(images),
                "group_size": size,
                "grouping": "correct",
                "verifier": "citrus",
                "budget": options.budget,
                "certified": found.certified,
                "attacked": found.attacked,
                "seconds": time.perf_counter() - started,
                "stages": found.stage_seconds,
            }
            rows.add("certification", f"{name}-n{size}", measured)
            cells += [f"{found.certified:g} to {found.attacked:g}", f"{measured['seconds']:.0f}"]
            print(" ".join(cells[:2] + cells[-2:]), flush=True)
        lines.append(cells)
    print(table(["network", "eps", *(cell for n in sizes for cell in (f"N = {n}", "s"))], lines))


def open_choices(count: int, options: argparse.Namespace) -> tuple[Cascade, OpenChoices]:
    """So many choices that single-image proofs leave open, of test images and then of training images."""
    data = load("cifar10", data_dir=options.data_dir)
    network = load_network(NETWORK).eval().to(options.device)  # type: ignore[union-attr]
    images = torch.cat([as_float(data.test.images), as_float(data.train.images)]).to(options.device)
    labels = torch.cat([data.test.labels, data.train.labels]).to(options.device)
    cascade, parts = Cascade(network, images, labels, EPS, CertifySettings()), list[OpenChoices]()
    for block in cascade.parts(torch.arange(len(images), device=labels.device)):
        parts.append(OpenChoices.of(prove_alone(cascade.question, block)))
        if sum(map(len, parts)) >= count:
            break
    choices = OpenChoices.joined(parts)
    return cascade, choices.only(torch.arange(len(choices), device=labels.device) < count)


def growth(options: argparse.Namespace) -> None:
    """Seconds and bounds for more and more choices."""
    rows, lines = StudyRows(options.out, "whole"), []
    counts = [int(count) for count in options.choices.split(",")]
    with true_float32(), torch.no_grad():
        cascade, every = open_choices(max(counts), options)
        for count in counts:
            few = every.only(torch.arange(len(every), device=every.image.device) < count)
            mine = few.of_images(few.image.unique())
            question = cascade.question
            branching = Branching(question.graph, mine.images, mine.image, mine.wrong, question.eps)
            front = Front.first(branching, mine.leaves, mine.adaptive)
            relaxed = LowRank(front.problem(Known().about(mine)))
            relaxed.advance(3)
            update = timed(lambda relaxed=relaxed: relaxed.advance(3)) / 3  # type: ignore[misc]
            cells = [str(len(mine)), str(len(front.pool)), f"{1000 * update:.0f}"]
            for rounds in (0, options.rounds):
                proof = solve_master(branching, mine, Limits(options.seconds, rounds=rounds))
                close = next(second for second, bound in proof.curve if bound <= CLOSE * proof.bound)
                cells += [f"{proof.bound:.1f}", f"{close:.1f}", f"{proof.curve[-1][0]:.1f}"]
                measured = {"network": NETWORK, "eps": EPS, "device": str(options.device), "rounds": rounds}
                measured |= {"choices": len(mine), "images": proof.images, "planes": len(front.pool)}
                measured |= {"update_seconds": update, "bound": proof.bound, "leaves": len(proof.front.leaves)}
                rows.add("growth", f"{count}-{rounds}", {**measured, "curve": [list(point) for point in proof.curve]})
            lines.append(cells)
            print("  ".join(cells), flush=True)
    title = ["choices", "planes", "ms an update"]
    title += [f"{what}, {how}" for how in ("no split", "split") for what in ("bound", "s to 1 %", "s in all")]
    print(table(title, lines))


def blocks(options: argparse.Namespace) -> None:
    """What is lost by cutting a problem, and what a good cut saves."""
    rows, lines = StudyRows(options.out, "whole"), []
    with true_float32(), torch.no_grad():
        cascade, every = open_choices(int(options.choices.split(",")[0]), options)
        images = every.image.unique()
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).to(images.device)
        by_class = images[every.images.labels[images].argsort(stable=True)]
        for count in (1, *(int(n) for n in options.parts.split(","))):
            ways = {
                "random": images[order].chunk(count),
                "by class": by_class.chunk(count),
                "chosen": partition(every, count),
            }
            found = {}
            for name, parts in ways.items() if count > 1 else [("whole", [images])]:
                started, lost = time.perf_counter(), 0.0
                for part in parts:
                    mine = every.of_images(part.sort().values)
                    question = cascade.question
                    branching = Branching(question.graph, mine.images, mine.image, mine.wrong, question.eps)
                    lost += min(solve_master(branching, mine, Limits(rounds=0)).bound, len(part))
                found[name] = lost
                measured = {"network": NETWORK, "eps": EPS, "parts": count, "how": name, "choices": len(every)}
                measured |= {"images": len(images), "bound": lost, "seconds": time.perf_counter() - started}
                rows.add("blocks", f"{count}-{name}", measured)
            lines.append([str(count), *(f"{found[name]:.1f}" if name in found else "" for name in ("whole", *ways))])
            print("  ".join(lines[-1]), flush=True)
    title = f"images of {len(images)} that may fall"
    print(table(["problems", "whole", "random", "by class", "chosen"], lines, title))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["table", "growth", "blocks"])
    parser.add_argument("--nets")
    parser.add_argument("--data-dir")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default="whole.jsonl")
    parser.add_argument("--rows", default="d20,pgd,colt,c3,c5,pt")
    parser.add_argument("--sizes", default="5,20,200")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--budget", type=float, default=10.0)
    parser.add_argument("--choices", default="250,500,1000,2000")
    parser.add_argument("--parts", default="2,4,8")
    parser.add_argument("--rounds", type=int, default=2, help="times that leaves are split")
    parser.add_argument("--seconds", type=float, default=600.0, help="for each problem at most")
    options = parser.parse_args()
    {"table": networks, "growth": growth, "blocks": blocks}[options.what](options)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
