"""What a training step and a certification cost on a GPU: python benchmarks/gpu.py [--run FOLDER --data-dir FOLDER]

CNN7 at the size of CIFAR-10, eps 8/255. Algorithm 1 as printed (batch of 5, 20 attack steps, every kernel launched by
itself) against our exact sum and sampled partners, each eager, recorded as a CUDA graph, and compiled and recorded.
Speeds do not depend on pixel values, so the images are noise. TFLOP/s count convolutions and matrix products; the
ceiling is a large matrix product timed in the same run. With --run a trained network's certification is timed as well.
"""

import argparse
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from certify_network import add_arguments, certification
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from citrus.attacks import Ascent, pgd
from citrus.console import table
from citrus.data import Dataset, DatasetInfo, Splits
from citrus.errors import CitrusError
from citrus.files import write_json
from citrus.methods import METHODS, Batch, Citrus, Method, MethodLoss, box_losses
from citrus.networks.precision import tf32
from citrus.training import TrainConfig, Trainer
from citrus.training.folder import environment

EPOCH = 50_000
TWENTY = Ascent(steps=20, step_size=0.2, decay=0.2, decay_at=(0.5, 0.8))
FIVE = Ascent(steps=5, step_size=0.5, decay=0.5, decay_at=(0.6,))
TWO = Ascent(steps=2, step_size=0.7, decay=1.0)


@dataclass(frozen=True)
class AsPrinted(Method):
    """Algorithm 1 word by word, for a batch that is one group: one interval bound for each pair."""

    name: ClassVar[str] = "as_printed"
    certified: ClassVar[bool] = True

    def loss(self, batch: Batch) -> MethodLoss:
        tau = 0.7 * batch.eps
        delta = pgd(batch.frozen(), batch.images, batch.labels, batch.eps - tau, TWENTY, generator=batch.generator)
        losses = []
        for i in range(len(delta)):
            for j in range(len(delta)):
                if i != j:
                    centre = (batch.images[i] + delta[j])[None]
                    losses.append(box_losses(batch, centre, tau, batch.labels[i : i + 1])[0])
        return MethodLoss(torch.cat(losses).mean())


PRINTED = TrainConfig(
    data="noise",
    network="cnn7",
    method=AsPrinted(),  # type: ignore[arg-type]
    eps=8 / 255,
    epochs=1,
    batch_size=5,
    memory_gb=20,
    record=False,
    precision="float32",
)
BATCHED = replace(PRINTED, method=Citrus(group_size=5, attack=TWENTY))
EXACT = replace(BATCHED, batch_size=250, precision="tf32")
SAMPLED = replace(EXACT, method=Citrus(group_size=0, partners=1, attack=FIVE))

STEPS: dict[str, TrainConfig] = {
    "Algorithm 1 as printed, eager": PRINTED,
    "Algorithm 1, all 20 boxes in one batch, eager": BATCHED,
    "exact sum, 20 attack steps, eager": EXACT,
    "exact sum, recorded": replace(EXACT, record=True),
    "exact sum, recorded, half": replace(EXACT, record=True, precision="half"),
    "exact sum, compiled, recorded, half": replace(EXACT, record=True, compile=True, precision="half"),
    "one partner, 5 attack steps, eager": SAMPLED,
    "one partner, recorded": replace(SAMPLED, record=True),
    "one partner, recorded, half": replace(SAMPLED, record=True, precision="half"),
    "one partner, compiled, recorded": replace(SAMPLED, record=True, compile=True),
    "one partner, compiled, recorded, half": replace(SAMPLED, record=True, compile=True, precision="half"),
    "one partner, compiled, recorded, half, batch 500": replace(
        SAMPLED, record=True, compile=True, precision="half", batch_size=500
    ),
    "one partner, 2 attack steps, compiled, recorded, half": replace(
        SAMPLED, record=True, compile=True, precision="half", method=Citrus(group_size=0, partners=1, attack=TWO)
    ),
}


def noise_splits(count: int) -> Splits:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    labels = torch.randint(10, (count,), generator=generator)
    data = Dataset("noise", images, labels, tuple("0123456789"))
    mean, std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    return Splits(data, data.subset([]), data, DatasetInfo("noise", (3, 32, 32), 10, mean, std, flip=True, pad=4))


def make_trainer(config: TrainConfig, splits: Splits) -> tuple[Trainer, Callable[[], None]]:
    """A trainer and its next step at full eps."""
    trainer = Trainer(config, splits, "cuda")
    now = trainer._moment(trainer.total_steps - 1)
    numbers = torch.tensor(trainer.training_step.numbers(0, now), dtype=torch.float64)
    trainer.training_step.prepare(torch.arange(config.batch_size), numbers)
    return trainer, lambda: trainer._train_step(now.phase)


def milliseconds(work: Callable[[], object], least: float = 1.0) -> float:
    """Per call, after warming up, over at least so many seconds."""
    for _ in range(6):
        work()
    torch.cuda.synchronize()
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < least:
        for _ in range(5):
            work()
        torch.cuda.synchronize()
        count += 5
    return 1e3 * (time.perf_counter() - started) / count


def ceilings(size: int = 8192) -> dict[str, float]:
    """TFLOP/s of a large matrix product."""
    found = {}
    for name, dtype, fast in (
        ("float32", torch.float32, False),
        ("tf32", torch.float32, True),
        ("bfloat16", torch.bfloat16, True),
    ):
        a, b = (torch.randn(size, size, device="cuda", dtype=dtype) for _ in range(2))
        with tf32(fast):
            found[name] = 2 * size**3 / milliseconds(lambda: a @ b, 0.5) / 1e9  # noqa: B023
    return found


def flops(config: TrainConfig, splits: Splits) -> float:
    """Of one step, counted by torch on an eager one; a quarter of the batch suffices where the cost grows with it."""
    small = replace(config, record=False, compile=False)
    _, step = make_trainer(small, splits)
    with FlopCounterMode(display=False) as counter:
        step()
    return float(counter.get_total_flops())


KINDS = (
    ("convolutions and matrix products", re.compile(r"gemm|conv|cudnn|xmma|cutlass|nvjet|wgrad|dgrad|implicit|sm90")),
    ("fused elementwise (triton)", re.compile(r"triton")),
    ("layout changes", re.compile(r"nchw|nhwc|transpose|permute|Copy|copy")),
)


def profile(step: Callable[[], None]) -> dict[str, Any]:
    """Where the GPU's time of three steps goes, and how much of the wall time it is busy."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        wall = time.perf_counter() - started
    shares: dict[str, float] = {}
    longest: dict[str, list[float]] = {}
    for event in found.events():
        kind = next((kind for kind, pattern in KINDS if pattern.search(event.name)), "other elementwise and reductions")
        shares[kind] = shares.get(kind, 0.0) + float(event.device_time)
        longest.setdefault(event.name[:300], []).append(float(event.device_time))
    total = sum(shares.values())
    top = sorted(longest.items(), key=lambda item: -sum(item[1]))[:20]
    return {
        "kernel_ms_per_step": total / 3e3,
        "wall_ms_per_step": 1e3 * wall / 3,
        "shares": {k: v / total for k, v in shares.items()} if total else {},
        "longest": {name: {"ms": sum(times) / 3e3, "calls": len(times) / 3} for name, times in top},
    }


def step_table(names: list[str]) -> list[dict[str, Any]]:
    splits = noise_splits(1000)
    rows: list[dict[str, Any]] = []
    for name in names:
        config = STEPS[name]
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        counted = flops(config, splits)
        began = time.perf_counter()
        _, step = make_trainer(config, splits)
        step()
        spent = milliseconds(step, 2.0)
        row: dict[str, Any] = {
            "step": name,
            "batch": config.batch_size,
            "ms": spent,
            "epoch_s": spent * EPOCH / config.batch_size / 1e3,
            "images_per_s": 1e3 * config.batch_size / spent,
            "tflops": counted / spent / 1e9,
            "memory_gb": torch.cuda.max_memory_allocated() / 2**30,
            "start_s": time.perf_counter() - began - 2.0,
        }
        if config.record:
            row["profile"] = profile(step)
        rows.append(row)
        print(f"{name}: {spent:.2f} ms, {row['epoch_s']:.2f} s an epoch, {row['tflops']:.0f} TFLOP/s", flush=True)
    return rows


def pair_of_convolutions(boxes: int = 250) -> dict[str, dict[str, float]]:
    """Milliseconds for centre and radius through CNN7's second and fourth convolution, forward and backward.

    Two convolutions one after the other against one grouped convolution that holds both.
    """
    found: dict[str, dict[str, float]] = {}
    for channels, size in ((64, 32), (128, 16)):
        for name, dtype in (("tf32", torch.float32), ("float16", torch.float16), ("bfloat16", torch.bfloat16)):

            def make(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
                made = torch.randn(*shape, device="cuda", dtype=dtype).contiguous(memory_format=torch.channels_last)
                return made.requires_grad_()

            c, r = (make(boxes, channels, size, size) for _ in range(2))
            w, both = make(channels, channels, 3, 3), make(boxes, 2 * channels, size, size)

            def apart(c: Tensor = c, r: Tensor = r, w: Tensor = w) -> None:
                total = F.conv2d(c, w, padding=1).sum() + F.conv2d(r, w.abs(), padding=1).sum()
                torch.autograd.grad(total, (c, r, w))

            def grouped(both: Tensor = both, w: Tensor = w) -> None:
                total = F.conv2d(both, torch.cat([w, w.abs()]), padding=1, groups=2).sum()
                torch.autograd.grad(total, (both, w))

            with tf32(True):
                found[f"{channels} channels, {size}x{size}, {name}"] = {
                    "two convolutions": milliseconds(apart, 0.3),
                    "one grouped": milliseconds(grouped, 0.3),
                }
    return found


def agreement() -> dict[str, float | str]:
    """For every method: how far weights are apart after an epoch, eager against recorded, as a share of their size."""
    splits, found = noise_splits(400), dict[str, float | str]()
    for name, method in METHODS.items():
        try:
            config = replace(BATCHED, network="convsmall", method=method(), batch_size=40, epochs=1)
            ends = []
            for record in (False, True):
                trainer = Trainer(replace(config, record=record), splits, "cuda")
                for _, _ in zip(range(1), trainer.epochs(), strict=False):
                    ends.append(torch.cat([p.detach().flatten() for p in trainer.network.parameters()]))
            found[name] = ((ends[0] - ends[1]).norm() / ends[0].norm()).item()
        except Exception as error:  # one method must not hide what the others do
            found[name] = f"{type(error).__name__}: {str(error)[:200]}"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="gpu.json")
    parser.add_argument("--only", help="steps whose names match this pattern", default="")
    parser.add_argument("--steps-only", action="store_true", help="not the other measurements")
    parser.add_argument("--run", help="a run folder or a network of the sweep that is certified")
    add_arguments(parser)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise CitrusError("This benchmark needs an NVIDIA GPU that torch can use; `make bench` measures the CPU.")
    torch.backends.cudnn.benchmark = True
    found: dict[str, Any] = {"environment": environment(), "ceilings_tflops": ceilings()}
    names = [name for name in STEPS if re.search(options.only, name)]
    if not options.steps_only:
        found["pair"] = pair_of_convolutions()
        for name, times in found["pair"].items():
            print(f"{name}: " + ", ".join(f"{k} {v:.2f} ms" for k, v in times.items()))
        found["agreement"] = differences = agreement()
        print("eager against recorded, relative difference of weights after an epoch of 10 steps:")
        print("\n".join(f"  {k:12} {v if isinstance(v, str) else format(v, '.1e')}" for k, v in differences.items()))
    found["steps"] = rows = step_table(names)
    printed = {r["step"]: r["epoch_s"] for r in rows}
    ours = found["ceilings_tflops"]
    shown = [
        [
            *(r["step"], str(r["batch"]), f"{r['ms']:.2f}", f"{r['epoch_s']:.2f}", f"{r['images_per_s']:.0f}"),
            *(f"{r['tflops']:.0f}", f"{100 * r['tflops'] / ours['tf32']:.0f} %", f"{r['memory_gb']:.1f}"),
            *(f"{base / r['epoch_s']:.0f}" if (base := printed.get(k)) else "" for k in list(STEPS)[:2]),
        ]
        for r in rows
    ]
    heads = ["step", "batch", "ms", "s/epoch", "images/s", "TFLOP/s", "of tf32", "GB", "x printed", "x batched"]
    print("\n" + table(heads, shown, f"CNN7, 32x32x3, eps 8/255, {torch.cuda.get_device_name()}"))
    print("ceilings, TFLOP/s: " + ", ".join(f"{k} {v:.0f}" for k, v in ours.items()))
    for row in rows:
        if "profile" in row:
            shares = ", ".join(f"{k} {100 * v:.0f} %" for k, v in row["profile"]["shares"].items())
            print(f"{row['step']}: {shares}")
    if options.run:
        found["certification"] = certification(options.run, options, torch.device("cuda"))
        print(found["certification"])
    write_json(Path(options.out), found)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
