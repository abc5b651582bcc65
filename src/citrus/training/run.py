"""From a configuration to a run folder: train, stop, resume, evaluate.

run = train(config, out="runs/mine")            # stops safely on Ctrl-C; train(..., resume=True) goes on
network = load_run("runs/mine").network

runs/mine/  config.json  env.json  metrics.jsonl  checkpoints/last.safetensors
            model.safetensors  summary.json  uap/EPS.safetensors  uap/EPS.png
Ctrl-C, kill -9 and a full disk lose at most the steps since the last checkpoint: files are replaced as a whole, and
rows of metrics are appended. A checkpoint holds the rows up to its step, so that a damaged metrics.jsonl is made anew.
"""

import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from citrus.data import Splits, as_float, load
from citrus.errors import CitrusError
from citrus.files import (
    append_line,
    line_of,
    load_tensors,
    locked,
    parse_object,
    read_lines,
    save_tensors,
    write_json,
    write_text,
)
from citrus.networks.saved import MODEL, load_network, save_network
from citrus.training.config import TrainConfig, read_config, to_dict
from citrus.training.evaluation import Evaluation, evaluate
from citrus.training.loop import Progress, Trainer
from citrus.training.weights import description
from citrus.version import __version__

METRICS, CHECKPOINT = "metrics.jsonl", "checkpoints/last.safetensors"
CHECKPOINT_SECONDS = 120.0


class Stopped(Exception):
    """A run was asked to stop and has kept its state."""

    code = 130
    """The exit code of a command that ends with this: 128 and the number of the signal."""


@dataclass(frozen=True)
class Run:
    """A trained network with where it came from and how good it is."""

    path: Path
    config: TrainConfig
    network: nn.Module
    evaluation: Evaluation | None = None


@dataclass(frozen=True)
class Events:
    """What a caller may want to hear while a run goes on; the library itself prints nothing."""

    on_step: Callable[[Progress], None] = lambda progress: None
    """After a step; what ends an epoch is kept by then."""
    on_stage: Callable[[str], None] = lambda text: None


def train(
    config: TrainConfig,
    out: str | Path,
    *,
    splits: Splits | None = None,
    data_dir: str | Path | None = None,
    device: str = "auto",
    resume: bool = False,
    stop_after: int | None = None,
    events: Events = Events(),  # noqa: B008 - frozen
) -> Run:
    """Train by `config` in the run folder `out` and evaluate the result on the test set.

    `stop_after` ends after that many steps in all, keeping the state; `Stopped` is then raised, as after Ctrl-C.
    """
    splits = splits or load(config.data, data_dir=data_dir, validation=config.validation)
    path, trainer = Path(out), Trainer(config, splits, pick_device(device))
    if resume and not (path / "config.json").exists():
        raise CitrusError(f"There is no run to resume in {path}.")
    with locked(path):
        _open(path, config, resume)
        rows = _restore(trainer, path, events) if resume else []
        _train(trainer, path, rows, events, stop_after)
        return _measure(trainer, splits, path, events)


def _measure(trainer: Trainer, splits: Splits, path: Path, events: Events) -> Run:
    """Save the network that was trained, and evaluate it."""
    config = trainer.config
    events.on_stage("estimating statistics and saving the network")
    network = trainer.finish()
    save_network(path / MODEL, network, description(config, splits.info), {"config": to_dict(config)})
    events.on_stage("evaluating on the test set")
    test = splits.test.to(trainer.device)
    result, _ = evaluate(
        network,
        as_float(test.images),
        test.labels,
        config.eps,
        group_size=config.group_size,
        attacked=config.test_images or None,
        clip=config.clip,
        seed=config.seed,
        out=path,
        classes=test.classes,
        name=str(path),
    )
    seconds = round(sum(row["seconds"] for row in read_lines(path / METRICS)[0]), 1)
    write_json(path / "summary.json", {**asdict(result), "training_seconds": seconds, "seed": config.seed})
    return Run(path, config, network, result)


def _open(path: Path, config: TrainConfig, resume: bool) -> None:
    """Start a new run, or check that the folder holds this very configuration to be resumed."""
    if not (path / "config.json").exists():
        write_json(path / "env.json", environment())
        write_json(path / "config.json", to_dict(config))
        return
    before, now = to_dict(read_config(path)), to_dict(config)
    changed = [name for name in now if before[name] != now[name]]
    if changed:
        raise CitrusError(
            f"{path} holds a run of another configuration ({', '.join(changed)} differ): "
            "choose another --out, or resume with the configuration it was started with."
        )
    if not resume:
        raise CitrusError(f"{path} already holds this run: add --resume to go on, or choose another --out.")


def _tell_differences(path: Path, events: Events) -> None:
    """Sums depend on torch, the machine and the number of threads: resuming is exact where they are the same."""
    before, now = parse_object((path / "env.json").read_text()) or {}, environment()
    for name in ("torch", "cpu", "threads", "gpu"):
        if before.get(name) != now[name]:
            change = f"{name} was {before.get(name)} and is {now[name]}"
            events.on_stage(f"{change}: last digits may differ from a run in one go")


def _train(trainer: Trainer, path: Path, rows: list[dict[str, Any]], events: Events, stop_after: int | None) -> None:
    """All steps that are left, with a checkpoint after each epoch, every two minutes, and when asked to stop."""
    write_text(path / METRICS, "".join(map(line_of, rows)))  # later ones will come again
    saved = time.monotonic()

    def save() -> None:
        tensors, header = trainer.state()
        save_tensors(path / CHECKPOINT, tensors, {**header, "metrics": rows})

    with _stop_signals() as heard:
        for progress in trainer.steps():
            if progress.row:
                append_line(path / METRICS, progress.row)
                rows.append(progress.row)
            if progress.row or time.monotonic() - saved > CHECKPOINT_SECONDS:
                save()
                saved = time.monotonic()
            events.on_step(progress)
            if heard or (stop_after is not None and progress.step >= stop_after):
                save()
                stop = Stopped(f"Stopped at step {progress.step} of {progress.steps}; add --resume to go on.")
                stop.code = 128 + (heard or [signal.SIGINT])[0]
                raise stop


def _restore(trainer: Trainer, path: Path, events: Events) -> list[dict[str, Any]]:
    """Put the state of the last checkpoint in place, if there is one; the rows of metrics up to its step."""
    if not (path / CHECKPOINT).exists():
        return []
    tensors, header = load_tensors(path / CHECKPOINT)
    trainer.restore(tensors, header)
    _tell_differences(path, events)
    if "metrics" in header:
        return list(header["metrics"])
    return [row for row in read_lines(path / METRICS)[0] if row["step"] <= trainer.position]  # of an older version


def load_run(path: str | Path) -> Run:
    """A finished run: its configuration and its network in eval mode."""
    config, network = read_config(Path(path)), load_network(path)
    assert isinstance(network, nn.Module)
    return Run(Path(path), config, network)


def pick_device(name: str) -> torch.device:
    """A device by its name, where auto is the GPU when there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise CitrusError(f"Device {name!r} cannot be used here ({str(error).splitlines()[0]}); try cpu.") from error
    return device


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Note the numbers of Ctrl-C and SIGTERM in a list that the loop reads between two steps."""
    heard: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield heard
        return
    before = {s: signal.signal(s, lambda number, _: heard.append(number)) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def environment() -> dict[str, Any]:
    """What one needs to know to repeat a number."""
    return {
        "citrus": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "command": sys.argv,
        "git": _git_state(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _git_state() -> dict[str, str] | None:
    """Commit and uncommitted changes of the checkout that this code runs from, if it is one."""

    def git(*arguments: str) -> str:
        where = Path(__file__).resolve().parents[1]
        return subprocess.run(["git", "-C", str(where), *arguments], capture_output=True, text=True, check=True).stdout

    try:
        return {"commit": git("rev-parse", "HEAD").strip(), "diff": git("diff", "HEAD", "--", ".")}
    except (OSError, subprocess.CalledProcessError):
        return None
