"""A few faults of each sort in real processes; `make faults` injects hundreds."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from citrus.files import load_tensors, read_lines, save_tensors
from faults.compare import Difference, compare, finished
from faults.jobs import Bench
from faults.kinds import NotHere
from faults.table import FAULTS

FEW = [
    ("kill -9", "training"),
    ("kill -9", "certification"),
    ("SIGTERM", "study"),
    ("full disk", "training"),
    ("two processes", "certification"),
    ("damaged rows", "study"),
    ("out of memory in a step", "training"),
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("faults") / "bench"
    yield Bench(folder)
    shutil.rmtree(folder)


@pytest.mark.parametrize(("kind", "job"), FEW, ids=[f"{kind}, {job}" for kind, job in FEW])
def test_nothing_is_lost_doubled_or_different(kind: str, job: str, bench: Bench) -> None:
    fault, _ = FAULTS[kind]
    try:
        found = fault(bench, job, Random(f"short {kind} {job}"))
    except NotHere as reason:
        pytest.skip(str(reason))
    assert (found.lost, found.doubled, found.differ) == (0, 0, 0), found.what


# What would be found.


@pytest.fixture
def copy(bench: Bench, tmp_path: Path) -> Path:
    shutil.copytree(bench.reference("certification"), tmp_path / "copy")
    return tmp_path / "copy"


def test_planted_differences_are_found(bench: Bench, copy: Path) -> None:
    reference, before = bench.reference("certification"), finished(copy)
    assert compare(copy, reference, before) == Difference()
    rows, certificate = next(copy.glob("*.jsonl")), next(copy.rglob("group-*.safetensors"))
    lines = rows.read_text().splitlines(keepends=True)
    row = json.loads(lines[3])
    row["attacked"] += 1
    del row["crc"]
    for text, expected in (
        ("".join(lines[:-1]), (2, 0, 1)),  # one row is missing, and one that had been finished
        ("".join([*lines, lines[3]]), (0, 1, 1)),
        ("".join([*lines[:3], json.dumps(row) + "\n", *lines[4:]]), (1, 0, 1)),
    ):
        rows.write_text(text)
        found = compare(copy, reference, before)
        assert (found.lost, found.doubled, found.differ) == expected
    rows.write_text("".join(lines))
    tensors, header = load_tensors(certificate)
    tensors["lambdas"] = tensors["lambdas"] + 1e-12
    save_tensors(certificate, tensors, header)
    assert compare(copy, reference, before).what.endswith(certificate.name) or not len(tensors["lambdas"])
    certificate.unlink()
    assert compare(copy, reference, before).differ == 1


def test_rows_of_metrics_last_as_far_as_the_checkpoint(bench: Bench, tmp_path: Path) -> None:
    shutil.copytree(bench.reference("training"), tmp_path / "copy")
    checkpoint = tmp_path / "copy" / "checkpoints" / "last.safetensors"
    tensors, header = load_tensors(checkpoint)
    rows, _ = read_lines(tmp_path / "copy" / "metrics.jsonl")
    save_tensors(checkpoint, tensors, header | {"step": rows[4]["step"]})
    assert len(finished(tmp_path / "copy")[Path("metrics.jsonl")]) == 5
