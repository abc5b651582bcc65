"""What a report says of one perturbation for all images: headline, curve, other inputs, pictures, target classes."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.run_files import Page, read_page, rows, write_attack, write_certification, write_run, write_targets

from citrus.files import line_of
from citrus.report import document
from citrus.report.charts import value_axis
from citrus.report.read import read_runs
from citrus.report.robustness import OUTCOMES, STAGES
from citrus.report.write import compose

HEADLINE = "Percent of test images classified right"
TOP = "What stays right as more and more images share one perturbation"
OVER_N = "Accuracy against the group size N"
UNSEEN = "inputs that nobody has seen"


def page(*paths: Path) -> Page:
    return read_page(compose(read_runs(list(paths))).html)


def told(*paths: Path) -> str:
    """The twin of the page as plain text."""
    return re.sub(r"\\(.)", r"\1", compose(read_runs(list(paths))).markdown)


def missing(path: Path) -> str:
    return " ".join(f"{entry.text} {entry.command}" for entry in read_runs([path])[0].missing)


def headline(run: Path) -> tuple[float, int, int]:
    """Its eps, group size and images."""
    found = read_runs([run])[0].headline
    assert found
    return found.eps, found.group_size, found.images


def change(file: Path, **values: Any) -> None:
    """Other values in a JSON file, or in the first line of a file of rows."""
    first, *others = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
    found = {name: value for name, value in json.loads(first).items() if name != "crc"} | values
    file.write_text("\n".join([line_of(found) if others else json.dumps(found), *others]))


def test_the_headline_is_one_perturbation_for_all(tmp_path: Path) -> None:
    """Whatever the run trained with, and however many other certifications there are."""
    run = write_run(tmp_path / "one", {"group_size": 5})
    write_certification(run / "certify", 0.1, 1)
    assert headline(run) == (0.1, 40, 40)
    shown, lead = page(run), told(run).split("## ")[1]
    proved = json.loads((run / "certify" / "citrus-0.1-n40-dataset.json").read_text())
    assert f"**{proved['certified']:.2f} %** of 40 test images are proved to stay right under one perturbation" in lead
    assert "one perturbation for all 40, whichever it is, up to eps 0.1" in lead
    assert shown.notes[HEADLINE]["Certified, universal"] == "one perturbation for all 40"
    assert "N = 40" not in told(run)


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([(0.1, 10, True, 40)], (0.1, 10, 40)),
        ([(0.1, 20, True, 40), (0.05, 40, True, 40)], (0.1, 20, 40)),  # nearest to the run's own eps
        ([(0.1, 10, True, 40), (0.1, 40, False, 40)], (0.1, 10, 40)),  # finished
        ([(0.1, 5, True, 40), (0.1, 20, True, 20)], (0.1, 20, 20)),
        ([(0.1, 100, True, 40), (0.1, 40, True, 80)], (0.1, 40, 80)),  # of 40 images no more than 40 can share one
    ],
)
def test_what_a_run_is_judged_by(
    others: list[tuple[float, int, bool, int]], expected: tuple[float, int, int], tmp_path: Path
) -> None:
    run = tmp_path / "one"
    (run / "certify").mkdir(parents=True)
    (run / "config.json").write_text('{"eps": 0.1, "group_size": 5}')
    for eps, size, finished, images in others:
        write_certification(run / "certify", eps, size, finished=finished, images=images)
    assert headline(run) == expected


def test_more_than_all_are_all_and_some_of_all_so_far_are_not(tmp_path: Path) -> None:
    write_certification(tmp_path / "more" / "certify", 0.1, 100)
    assert "N = all (40)" in told(tmp_path / "more")
    assert "N = 100" not in told(tmp_path / "more")
    write_certification(tmp_path / "part" / "certify", 0.1, 20, finished=False)
    assert "N = 20" in told(tmp_path / "part")  # 20 of 40 images so far, in one group
    assert "N = all" not in told(tmp_path / "part")
    write_certification(tmp_path / "single" / "certify", 0.1, 1, images=1)
    assert "N = all" not in told(tmp_path / "single")


def test_one_curve_leads_from_one_by_one_to_all(tmp_path: Path) -> None:
    """At the top of the page and first in its section; only certifications of the same images are on it."""
    run = write_run(tmp_path / "one")
    for size in (1, 20):
        write_certification(run / "certify", 0.1, size, seed=size)
    write_certification(run / "certify", 0.1, 7, images=21)
    shown = page(run)
    assert list(shown.figures)[:3] == [TOP, OVER_N, "Accuracy against the radius eps"]
    for title in (TOP, OVER_N):
        certified, attacked = shown.figures[title].split("; ")[:2]
        for line, key in ((certified, "certified"), (attacked, "attacked")):
            for size in (1, 5, 10, 20, 40):
                value = json.loads((run / "certify" / f"citrus-0.1-n{size}-dataset.json").read_text())[key]
                assert f"{value:.2f} at N = {'all' if size == 40 else size}" in line
            assert "N = 7" not in line
    parts = "one by one", "groups share one", "everybody meets the same"
    caption = next(line for line in told(run).splitlines() if line.startswith(f"**{OVER_N}**"))
    assert [part for part in parts if part in caption] == [*parts]
    assert caption.startswith(f"**{OVER_N}**: eps 0.1: at the left")


def test_without_a_certification_of_all_the_top_has_no_curve(tmp_path: Path) -> None:
    write_certification(tmp_path / "certify", 0.1, 5)
    write_certification(tmp_path / "certify", 0.1, 20)
    shown = page(tmp_path)
    assert TOP not in shown.figures
    assert "N = 20" in shown.figures[OVER_N]
    assert "everybody" not in told(tmp_path)


def test_curves_over_different_images_end_at_all_of_their_own(tmp_path: Path) -> None:
    for images in (40, 80):
        for size in (5, images):
            folder = tmp_path / str(images) / "certify"
            write_certification(folder, 0.1, size, images=images)
    said = page(tmp_path / "40", tmp_path / "80").figures[TOP]
    assert "at N = all 40;" in said
    assert "at N = all 80;" in said
    assert page(tmp_path / "40").figures[TOP].count("at N = all") == 2


def test_the_last_tick_is_never_left_out() -> None:
    sizes = value_axis("N", [(1, "1"), (5, "5"), (400, "400"), (500, "all")], logarithmic=True)
    assert [text for _, text in sizes.ticks] == ["1", "5", "all"]
    assert [text for _, text in value_axis("N", [(1, "1"), (20, "20"), (500, "all")], True).ticks] == ["1", "20", "all"]


def test_another_arithmetic_is_another_curve(tmp_path: Path) -> None:
    """And real numbers are the headline."""
    run = write_run(tmp_path / "one")
    for size in (5, 40):
        file = write_certification(tmp_path / "float", 0.1, size)
        change(file, arithmetic="float32")
        for suffix in (".jsonl", ".json"):
            new = run / "certify" / f"{file.stem}-float32{suffix}"
            new.write_text(file.with_suffix(suffix).read_text())
    shown = page(run)
    assert "float32 arithmetic, certified" in shown.figures[OVER_N]
    assert "real arithmetic, certified" in shown.figures[OVER_N]
    assert list(shown.keys[OVER_N])[:2] == ["real arithmetic", "float32 arithmetic"]
    assert "float32" not in shown.figures[TOP]
    assert any(
        row[0] == "eps 0.1, N = all (40), float32" for row in shown.tables["All certifications, percent of test images"]
    )


def test_groups_without_misclassified_images_count_these_all_the_same(tmp_path: Path) -> None:
    """Adaptive groups hold no misclassified image either; percent are of all images."""
    file = write_certification(tmp_path / "certify", 0.1, 40)
    asked, row = file.read_text().splitlines()
    fewer = {**json.loads(row), "index": [*range(30)], "correct": 30, "attacked": 28, "certified": 25, "stages": {}}
    del fewer["crc"]
    file.write_text(f"{asked}\n{line_of(fewer)}")
    for grouping, images in (("adaptive", 40), ("correct", 40), ("dataset", 30)):
        change(file, grouping=grouping)
        assert headline(tmp_path) == (0.1, 40, images)
    change(file, grouping="adaptive")
    assert {row[0]: row[1] for row in page(tmp_path).tables[HEADLINE]}["Certified, universal"] == "62.50"


def test_other_inputs_stand_beside_the_headline_with_their_condition(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    change(run / "certify" / "citrus-0.1-n40-dataset.json", unseen=71.2399)
    said = next(line for line in told(run).split("## ")[1].splitlines() if UNSEEN in line)
    assert "at least **71.23 %** stay right" in said  # a lower bound is rounded down
    assert "with 99 % confidence, if the test images were drawn at random and the network was neither" in said
    assert "trained nor chosen with them" in said
    assert UNSEEN in page(run).text


def test_other_inputs_of_several_runs_stand_in_their_table(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name) for name in ("one", "two", "three")]
    for run, unseen, used in zip(runs, (60.5, None, None), ("", "12 of these images are in it", ""), strict=True):
        change(run / "certify" / "citrus-0.1-n40-dataset.json", unseen=unseen, used=used)
    shown = page(*runs)
    found = {row[0]: row[1:] for row in shown.tables[HEADLINE]}
    assert found["Inputs that nobody has seen, at least"] == ["60.50", document.ABSENT, document.ABSENT]
    assert "12 of these images are in it" in shown.text
    assert "drawn at random" in shown.text


def test_images_that_were_used_say_nothing_of_others(tmp_path: Path) -> None:
    """Even if the summary holds a number."""
    run = write_run(tmp_path / "one")
    for unseen in (None, 50.0):
        change(run / "certify" / "citrus-0.1-n40-dataset.json", unseen=unseen, used="its recipe was chosen by <them>")
        said = next(line for line in told(run).split("## ")[1].splitlines() if UNSEEN in line)
        assert said == f"Nothing follows about {UNSEEN}: its recipe was chosen by <them>."
        assert "drawn at random" not in page(run).text


@pytest.mark.parametrize("value", ["50", [1], True, float("nan"), 10**400, -1.0, 99.9, 101.0, {}])
def test_what_cannot_follow_of_other_inputs_is_left_out_and_told(value: Any, tmp_path: Path) -> None:
    """No more of all inputs than of the seen ones can be proved to stay right."""
    run = write_run(tmp_path / "one")
    change(run / "certify" / "citrus-0.1-n40-dataset.json", unseen=value)
    assert HEADLINE in page(run).tables
    assert "drawn at random" not in told(run)
    assert "citrus-0.1-n40-dataset.json" in missing(run)


def test_a_summary_of_before_says_nothing_of_other_inputs(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    file = run / "certify" / "citrus-0.1-n40-dataset.json"
    file.write_text(json.dumps({"seconds": 61.5, "stage_seconds": {}}))
    assert UNSEEN not in told(run)
    assert missing(run) == ""


def test_the_perturbation_for_all_is_drawn_first(tmp_path: Path) -> None:
    """Then others at the run's eps, folded, then other radii."""
    run = write_run(tmp_path / "one")
    write_attack(run / "uap" / "0.1.safetensors", eps=0.1)
    write_attack(run / "uap" / "0.5.safetensors", size=20)
    write_attack(run / "certify" / "citrus-0.1-n20-dataset-uap.safetensors", size=20, eps=0.1)
    [record] = read_runs([run])
    assert [(p.eps, p.group_size) for p in record.drawn] == [(0.1, 20), (0.1, 5), (0.5, 20)]
    flips = int(record.drawn[0].falls.sum())
    assert flips > int(record.drawn[1].falls.sum())
    said = told(run).split("## One perturbation for many images")[1]
    first = f"Within eps 0.1 and with one perturbation for all 20, the attack turns **{flips} of 20** right predictions"
    assert first in said
    assert said.index(first) < said.index("one perturbation for every 5 images")
    assert "At eps 0.1, groups of 5" in said
    assert "At eps 0.5, one perturbation for all 20" in said
    assert page(run).tables["Classes by the share of images that fall"][0][1] == "one, eps 0.1, N = all (20)"


def test_perturbations_of_a_folder_of_certifications(tmp_path: Path) -> None:
    """Beside their rows; a damaged one is told, and no attack is said to make it anew."""
    file = write_certification(tmp_path, 0.1, 20, images=20)
    write_attack(file.with_name(f"{file.stem}-uap.safetensors"), size=20, eps=0.1)
    assert "one perturbation for all 20, the attack turns" in told(tmp_path)
    file.with_name(f"{file.stem}-uap.safetensors").write_bytes(b"half")
    assert missing(tmp_path) == f"{file.stem}-uap.safetensors is damaged and left out. "
    assert not any(tag == "img" for tag, _ in page(tmp_path).tags)


CAPTION = "eps 0.1, images and percent of all 40"


def test_target_classes_in_images_and_percent(tmp_path: Path) -> None:
    """Those that most can be sent to come first."""
    run = write_run(tmp_path / "one")
    write_targets(run / "certify" / "citrus-0.1-n40-dataset-targets.json")
    header, *found = page(run).tables[CAPTION]
    assert header == ["Target class", "Not taken for it anyway", "Sent to it, at most", "Sent to it, at least"]
    assert [row[0] for row in found] == ["bottom", "middle", "top"]
    assert [re.match(r"\d+", cell)[0] for cell in found[0][1:]] == ["28", "10", "4"]  # type: ignore[index]
    assert "| bottom | 28 (70.0 %) | 10 (25.0 %) | 4 (10.0 %) |" in told(run)
    assert "## One target class at a time" in told(run)
    assert "## One target class at a time" not in told(write_run(tmp_path / "two"))
    assert f"one: {CAPTION}" in page(run, tmp_path / "two").tables


def test_of_many_target_classes_the_worst(tmp_path: Path) -> None:
    write_certification(tmp_path, 0.1, 40)
    names = tuple(f"<class {k}> | `x`" for k in range(25))
    values = write_targets(tmp_path / "citrus-0.1-n40-dataset-targets.json", names)
    for k, one in enumerate(values["classes"]):
        one |= {"candidates": 30, "most": k, "attacked": 0}
    (tmp_path / "citrus-0.1-n40-dataset-targets.json").write_text(json.dumps(values))
    _, *found = page(tmp_path).tables[CAPTION]
    assert [row[0] for row in found] == [names[k] for k in range(24, 4, -1)]
    assert "20 of 25 classes" in told(tmp_path)


DAMAGED: tuple[Callable[[dict[str, Any]], Any], ...] = (
    lambda _: None,
    lambda _: [],
    lambda values: {**values, "eps": "0.1"},
    lambda values: {**values, "eps": 2.0},
    lambda values: {**values, "eps": float("nan")},
    lambda values: {**values, "images": 0},
    lambda values: {**values, "images": 20},
    lambda values: {**values, "seconds": "soon"},
    lambda values: {**values, "classes": {}},
    lambda values: {**values, "classes": []},
    lambda values: {**values, "classes": [*values["classes"], 5]},
    lambda values: {name: value for name, value in values.items() if name != "classes"},
    *(
        lambda values, name=name, value=value: {**values, "classes": [{**values["classes"][0], name: value}]}
        for name in ("class", "candidates", "most", "attacked", "name")
        for value in (None, -1, 1.5, True, 10**400, float("inf"), [1])
    ),
    lambda values: {**values, "classes": [{**values["classes"][0], "attacked": 9}]},  # above what is proved
    lambda values: {**values, "classes": [{**values["classes"][0], "most": 31}]},
)


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_target_classes_are_told_and_left_out(damage: Callable[[dict[str, Any]], Any], tmp_path: Path) -> None:
    write_certification(tmp_path / "certify", 0.1, 40)
    file = tmp_path / "certify" / "citrus-0.1-n40-dataset-targets.json"
    values = write_targets(file)
    assert missing(tmp_path).count("damaged") == 0
    file.write_text(json.dumps(damage(values)))
    assert f"certify/{file.name} is damaged and left out" in missing(tmp_path)
    assert CAPTION not in page(tmp_path).tables
    file.write_bytes(b"\xff{")
    assert f"certify/{file.name} is damaged and left out" in missing(tmp_path)


def test_every_stage_and_outcome_has_a_colour() -> None:
    css = Path(document.__file__).with_name("page.css").read_text()
    for name in STAGES | OUTCOMES:
        assert f".k-{name} {{ --k: var(--{name}); }}" in css
        assert css.count(f"--{name}: #") == 2


def test_made_runs_certify_no_more_than_is_attacked() -> None:
    assert all(row.certified <= row.attacked <= row.correct for size in (5, 40) for row in rows(size, seed=3))
