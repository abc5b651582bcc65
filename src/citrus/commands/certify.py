"""`citrus certify NETWORK`: prove how many images of each group survive every shared perturbation."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from citrus.certify import Certification, CertifySettings, GroupResult, certify_into
from citrus.certify.run_folder import certificate_folder, row_path
from citrus.certify.settings import Grouping, Intermediate
from citrus.commands.target import NetworkFlags, Target, find_target, parse_flags, take_word
from citrus.console import Bar, duration, table
from citrus.data import as_float
from citrus.errors import CitrusError
from citrus.inputs import format_eps
from citrus.networks import graph
from citrus.training import pick_device


@dataclass
class CertifyFlags(NetworkFlags):
    """Certify a network (run folder, ONNX file or name of the zoo): citrus certify NETWORK --data mnist --eps 0.1"""

    grouping: Grouping = "correct"
    """dataset: in order. correct: misclassified images dropped first. adaptive: images that need it are grouped."""
    verifier: str = "citrus"
    """citrus (strongest), racoon or zeng (the published systems)."""
    intermediate: Intermediate = "auto"
    """Boxes of the inner layers: crown, early (by crown in the first two ReLU layers only), interval or auto."""
    budget: str = "10s"
    """Time per group for search and refinement, such as 10s or 2m."""
    images: int | None = None
    """Certify the first so many test images; by default all."""
    certificates: bool = False
    """Also write the proofs, for `citrus check`."""
    out: str | None = None
    """Folder of the results; by default RUN/certify, or runs/NETWORK/certify."""
    seed: int = 0
    """Seed of the attack."""
    device: str = "auto"
    """cpu, cuda or auto."""


def run(arguments: list[str]) -> int:
    name, rest = take_word(arguments)
    flags, _ = parse_flags(CertifyFlags, "certify", rest)
    target = find_target(name, "certify", flags)
    if flags.images is not None and flags.images < 1:
        raise CitrusError(f"There are no images to certify: --images must be at least 1, got {flags.images}.")
    settings = CertifySettings(
        group_size=target.group_size,
        grouping=flags.grouping,
        verifier=flags.verifier,
        intermediate=flags.intermediate,
        budget=parse_seconds(flags.budget),
        seed=flags.seed,
    )
    out = Path(flags.out) if flags.out else target.folder / "certify"
    try:
        result = _certify(target, flags, settings, out)
    except KeyboardInterrupt:
        print("Interrupted; the same command goes on where it stopped.", file=sys.stderr)
        return 130
    print(f"{summary(result)}\n\nrows          {row_path(out, target.eps, settings)}")
    if flags.certificates:
        folder = certificate_folder(out, target.eps, settings)
        print(f"certificates  {folder}\nnext          citrus check {folder}")
    return 2 if result.errors else 0


def _certify(target: Target, flags: CertifyFlags, settings: CertifySettings, out: Path) -> Certification:
    """Certify with a line for each group and a bar."""
    eps, device = target.eps, pick_device(flags.device)
    test = target.test_set().subset(slice(0, flags.images)).to(device)
    network = graph(target.load(test.shape), test.shape).to(device)
    with Bar("groups") as bar:

        def on_rows(rows: Sequence[GroupResult], done: int, total: int) -> None:
            for row in rows:
                print(line(row))
            bar.update(done, total)

        images, labels, name = as_float(test.images), test.labels, target.network
        return certify_into(
            out, network, images, labels, eps, settings, certificates=flags.certificates, name=name, on_rows=on_rows
        )


def line(row: GroupResult) -> str:
    stages = " ".join(f"{name} {count}" for name, count in row.stages.items())
    counts = f"[{row.certified}, {row.attacked}] of {len(row.index)}"
    return (
        f"group {row.group:5}  {counts:14}  {row.verdict.value:9}  {row.seconds:6.2f} s  {stages} {row.note}".rstrip()
    )


def summary(result: Certification) -> str:
    """Percentages, every image once, and what each stage cost."""
    radius, n = format_eps(result.eps), result.images
    title = f"\n{n} images, eps {radius}, groups of {result.group_size} ({result.grouping}), verifier {result.verifier}"
    rows = [
        ["clean accuracy", f"{result.correct:.2f}"],
        ["certified UAP accuracy (proved)", f"{result.certified:.2f}"],
        ["UAP accuracy under attack (upper bound)", f"{result.attacked:.2f}"],
    ]
    parts = result.images_by_outcome()
    counted = ", ".join(f"{name} {count}" for name, count in parts.items())
    stages = ", ".join(f"{name} {duration(s) if s > 60 else f'{s:.1f} s'}" for name, s in result.stage_seconds.items())
    return f"{table(['percent of all images', ''], rows, title)}\n\n{counted}: {sum(parts.values())} in all\n{stages}"


def parse_seconds(text: str) -> float:
    """10, 10s, 2m or 1h in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?)([smh]?)", text.strip())
    if not found:
        raise CitrusError(f"A time budget is written 10s, 2m or 1h, got {text!r}.")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]
