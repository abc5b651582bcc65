"""What people see: a live bar on a terminal, plain lines in a log file, and tables. Only commands use it."""

import sys
import time
from contextlib import AbstractContextManager
from typing import Any

LINE_SECONDS = 10.0  # between two lines where there is no terminal


class Bar(AbstractContextManager["Bar"]):
    """Progress with ETA on stderr, from the first `update` on: a rich bar on a terminal, otherwise a line at times."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.first: int | None = None
        """What was done already when the bar began."""
        self.started = self.printed = 0.0
        self.live: Any = None

    def update(self, done: int, total: int, text: str = "") -> None:
        now = time.monotonic()
        if self.first is None:
            self.first, self.started, self.printed = done, now, now
            self.live = _live_bar(self.what, done, total) if sys.stderr.isatty() else None
        if self.live:
            self.live.update(self.live.task_ids[0], completed=done, text=text)
        elif now - self.printed >= LINE_SECONDS or done >= total:
            self.printed, fresh = now, done - self.first
            left = (now - self.started) / fresh * (total - done) if fresh else float("inf")
            print(f"{self.what} {done}/{total} {text} ETA {duration(left)}", file=sys.stderr, flush=True)
        if done >= total:
            self.close()

    def say(self, text: str) -> None:
        """How far something is that takes long: beside the bar, or a line at times."""
        now = time.monotonic()
        if self.live:
            self.live.update(self.live.task_ids[0], text=text)
        elif now - self.printed >= LINE_SECONDS:
            self.printed = now
            print(f"{self.what}: {text}", file=sys.stderr, flush=True)

    def close(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    __exit__ = close


def _live_bar(what: str, done: int, total: int) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    text = TextColumn("{task.fields[text]}")
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), text)
    progress = Progress(*columns, console=Console(stderr=True))
    progress.add_task(what, completed=done, total=total, text="")
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
    aligned = [
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        for row in [header, ["-" * width for width in widths], *rows]
    ]
    return "\n".join([*([title] if title else []), *("  ".join(cells).rstrip() for cells in aligned)])
