"""The engine for many runs: nothing is done twice, and stops, crashes and errors lose nothing that was finished."""

import fcntl
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from citrus.certify import CertifySettings
from citrus.data import load
from citrus.errors import CannotWrite, CitrusError
from citrus.methods import METHODS, MethodLoss
from citrus.studies import Entry, Listener, Study, StudyResult, engine, read_rows, run_study
from citrus.training import Events, Stopped, load_run, train

MakeEntry = Callable[..., Entry]
TIMES = ("time", "train_seconds", "measure_seconds", "seconds", "stages", "last")


@pytest.fixture
def study(make_entry: MakeEntry, tmp_path: Path) -> Study:
    named = tuple(make_entry(name) for name in ("standard", "ibp", "pgd"))
    return Study("trial", tmp_path / "out", named, device="cpu")


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the folders in which training begins."""
    names: list[str] = []

    def watched(config: Any, folder: Path, **settings: Any) -> Any:
        names.append(folder.name)
        return train(config, folder, **settings)

    monkeypatch.setattr(engine, "train", watched)
    return names


def timeless(result: StudyResult) -> StudyResult:
    def plain(row: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in row.items() if key not in TIMES}

    return replace(result, run=plain(result.run), proofs=tuple(map(plain, result.proofs)))


def kinds(study: Study) -> list[tuple[str, str]]:
    return [(row["kind"], row["name"]) for row in read_rows(study.out / "rows.jsonl")]


# ---------------------------------------------------------------------------------------------------------------- rows


def test_rows_are_sound_and_what_is_finished_is_not_redone(study: Study, trained: list[str]) -> None:
    results = run_study(study)
    assert kinds(study) == [(kind, e.name) for e in study.entries for kind in ("run", "certification")]
    splits = study.load(study.entries[0])
    for result in results:
        [proof] = result.proofs
        assert not result.error
        assert 0 <= proof["single"] <= proof["certified"] <= result.uap <= 100
        assert proof["single"] <= result.pgd <= result.uap <= result.run["universal"]
        assert sum(proof["groups"]) == proof["outcomes"]["certified"] == proof["certified"] / 10
        assert result.seconds > result.run["train_seconds"] > 0
        network = load_run(study.out / result.name).network
        right = network(splits.test.images.float() / 255).argmax(1) == splits.test.labels
        assert result.run["clean"] == pytest.approx(100 * right.float().mean().item())
        assert (result.run["images"], result.run["attacked_images"], result.run["on"]) == (20, 10, "test")
        assert list((study.out / result.name / "certify").glob("citrus-0.05-n5-dataset*"))
    assert run_study(study) == results
    assert trained == ["standard", "ibp", "pgd"]


def test_entries_may_be_added_and_further_certifications_asked_for(
    study: Study, make_entry: MakeEntry, trained: list[str]
) -> None:
    first = run_study(study)
    pairs = CertifySettings(group_size=2, budget=0.05, attack=first_settings(study).attack)
    more = tuple(replace(entry, proofs=(*entry.proofs, pairs)) for entry in study.entries)
    results = run_study(replace(study, entries=(*more, make_entry("citrus"))))
    assert trained == ["standard", "ibp", "pgd", "citrus"]
    assert [len(result.proofs) for result in results] == [2, 2, 2, 1]
    for before, after in zip(first, results, strict=False):
        assert after.proofs[:1] == before.proofs
        assert (after.proofs[1]["group_size"], after.proofs[1]["grouping"]) == (2, "correct")
        assert after.uap <= before.uap, "an attack on other groups is not mixed in"
        assert after.uap == before.uap


def first_settings(study: Study) -> CertifySettings:
    return study.entries[0].proofs[0]


def test_a_network_may_be_measured_on_held_out_images(make_entry: MakeEntry, tmp_path: Path) -> None:
    """The test set stays unseen: these are other images."""
    entry = make_entry("standard", on="validation", validation=15)
    study = Study("held-out", tmp_path / "out", (entry,), device="cpu")
    [result] = run_study(study)
    held_out = load(entry.config.data, validation=15).validation
    network = load_run(study.out / "standard").network
    right = network(held_out.images.float() / 255).argmax(1) == held_out.labels
    assert (result.run["on"], result.run["images"], result.proofs[0]["images"]) == ("validation", 15, 10)
    assert result.run["clean"] == pytest.approx(100 * right.float().mean().item())


def test_where_a_configuration_comes_from_is_in_every_row(make_entry: MakeEntry, tmp_path: Path) -> None:
    source = {"recipe": "quickstart", "set": {"epochs": 3}}
    study = Study("s", tmp_path, (make_entry("standard", source=source),), device="cpu")
    run_study(study)
    assert all(source.items() <= row.items() for row in read_rows(tmp_path / "rows.jsonl"))


# ------------------------------------------------------------------------------------------------------------- failures


class Broken(Exception):
    """Something that no one expected."""


def test_an_error_leaves_a_row_and_is_tried_again(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []

    def flaky(config: Any, folder: Path, **settings: Any) -> Any:
        started.append(folder.name)
        if folder.name == "ibp" and len(started) < 4:
            raise Broken("no luck\nand more")
        return train(config, folder, **settings)

    monkeypatch.setattr(engine, "train", flaky)
    results = run_study(study)
    assert [result.error for result in results] == ["", "Broken: no luck", ""]
    assert "Traceback" in (study.out / "ibp" / "error.txt").read_text()
    again = run_study(study)
    assert started == ["standard", "ibp", "pgd", "ibp"]
    assert not any(result.error for result in again)
    assert again[::2] == results[::2]
    about = [row for row in read_rows(study.out / "rows.jsonl") if row["name"] == "ibp"]
    assert [row.get("failed") for row in about] == ["Broken: no luck", None, None]


def test_a_loss_that_is_no_number_is_told(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METHODS["ibp"], "loss", lambda self, batch: MethodLoss(batch.clean_loss * torch.nan))
    results = run_study(study)
    assert "NaN" in results[1].error
    assert [bool(result.error) for result in results] == [False, True, False]


def test_data_that_is_not_there_is_an_error_of_the_entry(study: Study, tmp_path: Path) -> None:
    absent = replace(
        study.entries[0], name="absent", config=replace(study.entries[0].config, data=str(tmp_path / "no.npz"))
    )
    results = run_study(replace(study, entries=(absent, *study.entries[:1])))
    assert "no.npz" in results[0].error
    assert not results[1].error


def test_groups_that_failed_are_an_error_but_the_run_is_kept(
    study: Study, trained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = replace(study, entries=study.entries[:1])
    with monkeypatch.context() as patched:
        patched.setattr(engine, "certify_into", lambda *_: SimpleNamespace(errors=2))
        [result] = run_study(one)
    assert "2 groups could not be certified" in result.error
    [result] = run_study(one)
    assert not result.error
    assert trained == ["standard"]
    assert kinds(one) == [("run", "standard"), ("certification", "standard"), ("certification", "standard")]


def test_certified_beyond_an_attack_is_an_error_of_its_entry(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    certify_into = engine.certify_into

    def too_much(out: Path, *arguments: Any) -> Any:
        found = certify_into(out, *arguments)
        rows = tuple(replace(row, certified=row.correct + 1) for row in found.rows)
        return replace(found, rows=rows * 20) if out.parent.name == "standard" else found

    monkeypatch.setattr(engine, "certify_into", too_much)
    first, *others = run_study(study)
    assert "and yet the perturbations in" in first.error
    assert not any(result.error for result in others)


def test_an_attack_that_breaks_a_proof_is_an_error_of_its_entry(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(config: Any, folder: Path, **settings: Any) -> Any:
        run = train(config, folder, **settings)
        assert run.evaluation
        wrong = replace(run.evaluation, errors=2)
        return replace(run, evaluation=wrong) if folder.name == "standard" else run

    with monkeypatch.context() as patched:
        patched.setattr(engine, "train", broken)
        first, *others = run_study(study)
    assert "fools 2 images that are certified" in first.error
    assert not any(result.error for result in others)
    assert not any(result.error for result in run_study(study))


def test_a_disk_that_is_full_ends_a_study_and_is_no_result(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry would fail, after all its work."""
    begun: list[str] = []

    def full(config: Any, folder: Path, **settings: Any) -> Any:
        begun.append(folder.name)
        raise CannotWrite("Cannot write checkpoints/last.safetensors: No space left on device.")

    with monkeypatch.context() as patched:
        patched.setattr(engine, "train", full)
        with pytest.raises(CannotWrite, match="No space left"):
            run_study(study)
    assert begun == ["standard"]
    assert kinds(study) == []
    assert not any(result.error for result in run_study(study))


def test_a_study_that_another_process_makes_is_refused(study: Study) -> None:
    study.out.mkdir(parents=True)
    with (study.out / ".lock").open("w") as other:
        other.write("process 1 on elsewhere")
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(CitrusError, match="is being written by process 1 on elsewhere"):
            run_study(study)
    assert not (study.out / "rows.jsonl").exists()


def test_a_configuration_that_changed_does_not_take_over_the_old_run(study: Study) -> None:
    run_study(replace(study, entries=study.entries[:1]))
    other = replace(study.entries[0], config=replace(study.entries[0].config, lr=0.5))
    [result] = run_study(replace(study, entries=(other,)))
    assert "another configuration (lr differ)" in result.error


# ---------------------------------------------------------------------------------------------------------------- stops


def test_a_stopped_study_goes_on_where_it_stopped(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_study(replace(study, out=tmp_path / "whole"))
    steps = iter((None, 3, None, None))

    def stopping(*arguments: Any, **settings: Any) -> Any:
        return train(*arguments, **settings, stop_after=next(steps))

    monkeypatch.setattr(engine, "train", stopping)
    with pytest.raises(Stopped):
        run_study(study)
    assert kinds(study) == [("run", "standard"), ("certification", "standard")]
    parts = run_study(study)
    assert next(steps, "end") == "end"
    assert list(map(timeless, parts)) == list(map(timeless, whole))
    for name in ("standard", "ibp", "pgd"):
        one, two = (load_run(out / name).network.state_dict() for out in (tmp_path / "whole", study.out))
        assert all(torch.equal(one[key], two[key]) for key in one)


def test_no_epoch_and_no_entry_begins_after_the_deadline(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    clock = SimpleNamespace(time=lambda: float(len(heard)))  # an epoch takes a second
    monkeypatch.setattr(engine, "time", clock)

    def on_entry(name: str, place: int, total: int) -> Events:
        return Events(on_step=lambda now: heard.append(f"{name} {now.epoch}") if now.row else None)

    listener = Listener(on_entry)
    with pytest.raises(Stopped, match="standard: the time is over after epoch 2 of 3"):
        run_study(replace(study, deadline=1.5), listener)
    with pytest.raises(Stopped, match="standard: the time is over"):
        run_study(replace(study, deadline=1.5), listener)
    assert heard == ["standard 0", "standard 1"]
    assert not any(result.error for result in run_study(study, listener))
    assert heard == [f"{name} {epoch}" for name in ("standard", "ibp", "pgd") for epoch in range(3)]


SCRIPT = """
import pickle, sys
from citrus.studies import run_study
if __name__ == "__main__":
    with open(sys.argv[1], "rb") as file:
        run_study(pickle.load(file))
"""


@pytest.fixture(autouse=True)
def _one_thread_in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in this one: sums keep one order."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def started(study: Study, folder: Path) -> "subprocess.Popen[bytes]":
    """The study in a process of its own, which hears Ctrl-C even where these tests run in the background and do not."""
    (folder / "study.pickle").write_bytes(pickle.dumps(study))
    (folder / "script.py").write_text(SCRIPT)
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return subprocess.Popen([sys.executable, folder / "script.py", folder / "study.pickle"], cwd=folder)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_study_that_was_killed_goes_on(study: Study, tmp_path: Path) -> None:
    expected = run_study(replace(study, out=tmp_path / "whole"))
    process = started(study, tmp_path)
    try:
        while process.poll() is None and ("certification", "standard") not in kinds(study):
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    results = run_study(study)
    assert list(map(timeless, results)) == list(map(timeless, expected))
    assert kinds(study) == [(kind, e.name) for e in study.entries for kind in ("run", "certification")]


# -------------------------------------------------------------------------------------------------------------- workers


def test_several_processes_make_the_same_rows(study: Study, tmp_path: Path) -> None:
    broken = replace(study.entries[0], name="broken", config=replace(study.entries[0].config, batch_size=1000))
    wide = replace(study, entries=(*study.entries[:2], broken), workers=2)
    expected = run_study(replace(wide, out=tmp_path / "one", workers=1))
    heard: list[str] = []
    results = run_study(wide, Listener(on_result=lambda result: heard.append(result.name)))
    assert sorted(heard) == ["broken", "ibp", "standard"]
    assert results[2].error == expected[2].error == "batch_size 1000 is larger than the 150 training images."
    shared = [row for result in results[:2] for row in (result.run, *result.proofs)]
    assert {row.pop("shared_by") for row in shared} == {2}
    assert list(map(timeless, results)) == list(map(timeless, expected))
    assert [result.name for result in run_study(wide)] == ["standard", "ibp", "broken"]


def children(process: "subprocess.Popen[bytes]") -> list[int]:
    """Processes that train for this one; another child only tidies up."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == process.pid and b"spawn_main" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def runs(pid: int) -> bool:
    """A process that has ended may still be listed, as a zombie."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes by Linux's /proc")
def test_a_worker_that_is_killed_is_told_and_the_others_go_on(study: Study, tmp_path: Path) -> None:
    """And nobody waits for an answer that never comes."""
    first, second = study.entries[:2]
    long = replace(first, config=replace(first.config, epochs=100_000))
    process = started(replace(study, entries=(long, second), workers=2), tmp_path)
    checkpoint = study.out / first.name / "checkpoints" / "last.safetensors"
    try:
        while process.poll() is None and ("certification", second.name) not in kinds(study):
            time.sleep(0.02)
        while process.poll() is None and not checkpoint.exists():
            time.sleep(0.02)
        for worker in children(process):
            os.kill(worker, signal.SIGKILL)
        process.wait(timeout=60)
    finally:
        process.kill()
        process.wait()
    failed = [row for row in read_rows(study.out / "rows.jsonl") if "failed" in row]
    assert [(row["name"], "killed" in row["failed"]) for row in failed] == [(first.name, True)]


@pytest.mark.parametrize("sent", [b"", b"\x00\x00", b"\x00\x00\x00\x64half of an answer"], ids=["none", "size", "part"])
def test_a_worker_may_be_killed_while_it_answers(sent: bytes) -> None:
    """A hundred bytes are announced, and fewer come."""
    answers, sender = multiprocessing.Pipe(duplex=False)
    os.write(sender.fileno(), sent)
    sender.close()
    found = engine.answer_of(answers)
    assert isinstance(found, list)
    assert "killed" in found[0][1]["failed"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes by Linux's /proc")
def test_no_worker_outlives_a_study_that_was_killed(study: Study, tmp_path: Path) -> None:
    first = replace(study.entries[0], config=replace(study.entries[0].config, epochs=100_000))
    process = started(replace(study, entries=(first, study.entries[1]), workers=2), tmp_path)
    try:
        while process.poll() is None and not (study.out / first.name / "checkpoints" / "last.safetensors").exists():
            time.sleep(0.02)
        workers = children(process)
    finally:
        process.kill()
        process.wait()
    assert workers
    end = time.monotonic() + 60
    while any(map(runs, workers)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(runs, workers))


def test_an_interrupt_of_several_processes_keeps_their_state(study: Study, tmp_path: Path) -> None:
    long = tuple(replace(entry, config=replace(entry.config, epochs=100_000)) for entry in study.entries[:2])
    process = started(replace(study, entries=long, workers=2), tmp_path)
    checkpoints = [study.out / entry.name / "checkpoints" / "last.safetensors" for entry in long]
    try:
        while process.poll() is None and not all(path.exists() for path in checkpoints):
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) != 0
    finally:
        process.kill()
        process.wait()
    assert all(path.exists() for path in checkpoints)
    assert not any("failed" in row for row in read_rows(study.out / "rows.jsonl"))
