"""`citrus certify` and `citrus export` as people use them: rows that survive a stop, proofs on disk, mistakes."""

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.helpers import Case, folded, images
from support.proved import CONV, MLP, RESIDUAL
from support.synthetic import SHAPE, blobs, config

import citrus.commands.certify as command
from citrus.attacks import Ascent
from citrus.certify import cascade, export
from citrus.certify.cascade import Cascade
from citrus.certify.export import Exporter
from citrus.certify.settings import VERIFIERS, CertifySettings
from citrus.checker.certificate import Written, write_certificates
from citrus.checker.check import check
from citrus.cli import main
from citrus.errors import Terminated
from citrus.networks import graph
from citrus.training import load_run, train

ATTACK = Ascent(steps=8, restarts=3)
EPS = "0.2"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short attack, and a block for each group of five."""
    monkeypatch.setattr(command, "CertifySettings", functools.partial(CertifySettings, attack=ATTACK, block=5))


def save(path: Path, seed: int) -> str:
    parts = {"train": blobs(60, 1), "test": blobs(18, seed)}
    arrays = {f"{name}_images": part.images.numpy() for name, part in parts.items()}
    np.savez(path, **arrays, **{f"{name}_labels": part.labels.numpy() for name, part in parts.items()})
    return str(path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A trained network with its data: 18 test images, so that the last of four groups is not full."""
    folder = tmp_path_factory.mktemp("certify")
    train(config("citrus", data=save(folder / "blobs.npz", 3), eps=0.1, validation=0), folder / "run")
    return str(folder / "run")


class Certify:
    """citrus certify into one folder, and what is to be found there."""

    def __init__(self, run: str, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
        asked = ["--eps", EPS, "--group-size", "5", "--grouping", "dataset", "--verifier", "zeng"]
        self.words = ["certify", run, *asked, "--out", str(out)]
        self.path, self.capsys = out / "zeng-0.2-n5-dataset.jsonl", capsys
        self.out = self.err = ""

    def __call__(self, *more: str) -> int:
        code = main([*self.words, *more])
        self.out, self.err = self.capsys.readouterr()
        return code

    @property
    def rows(self) -> list[dict[str, Any]]:
        """By group, the last one if there are several. Every line after the first must be a row."""
        rows = [json.loads(line) for line in self.path.read_text().splitlines()[1:]]
        return [row for _, row in sorted({row["group"]: row for row in rows}.items())]

    @property
    def counts(self) -> list[tuple[int, int, int]]:
        return [(row["certified"], row["attacked"], row["correct"]) for row in self.rows]

    def into(self, name: str) -> None:
        """From now on into another folder."""
        self.path = self.path.parent.with_name(name) / self.path.name
        self.words[-1] = str(self.path.parent)

    def groups_printed(self) -> list[int]:
        return [int(line.split()[1]) for line in self.out.splitlines() if line.startswith("group")]


@pytest.fixture
def certified(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Certify:
    return Certify(run, tmp_path / "out", capsys)


def never(*_: Any) -> None:
    raise AssertionError("this was to be done no second time")


def failing(number: int, error: BaseException) -> Any:
    """The work on a block, which fails the so-many-th time."""
    calls: list[int] = []

    def work(*arguments: Any, **more: Any) -> Any:
        calls.append(0)
        if len(calls) == number:
            raise error
        return prove_together(*arguments, **more)

    prove_together = cascade.prove_together
    return work


def test_one_line_per_group_a_summary_that_adds_up_and_nothing_twice(
    certified: Certify, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert certified() == 0
    assert certified.groups_printed() == [0, 1, 2, 3]
    assert "ETA" in certified.err
    rows = certified.rows
    assert [row["index"] for row in rows] == [list(range(5 * g, min(5 * g + 5, 18))) for g in range(4)]
    counts = {key: sum(row[key] for row in rows) for key in ("certified", "attacked", "correct")}
    assert 0 < counts["certified"] < counts["attacked"] <= counts["correct"]
    for row, line in zip(rows, certified.out.splitlines(), strict=False):
        assert f"[{row['certified']}, {row['attacked']}] of {len(row['index'])} " in line
    (counted,) = [line for line in certified.out.splitlines() if line.endswith(": 18 in all")]
    parts = {name: int(count) for name, count in (part.split() for part in counted.split(":")[0].split(", "))}
    assert sum(parts.values()) == 18
    assert (parts["certified"], parts["gap"]) == (counts["certified"], counts["attacked"] - counts["certified"])
    assert f"{100 * counts['certified'] / 18:.2f}" in certified.out
    written = json.loads(certified.path.with_suffix(".json").read_text())
    assert written["outcomes"] == parts
    assert {key: written[key] for key in counts} == {key: 100 * count / 18 for key, count in counts.items()}
    before = certified.path.read_text()
    monkeypatch.setattr(cascade, "prove_together", never)
    assert certified() == 0
    assert (certified.path.read_text(), certified.groups_printed()) == (before, [])
    assert counted in certified.out
    assert certified.out.splitlines()[-1] == f"rows          {certified.path}"


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 130), (Terminated(), 143)])
def test_interrupted_and_continued(
    stop: KeyboardInterrupt, code: int, certified: Certify, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(cascade, "prove_together", failing(2, stop))
        assert certified() == code
    assert "goes on where it stopped" in certified.err
    assert [row["group"] for row in certified.rows] == [0]
    assert not certified.path.with_suffix(".json").exists()
    assert certified() == 0
    assert certified.groups_printed() == [1, 2, 3]
    counts = certified.counts
    certified.into("at-once")
    assert certified() == 0
    assert certified.counts == counts


@pytest.mark.parametrize("keep", ["half a row", "a row without its newline", "half a question", "nothing"])
def test_a_file_cut_short_loses_only_what_was_cut(
    certified: Certify, keep: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert certified() == 0
    counts, lines = certified.counts, certified.path.read_text().splitlines(keepends=True)
    text, left = {
        "half a row": ("".join(lines[:3]) + lines[3][:40], 2),
        "a row without its newline": ("".join(lines[:3]).rstrip(), 2),
        "half a question": (lines[0][:40], 0),
        "nothing": ("", 0),
    }[keep]
    certified.path.write_text(text)
    assert certified() == 0
    assert certified.groups_printed() == list(range(left, 4))
    assert ": 18 in all" in certified.out
    monkeypatch.setattr(cascade, "prove_together", never)
    assert certified() == 0  # what was done again is on disk now
    assert certified.counts == counts


def test_rows_of_another_question_are_not_mixed_in(certified: Certify, tmp_path: Path) -> None:
    assert certified() == 0
    before = certified.path.read_text()
    other = save(tmp_path / "other.npz", 4)  # as many images, but others
    for words, what in ((["--seed", "1"], "seed"), (["--images", "17"], "images"), (["--data", other], "")):
        assert certified(*words) == 1
        assert certified.err.splitlines()[-1].startswith("error: ")
        assert f"holds rows of another question ({what}" in certified.err
        assert "--out" in certified.err
    assert certified.path.read_text() == before


@pytest.mark.parametrize("rows_first", [False, True])
def test_certificates_are_checked(rows_first: bool, certified: Certify, capsys: pytest.CaptureFixture[str]) -> None:
    assert not rows_first or certified() == 0  # what was proved without certificates is proved once more
    assert certified("--certificates") == 0
    folder = str(certified.path.with_suffix("")) + "-certificates"
    assert certified.out.splitlines()[-1] == f"next          citrus check {folder}"
    assert main(["check", folder]) == 0
    shown = capsys.readouterr().out
    assert f"images    {sum(row['certified'] for row in certified.rows)} of 18 certified" in shown
    assert "groups    4 of 4 confirmed" in shown


def test_a_row_claims_no_more_than_its_certificate(certified: Certify, monkeypatch: pytest.MonkeyPatch) -> None:
    certified.words[3] = "0.01"  # where everything is certified
    certified.path = certified.path.with_name("zeng-0.01-n5-dataset.jsonl")

    def lossy(*arguments: Any) -> list[Written]:
        return [replace(w, survivors=w.survivors - 1) for w in write_certificates(*arguments)]

    monkeypatch.setattr(export, "write_certificates", lossy)
    assert certified("--certificates") == 0
    for row in certified.rows:
        assert row["certified"] == row["attacked"] - 1 == len(row["index"]) - 1
        assert row["note"] == "1 proofs fail in float64"
        assert row["verdict"] == "unknown"


def test_errors_have_their_own_column_and_exit_code(certified: Certify, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(cascade, "prove_together", failing(2, MemoryError("no room")))
        assert certified("--certificates") == 2
    assert certified.groups_printed() == [0, 1, 2, 3]
    assert "error 5: 18 in all" in certified.out
    assert ["no room" in row["note"] for row in certified.rows] == [False, True, False, False]
    assert certified.rows[1]["verdict"] == "error"
    assert certified("--certificates") == 0  # where there is room again, the same command tries again
    assert certified.groups_printed() == [1]


def test_an_onnx_file_gives_the_rows_of_its_run(certified: Certify, run: str, tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed (pip install 'citrus-uap[onnx]')")
    from citrus.networks.onnx import load_onnx

    assert certified() == 0
    counts, network, data = certified.counts, tmp_path / "net.onnx", str(Path(run).parent / "blobs.npz")
    assert main(["export", run, "--onnx", str(network)]) == 0
    x = images(4, shape=SHAPE)
    torch.testing.assert_close(load_onnx(network)(x), graph(load_run(run).network, SHAPE)(x))
    certified.words[1] = str(network)
    certified.into("onnx")
    assert certified("--data", data) == 0
    assert [(low, right) for low, _, right in certified.counts] == [(low, right) for low, _, right in counts]


def test_export_writes_a_property_that_parses(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "group.vnnlib")
    assert main(["export", run, "--vnnlib", path, "--group-size", "5", "--group", "3", "--survivors", "2"]) == 0
    assert "at least 2 of 3 images survive" in capsys.readouterr().out  # the last group is not full
    vnnlib = pytest.importorskip("vnnlib", reason="the VNN-LIB parser is not installed (pip install vnnlib)")
    assert len(vnnlib.parse_query_string(Path(path).read_text()).networks) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["certify"], "citrus certify RUN_FOLDER"),
        (["certify", "nowhere"], "nowhere"),
        (["certify", "net.onnx", "--eps", "0.1"], "add --data NAME"),
        (["certify", "net.onnx", "--data", "mnist"], "add --eps E"),
        (["certify", "RUN", "--budget", "ten minutes"], "10s, 2m or 1h, got 'ten minutes'"),
        (["certify", "RUN", "--budget", "0s"], "budget positive"),
        (["certify", "RUN", "--verifier", "raccoon"], "did you mean 'racoon'?"),
        (["certify", "RUN", "--group-size", "0"], "a number from 1 on, or all"),
        (["certify", "RUN", "--group-size", "5,many"], "got 'many'"),
        (["certify", "RUN", "--memory", "lots"], "500MB or 8GB"),
        (["attack", "RUN", "--group-size", "5,all"], "One group size"),
        (["certify", "RUN", "--images", "0"], "no images"),
        (["certify", "RUN", "--images", "-3"], "-3"),
        (["export", "RUN"], "citrus export RUN --onnx"),
        (["export", "RUN", "--vnnlib", "x", "--group-size", "5", "--group", "4"], "no group 4 of 5 in 18 test images"),
        (["export", "RUN", "--vnnlib", "x", "--survivors", "9"], "9"),
    ],
)
def test_mistakes_are_told_in_one_sentence(
    words: list[str], message: str, run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [{"RUN": run, "x": str(tmp_path / "x.vnnlib")}.get(word, word) for word in words]
    assert main([*words, *(["--out", str(tmp_path / "out")] if words[0] == "certify" else [])]) == 1
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.splitlines()[-1].startswith("error: ")
    assert not list(tmp_path.rglob("*.*"))


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize(
    ("case", "eps"), [(MLP, 0.04), (CONV, 0.08), (RESIDUAL, 0.04)], ids=["mlp", "conv", "residual"]
)
def test_what_every_verifier_finds_can_be_written_down_and_checked(
    case: Case, eps: float, verifier: str, tmp_path: Path
) -> None:
    plain, x = folded(case), images(8, seed=1)
    y = plain(x).argmax(1)
    y[0] = (y[0] + 1) % 3  # a misclassified image is part of its group's certificate
    for budget in (10.0, 1e-6):  # the second stops the search at once: its images are counted in parts
        settings = CertifySettings(
            group_size=4, grouping="dataset", verifier=verifier, budget=budget, attack=ATTACK, block=4
        )
        cascade = Cascade(plain, x, y, eps, settings)
        blocks = list(cascade.blocks())
        rows = [row for block in blocks for row in block.rows]
        certificates = [given for block in blocks for given in Exporter(tmp_path, cascade.question).certificates(block)]
        written = write_certificates(tmp_path, plain, certificates)
        report = check(tmp_path, plain)
        assert not report.failures
        assert 0 < report.holding == report.proofs
        assert (report.certified, report.images) == (sum(w.survivors for w in written), 8)
        counts = [(w.survivors, row.certified) for w, row in zip(written, rows, strict=True)]
        assert not any(w.lost for w in written)
        assert all(stored == found for stored, found in counts)
        if budget < 1:
            assert {row.verdict.value for row in rows if row.certified < row.attacked} == {"timeout"}
