"""What people see while they wait: lines in a log file, a bar on a terminal, aligned tables."""

import io
import sys
from itertools import count

import pytest

from citrus import console
from citrus.console import Bar, duration, table


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second goes by at every look."""
    seconds = count()
    monkeypatch.setattr(console.time, "monotonic", lambda: float(next(seconds)))


@pytest.mark.usefixtures("clock")
def test_a_log_file_gets_a_line_at_times_and_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar("groups") as bar:
        for done in range(1, 26):
            bar.update(done, 25, f"loss {done}")
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["groups 11/25 loss 11 ETA 0:14", "groups 21/25 loss 21 ETA 0:04", "groups 25/25 loss 25 ETA 0:00"]


@pytest.mark.usefixtures("clock")
def test_the_time_left_counts_from_where_a_resumed_run_began(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar("training")
    bar.update(1000, 2000)
    for _ in range(10):
        bar.update(1010, 2000)
    assert capsys.readouterr().err == "training 1010/2000  ETA 16:30\n"


def test_what_is_done_already_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    Bar("groups").update(4, 4)
    assert capsys.readouterr().err == "groups 4/4  ETA --\n"
    with Bar("groups"):
        pass
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    for stop in (3, 2):  # at the end, and before it
        with Bar("training") as bar:
            for done in range(1, stop + 1):
                bar.update(done, 3, f"loss {done}")
        assert bar.live.finished == (stop == 3)
        assert not bar.live.live.is_started
        assert f"loss {stop}" in terminal.getvalue()
    assert "ETA" not in terminal.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.9, "0:59"), (129, "2:09"), (3909, "1:05:09"), (float("inf"), "--")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_tables_are_aligned() -> None:
    rows = [["clean", "96.30"], ["certified", "8.00"]]
    expected = ["percent", "measure        n", "---------  -----", "clean      96.30", "certified   8.00"]
    assert table(["measure", "n"], rows, "percent").splitlines() == expected
    assert table(["measure", "n"], rows).splitlines() == expected[1:]
