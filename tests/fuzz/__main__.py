"""Every reader on hostile files: python -m fuzz --minutes 10 --out results/fuzz.jsonl (make fuzz)

So many minutes with each engine, shared by the readers. Prints what was tried, accepted, refused and found, and fails
if anything was found. Inputs that were, and tracebacks, are kept in --folder.
"""

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from citrus.console import table
from citrus.studies.rows import StudyRows
from fuzz.engines import ENGINES, have_atheris
from fuzz.readers import BY_NAME
from fuzz.watch import SECONDS

PATIENCE = 3 * SECONDS  # without a word of a child: it hangs where no signal reaches it
START = 90  # seconds that a child may take to import torch and to write valid files


@dataclass
class Total:
    """What came of a reader with an engine, all its processes together."""

    tried: int = 0
    accepted: int = 0
    refused: int = 0
    slowest: float = 0.0
    seconds: float = 0.0
    findings: dict[str, str] = field(default_factory=dict)

    def add(self, state: dict[str, Any]) -> None:
        self.tried += state["tried"]
        self.accepted += state["accepted"]
        self.refused += state["refused"]
        self.slowest = round(max(self.slowest, state["slowest"]), 2)
        self.findings |= state["findings"]


def fuzz(engine: str, name: str, folder: Path, seconds: float, seed: int) -> Total:
    """One reader with one engine; a child that dies or hangs is a finding, and another one goes on."""
    total, left, started = Total(), seconds, time.monotonic()
    while left > 1:
        place = folder / engine / name.replace(" ", "-") / str(seed)
        place.mkdir(parents=True, exist_ok=True)
        before = time.monotonic()
        code = _child(engine, name, place, left, seed)
        state = place / "state.json"
        if not state.exists():
            total.findings[f"{engine} did not start"] = (place / "log").read_text(errors="replace")[-1500:]
            break
        total.add(json.loads(state.read_text()))
        if code:
            total.findings[f"process ended with {code}"] = (place / "log").read_text(errors="replace")[-1500:]
        left -= time.monotonic() - before if code else left
        seed += 1000
    total.seconds = round(time.monotonic() - started, 1)
    return total


def _child(engine: str, name: str, place: Path, seconds: float, seed: int) -> int:
    """The exit code of a child; of one that was killed since it hung, that of the signal."""
    words = [sys.executable, "-m", "fuzz.engines", engine, name, str(place), str(seconds), str(seed)]
    with (
        (place / "log").open("wb") as log,
        subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True) as child,
    ):
        while child.poll() is None:
            time.sleep(0.2)
            current = place / "current.bin"
            quiet = time.time() - (current if current.exists() else place / "log").stat().st_mtime
            if quiet > (PATIENCE if current.exists() else START):
                child.kill()
        return child.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="for each engine")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--readers", nargs="*", default=list(BY_NAME), choices=list(BY_NAME))
    parser.add_argument("--folder", type=Path, default=Path("/tmp/citrus-fuzz"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    engines = [engine for engine in ENGINES if engine != "atheris" or have_atheris()]
    if len(engines) < len(ENGINES):
        print("atheris is left out: pip install 'citrus-uap[fuzz]' (it has no wheel for this Python or machine)")
    each = 60 * options.minutes * options.workers / len(options.readers)
    tasks = [(engine, name) for engine in engines for name in options.readers]
    folder = options.folder / time.strftime("%Y%m%d-%H%M%S")

    def one(task: tuple[str, str]) -> Total:
        total = fuzz(*task, folder, each, options.seed)
        print(*task, f"{total.tried} tried, {len(total.findings)} findings, {total.seconds:.0f} s", flush=True)
        return total

    with ThreadPoolExecutor(options.workers) as pool:
        totals = list(pool.map(one, tasks))
    print(
        table(["engine", "reader", "tried", "accepted", "refused", "slowest s", "findings"], list(_rows(tasks, totals)))
    )
    for task, total in zip(tasks, totals, strict=True):
        for kind, trace in total.findings.items():
            print(f"\n{' '.join(task)}: {kind}\n{trace}")
    if options.out:
        _write(options.out, options.seed, tasks, totals)
    print(f"inputs that were found are below {folder}")
    return 1 if any(total.findings for total in totals) else 0


def _rows(tasks: list[tuple[str, str]], totals: list[Total]) -> Iterator[list[str]]:
    for task, t in zip(tasks, totals, strict=True):
        numbers = (t.tried, t.accepted, t.refused, t.slowest, len(t.findings))
        yield [*task, *map(str, numbers)]


def _write(out: Path, seed: int, tasks: list[tuple[str, str]], totals: list[Total]) -> None:
    """A row per engine; the machine and the versions of the rest are in environments.jsonl beside it."""
    for engine in dict.fromkeys(engine for engine, _ in tasks):
        mine = {name: total for (kind, name), total in zip(tasks, totals, strict=True) if kind == engine}
        row: dict[str, Any] = {"seed": seed, "version": importlib.metadata.version(engine)}
        row |= {"seconds": round(sum(total.seconds for total in mine.values()), 1)}
        row |= {name: sum(getattr(t, name) for t in mine.values()) for name in ("tried", "accepted", "refused")}
        row |= {"findings": sum(len(total.findings) for total in mine.values())}
        row |= {"by": {name: [t.tried, t.accepted, t.refused, list(t.findings)] for name, t in mine.items()}}
        StudyRows(out, "fuzz").add("fuzz", engine, row)


if __name__ == "__main__":
    sys.exit(main())
