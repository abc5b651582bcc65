"""Metrics for other programs: `--log tensorboard` writes RUN/tensorboard; metrics.jsonl is always written."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from citrus.errors import CitrusError
from citrus.files import read_lines

SUFFIX = ".citrus"  # of the event files' names: others in the folder are not ours to replace


class TensorBoard(AbstractContextManager["TensorBoard"]):
    """The rows of a run's metrics.jsonl as TensorBoard scalars, each at its training step.

    The first update takes the place of earlier event files, so that a resumed run has every point once, and a run that
    starts to log half way has them all.
    """

    def __init__(self, run: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise CitrusError(
                "`--log tensorboard` needs the tensorboard package: pip install 'citrus-uap[tensorboard]'."
            ) from error
        self.run, self.kind = run, SummaryWriter
        self.writer: Any = None
        self.written = 0

    def update(self) -> None:
        """Write the rows that are not written yet."""
        if self.writer is None:
            folder = self.run / "tensorboard"
            for old in folder.glob(f"*{SUFFIX}"):
                old.unlink()
            self.writer = self.kind(str(folder), filename_suffix=SUFFIX)
        for row in read_lines(self.run / "metrics.jsonl")[0][self.written :]:
            for name, value in row.items():
                if name != "step":
                    self.writer.add_scalar(name, value, row["step"])
            self.written += 1
        self.writer.flush()

    def __exit__(self, *_: object) -> None:
        if self.writer is not None:
            self.writer.close()
