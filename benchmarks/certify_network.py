"""One network certified, with the seconds of each stage: python benchmarks/certify_network.py NETWORK --data-dir FOLDER

NETWORK is a run folder or a network that benchmarks/sweep.py saved. Groups are of correct images. The JSON file is what
benchmarks/cnn7.py reads; `benchmarks/gpu.py --run` writes the same beside its other measurements.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from citrus.certify import CertifySettings, GroupResult
from citrus.certify.cascade import Cascade
from citrus.data import as_float, load
from citrus.files import load_tensors, write_json
from citrus.networks import graph
from citrus.training.config import from_dict
from citrus.training.folder import RunFolder, environment
from citrus.training.run import load_network, pick_device


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-dir")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--group-size", type=int, default=5)
    parser.add_argument("--budget", type=float, default=0.3, help="seconds per group for search and refinement")


def certification(path: str, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """What the cascade with joint refinement proves of the first images, and the seconds of each stage."""
    place = Path(path)
    file = RunFolder(place).model if place.is_dir() else place
    _, header = load_tensors(file)
    config = from_dict(header["config"])
    test = load(config.data, data_dir=options.data_dir).test.to(device)
    x, y = as_float(test.images[: options.images]), test.labels[: options.images]
    settings = CertifySettings(group_size=options.group_size, budget=options.budget)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    rows: list[GroupResult] = []

    plain = graph(load_network(file).to(device), tuple(x.shape[1:]))
    cascade = Cascade(plain, x, y, config.eps, settings)
    for block in cascade.blocks():
        rows.extend(block.rows)
        correct, proved, left = (sum(getattr(r, k) for r in rows) for k in ("correct", "certified", "attacked"))
        print(
            f"  {len(rows)} groups in {time.perf_counter() - started:.0f} s: of {correct} correct images {proved} are "
            f"certified, the attack leaves {left}",
            flush=True,
        )

    found = cascade.result(rows)
    result = {
        "run": place.name if place.is_dir() else file.stem,
        "group_size": options.group_size,
        "budget": options.budget,
        "intermediate": cascade.question.verifier.linear.intermediate,
        "images": len(x),
        "seconds": time.perf_counter() - started,
        "stages": found.stage_seconds,
        "certified": found.certified,
        "attacked": found.attacked,
        "correct": found.correct,
        "outcomes": found.images_by_outcome(),
    }
    if device.type == "cuda":
        result["memory_gb"] = torch.cuda.max_memory_allocated() / 2**30
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network")
    add_arguments(parser)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", default="certification.json")
    options = parser.parse_args()
    found = certification(options.network, options, pick_device(options.device))
    print(found)
    write_json(Path(options.out), {"environment": environment(), "certification": found})
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
