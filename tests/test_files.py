"""Files: what is written comes back, damage is told, and a failed write loses nothing."""

import fcntl
import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from citrus import files
from citrus.errors import CitrusError
from citrus.files import (
    append_line,
    line_of,
    load_tensors,
    locked,
    read_lines,
    replace_file,
    save_tensors,
    write_json,
    write_text,
)

HEADER = {"step": 41, "config": {"eps": "8/255", "name": "Zürich"}, "done": False}


def tensors() -> dict[str, Tensor]:
    return {
        "weight": torch.arange(6.0).view(2, 3),
        "double": torch.tensor([1e-300], dtype=torch.float64),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "flags": torch.tensor([True, False]),
        "number": torch.tensor(7),
        "half": torch.tensor([0.5], dtype=torch.bfloat16),
        "empty": torch.zeros(0, 4),
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_round_trip(path: Path) -> None:
    save_tensors(path, tensors(), HEADER)
    loaded, header = load_tensors(path)
    assert loaded.keys() == tensors().keys()
    for name, tensor in tensors().items():
        assert loaded[name].dtype == tensor.dtype
        assert loaded[name].shape == tensor.shape
        assert torch.equal(loaded[name], tensor)
    assert {key: header[key] for key in HEADER} == HEADER
    assert names(path.parent) == [path.name]


def test_nan_and_infinity_survive(path: Path) -> None:
    save_tensors(path, {"x": torch.tensor([float("nan"), float("-inf"), -0.0])}, {})
    assert str(load_tensors(path)[0]["x"].tolist()) == "[nan, -inf, -0.0]"


def test_views_and_parameters_can_be_saved(path: Path) -> None:
    weight = torch.nn.Parameter(torch.arange(6.0).view(2, 3))
    save_tensors(path, {"transposed": weight.T, "part": torch.arange(9.0)[2:4]}, {})
    loaded = load_tensors(path)[0]
    assert torch.equal(loaded["transposed"], weight.T)
    assert loaded["part"].tolist() == [2.0, 3.0]


def test_tied_weights_can_be_saved(path: Path) -> None:
    """One tensor under two names, as tied layers and averaged weights have it."""
    weight = torch.arange(6.0)
    save_tensors(path, {"a": weight, "b": weight, "c": weight[:3]}, {})
    loaded = load_tensors(path)[0]
    assert torch.equal(loaded["a"], weight)
    assert torch.equal(loaded["b"], weight)
    assert torch.equal(loaded["c"], weight[:3])


def test_folders_are_made(tmp_path: Path) -> None:
    save_tensors(tmp_path / "a" / "b" / "c.safetensors", tensors(), HEADER)
    assert load_tensors(tmp_path / "a" / "b" / "c.safetensors")[1]["step"] == 41


def test_writing_again_replaces(path: Path) -> None:
    save_tensors(path, tensors(), HEADER)
    save_tensors(path, {"x": torch.zeros(1)}, {"step": 42})
    loaded, header = load_tensors(path)
    assert list(loaded) == ["x"]
    assert header["step"] == 42


# Damage


def test_missing_file(path: Path) -> None:
    with pytest.raises(CitrusError, match=r"There is no file .*model\.safetensors"):
        load_tensors(path)
    with pytest.raises(CitrusError, match="There is no file"):
        load_tensors(path.parent)


@pytest.mark.parametrize("keep", [0, 4, 20, 0.5, 0.9, -1])
def test_truncated_file(path: Path, keep: float) -> None:
    save_tensors(path, tensors(), HEADER)
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if 0 < keep < 1 else int(keep)])
    with pytest.raises(CitrusError, match=r"model.safetensors is damaged.*make it anew"):
        load_tensors(path)


def test_flipped_bit_in_the_data(path: Path) -> None:
    save_tensors(path, {"x": torch.arange(4.0)}, HEADER)
    content = bytearray(path.read_bytes())
    for place in range(len(content) - 16, len(content)):
        content[place] ^= 1
        path.write_bytes(content)
        with pytest.raises(CitrusError, match="its checksum does not match"):
            load_tensors(path)
        content[place] ^= 1
    path.write_bytes(content)
    load_tensors(path)


def test_no_flipped_bit_anywhere_goes_unnoticed(path: Path) -> None:
    """Also in the header: a step number or an eps that has changed would be believed."""
    save_tensors(path, {"x": torch.arange(3.0)}, HEADER)
    content = bytearray(path.read_bytes())
    before = load_tensors(path)
    believed = []
    for place in range(len(content)):
        content[place] ^= 1
        path.write_bytes(content)
        try:
            loaded, header = load_tensors(path)
        except CitrusError:
            pass
        else:
            same = (
                header == before[1] and loaded.keys() == before[0].keys() and torch.equal(loaded["x"], before[0]["x"])
            )
            if not same:
                believed.append((place, header))
        content[place] ^= 1
    assert not believed


def test_renamed_tensor_is_damage(path: Path) -> None:
    save_tensors(path, {"weight": torch.ones(2)}, {})
    path.write_bytes(path.read_bytes().replace(b'"weight"', b'"weighs"'))
    with pytest.raises(CitrusError, match="checksum"):
        load_tensors(path)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"citrus": "null"}, {"citrus": "[1]"}])
def test_foreign_file(path: Path, metadata: dict[str, str] | None) -> None:
    save_file({"x": torch.ones(2)}, path, metadata=metadata)
    with pytest.raises(CitrusError, match="was not written by Citrus"):
        load_tensors(path)


@pytest.mark.parametrize("content", [b"hello", b"\x80\x04K\x01.", b"\xff" * 100, b"PK\x03\x04" + bytes(60)])
def test_no_safetensors_file(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(CitrusError, match="damaged or no safetensors file"):
        load_tensors(path)


def test_broken_header(path: Path) -> None:
    save_file({"x": torch.ones(2)}, path, metadata={"citrus": "{not json"})
    with pytest.raises(CitrusError, match="damaged"):
        load_tensors(path)
    save_file({"x": torch.ones(2)}, path, metadata={"citrus": "{}"})
    with pytest.raises(CitrusError, match="checksum"):
        load_tensors(path)


# Failed writes


def full_disk(part: Path) -> None:
    part.write_bytes(b"half of")
    raise OSError(28, "No space left on device")


def test_failed_write_leaves_the_old_file(path: Path) -> None:
    path.write_text("old")
    with pytest.raises(CitrusError, match=r"Cannot write .*No space left.*untouched"):
        replace_file(path, full_disk)
    assert path.read_text() == "old"
    assert names(path.parent) == [path.name]


def test_failed_save_leaves_the_old_tensors(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tensors(path, tensors(), HEADER)
    monkeypatch.setattr(files, "save_file", lambda tensors, part, metadata: full_disk(part))
    with pytest.raises(CitrusError, match="No space left"):
        save_tensors(path, {"x": torch.zeros(1)}, {"step": 42})
    assert load_tensors(path)[1]["step"] == 41
    assert names(path.parent) == [path.name]


def test_failed_rename_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(path, "old")

    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(CitrusError, match="Permission denied"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert names(path.parent) == [path.name]


def test_interrupted_write_leaves_the_old_file(path: Path) -> None:
    path.write_text("old")

    def interrupted(part: Path) -> None:
        part.write_text("half of")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace_file(path, interrupted)
    assert path.read_text() == "old"
    assert names(path.parent) == [path.name]
    replace_file(path, lambda part: part.write_text("new"))
    assert path.read_text() == "new"
    assert names(path.parent) == [path.name]


def test_two_writers_of_one_file_do_not_share_what_they_write(path: Path) -> None:
    def write(part: Path) -> None:
        part.write_text("first")
        write_text(path, "second")
        assert part.read_text() == "first"

    replace_file(path, write)
    assert path.read_text() == "first"
    assert names(path.parent) == [path.name]


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(CitrusError, match="Cannot write"):
        write_text(tmp_path / "file" / "x.json", "new")
    assert (tmp_path / "file").read_text() == "old"


def test_a_folder_where_a_file_should_be(path: Path) -> None:
    path.mkdir()
    with pytest.raises(CitrusError, match="Cannot write"):
        save_tensors(path, tensors(), HEADER)
    assert names(path.parent) == [path.name]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_unwritable_folder(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    with pytest.raises(CitrusError, match=r"Cannot write .*Permission denied"):
        save_tensors(folder / "x.safetensors", tensors(), HEADER)


def test_header_that_is_no_json_writes_nothing(path: Path) -> None:
    save_tensors(path, tensors(), HEADER)
    with pytest.raises(TypeError):
        save_tensors(path, tensors(), {"object": object()})
    assert load_tensors(path)[1]["step"] == 41
    assert names(path.parent) == [path.name]


def test_text_and_json(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"eps": 0.1, "names": ["Zürich"]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"eps": 0.1, "names": ["Zürich"]}
    write_text(tmp_path / "b.txt", "ε = 8/255\n")
    assert (tmp_path / "b.txt").read_text(encoding="utf-8") == "ε = 8/255\n"
    assert names(tmp_path) == ["a.json", "b.txt"]


# Rows

ROWS = [{"step": 1, "loss": 0.5}, {"step": 2, "name": "Zürich\n"}, {}]


def test_rows_come_back_as_they_were_appended(tmp_path: Path) -> None:
    path = tmp_path / "made" / "rows.jsonl"
    assert read_lines(path) == ([], 0)
    for count, row in enumerate(ROWS, start=1):
        append_line(path, row)
        assert read_lines(path) == (ROWS[:count], 0)
        assert len(path.read_text().splitlines()) == count


def test_a_row_cut_short_anywhere_loses_itself_only(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for row in ROWS[:2]:
        append_line(path, row)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first + 1, len(whole)):
        path.write_bytes(whole[:cut])
        kept, broken = read_lines(path)
        assert (kept, broken) == ((ROWS[:1], 1) if cut < len(whole) - 1 else (ROWS[:2], 0))
        append_line(path, ROWS[2])
        assert read_lines(path) == ([*kept, ROWS[2]], 0)


@pytest.mark.parametrize(
    "line", [b"{", b"[1]", b"null", b"3", b'"text"', b"\xff\xfe", b"<html>", b"[" * 100_000, b'{"a": 1} {"b": 2}']
)
def test_lines_that_are_no_rows_are_counted(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n' + line + b'\n\n  \n{"b": 2}\n')
    assert read_lines(path) == ([{"a": 1}, {"b": 2}], 1)


def test_a_line_with_foreign_separators_is_one_row(tmp_path: Path) -> None:
    """JSON may hold what Python's splitlines would cut."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"note": "a\u2028b\x85c"}\n', encoding="utf-8")
    assert read_lines(path) == ([{"note": "a\u2028b\x85c"}], 0)


def test_rows_that_cannot_be_read_are_no_missing_rows(tmp_path: Path) -> None:
    with pytest.raises(CitrusError, match="Cannot read"):
        read_lines(tmp_path)


def test_a_deep_header_is_damage(path: Path) -> None:
    """Found by `make fuzz`."""
    save_file({"x": torch.zeros(1)}, path, metadata={"citrus": '{"a": ' + "[" * 100_000})
    with pytest.raises(CitrusError, match="damaged or no safetensors file"):
        load_tensors(path)


def test_a_row_that_cannot_be_written_is_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.jsonl"
    append_line(path, ROWS[0])

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        CitrusError, match=r"Cannot write .*rows\.jsonl: No space left on device; what was there before"
    ):
        append_line(path, ROWS[1])
    assert read_lines(path)[0][0] == ROWS[0]


def test_no_flipped_bit_in_a_row_goes_unnoticed(tmp_path: Path) -> None:
    """A digit, a letter of a name, the end of a line: the values that are read are those that were written."""
    path = tmp_path / "rows.jsonl"
    for row in ROWS[:2]:
        append_line(path, row)
    content = bytearray(path.read_bytes())
    for place in range(len(content)):
        for bit in range(8):
            content[place] ^= 1 << bit
            path.write_bytes(content)
            rows, broken = read_lines(path)
            assert all(any(row.items() >= known.items() for known in ROWS[:2]) for row in rows), (place, bit)
            assert broken or len(rows) == 2
            content[place] ^= 1 << bit


def test_rows_of_older_versions_have_no_checksum_and_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n")
    append_line(path, ROWS[1])
    assert read_lines(path) == (ROWS[:2], 0)


def test_a_row_that_was_read_can_be_written_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(line_of({"b": 1.5, 3: [float("inf")]}) + line_of(json.loads(line_of({"b": 2}))))
    assert read_lines(path) == ([{"b": 1.5, "3": [float("inf")]}, {"b": 2}], 0)


# Locks


@pytest.mark.parametrize("name", ["", "rows"])
def test_a_folder_that_another_process_writes_is_refused(name: str, tmp_path: Path) -> None:
    with (tmp_path / f"{name and '.'}{name}.lock").open("w") as other:
        other.write("process 1 on elsewhere")
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        with (
            pytest.raises(CitrusError, match=rf"{name} is being written by process 1 on elsewhere: wait for it"),
            locked(tmp_path, name),
        ):
            pass
    with locked(tmp_path, name):
        assert f"process {os.getpid()} on " in (tmp_path / f"{name and '.'}{name}.lock").read_text()


def test_who_holds_a_folder_may_ask_for_it_again(tmp_path: Path) -> None:
    with locked(tmp_path), locked(tmp_path), locked(tmp_path, "rows"):
        pass
    with locked(tmp_path):
        pass


def test_a_file_system_without_locks_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", missing)
    with locked(tmp_path):
        write_text(tmp_path / "a", "b")


def test_what_a_killed_process_was_writing_is_removed(tmp_path: Path) -> None:
    killed = subprocess.Popen(["true"])
    killed.wait()
    for process in (killed.pid, os.getpid()):
        (tmp_path / "checkpoints").mkdir(exist_ok=True)
        (tmp_path / "checkpoints" / f"last.safetensors.{process}-0123abcd.part").write_text("half of")
    (tmp_path / "download.part").write_text("of another kind")
    with locked(tmp_path):
        assert names(tmp_path / "checkpoints") == [f"last.safetensors.{os.getpid()}-0123abcd.part"]
        assert names(tmp_path) == [".lock", "checkpoints", "download.part"]


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(CitrusError, match="Cannot write"), locked(tmp_path / "file"):
        pass


def test_a_folder_that_was_made_for_nothing_goes(tmp_path: Path) -> None:
    with pytest.raises(CitrusError, match="no such recipe"), locked(tmp_path / "a" / "b"), locked(tmp_path / "a" / "b"):
        raise CitrusError("no such recipe")
    assert names(tmp_path) == []
    (tmp_path / "old").mkdir()
    with locked(tmp_path / "old"), locked(tmp_path / "new"):
        write_text(tmp_path / "new" / "a", "b")
    assert names(tmp_path) == ["new", "old"]


def test_a_lock_that_was_removed_is_no_lock(tmp_path: Path) -> None:
    """Else two processes could hold two files of one name."""
    with (tmp_path / ".lock").open("w") as file:
        (tmp_path / ".lock").unlink()
        assert files._taken(file.fileno())
