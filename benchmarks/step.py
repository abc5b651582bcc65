"""What a CITRUS training step costs: Algorithm 1 as printed, our exact sum, and sampled partners.

    python benchmarks/step.py [--out steps.jsonl] [--no-memory]      (or: make bench)

One batch, one network, one set of perturbations. Times are medians over repeated runs on this machine, single steps are
interleaved so that a change of load hits all variants alike; ratios are what to compare across machines.
"""

import argparse
import itertools
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from citrus.attacks import Ascent, pgd
from citrus.bounds import interval, margin_loss, margin_rows
from citrus.console import table
from citrus.methods import Batch, Citrus
from citrus.networks import Graph, build, fold, trace
from citrus.studies.rows import StudyRows
from citrus.training.weights import initialize

EPS, TAU_RATIO = 0.1, 0.4
ATTACK = Ascent(steps=5, step_size=0.5)


def make_start(
    network: str, images: int, shape: tuple[int, int, int]
) -> tuple[torch.nn.Module, Tensor, Tensor, torch.Generator]:
    """A fresh network, noise as images, labels, and the generator they came from: the same every time."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = build(network, shape, 10)
    initialize(model, generator)
    x = torch.rand(images, *shape, generator=generator)
    y = torch.randint(10, (images,), generator=generator)
    return model, x, y, generator


def make_batch(network: str, images: int, shape: tuple[int, int, int], max_boxes: int = 1 << 30) -> Batch:
    model, x, y, generator = make_start(network, images, shape)
    traced = trace(model, shape)
    logits, batch_statistics = traced.forward_with_statistics(x)
    loss = torch.nn.functional.cross_entropy(logits, y)
    plain = fold(traced, batch_statistics)
    return Batch(x, y, loss, plain, EPS, False, generator, keep_boxes=False, max_boxes=max_boxes)


def attack(batch: Batch, group: slice) -> Tensor:
    frozen = batch.graph.map(Tensor.detach)
    radius = EPS * (1 - TAU_RATIO)
    return pgd(frozen, batch.images[group], batch.labels[group], radius, ATTACK, generator=batch.generator)


def algorithm_1(batch: Batch, delta: Tensor, size: int) -> Tensor:
    """Lines 5 to 8 of the paper's Algorithm 1, group by group: one interval bound per (i, j). Returns the mean."""
    graph: Graph = batch.graph
    losses = []
    for first in range(0, len(delta), size):
        for i, j in itertools.permutations(range(first, first + size), 2):
            spec = margin_rows(batch.labels[i : i + 1], graph.classes)
            centre = (batch.images[i] + delta[j])[None]
            losses.append(margin_loss(interval(graph, centre, TAU_RATIO * EPS, spec).lower)[0])
    return torch.stack(losses).mean()


def cross_loss(method: Citrus, batch: Batch, delta: Tensor, shifts: Tensor | None = None) -> Tensor:
    """Our boxes around given perturbations; partners by the given shifts, or as the method draws them."""
    shifts = method.draw_shifts(batch) if shifts is None else shifts
    return method.cross_loss(batch, delta, *method.lenders(batch, shifts)).loss


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def interleaved(works: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each piece of work; the first round warms up."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats + 1):
        for name, work in works.items():
            times[name].append(seconds(work))
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def backward(loss: Tensor, batch: Batch) -> None:
    torch.autograd.grad(loss, [t for node in batch.graph.nodes for t in vars(node.op).values() if needs_grad(t)])


def needs_grad(value: object) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def measure_steps(groups: int, size: int, repeats: int) -> dict[str, float]:
    batch = make_batch("smallcnn", groups * size, (1, 28, 28))
    exact = Citrus(TAU_RATIO, group_size=size, partners=0, attack=ATTACK)
    sampled = Citrus(TAU_RATIO, group_size=size, partners=1, attack=ATTACK)
    whole = slice(0, groups * size)
    delta = attack(batch, whole)
    every_shift = [cross_loss(sampled, batch, delta, torch.full((groups, 1), shift)) for shift in range(1, size)]
    printed = algorithm_1(batch, delta, size).item()
    ours = cross_loss(exact, batch, delta).item()
    assert abs(printed - ours) < 1e-4 * abs(printed), (printed, ours)
    assert abs(printed - torch.stack(every_shift).mean().item()) < 1e-4 * abs(printed)

    def boxes_printed() -> None:
        backward(algorithm_1(batch, delta, size), batch)

    def boxes(method: Citrus) -> Callable[[], None]:
        return lambda: backward(cross_loss(method, batch, delta), batch)

    def attack_printed() -> None:
        for first in range(0, groups * size, size):
            attack(batch, slice(first, first + size))

    times = interleaved(
        {
            "attack a": attack_printed,
            "attack bc": lambda: attack(batch, whole),
            "a": boxes_printed,
            "b": boxes(exact),
            "c": boxes(sampled),
        },
        repeats,
    )
    return {**times, "loss a": printed, "loss b": ours}


def peak_memory_gb() -> float:
    """Of one CNN7 CIFAR-10 step with 25 groups of 5, all boxes, in a fresh process of two gigabytes for boxes."""
    code = "import sys; sys.path.insert(0, 'benchmarks'); import step; print(step.memory_step())"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return float(shown.split()[-1])


def memory_step() -> float:
    batch = make_batch("cnn7", 125, (3, 32, 32), max_boxes=int(2 * 2**30 / (229_888 * 40)))
    method = Citrus(TAU_RATIO, group_size=5, attack=Ascent(steps=1))
    keeping = Batch(**{**vars(batch), "keep_boxes": True})
    backward(method.loss(keeping).loss, batch)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default="steps.jsonl")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    result = measure_steps(groups=20, size=5, repeats=options.repeats)
    growth = {size: measure_growth(size, options.repeats) for size in (5, 20, 100)}
    rows = {
        "(a) Algorithm 1 as printed": (result["attack a"], result["a"]),
        "(b) exact sum": (result["attack bc"], result["b"]),
        "(c) one sampled partner": (result["attack bc"], result["c"]),
    }
    printed = result["attack a"] + result["a"]
    shown = [
        [name, f"{1e3 * a:.1f}", f"{1e3 * b:.1f}", f"{result['a'] / b:.1f}", f"{printed / (a + b):.1f}"]
        for name, (a, b) in rows.items()
    ]
    title = "smallcnn, 20 groups of 5 images, 5 attack steps; forward and backward, milliseconds"
    print(table(["step", "attack", "boxes", "boxes: times faster", "whole: times faster"], shown, title))
    print(f"\nboxes of (b) / boxes of (c): {result['b'] / result['c']:.1f}")
    print(
        "boxes of (c) for 100 images, by group size m: "
        + ", ".join(f"m {m}: {1e3 * t:.1f} ms" for m, t in growth.items())
    )
    memory = None if options.no_memory else peak_memory_gb()
    if memory:
        print(f"peak memory of a CNN7 CIFAR-10 step, 25 groups of 5, all 500 boxes: {memory:.2f} GB")
    found = {"seconds": result, "growth": growth, "peak_memory_gb": memory}
    StudyRows(options.out, "citrus-step").add("steps", "bench", found)
    print(f"written to {options.out}")


def measure_growth(size: int, repeats: int) -> float:
    batch = make_batch("smallcnn", 100, (1, 28, 28))
    method = Citrus(TAU_RATIO, group_size=size, partners=1, attack=ATTACK)
    delta = attack(batch, slice(0, 100))
    step = {"c": lambda: backward(cross_loss(method, batch, delta), batch)}
    return interleaved(step, repeats)["c"]


if __name__ == "__main__":
    main()
