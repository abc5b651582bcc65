"""Certification into a folder from Python, and the one reader of its rows."""

import fcntl
import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from support.helpers import images
from support.proved import MLP
from torch import nn

from citrus.attacks import Ascent
from citrus.certify import CertifySettings, GroupResult, Verdict, certify, certify_into, read_rows
from citrus.certify.run_folder import RowFile, certificate_folder, row_path
from citrus.checker.certificate import read_certificate
from citrus.checker.check import certificate_files, check
from citrus.errors import CitrusError
from citrus.files import line_of
from citrus.networks import graph

SETTINGS = CertifySettings(group_size=3, verifier="zeng", attack=Ascent(steps=4))
ASKED = {"eps": 0.1, "images": 9}
ROWS = [
    GroupResult(0, (0, 1, 2), 3, 3, 3, Verdict.CERTIFIED, {"crown": 3}, 0.5),
    GroupResult(1, (3, 4), 2, 1, 2, Verdict.TIMEOUT, {"search": 1}, 1.25, "a note"),
    GroupResult(7, (8,), 0, 0, 0, Verdict.ATTACKED),
]


def lines(*values: object) -> str:
    return "".join((value if isinstance(value, str) else json.dumps(value)) + "\n" for value in values)


def test_a_module_and_its_graph_give_the_same_rows_and_certificates(tmp_path: Path) -> None:
    network, x = MLP.build(), images(8, seed=1)
    y = network(x).argmax(1)
    plain = graph(network, tuple(x.shape[1:]))
    seen: list[tuple[int, int]] = []
    kept = certify_into(
        tmp_path, network, x, y, "0.04", SETTINGS, certificates=True, name="net", on_rows=lambda *r: seen.append(r[1:])
    )
    assert seen == [(0, 3), (3, 3)]
    for other in (
        certify(network, x, y, 0.04, SETTINGS),
        certify_into(tmp_path / "plain", plain, x, y, 0.04, SETTINGS),
    ):
        assert [(r.index, r.certified, r.attacked, r.stages) for r in other.rows] == [
            (r.index, r.certified, r.attacked, r.stages) for r in kept.rows
        ]
    asked, rows, broken = read_rows(row_path(tmp_path, 0.04, SETTINGS))
    assert (rows, broken) == (list(kept.rows), 0)
    assert (asked["eps"], asked["images"], asked["verifier"], asked["intermediate"]) == (0.04, 8, "zeng", "crown")
    assert "block" not in asked
    report = check(certificate_folder(tmp_path, 0.04, SETTINGS), plain)
    assert not report.failures
    assert report.certified == sum(row.certified for row in kept.rows)
    with pytest.raises(CitrusError, match="Graph"):
        check(certificate_folder(tmp_path, 0.04, SETTINGS), network)  # type: ignore[arg-type]


def test_certificates_of_a_network_without_relus(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network, x = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).eval(), torch.rand(12, 1, 3, 4)
    y, settings = network(x).argmax(1), CertifySettings(4, attack=Ascent(steps=4))
    optimised = 0
    for eps in (0.05, 0.1, 0.2):
        result = certify_into(tmp_path, network, x, y, eps, settings, certificates=True)
        report = check(certificate_folder(tmp_path, eps, settings), graph(network, (1, 3, 4)))
        assert not report.failures
        assert report.certified == sum(row.certified for row in result.rows)
        files = certificate_files(certificate_folder(tmp_path, eps, settings))
        proofs = [proof for file in files for proof in read_certificate(file).proofs]
        optimised += sum(row.slopes is not None for proof in proofs for row in proof.rows)
    assert optimised, "some planes name their slopes, of which there are none"


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    RowFile(path, ASKED).add(ROWS)
    assert read_rows(path) == (ASKED, ROWS, 0)
    assert RowFile(path, ASKED).rows == ROWS
    assert read_rows(tmp_path / "absent.jsonl") == ({}, [], 0)
    RowFile(path, ASKED).add(ROWS[:1])
    assert read_rows(path) == (ASKED, ROWS, 0), "a group that was done again has one row"
    assert len(path.read_text().splitlines()) == 1 + len(ROWS)
    with pytest.raises(CitrusError, match="Cannot read"):
        read_rows(tmp_path)


@pytest.mark.parametrize("kept", [3])
def test_a_certification_that_goes_on_writes_the_same_certificates(kept: int, tmp_path: Path) -> None:
    """Bit for bit: the last digits of a group depend on the groups beside it, so that blocks stay as they were."""
    network, x = MLP.build(), images(10, seed=1)
    y, settings = network(x).argmax(1), CertifySettings(group_size=2, attack=Ascent(steps=4), budget=600)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for out in (whole, parts):
        certify_into(out, network, x, y, 0.06, settings, certificates=True)
    path = row_path(parts, 0.06, settings)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[: 1 + kept]))
    files = certificate_files(certificate_folder(parts, 0.06, settings))
    for file in files[kept:]:
        file.unlink()
    before = path.read_text()
    certify_into(parts, network, x, y, 0.06, settings, certificates=True)
    assert path.read_text().startswith(before), "rows that are there are not made again"
    assert [row.group for row in read_rows(path)[1]] == list(range(5))
    for file in files:
        assert file.read_bytes() == (certificate_folder(whole, 0.06, settings) / file.name).read_bytes()


def test_a_second_process_is_refused_where_it_asks_the_same(tmp_path: Path) -> None:
    network, x = MLP.build(), images(4, seed=1)
    y = network(x).argmax(1)
    with (tmp_path / f".{row_path(tmp_path, 0.04, SETTINGS).stem}.lock").open("w") as other:
        other.write("process 1 on elsewhere")
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(CitrusError, match=r"zeng-0\.04.* is being written by process 1 on elsewhere"):
            certify_into(tmp_path, network, x, y, 0.04, SETTINGS)
        assert certify_into(tmp_path, network, x, y, 0.05, SETTINGS).images == 4


def test_a_digit_that_flips_is_no_other_result(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    RowFile(path, ASKED).add(ROWS)
    path.write_text(path.read_text().replace('"certified": 1,', '"certified": 2,'))
    assert read_rows(path) == (ASKED, [ROWS[0], ROWS[2]], 1)


BROKEN = {
    "cut short": json.dumps(asdict(ROWS[1]))[:40],
    "another object": "{}",
    "a list": "[1, 2]",
    "nested too deep": "[" * 100_000,
    "a wrong verdict": json.dumps(asdict(ROWS[1]) | {"verdict": "good"}),
    "a count that is none": json.dumps(asdict(ROWS[1]) | {"certified": 1.5}),
    "a negative count": json.dumps(asdict(ROWS[1]) | {"attacked": -1}),
    "a place that is none": json.dumps(asdict(ROWS[1]) | {"index": ["x"]}),
    "stages that are none": json.dumps(asdict(ROWS[1]) | {"stages": [1]}),
    "a count of 400 digits": json.dumps(asdict(ROWS[1]) | {"certified": 10**400}),
    "a time of 400 digits": json.dumps(asdict(ROWS[1]) | {"seconds": 10**400}),
    "time that is none": json.dumps(asdict(ROWS[1]) | {"seconds": "long"}),
    "an unknown field": json.dumps(asdict(ROWS[1]) | {"colour": "red"}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_line_is_counted_and_one_at_the_end_of_a_run_redone(name: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(lines(ASKED, asdict(ROWS[0]), BROKEN[name]))
    assert read_rows(path) == (ASKED, ROWS[:1], 1)
    assert RowFile(path, ASKED).rows == ROWS[:1]
    assert path.read_text() == line_of(ASKED) + line_of(asdict(ROWS[0])), "the next row begins on a line of its own"


def test_files_that_are_not_ours_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xff\xfe no text \x80\n" * 3)
    assert read_rows(path) == ({}, [], 3)
    for text, message in (
        (path.read_text(errors="replace"), "damaged"),
        (lines(asdict(ROWS[0]), asdict(ROWS[1])), "damaged"),
        (lines(ASKED, "?", "?", asdict(ROWS[1])), "damaged"),
        (lines(ASKED | {"eps": 0.2}, asdict(ROWS[0])), r"another question \(eps differ\)"),
    ):
        path.write_text(text)
        with pytest.raises(CitrusError, match=message):
            RowFile(path, ASKED)
        assert path.read_text() == text
