"""Run folders made of numbers, and the tables of a report read back: what a page says against what the files say."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import torch
from torch import nn

from citrus.attacks import UniversalResult, consecutive_groups
from citrus.attacks.kept import save_attack
from citrus.certify.result import Certification, GroupResult, verdict_of
from citrus.certify.run_folder import RowFile
from citrus.data import as_float
from support.synthetic import SHAPE, blobs

CONFIG: dict[str, Any] = {
    "data": "blobs",
    "network": "mlp",
    "method": {"name": "citrus", "tau_ratio": 0.7, "attack": {"steps": 5, "decay_at": [0.6]}},
    "eps": 0.1,
    "clip": False,
    "epochs": 6,
    "group_size": 5,
}
ENV: dict[str, Any] = {
    "citrus": "0.1.0",
    "torch": "2.13.0",
    "gpu": None,
    "command": ["citrus", "train", "quickstart", "--out", "my runs/one"],
    "git": {"commit": "91d0095db3afe479ec6eb3954f72060c946738e7", "diff": "+one\n-two\n"},
}
SUMMARY: dict[str, Any] = {
    "eps": 0.1,
    "clip": False,
    "images": 100,
    "clean": 96.0,
    "ibp_certified": 71.0,
    "attacked_images": 40,
    "pgd": 87.5,
    "universal": 90.0,
    "group_size": 5,
    "pgd_steps": 40,
    "universal_restarts": 4,
    "seconds": 3.5,
    "training_seconds": 125.0,
    "seed": 0,
}


def write_run(path: Path, config: dict[str, Any] | None = None, seed: int = 0) -> Path:
    """A finished run with four certifications, one of them for all images, and one attack."""
    path.mkdir(parents=True, exist_ok=True)
    for name, values in (("config", {**CONFIG, **(config or {})}), ("env", ENV), ("summary", SUMMARY)):
        (path / f"{name}.json").write_text(json.dumps(values))
    (path / "metrics.jsonl").write_text("".join(json.dumps(epoch(k, seed)) + "\n" for k in range(6)))
    (path / "model.safetensors").write_bytes(b"")  # the report only asks whether it is there
    for k, (eps, size) in enumerate(((0.05, 5), (0.1, 5), (0.1, 10), (0.1, 40))):
        write_certification(path / "certify", eps, size, seed=seed + k)
    write_attack(path / "uap" / "0.1.safetensors", seed=seed)
    return path


def epoch(number: int, seed: int = 0) -> dict[str, Any]:
    return {
        "epoch": number,
        "step": 10 * (number + 1),
        "lr": 0.01,
        "eps": 0.02 * number,
        "seconds": 20.0,
        "loss": 2.0 / (number + 1) + seed,
        "clean_loss": 1.0 / (number + 1),
        "accuracy": 0.5 + 0.05 * number,
        "validation_clean": 80.0 + number,
        "validation_ibp": 10.0 * number,
    }


def rows(size: int, images: int = 40, seed: int = 0) -> list[GroupResult]:
    """Groups in which every count is possible."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    size = min(size, images)
    for number, start in enumerate(range(0, images, size)):
        right, attacked, certified = size, size, size
        if number % 2 or size == images:
            fall, open_, wrong = torch.randint(0, 2, (3,), generator=generator).tolist()
            right = size - wrong
            attacked = max(right - fall, 0)
            certified = max(attacked - open_, 0)
        stages = {"interval": certified - 2, "crown": 1, "joint": 1} if certified > 2 else {"interval": certified}
        verdict = verdict_of(size, certified, attacked, timed_out=False)
        places = tuple(range(start, start + size))
        found.append(GroupResult(number, places, right, certified, attacked, verdict, stages, 0.25))
    return found


def write_certification(
    folder: Path, eps: float, size: int, seed: int = 0, finished: bool = True, images: int = 40
) -> Path:
    """The files of `citrus certify`; an unfinished one has the rows of 20 images and no summary."""
    asked = {"eps": eps, "images": images, "data": "d", "group_size": size, "grouping": "dataset", "verifier": "citrus"}
    path = folder / f"citrus-{eps:g}-n{size}-dataset.jsonl"
    found = tuple(rows(size, images if finished else 20, seed))
    RowFile(path, asked).add(found)
    if finished:
        result = Certification(found, images, eps, size, "dataset", "citrus")
        totals: dict[str, Any] = {"certified": result.certified, "attacked": result.attacked, "correct": result.correct}
        totals |= {"unseen": result.unseen(), "used": ""}
        counts = {"outcomes": result.images_by_outcome(), "stage_seconds": {"interval": 0.5, "attack": 2.0}}
        path.with_suffix(".json").write_text(json.dumps({**asked, **totals, **counts, "seconds": 61.5}))
    return path


class Brightest(nn.Module):
    """Says which third of the image is brightest."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((1, 3)).unflatten(1, (3, 4)).mean(2)


def write_attack(
    path: Path, seed: int = 0, classes: tuple[str, ...] = ("top", "middle", "bottom"), size: int = 5, eps: float = 0.5
) -> None:
    """The last perturbation darkens the top third so much that it is no longer the brightest."""
    data = blobs(20, seed)
    images, network = as_float(data.images), Brightest()
    groups = consecutive_groups(20, size)
    delta = torch.zeros(int(groups[-1]) + 1, *SHAPE)
    delta[-1, :, :4] = -0.5
    fooled = network(images + delta[groups]).argmax(1) != data.labels
    about = {"eps": eps, "group_size": size, "classes": list(classes)}
    save_attack(path, UniversalResult(delta, groups, fooled), network, images, data.labels, about)


def write_targets(path: Path, names: tuple[str, ...] = ("top", "middle", "bottom")) -> dict[str, Any]:
    """What one perturbation for 40 images can have taken for each class."""
    classes = [
        {"class": k, "name": name, "candidates": 30 - k, "most": 8 + k, "attacked": 2 + k}
        for k, name in enumerate(names)
    ]
    values = {"eps": 0.1, "images": 40, "confidence": None, "classes": classes, "seconds": 3.5}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values))
    return values


class Page(HTMLParser):
    """Tables and figures by caption, all tags with their attributes, and all text."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.notes: dict[str, dict[str, str]] = {}
        """Of every table, what is said smaller below the names of its rows."""
        self.figures: dict[str, str] = {}
        """What every figure says in words."""
        self.keys: dict[str, dict[str, str]] = {}
        """Of every figure, the entries of its legend and the class of their colour."""
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._caption, self._rows, self._notes, self._where = "", [], [], ""
        self._title, self._key = "", ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append((tag, values))
        if tag == "table":
            self._caption, self._rows, self._notes = "", [], []
        elif tag == "tr":
            self._rows.append([])
            self._notes.append("")
        elif tag in ("th", "td"):
            self._rows[-1].append("")
        elif tag == "figcaption":
            self._title = ""
        elif "swatch" in (values.get("class") or "") or (values.get("class") or "").startswith("key "):
            self._key = (values["class"] or "").split("k-")[-1]
        if tag in ("caption", "th", "td", "small", "style", "figcaption", "desc", "li"):
            self._where = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self.tables[self._caption] = [[cell.strip() for cell in row] for row in self._rows]
            names = [row[0] for row in self.tables[self._caption]]
            self.notes[self._caption] = dict(zip(names, self._notes, strict=True))
        if tag == self._where:
            self._where = ""

    def handle_data(self, data: str) -> None:
        if self._where == "style":
            return
        self.text += data
        data = data.replace("\N{NO-BREAK SPACE}", " ")
        if self._where == "caption":
            self._caption += data
        elif self._where in ("th", "td"):
            self._rows[-1][-1] += data
        elif self._where == "small" and len(self._rows[-1]) == 1:
            self._notes[-1] += data
        elif self._where == "figcaption":
            self._title += data
            self.keys[self._title] = {}
        elif self._where == "desc":
            self.figures[self._title] = self.figures.get(self._title, "") + data
        elif self._where == "li" and self._title in self.keys:
            self.keys[self._title][data] = self._key


def read_page(html: str) -> Page:
    page = Page()
    page.feed(html)
    return page
