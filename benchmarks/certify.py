"""How long certification takes, stage by stage: python benchmarks/certify.py --nets FOLDER --data-dir FOLDER

Times on ConvSmall of the public networks, with the interval bound as the unit, and the exact subset search on random
dense planes. Times of one run on one machine are comparable with each other only. They are appended to a file of rows.
"""

import argparse
import resource
from pathlib import Path

import torch
from step import seconds
from torch import Tensor

from citrus.bounds import AlphaSettings, alpha, crown, interval, margin_rows, wrong_labels
from citrus.certify.search.planes import ChoicePlanes
from citrus.certify.search.search import SubsetSearch
from citrus.console import table
from citrus.data import as_float, load
from citrus.networks.onnx import load_onnx
from citrus.studies.rows import StudyRows

EPS = 0.12


def bounds(nets: Path, data_dir: str | None) -> dict[str, float]:
    """Seconds for 200 images by intervals and by CROWN, and for 20 slope iterations on 100 images, on ConvSmall."""
    plain = load_onnx(nets / "mnistconvSmallRELUDiffAI.onnx").map(Tensor.detach)
    test = load("mnist", data_dir=data_dir).test
    images, labels = as_float(test.images[:200]), test.labels[:200]
    spec = margin_rows(labels, 10)
    with torch.no_grad():
        interval(plain, images, EPS, spec)  # warm up
        return {
            "interval, 200 images": seconds(lambda: interval(plain, images, EPS, spec)),
            "CROWN, 200 images": seconds(lambda: crown(plain, images, EPS, spec)),
            "20 slope steps, 100 images": seconds(
                lambda: alpha(plain, images[:100], EPS, spec[:100], AlphaSettings(iterations=20))
            ),
        }


def random_planes(count: int, pixels: int, generator: torch.Generator) -> ChoicePlanes:
    """Planes as networks give them: a part per class, one per image, and noise; about half of the labels are open."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, pixels, generator=generator, dtype=torch.float64)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    labels = torch.randint(10, (count,), generator=generator)
    wrong, classes = wrong_labels(labels, 10), normal(10)
    slopes = 0.6 * (classes[labels][:, None] - classes[wrong]) + 0.7 * normal(count, 1) + 0.7 * normal(count, 9)
    offsets = (0.4 + 1.2 * (0.5 * uniform(count, 1) + 0.5 * uniform(count, 9))) * slopes.abs().sum(2)
    return ChoicePlanes.of(slopes, offsets, wrong, 1.0)


def search(groups: int, count: int, pixels: int) -> float:
    generator = torch.Generator().manual_seed(0)
    instances = [random_planes(count, pixels, generator) for _ in range(groups)]
    return seconds(lambda: [SubsetSearch(planes).run() for planes in instances])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nets", required=True)
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path, default="certify.jsonl")
    options = parser.parse_args()
    times = bounds(Path(options.nets), options.data_dir)
    times["subset search, 10 groups of 10, 3072 pixels"] = search(10, 10, 3072)
    unit = times["interval, 200 images"]
    rows = [[name, f"{value:.3f}", f"{value / unit:.0f}"] for name, value in times.items()]
    print(table(["what", "seconds", "interval bounds of 200 images"], rows))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory {memory:.2f} GB")
    StudyRows(options.out, "certify-bench").add("stages", "convsmall", {"seconds": times, "peak_memory_gb": memory})


if __name__ == "__main__":
    main()
