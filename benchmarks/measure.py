"""How good a trained network is, the same way for every network: python benchmarks/measure.py RUN --data-dir FOLDER

clean      percent of the images classified right
ibp        proved one by one by interval bounds
single     proved one by one by the better of interval bounds and CROWN with interval boxes
crown      proved one by one by intervals or CROWN with CROWN's own boxes in every layer (with --crown: first 1,000)
attack N   images still right under the strongest perturbation found per group of N correct images (first --attacked)
uap N      images proved to survive every shared perturbation per group of N correct images (first --certified)
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from citrus.attacks import Ascent, consecutive_groups, universal_pgd
from citrus.bounds import LinearSettings, crown, interval, margin_rows
from citrus.certify import CertifySettings, certify
from citrus.console import table
from citrus.data import as_float, load
from citrus.networks import Graph, graph
from citrus.networks.precision import true_float32
from citrus.training import load_run
from citrus.training.run import pick_device

ATTACK = Ascent(steps=60, restarts=4)
LINEAR = LinearSettings(intermediate="interval", upper=False)
FULL, FULL_IMAGES = LinearSettings(intermediate="crown", upper=False), 1000


@torch.no_grad()
def proved_alone(
    plain: Graph, images: Tensor, labels: Tensor, eps: float, settings: LinearSettings = LINEAR
) -> tuple[Tensor, Tensor]:
    """(n,), (n,): by intervals, and by them or CROWN."""
    by_interval, by_either = [], []
    for x, y in zip(images.split(500), labels.split(500), strict=True):
        rows = margin_rows(y, plain.classes, x.dtype)
        by_interval.append((interval(plain, x, eps, rows).lower > 0).all(1))
        by_either.append((crown(plain, x, eps, rows, settings).lower > 0).all(1) | by_interval[-1])
    return torch.cat(by_interval), torch.cat(by_either)


def attacked(plain: Graph, images: Tensor, labels: Tensor, eps: float, size: int) -> float:
    """Percent of all images that are right and stay so under the perturbation of their group of correct images."""
    right = torch.cat([plain(x).argmax(1) for x in images.split(500)]) == labels
    x, y = images[right], labels[right]
    survived, chunk = 0, max(1, 1000 // size) * size
    for i in range(0, len(x), chunk):
        part = slice(i, i + chunk)
        groups = consecutive_groups(len(x[part]), size, x.device)
        generator = torch.Generator(x.device).manual_seed(0)
        found = universal_pgd(plain, x[part], y[part], groups, eps, ATTACK, generator)
        survived += int((~found.fooled).sum())
    return 100 * survived / len(images)


def measure(
    network: nn.Module,
    images: Tensor,
    labels: Tensor,
    eps: float,
    sizes: tuple[int, ...] = (1, 5, 20),
    count: int = 2000,
    certified: int = 0,
    full_crown: bool = False,
    settings: CertifySettings = CertifySettings(budget=1.0),  # noqa: B008 - frozen
) -> dict[str, Any]:
    """All numbers of the head of this file; `count` images are attacked, `certified` go through the whole cascade."""
    plain = graph(network.eval(), tuple(images.shape[1:])).map(Tensor.detach)
    started = time.perf_counter()
    with true_float32():
        right = torch.cat([plain(x).argmax(1) for x in images.split(500)]) == labels
        by_interval, by_either = proved_alone(plain, images, labels, eps)
        found: dict[str, Any] = {
            "images": len(images),
            "clean": 100 * right.double().mean().item(),
            "ibp": 100 * by_interval.double().mean().item(),
            "single": 100 * by_either.double().mean().item(),
            "attacked_images": min(count, len(images)),
        }
        if full_crown:
            first = slice(0, FULL_IMAGES)
            found["clean_first1000"] = 100 * right[first].double().mean().item()
            proved = proved_alone(plain, images[first], labels[first], eps, FULL)[1]
            found["crown_first1000"] = 100 * proved.double().mean().item()
        for size in sizes if count else ():
            found[f"attack{size}"] = attacked(plain, images[:count], labels[:count], eps, size)
    for size in sizes[1:] if certified else ():
        each = CertifySettings(group_size=size, budget=settings.budget, intermediate=settings.intermediate)
        result = certify(plain, images[:certified], labels[:certified], eps, each)
        found["certified_images"] = min(certified, len(images))
        found[f"uap{size}"] = result.certified
        found[f"uap{size}_attacked"] = result.attacked
        found[f"uap{size}_seconds"] = result.stage_seconds
    return {**found, "measure_seconds": time.perf_counter() - started}


ALONE = ("clean", "ibp", "single", "clean_first1000", "crown_first1000")
COLUMNS = (*ALONE, "attack1", "attack5", "attack20", "uap5", "uap20")


def rows_table(rows: list[dict[str, Any]]) -> str:
    shown = [
        [str(r["name"]), *(f"{r[c]:.2f}" if c in r else "" for c in COLUMNS), f"{r.get('train_seconds', 0):.0f}"]
        for r in rows
    ]
    return table(["run", *COLUMNS, "train s"], shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--data-dir")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--attacked", type=int, default=2000)
    parser.add_argument("--certified", type=int, default=0)
    parser.add_argument("--crown", action="store_true")
    parser.add_argument("--images", type=int, default=None, help="only the first so many test images")
    options = parser.parse_args()
    rows = []
    for folder in options.runs:
        run = load_run(folder)
        test = load(run.config.data, data_dir=options.data_dir).test.to(pick_device(options.device))
        images, labels = as_float(test.images[: options.images]), test.labels[: options.images]
        found = measure(
            run.network.to(images.device),
            *(images, labels, run.config.eps),
            count=options.attacked,
            certified=options.certified,
            full_crown=options.crown,
        )
        rows.append({"name": Path(folder).name, **found})
        print(json.dumps(rows[-1]), flush=True)
    print(rows_table(rows))


if __name__ == "__main__":
    main()
