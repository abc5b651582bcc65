"""Reports: their numbers are those of the files, and no file, however odd, keeps the rest from being shown."""

import io
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from support.run_files import (
    CONFIG,
    SUMMARY,
    Page,
    epoch,
    read_page,
    rows,
    write_attack,
    write_certification,
    write_run,
)
from support.synthetic import config, splits

from citrus.cli import main
from citrus.console import duration
from citrus.errors import CitrusError
from citrus.files import line_of, load_tensors, save_tensors
from citrus.report import document
from citrus.report.charts import count_axis, linear_axis, value_axis
from citrus.report.read import read_runs
from citrus.report.uap import perturbation, png
from citrus.report.write import compose
from citrus.training import train

HEADLINE = "Percent of test images classified right"


def page(*paths: Path) -> Page:
    return read_page(compose(read_runs(list(paths))).html)


def markdown(*paths: Path) -> str:
    return compose(read_runs(list(paths))).markdown


def tables(*paths: Path) -> dict[str, list[list[str]]]:
    return page(*paths).tables


def missing(path: Path) -> str:
    return " ".join(f"{entry.text} {entry.command}" for entry in read_runs([path])[0].missing)


def summary(run: Path, name: str) -> dict[str, Any]:
    return json.loads((run / "certify" / f"{name}.json").read_text())


def test_headline_equals_the_files(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    found = {row[0]: row[1] for row in tables(run)[HEADLINE]}
    proved = summary(run, "citrus-0.1-n40-dataset")
    alone = sum(row.stages.get("interval", 0) + row.stages.get("crown", 0) for row in rows(40, seed=3))
    assert found == {
        "Measure": "one",
        "Clean": f"{SUMMARY['clean']:.2f}",
        "Certified, one by one (IBP)": f"{SUMMARY['ibp_certified']:.2f}",
        "Certified, one by one": f"{100 * alone / 40:.2f}",
        "Certified, universal": f"{proved['certified']:.2f}",
        "Attacked, one by one (PGD)": f"{SUMMARY['pgd']:.2f}",
        "Attacked, universal": f"{SUMMARY['universal']:.2f}",
        "Attacked, universal, while certifying": f"{proved['attacked']:.2f}",
        "Training time": duration(SUMMARY["training_seconds"]),
        "Certification time": duration(proved["seconds"]),
    }


def test_every_certification_is_listed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    _, *found = tables(run)["All certifications, percent of test images"]
    expected = []
    for name in ("citrus-0.05-n5-dataset", "citrus-0.1-n5-dataset", "citrus-0.1-n10-dataset", "citrus-0.1-n40-dataset"):
        s = summary(run, name)
        values = [f"{s[key]:.2f}" for key in ("correct", "certified", "attacked")]
        size = "all (40)" if s["group_size"] == 40 else s["group_size"]
        expected.append([f"eps {s['eps']}, N = {size}", "40", *values, "61.5"])
    assert found == expected


def test_stages_and_outcomes_add_up(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    header, *found = tables(run)["Images by the stage that settled them"]
    assert header == ["Stage", "eps 0.05, N = 5", "eps 0.1, N = 5", "eps 0.1, N = 10", "eps 0.1, N = all (40)"]
    assert [sum(int(row[k]) for row in found) for k in (1, 2, 3, 4)] == [40, 40, 40, 40]
    intervals = sum(row.stages.get("interval", 0) for row in rows(5))
    assert found[0][:2] == ["intervals (IBP)", str(intervals)]


def test_a_certification_of_single_images_is_preferred_to_the_first_stages(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    write_certification(run / "certify", 0.1, 1)
    found = {row[0]: row[1] for row in tables(run)[HEADLINE]}
    assert found["Certified, one by one"] == f"{summary(run, 'citrus-0.1-n1-dataset')['certified']:.2f}"
    assert found["Certified, universal"] == f"{summary(run, 'citrus-0.1-n40-dataset')['certified']:.2f}"


def test_another_eps_is_said(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one", {"eps": 0.2})
    notes = page(run).notes[HEADLINE]
    assert notes["Certified, universal"] == "one perturbation for all 40, eps 0.1"
    assert notes["Attacked, universal"] == "first 40 images, N = 5, eps 0.1"
    assert notes["Clean"] == "100 images"


def test_curves_tell_their_numbers(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    told = page(run).figures
    low, high = summary(run, "citrus-0.05-n5-dataset"), summary(run, "citrus-0.1-n5-dataset")
    certified = f"{low['correct']:.2f} at eps 0, {low['certified']:.2f} at eps 0.05, {high['certified']:.2f} at eps 0.1"
    assert certified in told["Accuracy against the radius eps"]
    ten, everybody = summary(run, "citrus-0.1-n10-dataset"), summary(run, "citrus-0.1-n40-dataset")
    # PGD saw the same 40 images, so it stands for a group of one.
    attacked = f"87.50 at N = 1, {high['attacked']:.2f} at N = 5, {ten['attacked']:.2f} at N = 10"
    attacked += f", {everybody['attacked']:.2f} at N = all"
    assert attacked in told["Accuracy against the group size N"]
    assert told["Accuracy on held-out images"] == "clean: from 80 to 85; certified (IBP): from 0 to 50"


def test_a_shared_perturbation_is_an_attack_on_each_image_too(tmp_path: Path) -> None:
    """So one by one no more images survive than in groups, however weak PGD was."""
    run = write_run(tmp_path / "one")
    (run / "summary.json").write_text(json.dumps({**SUMMARY, "pgd": 99.0}))
    groups = summary(run, "citrus-0.1-n5-dataset")["attacked"]
    assert f"{groups:.2f} at N = 1, {groups:.2f} at N = 5" in page(run).figures["Accuracy against the group size N"]


def test_classes_and_perturbation(tmp_path: Path) -> None:
    """Only the last group is perturbed, and only images of the top class can fall."""
    run = tmp_path / "one"
    write_attack(run / "uap" / "0.5.safetensors")
    tensors, header = load_tensors(run / "uap" / "0.5.safetensors")
    assert header["classes"] == ["top", "middle", "bottom"]
    top = tensors["labels"] == 0
    assert torch.equal(tensors["clean"], tensors["labels"])
    assert torch.equal(tensors["fooled"], top & (tensors["groups"] == 3))
    assert sorted(tensors["shown"].tolist()) == [15, 16, 17, 18, 19]
    flipped = int(tensors["fooled"].sum())
    assert flipped
    found = tables(run)["Classes by the share of images that fall"][1:]
    assert found[0] == ["top", f"{flipped} of {int(top.sum())}"]
    assert {row[0]: row[1].split()[0] for row in found[1:]} == {"middle": "0", "bottom": "0"}
    seen = [a["alt"] or "" for tag, a in page(run).tags if tag == "img"]
    assert sum("amplified" in alt or "true scale" in alt for alt in seen) == 2
    assert sum("without it: seen as" in alt for alt in seen) == 5
    assert (
        sum(re.search("with the perturbation: seen as (middle|bottom)", alt) is not None for alt in seen[:-1])
        >= flipped
    )


def test_markdown_tells_every_cell(tmp_path: Path) -> None:
    runs = write_run(tmp_path / "one"), write_run(tmp_path / "two", seed=7)
    text = re.sub(r"\\(.)", r"\1", markdown(*runs))
    for caption, found in tables(*runs).items():
        assert caption in text
        for row in found:
            assert re.search(r"^\| " + ".*?".join(re.escape(cell) for cell in row) + r".*\|$", text, re.MULTILINE), row


def test_several_runs_stand_side_by_side(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / name, {"method": {"name": name}}, seed=k) for k, name in enumerate(("ibp", "sabr"))]
    found = tables(*paths)
    assert found[HEADLINE][0] == ["Measure", "ibp", "sabr"]
    assert found[HEADLINE][1] == ["Method", "ibp", "sabr"]
    assert found["Configuration: what differs"][:2] == [["Name", "ibp", "sabr"], ["method.name", "ibp", "sabr"]]
    shown = page(*paths).figures
    assert "ibp, certified" in shown["Accuracy against the radius eps"]
    assert "sabr: total: from 3 to 1.333" in shown["Loss"]


def test_a_run_has_one_colour_in_all_charts(tmp_path: Path) -> None:
    """Also where another run has nothing to draw."""
    paths = [write_run(tmp_path / name) for name in ("uncertified", "untrained", "whole")]
    shutil.rmtree(paths[0] / "certify")
    (paths[1] / "metrics.jsonl").unlink()
    shown = page(*paths)
    keys = [shown.keys[title] for title in shown.figures]
    assert len(keys) == 6
    assert {shown["whole"] for shown in keys} == {"s2"}
    assert {shown["untrained"] for shown in keys[:3]} == {"s1"}
    assert {shown["uncertified"] for shown in keys[3:]} == {"s0"}
    assert not any("uncertified" in shown for shown in keys[:3])


def test_many_runs_become_rows_and_names_stay_apart(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / str(k) / "run") for k in range(5)]
    header, *found = tables(*paths, paths[0] / ".." / "run")[HEADLINE]
    assert header[:4] == ["Run", "Method", "eps", "Clean"]
    assert [row[0] for row in found] == [f"{k}/run" for k in range(5)]
    assert {row[3] for row in found} == {"96.00"}


HOSTILE = (
    "<script>alert(1)<&script>",
    "\"'><img src=x onerror=alert(1)>",
    "`x` | **b** [l](javascript:alert(1)) \\ $x$ &lt;",
    "名前 العربية 🍋 \u202ereversed",
    "line\nbreak\ttab\x1b[31m",
    "w" * 200,
    os.fsdecode(b"half \xff byte"),
)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_harmless(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    method = {"name": name, name: {name: name}}
    run = write_run(tmp_path / name, {"data": name, "network": name, "method": method, name: [name]})
    write_attack(run / "uap" / "0.1.safetensors", classes=(name, name + "2", name + "3"))
    row = json.dumps({**epoch(6), name: 1})
    with (run / "metrics.jsonl").open("a") as file:
        file.write(row + "\n")
    cascade = run / "certify" / "citrus-0.1-n5-dataset"
    lines = (cascade.parent / f"{cascade.name}.jsonl").read_text().splitlines()
    stage = {**json.loads(lines[1]), "stages": {name: 5}, "note": name}
    (cascade.parent / f"{cascade.name}.jsonl").write_text("\n".join([lines[0], line_of(stage), *lines[2:]]))
    assert main(["report", str(run), str(write_run(tmp_path / "other")), "--out", str(tmp_path / "out")]) == 0
    assert "\x1b" not in capsys.readouterr().out
    html = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    plain, usual = read_page(html), page(write_run(tmp_path / "usual"), tmp_path / "other")
    assert {tag for tag, _ in plain.tags} <= {tag for tag, _ in usual.tags} | {"wbr", "code"}
    known = {attribute for _, attributes in usual.tags for attribute in attributes}
    assert {attribute for _, attributes in plain.tags for attribute in attributes} <= known
    assert document.plain(name).split()[0] in plain.text
    assert "<" not in re.sub(r"\\.|`[^`]*`", "", text)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    columns = [re.sub(r"\\.", "", line).count("|") for line in lines]
    rules = [k for k, line in enumerate(lines) if line.startswith("| ---")]
    for k, end in zip(rules, [*rules[1:], len(lines) + 1], strict=True):  # every row has the columns of its header
        assert len(set(columns[k - 1 : end - 1])) == 1


def test_the_page_asks_for_nothing(tmp_path: Path) -> None:
    shown = page(write_run(tmp_path / "one"))
    tags = {tag for tag, _ in shown.tags}
    assert not tags & {"script", "iframe", "object", "embed", "form", "input"}
    sources = [a.get("src") or a.get("href") or "" for tag, a in shown.tags if tag in ("img", "link", "a", "use")]
    assert all(source.startswith(("data:", "#")) for source in sources)
    ids = [a["id"] for _, a in shown.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert {s[1:] for s in sources if s.startswith("#")} <= set(ids)
    assert all(a.get("alt") for tag, a in shown.tags if tag == "img")
    levels = [int(tag[1]) for tag, _ in shown.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


REMOVED = {
    "config.json": "config.json is not there",
    "env.json": "env.json is not there",
    "metrics.jsonl": "no training curves",
    "summary.json": "Training is at 6 of 6 epochs",
    "certify": "citrus certify",
    "uap": "citrus attack",
}


@pytest.mark.parametrize("part", REMOVED)
def test_what_is_missing_is_said_and_the_rest_shown(part: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    shutil.rmtree(run / part) if (run / part).is_dir() else (run / part).unlink()
    assert REMOVED[part] in missing(run)
    shown, whole = page(run), page(write_run(tmp_path / "whole"))
    assert "What is missing" in shown.text
    assert len(shown.tables) >= len(whole.tables) - 3
    assert HEADLINE in shown.tables


def test_half_written_lines(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    before = tables(run)
    for file in (run / "metrics.jsonl", run / "certify" / "citrus-0.1-n5-dataset.jsonl"):
        with file.open("a") as open_file:
            open_file.write('{"epoch": 6, "loss": 0.')
    assert tables(run) == before
    assert missing(run).count("one line is half-written") == 2


def test_a_line_that_is_no_row_is_left_out_and_said(tmp_path: Path) -> None:
    """Its images are not counted, neither as proved nor as open."""
    file = write_certification(tmp_path / "one", 0.1, 5)
    asked, first, *others = file.read_text().splitlines()
    damaged = line_of({**json.loads(first), "certified": -5})
    file.write_text("\n".join([asked, damaged, *others]))
    assert "one line is half-written or damaged" in missing(tmp_path / "one")
    found = {row[0]: row[1] for row in tables(tmp_path / "one")[HEADLINE]}
    assert found["Certified, universal"] == f"{100 * sum(row.certified for row in rows(5)[1:]) / 35:.2f}"


def test_unfinished_groups_without_misclassified_images_count_up_to_the_last(tmp_path: Path) -> None:
    """With --grouping correct no group holds an image that is wrong without a perturbation."""
    file = write_certification(tmp_path / "certify", 0.1, 5, finished=False)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[0]["grouping"] = "correct"
    for line in lines[1:]:
        line["index"] = [2 * place for place in line["index"]]
    file.write_text("".join(map(line_of, lines)))
    assert "39 of 40 images so far" in missing(tmp_path)


def test_a_run_that_is_still_going(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    (run / "summary.json").unlink()
    shutil.rmtree(run / "certify")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join(lines[:4]))
    write_certification(run / "certify", 0.1, 5, finished=False)
    told = missing(run)
    assert "4 of 6 epochs" in told
    assert "20 of 40 images so far" in told
    done = rows(5, 20)
    found = {row[0]: row[1] for row in tables(run)[HEADLINE]}
    assert found["Certified, universal"] == f"{100 * sum(row.certified for row in done) / 20:.2f}"
    assert found["Training time"] == duration(80)
    assert "epoch 4 of 6" in page(run).text


def test_a_perturbation_that_says_too_little_is_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    save_tensors(run / "uap" / "0.1.safetensors", {"delta": torch.zeros(4, 1, 12, 12)}, {"eps": 0.1})
    assert "uap/0.1.safetensors is damaged" in missing(run)
    assert f"citrus attack {run} --eps 0.1" in missing(run)
    assert not any(tag == "img" for tag, _ in page(run).tags)


def test_an_empty_folder_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert main(["report", str(tmp_path)]) == 0
        assert "The folder is empty" in capsys.readouterr().out
    assert HEADLINE in (tmp_path / "report.html").read_text()


def test_a_folder_of_certifications_only(tmp_path: Path) -> None:
    """What `citrus certify NET.onnx` writes."""
    write_certification(tmp_path / "certify-net", 0.1, 5)
    assert missing(tmp_path / "certify-net") == ""
    assert {row[0] for row in tables(tmp_path / "certify-net")[HEADLINE]} >= {"Certified, universal"}


GARBAGE: tuple[Callable[[bytes], bytes], ...] = (
    lambda _: b"",
    lambda _: b"[1, 2]",
    lambda _: b"\xff\xfe\x00",
    lambda _: b'{"eps": "a", "epochs": [], "method": 3, "group_size": -1, "images": {}, "verifier": 5, "index": "x"}',
    lambda text: text.replace(b"0.1", b"NaN").replace(b"5", b"1e999").replace(b"40", b"-3"),
    lambda text: re.sub(rb": [^,{}\[\]]+", b": null", text),
    lambda _: b'{"a": ' * 900 + b"1" + b"}" * 900,
)


@pytest.mark.parametrize("change", GARBAGE)
def test_damaged_files_never_stop_a_report(change: Callable[[bytes], bytes], tmp_path: Path) -> None:
    for victim in ("config.json", "env.json", "metrics.jsonl", "summary.json", "certify/citrus-0.1-n5-dataset.json",
                   "certify/citrus-0.1-n5-dataset.jsonl", "uap/0.1.safetensors", "uap/0.1.json"):  # fmt: skip
        run = tmp_path / victim.replace("/", "-")
        file = write_run(run) / victim
        file.write_bytes(change(file.read_bytes() if file.exists() else json.dumps(SUMMARY).encode()))
        assert HEADLINE in tables(run)
        assert markdown(run)


KNOWN = {
    "config.json": ("eps", "epochs", "group_size", "data", "network", "method"),
    "summary.json": ("eps", "images", "clean", "attacked_images", "pgd", "universal", "training_seconds"),
    "uap/0.1.json": ("eps", "group_size", "ibp_certified", "pgd_steps"),
    "metrics.jsonl": ("epoch", "loss", "validation_clean", "seconds"),
    "certify/citrus-0.1-n5-dataset.json": ("seconds", "stage_seconds"),
    "certify/citrus-0.1-n40-dataset.json": ("seconds", "used"),
    "certify/citrus-0.1-n5-dataset.jsonl": ("eps", "group_size", "images", "grouping", "verifier", "arithmetic"),
}


@pytest.mark.parametrize("victim", KNOWN)
def test_a_value_of_another_kind_is_told_and_left_out(victim: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    (run / "uap" / "0.1.json").write_text(json.dumps(SUMMARY))
    first, *others = (run / victim).read_text().splitlines()
    for key in KNOWN[victim]:
        for value in (None, [1], float("nan"), 10**400):
            (run / victim).write_text("\n".join([line_of({**json.loads(first), key: value}), *others]))
            assert re.search(rf"{Path(victim).name}\b.* damaged and left out", missing(run)), (key, value)
            assert HEADLINE in tables(run)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "citrus report RUN_FOLDER"),
        (["nowhere"], "There is no run folder nowhere: give the folder that `citrus train`"),
        (["file"], "is a file"),
        (["foreign"], "is not a run folder"),
        (["good", "foreign"], "is not a run folder"),
        (["good", "--outt", "x"], "did you mean '--out'?"),
    ],
)
def test_mistakes(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "notes.json").write_text('{"eps": 1}')
    write_run(tmp_path / "good")
    assert main(["report", *words]) == 1
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.startswith("error: ")
    assert not list(tmp_path.rglob("report.*"))
    if words == ["nowhere"]:
        with pytest.raises(CitrusError):
            read_runs([Path("nowhere")])


def test_where_reports_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(Path("runs/a"))
    write_run(Path("runs/b"))
    assert main(["report", "runs/a"]) == 0
    assert capsys.readouterr().out == "report    runs/a/report.html\nmarkdown  runs/a/report.md\n"
    assert main(["report", "runs/a", "runs/b"]) == 0
    assert main(["report", "runs/b", "--out", "elsewhere/deep"]) == 0
    places = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("report.*"))
    folders = ("elsewhere/deep", "report", "runs/a")
    assert places == [f"{folder}/report.{kind}" for folder in folders for kind in ("html", "md")]


def test_the_picture_is_drawn_from_the_file_of_the_perturbation(tmp_path: Path) -> None:
    picture = pytest.importorskip("citrus.report.picture", reason="needs matplotlib (citrus-uap[report])")
    file = tmp_path / "uap" / "0.5.safetensors"
    write_attack(file)
    assert picture.draw_perturbation(file) == file.with_suffix(".png")
    colours = Image.open(file.with_suffix(".png")).convert("RGB").getcolors(1 << 24)
    assert any(colour == (255, 0, 0) for _, colour in colours)  # of a wrong prediction


@pytest.mark.parametrize("channels", [1, 3])
def test_png_is_read_by_others(channels: int) -> None:
    image = torch.rand(channels, 5, 7)
    read = Image.open(io.BytesIO(png(image)))
    assert read.size == (7, 5)
    pixels = torch.tensor(list(read.convert("RGB").tobytes())).view(5, 7, 3).permute(2, 0, 1)
    assert torch.equal(pixels, (image * 255).round().expand(3, 5, 7).long())


def test_perturbation_colours() -> None:
    """Less is blue, nothing is white, more is orange; of three channels zero is grey."""
    less, zero, more = perturbation(torch.tensor([[[-0.1, 0.0, 0.1]]]), 0.1).unbind(2)
    assert less[2] > less[0]
    assert more[0] > more[2]
    assert torch.equal(zero.flatten(), torch.full((3,), 0.97))
    assert torch.equal(perturbation(torch.zeros(3, 1, 1), 0.0), torch.full((3, 1, 1), 0.5))
    pale = perturbation(torch.full((1, 1, 1), 0.1), 1.0) - zero[:, :, None]
    assert pale.abs().max() < 0.11


def test_axes() -> None:
    axis = linear_axis("y", [81.0, 97.0])
    assert (axis.low, axis.high) == (80, 100)
    assert [text for _, text in axis.ticks] == ["80", "85", "90", "95", "100"]
    assert linear_axis("y", [90.0, 90.2], span=4).high - linear_axis("y", [90.0, 90.2], span=4).low >= 4
    same = linear_axis("y", [3.0, 3.0])
    assert same.low < 3 < same.high
    epochs = count_axis("x", [1.0, 24.0])
    assert (epochs.low, epochs.high) == (1, 24)
    assert [value for value, _ in epochs.ticks] == [5, 10, 15, 20]
    assert [text for _, text in count_axis("x", [1.0, 3.0]).ticks] == ["1", "2", "3"]
    assert [text for _, text in count_axis("x", [1.0]).ticks] == ["0", "1", "2"]
    sizes = value_axis("N", [(float(n), str(n)) for n in (1, 2, 4, 16)], logarithmic=True)
    assert [sizes.share(value) for value, _ in sizes.ticks] == pytest.approx([0, 25, 50, 100])
    crowded = value_axis("eps", [(0.0, "0"), (0.1, "0.1"), (0.101, "0.101"), (0.2, "0.2")])
    assert [text for _, text in crowded.ticks] == ["0", "0.1", "0.2"]


def luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_have_contrast(theme: str) -> None:
    """WCAG AA on the page's ground: 4.5 for text, 3 for what is drawn."""
    css = Path(document.__file__).with_name("page.css").read_text()
    light, dark = (dict(re.findall(r"--(\w+): (#\w{6})", css.split("prefers-color-scheme: dark")[k])) for k in (0, 1))
    colours = light if theme == "light" else dark
    assert light.keys() == dark.keys()

    def contrast(name: str) -> float:
        low, high = sorted((luminance(colours[name]), luminance(colours["ground"])))
        return (high + 0.05) / (low + 0.05)

    for name in colours.keys() - {"ground", "card", "line"}:
        assert contrast(name) >= (4.5 if name in ("ink", "soft", "accent", "link", "fooled") else 3), name


def test_from_training_to_report(tmp_path: Path) -> None:
    """What training really writes is enough for numbers, curves, pictures and classes."""
    run = train(config(), tmp_path / "run", splits=splits()).path
    shown = page(run)
    written = json.loads((run / "summary.json").read_text())
    found = {row[0]: row[1] for row in shown.tables[HEADLINE]}
    names = {"Clean": "clean", "Attacked, one by one (PGD)": "pgd", "Attacked, universal": "universal"}
    assert {name: found[name] for name in names} == {name: f"{written[key]:.2f}" for name, key in names.items()}
    assert sum(tag == "img" for tag, _ in shown.tags) > 2
    fallen = [row[1].split(" of ") for row in shown.tables["Classes by the share of images that fall"][1:]]
    right = sum(int(whole) for _, whole in fallen)
    left = 100 * (right - sum(int(number) for number, _ in fallen)) / written["attacked_images"]
    assert left <= written["universal"] + 1e-9  # where a perturbation mends a wrong prediction, that counts as well
    assert "Nothing is certified yet" in shown.text


def test_configuration_and_environment(tmp_path: Path) -> None:
    found = tables(write_run(tmp_path / "one"))
    assert ["method.attack.decay_at", "[0.6]"] in found["Configuration"]
    assert ["eps", str(CONFIG["eps"])] in found["Configuration"]
    assert ["command", "citrus train quickstart --out 'my runs/one'"] in found["Environment"]
    assert ["uncommitted changes", "a diff of 2 lines"] in found["Environment"]
    assert ["gpu", "none"] in found["Environment"]


@pytest.mark.parametrize(
    "change",
    [
        {"shown": torch.tensor([99] * 20)},
        {"shown": torch.tensor([], dtype=torch.int64)},
        {"groups": torch.full((20,), 77)},
        {"labels": torch.zeros(0, dtype=torch.int64)},
        {"labels": torch.full((20,), -(1 << 40))},
        {"perturbed": torch.full((20,), 1 << 60)},
        {"clean": torch.zeros(4, 5, dtype=torch.int64)},
        {"classes": 5},
        {"group_size": "5"},
    ],
)
def test_a_perturbation_that_names_what_is_not_there_is_left_out(change: dict[str, Any], tmp_path: Path) -> None:
    """Found by `make fuzz`."""
    run = write_run(tmp_path / "one")
    file = run / "uap" / "0.1.safetensors"
    tensors, header = load_tensors(file)
    tensors |= {name: value for name, value in change.items() if isinstance(value, torch.Tensor)}
    header |= {name: value for name, value in change.items() if not isinstance(value, torch.Tensor)}
    save_tensors(file, tensors, header)
    assert "uap/0.1.safetensors is damaged" in missing(run)


def test_a_folder_where_a_file_should_be_is_no_file(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    (run / "summary.json").unlink()
    (run / "summary.json").mkdir()
    assert HEADLINE in tables(run)


def test_a_single_epoch_of_an_enormous_number_is_drawn(tmp_path: Path) -> None:
    """Found by `make fuzz`: one more and one less are the same number."""
    run = write_run(tmp_path / "one")
    first = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    (run / "metrics.jsonl").write_text(json.dumps(first | {"epoch": 1 << 63}) + "\n")
    assert HEADLINE in tables(run)
