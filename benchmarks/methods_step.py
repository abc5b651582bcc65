"""What a training step of each method costs on the CPU, as a multiple of a standard step on the same batch.

    python benchmarks/methods_step.py [--out steps.jsonl] [--repeats 5]      (or: make bench)

A step is the clean forward pass, the method's loss and the backward pass to the weights, with the method's default
hyper-parameters, while eps grows and at the end of a run. Times are medians of interleaved steps. Peak memory is that
of a process that makes both steps and nothing else; Python, torch and the network are in the standard row, too.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from step import interleaved, make_start

from citrus.console import table
from citrus.methods import METHODS, AnyMethod, Batch, Citrus
from citrus.networks import fold, trace
from citrus.studies.rows import StudyRows

NETWORK, IMAGES, SHAPE, EPS = "convsmall", 40, (1, 28, 28), 0.1
VARIANTS: dict[str, AnyMethod] = {
    "citrus, k 3": Citrus(k=3),
    "citrus, k 5": Citrus(k=5),
    "citrus, 1 partner": Citrus(partners=1),
    "citrus, k 3, 1 partner": Citrus(k=3, partners=1),
}
ROWS: dict[str, AnyMethod] = {**{name: method() for name, method in METHODS.items()}, **VARIANTS}
RAMP, END = (0.5, True), (1.0, False)


def make_step(method: AnyMethod, ramp: float, ramping: bool) -> Callable[[], None]:
    """A step that can be repeated: the same images, weights and, but for its state, the same work every time."""
    network, images, labels, generator = make_start(NETWORK, IMAGES, SHAPE)
    traced = trace(network, SHAPE)
    method.check(IMAGES)
    method.check_graph(fold(traced))
    state = method.initial_state(fold(traced))
    eps = torch.tensor(EPS * ramp, dtype=torch.float64)

    def step() -> None:
        logits, statistics = traced.forward_with_statistics(images)
        batch = Batch(
            images,
            labels,
            F.cross_entropy(logits, labels),
            fold(traced, statistics),
            eps,
            clip=False,
            generator=generator,
            keep_boxes=ramping,
            ramp=torch.tensor(ramp, dtype=torch.float64),
            ramping=ramping,
            stage=method.stage(0.0 if ramping else 1.0),
            state=state,
        )
        method.loss(batch).loss.backward()
        network.zero_grad()

    return step


def measure(repeats: int) -> dict[str, dict[str, float]]:
    works = {f"{name} {moment}": make_step(m, *moment) for name, m in ROWS.items() for moment in (RAMP, END)}
    seconds = interleaved(works, repeats)
    return {
        name: {"ramp": seconds[f"{name} {RAMP}"], "end": seconds[f"{name} {END}"], "peak_mb": peak_mb(name)}
        for name in ROWS
    }


def peak_mb(name: str) -> float:
    """In a process of its own, which `--peak` makes of this file."""
    command = [sys.executable, __file__, "--peak", name]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default="steps.jsonl")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peak", choices=ROWS, help="make one method's steps and print the peak memory in MB")
    options = parser.parse_args()
    if options.peak:
        for moment in (RAMP, END):
            make_step(ROWS[options.peak], *moment)()
        # Not getrusage: its peak begins with that of the process that started this one.
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        print(int(status["VmHWM"].split()[0]) / 2**10)
        return
    result = measure(options.repeats)
    standard = (result["standard"]["ramp"] + result["standard"]["end"]) / 2  # the same step twice
    rows = []
    for name, row in result.items():
        shares = [f"{row[moment] / standard:.1f}" for moment in ("ramp", "end")]
        rows.append([name, *shares, f"{1e3 * row['end']:.1f}", f"{row['peak_mb']:.0f}"])
    title = f"{NETWORK}, {IMAGES} images of 28x28, default settings: one step as a multiple of a standard step"
    print(table(["method", "while eps grows", "at the end", "end, ms", "peak memory, MB"], rows, title))
    StudyRows(options.out, "methods-step").add("steps", "methods", {"methods": result})
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
