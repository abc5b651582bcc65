"""Many training runs on one GPU, some at a time, each measured when it is done: python benchmarks/sweep.py PLAN.json

The plan is a list of {"name": ..., "recipe": ..., "set": {"epochs": 60, "method.tau_ratio": 0.4}}. Each run is measured
on its held-out part of the training set, or on the test set where it has none or with --on test. Rows go to
OUT/rows.jsonl as they come; a run that fails leaves a row that says why.
"""

import argparse
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import torch
from measure import measure, rows_table
from torch import nn

from citrus.console import duration
from citrus.data import as_float, load
from citrus.recipes import recipe
from citrus.training import Trainer, override, to_dict
from citrus.training.run import pick_device, save_network

Job = tuple[dict[str, Any], argparse.Namespace]


def run_one(job: Job) -> dict[str, Any]:
    entry, options = job
    row: dict[str, Any] = {"name": entry["name"], "recipe": entry["recipe"], "set": entry.get("set", {})}
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    row |= {"machine": f"{machine}, torch {torch.__version__}"}
    if options.workers > 1:
        row["shared_by"] = options.workers
    try:
        return row | _train_and_measure(entry, options)
    except Exception as error:  # the other runs go on, and the row says what happened
        return row | {"failed": f"{type(error).__name__}: {str(error)[:300]}"}


def _train_and_measure(entry: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    device = pick_device(options.device)
    changes = {k: str(v) for k, v in entry.get("set", {}).items()}
    config = override(recipe(entry["recipe"]), changes)
    splits = load(config.data, data_dir=options.data_dir, validation=config.validation)
    started = time.perf_counter()
    trainer = Trainer(config, splits, device)
    last: dict[str, Any] = {}
    with (Path(options.out) / f"{entry['name']}.jsonl").open("w") as log:
        for last in trainer.epochs():
            log.write(json.dumps(last) + "\n")
            log.flush()
            if time.perf_counter() - options.began > options.seconds:
                break  # the row's config and last epoch tell that it was cut short
    network = trainer.finish()
    seconds = time.perf_counter() - started
    if options.half_weights:
        round_weights(network)
    save_network(Path(options.out) / f"{entry['name']}.safetensors", network, config, splits)
    on = options.on or ("validation" if config.validation else "test")
    part = (splits.test if on == "test" else splits.validation).to(device)
    result = measure(
        *(network, as_float(part.images), part.labels, config.eps),
        count=options.attacked,
        certified=options.certified,
        full_crown=config.network == "convsmall",
    )
    last = {k: last[k] for k in ("epoch", "loss", "clean_loss", "robust_loss", "accuracy", "seconds")}
    return {**result, "on": on, "train_seconds": seconds, "last": last, "config": to_dict(config)}


def round_weights(network: nn.Module) -> None:
    """To float16 values, before anything is measured: what is stored in half the room is then what was measured."""
    for weight in network.parameters():
        weight.data.copy_(weight.data.half())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plan")
    parser.add_argument("--out", default="sweep")
    parser.add_argument("--data-dir")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--attacked", type=int, default=2000)
    parser.add_argument("--certified", type=int, default=0)
    parser.add_argument("--on", choices=("validation", "test"))
    parser.add_argument("--half-weights", action="store_true", help="round weights to float16 before measuring")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no epoch begins after so long")
    options = parser.parse_args()
    options.began = time.perf_counter()  # one clock for all processes of a machine
    Path(options.out).mkdir(parents=True, exist_ok=True)
    jobs = [(entry, options) for entry in json.loads(Path(options.plan).read_text())]
    rows = []
    with (
        multiprocessing.get_context("spawn").Pool(options.workers) as pool,
        (Path(options.out) / "rows.jsonl").open("a") as file,
    ):
        for row in pool.imap_unordered(run_one, jobs):
            file.write(json.dumps(row) + "\n")
            file.flush()
            rows.append(row)
            text = row.get("failed") or f"clean {row['clean']:.2f} single {row['single']:.2f}"
            print(f"{row['name']}: {text} ({duration(time.perf_counter() - options.began)})", flush=True)
    print(rows_table(sorted((r for r in rows if "failed" not in r), key=lambda r: str(r["name"]))))
    if torch.cuda.is_available():
        print(torch.cuda.get_device_name(), torch.__version__)


if __name__ == "__main__":
    main()
