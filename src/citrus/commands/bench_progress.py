"""What `citrus bench` says on stderr while it works."""

import sys

from citrus.bench import Row
from citrus.console import Bar, duration
from citrus.training import Events, Progress


def announce(name: str, place: int, total: int) -> Events:
    """A bar for the training of one method."""
    what = f"[{place}/{total}] {name}"
    print(what, file=sys.stderr, flush=True)
    bar = Bar(what)

    def on_step(progress: Progress) -> None:
        bar.update(progress.step, progress.steps, f"eps {progress.eps:.4f} loss {progress.loss:.4f}")

    return Events(on_step=on_step)


def report(row: Row) -> None:
    text = row.error or (
        f"clean {row.clean:.1f}, PGD {row.pgd:.1f}, UAP attack {row.uap:.1f}, certified single "
        f"{row.certified_single:.1f}, certified UAP {row.certified_uap:.1f}, {duration(row.seconds)}"
    )
    print(f"{row.name}: {text}", file=sys.stderr, flush=True)
