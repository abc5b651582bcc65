"""What a training step costs on a GPU: python benchmarks/gpu.py [--out results/steps.jsonl]

CNN7 at the size of CIFAR-10, eps 8/255. Algorithm 1 as printed (batch of 5, 20 attack steps, every kernel launched by
itself) against our exact sum and sampled partners, each eager, recorded as a CUDA graph, and compiled and recorded.
Speeds do not depend on pixel values, so the images are noise. TFLOP/s count convolutions and matrix products; the
ceiling is a large matrix product timed in the same run. Everything goes into one row of a file of rows.
"""

import argparse
import itertools
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.utils.flop_counter import FlopCounterMode

from citrus.attacks import Ascent, pgd
from citrus.data import Dataset, DatasetInfo, Splits
from citrus.errors import CitrusError
from citrus.methods import METHODS, Batch, Citrus, Method, MethodLoss, box_losses
from citrus.networks.kernels import tf32
from citrus.studies.rows import StudyRows
from citrus.training import TrainConfig, Trainer
from citrus.training.schedule import moment

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
        for i, j in itertools.permutations(range(len(delta)), 2):
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

RECORDED: dict[str, Any] = {"record": True}
FUSED: dict[str, Any] = {"record": True, "compile": True}
TWO_STEPS = Citrus(group_size=0, partners=1, attack=TWO)
STEPS: dict[str, TrainConfig] = {
    "Algorithm 1 as printed, eager": PRINTED,
    "Algorithm 1, all 20 boxes in one batch, eager": BATCHED,
    "exact sum, 20 attack steps, eager": EXACT,
    "exact sum, recorded": replace(EXACT, **RECORDED),
    "exact sum, recorded, half": replace(EXACT, **RECORDED, precision="half"),
    "exact sum, compiled, recorded, half": replace(EXACT, **FUSED, precision="half"),
    "one partner, 5 attack steps, eager": SAMPLED,
    "one partner, recorded": replace(SAMPLED, **RECORDED),
    "one partner, recorded, half": replace(SAMPLED, **RECORDED, precision="half"),
    "one partner, compiled, recorded": replace(SAMPLED, **FUSED),
    "one partner, compiled, recorded, half": replace(SAMPLED, **FUSED, precision="half"),
    "one partner, compiled, recorded, half, batch 500": replace(SAMPLED, **FUSED, precision="half", batch_size=500),
    "one partner, 2 attack steps, compiled, recorded, half": replace(
        SAMPLED, **FUSED, precision="half", method=TWO_STEPS
    ),
}


def noise_splits(count: int) -> Splits:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    labels = torch.randint(10, (count,), generator=generator)
    data = Dataset("noise", images, labels, tuple("0123456789"))
    mean, std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    return Splits(data, data.subset([]), data, DatasetInfo("noise", (3, 32, 32), 10, mean, std, flip=True, pad=4))


def make_step(config: TrainConfig, splits: Splits) -> Callable[[], None]:
    """A step at full eps that can be repeated."""
    trainer = Trainer(config, splits, "cuda")
    now = moment(trainer.config, trainer.total_steps - 1, trainer.steps_per_epoch)
    numbers = torch.tensor(now[:-1], dtype=torch.float64)
    trainer.training_step.prepare(torch.arange(config.batch_size), numbers)
    return lambda: trainer._train_step(now.phase)


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
    """Of one step, counted by torch on an eager one."""
    step = make_step(replace(config, record=False, compile=False), splits)
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
    for event in found.events():
        kind = next((kind for kind, pattern in KINDS if pattern.search(event.name)), "other elementwise and reductions")
        shares[kind] = shares.get(kind, 0.0) + float(event.device_time)
    total = sum(shares.values())
    return {
        "kernel_ms_per_step": total / 3e3,
        "wall_ms_per_step": 1e3 * wall / 3,
        "shares": {k: v / total for k, v in shares.items()} if total else {},
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
        step = make_step(config, splits)
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
        faster = rows[0]["epoch_s"] / row["epoch_s"]
        print(f"{name}: {spent:.2f} ms, {row['epoch_s']:.2f} s an epoch, {row['tflops']:.0f} TFLOP/s, x {faster:.0f}")
    return rows


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
    parser.add_argument("--out", type=Path, default="steps.jsonl")
    parser.add_argument("--only", help="steps whose names match this pattern", default="")
    parser.add_argument("--steps-only", action="store_true", help="not how far eager and recorded steps differ")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise CitrusError("This benchmark needs an NVIDIA GPU that torch can use; `make bench` measures the CPU.")
    torch.backends.cudnn.benchmark = True
    found: dict[str, Any] = {"ceilings_tflops": ceilings()}
    if not options.steps_only:
        found["agreement"] = agreement()
        print("eager against recorded, relative difference of weights after an epoch of 10 steps:")
        for name, value in found["agreement"].items():
            print(f"  {name:12} {value if isinstance(value, str) else format(value, '.1e')}")
    found["steps"] = step_table([name for name in STEPS if re.search(options.only, name)])
    print("ceilings, TFLOP/s: " + ", ".join(f"{name} {value:.0f}" for name, value in found["ceilings_tflops"].items()))
    StudyRows(options.out, "gpu-step").add("steps", "gpu", found)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
