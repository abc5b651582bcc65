"""Where a run was made: versions, machine and state of the source."""

import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from citrus.version import __version__


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
