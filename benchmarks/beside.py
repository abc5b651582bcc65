"""Two checkouts side by side: what each certifies, and how long it takes.

    git worktree add /tmp/before COMMIT
    python benchmarks/beside.py /tmp/before --nets FOLDER --data-dir FOLDER [--rows d20,zoo-mnist-0.1]

Rows are those of acceptance.py and, as zoo-NAME, trained networks of the zoo. Both checkouts work on a row at the same
time, each with one thread on a core of its own, and then again with the cores swapped. Times are of the processor, and
what is compared is their ratio, so that a machine that also does other things does little harm.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from acceptance import ROWS, instance

from citrus.certify import CertifySettings, certify
from citrus.console import table
from citrus.data import as_float, load
from citrus.networks import load_network
from citrus.studies.rows import StudyRows

ZOO = {
    "zoo-mnist-0.1": ("mnist", "0.1"),
    "zoo-mnist-0.3": ("mnist", "0.3"),
    "zoo-cifar10-2-255": ("cifar10", "2/255"),
    "zoo-cifar10-8-255": ("cifar10", "8/255"),
}
SIDES = ("before", "after")
Measured = dict[str, Any]


def work(name: str, options: argparse.Namespace) -> Measured:
    """In a process of its own: certify one row with the citrus that Python finds."""
    torch.set_num_threads(1)
    if name in ROWS:
        row = ROWS[name]
        data, eps, size = row.data, row.eps, row.k
        given = instance(row, SimpleNamespace(nets=options.nets, data_dir=options.data_dir, device="cpu"))  # type: ignore[arg-type]
    else:
        (data, eps), size = ZOO[name], 5
        test = load(data, data_dir=options.data_dir).test.subset(slice(0, options.images))
        given = load_network(name.removeprefix("zoo-")).eval(), as_float(test.images), test.labels  # type: ignore[union-attr, assignment]
    settings = CertifySettings(size, budget=options.budget)
    wall, processor = time.perf_counter(), time.process_time()
    result = certify(*given, eps, settings)
    groups = len(result.rows)
    return {
        "data": data,
        "eps": eps,
        "images": result.images,
        "group_size": size,
        "groups": groups,
        "budget": options.budget,
        "certified": result.certified,
        "attacked": result.attacked,
        "count": sum(found.certified for found in result.rows),
        "processor_s_per_group": (time.process_time() - processor) / groups,
        "s_per_group": (time.perf_counter() - wall) / groups,
        "stages": {stage: round(seconds, 2) for stage, seconds in result.stage_seconds.items()},
    }


def both(name: str, options: argparse.Namespace) -> Iterator[tuple[str, Measured]]:
    """A row by both checkouts at once, on either core."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    sources = dict(zip(SIDES, (options.before, Path(__file__).parents[1]), strict=True))
    asked = ["--work", name, "--nets", options.nets, "--budget", str(options.budget), "--images", str(options.images)]
    asked += ["--data-dir", options.data_dir] if options.data_dir else []
    for order in (cores, cores[::-1]):
        running = {
            side: subprocess.Popen(
                [sys.executable, __file__, str(options.before), *asked],
                env=os.environ | {"PYTHONPATH": str(source / "src"), "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                text=True,
                preexec_fn=lambda core=core: os.sched_setaffinity(0, {core}),  # type: ignore[misc]
            )
            for (side, source), core in zip(sources.items(), order, strict=True)
        }
        for side, process in running.items():
            said, _ = process.communicate()
            if process.returncode:
                raise SystemExit(f"{name}, {side}: failed with exit code {process.returncode}")
            yield side, json.loads(said.splitlines()[-1])


def compared(name: str, found: dict[str, list[Measured]]) -> list[str]:
    """One line of the table; of two times the mean."""
    before, after = (found[side] for side in SIDES)
    times = [sum(one["processor_s_per_group"] for one in side) / len(side) for side in (before, after)]
    counts = [" ".join(sorted({f"{one['certified']:g}" for one in side})) for side in (before, after)]
    images = str(before[0]["images"])
    return [name, images, *counts, *(f"{seconds:.3f}" for seconds in times), f"{times[1] / times[0]:.3f}"]


def summary(found: dict[str, dict[str, list[Measured]]]) -> str:
    """The table, and all rows together."""
    lines = [compared(name, sides) for name, sides in found.items()]
    title = ["row", "images", "certified before", "after", "processor s a group before", "after", "ratio"]
    counts, times = ([sum(_total(s[side], key) for s in found.values()) for side in SIDES] for key in ("count", "time"))
    images = sum(sides["after"][0]["images"] for sides in found.values())
    text = f"{images} images, certified {counts[0]:g} and {counts[1]:g}; times in sum {times[1] / times[0]:.3f}"
    return f"{table(title, lines)}\n{text}"


def _total(side: Sequence[Measured], key: str) -> float:
    """The mean count of images, or of seconds, of the passes over a row."""
    values = [one["count"] if key == "count" else one["processor_s_per_group"] * one["groups"] for one in side]
    return float(sum(values) / len(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("--nets", required=True)
    parser.add_argument("--data-dir")
    parser.add_argument("--rows", default=",".join([*ROWS, *ZOO]))
    parser.add_argument("--budget", type=float, default=20.0)
    parser.add_argument("--images", type=int, default=200, help="of the networks of the zoo")
    parser.add_argument("--note", default="")
    parser.add_argument("--out", type=Path, default="beside.jsonl")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        print(json.dumps(work(options.work, options)))
        return
    rows, found = StudyRows(options.out, "beside"), dict[str, dict[str, list[Measured]]]()
    for name in options.rows.split(","):
        about = asdict(ROWS[name]) if name in ROWS else {"network": name}
        found[name] = {side: [] for side in SIDES}
        for side, measured in both(name, options):
            found[name][side].append(measured)
            rows.add(
                "certification", name, {"network": about["network"], "side": side, "note": options.note} | measured
            )
        print("  ".join(compared(name, found[name])), flush=True)
    print(f"\n{summary(found)}\nwritten to {options.out}")


if __name__ == "__main__":
    main()
