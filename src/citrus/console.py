"""What people see: a live bar on a terminal, plain lines in a log file, and tables. Only commands use it."""

import sys
import time
from typing import Any, TextIO


class Bar:
    """Progress with ETA on stderr: a rich bar on a terminal, otherwise a line every `every` seconds."""

    def __init__(
        self, total: int, what: str, start: int = 0, every: float = 10.0, stream: TextIO | None = None
    ) -> None:
        self.total, self.what, self.first, self.every = total, what, start, every
        self.stream = stream or sys.stderr
        self.started = self.printed = time.monotonic()
        self.live: Any = None
        if self.stream.isatty():
            self.live = _live_bar(total, what, start)

    def update(self, done: int, text: str = "") -> None:
        if self.live:
            self.live.update(self.live.task_ids[0], completed=done, text=text)
        elif time.monotonic() - self.printed >= self.every or done >= self.total:
            self.printed = time.monotonic()
            print(f"{self.what} {done}/{self.total} {text} ETA {self._eta(done)}", file=self.stream, flush=True)

    def _eta(self, done: int) -> str:
        fresh = done - self.first
        left = (time.monotonic() - self.started) / fresh * (self.total - done) if fresh > 0 else float("inf")
        return duration(left)

    def close(self) -> None:
        if self.live:
            self.live.stop()

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _live_bar(total: int, what: str, start: int) -> Any:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        return None
    columns = (
        "{task.description}",
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[text]}"),
    )
    progress = Progress(*columns, console=Console(stderr=True))
    progress.add_task(what, total=total, completed=start, text="")
    progress.start()
    return progress


def duration(seconds: float) -> str:
    """1:05:09, 2:09 or --."""
    if not seconds < 1e8:
        return "--"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def table(header: list[str], rows: list[list[str]], title: str = "") -> str:
    """Aligned columns, the first to the left and the others to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(row: list[str]) -> str:
        cells = [
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    rule = "  ".join("-" * w for w in widths)
    return "\n".join([*([title] if title else []), line(header), rule, *(line(row) for row in rows)])
