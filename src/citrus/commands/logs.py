"""Metrics for other programs: `--log tensorboard` writes RUN/tensorboard; metrics.jsonl is always written."""

from pathlib import Path
from typing import Any

from citrus.errors import CitrusError, suggest
from citrus.training.folder import RunFolder

SUFFIX = ".citrus"  # of the event files' names: others in the folder are not ours to replace


class TensorBoard:
    """The rows of a run's metrics.jsonl as TensorBoard scalars, each at its training step.

    The first row that is added writes all rows so far and takes the place of earlier event files, so that a resumed run
    has every point once, and a run that starts to log half way has them all.
    """

    def __init__(self, run: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise CitrusError(
                "`--log tensorboard` needs the tensorboard package: pip install 'citrus-uap[tensorboard]'."
            ) from error
        self.folder, self.run, self.kind = run / "tensorboard", RunFolder(run), SummaryWriter
        self.writer: Any = None

    def add(self, row: dict[str, Any]) -> None:
        """Write a row of metrics.jsonl that was just added to it."""
        if self.writer is None:
            self._begin()
        else:
            self._write(row)

    def complete(self) -> None:
        """The run is done; if it was when it was resumed, no row was added, and all are written now."""
        if self.writer is None:
            self._begin()

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()

    def _begin(self) -> None:
        for old in self.folder.glob(f"*{SUFFIX}"):
            old.unlink()
        self.writer = self.kind(str(self.folder), filename_suffix=SUFFIX)
        for row in self.run.metrics():
            self._write(row)

    def _write(self, row: dict[str, Any]) -> None:
        for name, value in row.items():
            if name != "step":
                self.writer.add_scalar(name, value, row["step"])
        self.writer.flush()


def open_log(name: str | None, run: Path) -> TensorBoard | None:
    """The log that `--log NAME` asks for."""
    if name is None:
        return None
    if name != "tensorboard":
        raise CitrusError(f"Unknown log {name!r}: {suggest(name, ['tensorboard'])}")
    return TensorBoard(run)
