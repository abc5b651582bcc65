"""What is disturbed: a training, a certification and a study, small enough to be run hundreds of times."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
from support.synthetic import blobs, config

from citrus.training import to_dict
from faults.child import Child

NAMES = ("training", "certification", "study")


@dataclass
class Bench:
    """A folder with data, the undisturbed run of each job, and room for disturbed ones."""

    folder: Path
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each job takes undisturbed."""
    numbers: Iterator[int] = field(default_factory=count)
    """Of rooms and logs."""

    def __post_init__(self) -> None:
        (self.folder / "logs").mkdir(parents=True)
        (self.folder / "undisturbed").mkdir()
        self.data = self.folder / "blobs.npz"
        images = {"train": blobs(100, 1), "test": blobs(110, 3)}
        arrays = {f"{name}_images": part.images.numpy() for name, part in images.items()}
        np.savez(self.data, **arrays, **{f"{name}_labels": part.labels.numpy() for name, part in images.items()})
        made = config("cw_uat", data=str(self.data), epochs=12, milestones=(), ramp_epochs=8)
        (self.folder / "config.json").write_text(json.dumps(to_dict(made)))
        small = {
            "data": str(self.data),
            "network": "mlp",
            "epochs": 4,
            "warmup_epochs": 1,
            "ramp_epochs": 2,
            "batch_size": 10,
        }
        small |= {"test_images": 10, "milestones": "", "eps": 0.05, "validation": 0}
        plan = [{"name": n, "recipe": "quickstart", "set": {**small, "seed": n}} for n in range(2)]
        (self.folder / "plan.json").write_text(json.dumps(plan))
        Child(["--version"], self.folder / "logs" / "first.log").wait()  # starts the server of processes
        for name in NAMES:
            child = self.run(name, self.reference(name))
            assert child.wait() == 0, child.text
            self.seconds[name] = child.seconds

    def reference(self, job: str) -> Path:
        return self.folder / "undisturbed" / job

    def run(self, job: str, out: Path, prepare: Callable[[], None] | None = None) -> Child:
        """Start a job, or let it go on."""
        return Child(self.words(job, out), self.folder / "logs" / f"{next(self.numbers):05}.log", prepare)

    def words(self, job: str, out: Path) -> list[str]:
        where = ["--out", str(out), "--device", "cpu"]
        if job == "training":
            begun = (out / "config.json").exists()
            return ["train", *(["--resume"] if begun else ["--config", str(self.folder / "config.json")]), *where]
        if job == "study":
            return ["bench", "plan", str(self.folder / "plan.json"), "--certify", "20", *where]
        chosen = ["--images", "108", "--eps", "0.17", "--group-size", "4", "--grouping", "dataset", "--budget", "60s"]
        return ["certify", str(self.reference("training")), "--certificates", *chosen, *where]

    def room(self) -> Path:
        """A new place for a job."""
        return self.folder / "disturbed" / f"{next(self.numbers):05}"

    def partly(self, job: str, share: float, holds: str = "*.jsonl") -> Path:
        """A job that was killed after a share of its time, once it had such a file."""
        while True:
            out = self.room()
            child = self.run(job, out)
            child.until(share * self.seconds[job], out, holds)
            child.process.kill()
            if child.wait() < 0:
                return out
            shutil.rmtree(out)  # it was over before

    def size(self, job: str) -> int:
        """Bytes on the disk that a job needs."""
        return sum(path.stat().st_blocks * 512 for path in self.reference(job).rglob("*"))

    def largest(self, job: str) -> int:
        """Bytes of the largest file that a job needs."""
        return max(path.stat().st_size for path in self.reference(job).rglob("*.*"))
