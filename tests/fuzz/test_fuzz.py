"""The short form of `make fuzz`: some dozens of hostile files for every reader, always the same."""

from pathlib import Path

import pytest
from support.limits import little_memory

from citrus.errors import CitrusError
from fuzz.engines import batch
from fuzz.readers import BY_NAME, Reader
from fuzz.watch import Watch

LENIENT = {
    "group rows",
    "perturbation",
    "perturbation for all",
    "targets",
    *(name for name in BY_NAME if name.startswith("run ")),
}
"""What is damaged is counted, or told in the report, and left out."""


@pytest.mark.parametrize("name", BY_NAME)
def test_nothing_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    watch = Watch(BY_NAME[name], tmp_path)
    with little_memory():
        batch(watch, number=0, examples=30)
    assert not watch.counts.findings
    assert watch.counts.tried == watch.counts.accepted + watch.counts.refused >= 30
    if name not in LENIENT:
        assert watch.counts.refused  # the edits do some harm


def answer(path: Path) -> None:
    """Reads in every way that a reader can."""
    match path.read_bytes():
        case b"refused":
            raise CitrusError("No.")
        case b"crash":
            raise KeyError("a")
        case b"memory":
            raise CitrusError("Cannot be read.") from MemoryError()


def test_what_is_found_is_noticed(tmp_path: Path) -> None:
    watch = Watch(Reader("any", "file", lambda folder: [b"fine"], answer), tmp_path)
    for content in (b"fine", b"refused", b"crash", b"crash", b"memory"):
        watch.try_one(content)
    counts = watch.counts
    assert (counts.tried, counts.accepted, counts.refused) == (5, 1, 2)
    assert sorted(kind.split()[0] for kind in counts.findings) == ["KeyError", "memory"]
    assert {path.read_bytes() for path in (tmp_path / "findings").iterdir()} == {b"crash", b"memory"}
