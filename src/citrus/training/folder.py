"""The run folder: configuration, environment, metrics, checkpoints and results of one run.

runs/NAME/  config.json  env.json  metrics.jsonl  checkpoints/last.safetensors
            model.safetensors  summary.json  uap/EPS.safetensors  uap/EPS.png
"""

import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from citrus.errors import CitrusError
from citrus.files import append_line, parse_object, read_lines, write_json, write_text
from citrus.training.config import TrainConfig, read_config, to_dict
from citrus.version import __version__


class RunFolder:
    """Writes that survive Ctrl-C, kill -9 and a full disk: whole files are replaced, rows are appended and flushed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint = path / "checkpoints" / "last.safetensors"

    def open(self, config: TrainConfig, resume: bool) -> None:
        """Start a new run, or check that the folder holds this very configuration to be resumed."""
        if not (self.path / "config.json").exists():
            if resume:
                raise CitrusError(f"There is no run to resume in {self.path}.")
            write_json(self.path / "env.json", environment())
            write_json(self.path / "config.json", to_dict(config))
            return
        before, now = to_dict(read_config(self.path)), to_dict(config)
        changed = [name for name in now if before[name] != now[name]]
        if changed:
            raise CitrusError(
                f"{self.path} holds a run of another configuration ({', '.join(changed)} differ): "
                "choose another --out, or resume with the configuration it was started with."
            )
        if not resume:
            raise CitrusError(f"{self.path} already holds this run: add --resume to go on, or choose another --out.")

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of all epochs so far; one that a crash cut short is left out."""
        return read_lines(self.path / "metrics.jsonl")[0]

    def append_metrics(self, row: dict[str, Any]) -> None:
        append_line(self.path / "metrics.jsonl", row)

    def forget_metrics_after(self, step: int) -> None:
        """Drop rows of steps that a resumed run will take again."""
        rows = [row for row in self.metrics() if row["step"] <= step]
        write_text(self.path / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))

    def differences(self) -> list[str]:
        """What is not as it was when the run began: sums depend on torch, the machine and the number of threads."""
        before, now = parse_object((self.path / "env.json").read_text()) or {}, environment()
        changed = [name for name in ("torch", "cpu", "threads", "gpu") if before.get(name) != now[name]]
        return [
            f"{name} was {before.get(name)} and is {now[name]}: last digits may differ from a run in one go"
            for name in changed
        ]


def environment() -> dict[str, Any]:
    """Versions, machine and state of the source: what one needs to know to repeat a number."""
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
        where = Path(__file__).resolve().parent
        return subprocess.run(["git", "-C", str(where), *arguments], capture_output=True, text=True, check=True).stdout

    try:
        return {"commit": git("rev-parse", "HEAD").strip(), "diff": git("diff", "HEAD", "--", ".")}
    except (OSError, subprocess.CalledProcessError):
        return None
