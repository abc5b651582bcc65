"""The attacker wants one class: how many images can one perturbation have taken for it?

    found = certify_targets(network, images, eps="8/255")
    for one in found.classes:
        print(one.label, one.most, "of", one.candidates)    # no perturbation sends more of them there: proved

An image is *sent* to class c if it comes out as c with the perturbation and as something else without. Then its score
of c is not below that of what it is without, be that right or wrong: one choice for each image. So the stages for
single images run once for all classes, and one master problem for each class bounds how many fall together. Labels are
not needed. Zeng et al. (2023) ask this about backdoors.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from citrus.attacks import Ascent
from citrus.attacks.target import attack_target
from citrus.certify.alone import prove_alone
from citrus.certify.cascade import Cascade
from citrus.certify.settings import CertifySettings, Question
from citrus.certify.together import highest
from citrus.certify.whole.choices import Known, OpenChoices
from citrus.certify.whole.group import solve_masters
from citrus.errors import CitrusError
from citrus.files import write_json
from citrus.inputs import eps_in_name
from citrus.networks import Graph
from citrus.networks.kernels import true_float32

ATTACK = Ascent(steps=60, restarts=4)


@dataclass(frozen=True)
class TargetClass:
    """A class that an attacker may want."""

    label: int
    candidates: int
    """Images that are not taken for it anyway."""
    most: int
    """No perturbation sends more of them there: proved."""
    attacked: int
    """A perturbation sends so many of them there."""
    seconds: float

    @property
    def is_broken(self) -> bool:
        """An attack shows that the proof is wrong, which is a bug."""
        return self.attacked > self.most


@dataclass(frozen=True)
class Targets:
    """All classes, each by itself."""

    eps: float
    images: int
    classes: tuple[TargetClass, ...]

    @property
    def worst(self) -> TargetClass:
        return max(self.classes, key=lambda one: one.most)


def certify_targets(
    network: nn.Module | Graph,
    images: Tensor,
    eps: float | str,
    settings: CertifySettings = CertifySettings(),  # noqa: B008 - frozen
    attack: Ascent = ATTACK,
    tell: Callable[[str], None] = lambda text: None,
) -> Targets:
    """Bound for every class how many images one perturbation of radius eps sends to it."""
    given = torch.zeros(len(images), dtype=torch.long, device=images.device)
    cascade = Cascade(network, images, given, eps, settings)
    cascade.labels = cascade.predicted
    question = cascade.question
    if not question.verifier.whole:
        raise CitrusError(f"TargetClass classes need the verifier citrus, got {settings.verifier!r}.")
    parts, index = list[OpenChoices](), torch.arange(len(images), device=images.device)
    with true_float32(), torch.no_grad():
        for block in cascade.parts(index):
            parts.append(OpenChoices.of(prove_alone(question, block)))
            tell(f"{sum(len(part) for part in parts)} open labels of {int(block.index.max()) + 1} images")
        choices = OpenChoices.joined(parts)
        classes = []
        for label in range(question.graph.classes):
            tell(f"class {label}")
            classes.append(_target(question, cascade, choices, label, attack))
    return Targets(question.eps, len(images), tuple(classes))


def targets_path(out: Path, eps: float, settings: CertifySettings) -> Path:
    """The file of a table."""
    return out / f"{settings.verifier}-{eps_in_name(eps)}-targets.json"


def save_targets(path: Path, found: Targets, names: Sequence[str] = ()) -> None:
    """Write a table, for reports; `names` are those of the classes."""
    classes = [
        {
            "class": one.label,
            "name": names[one.label] if one.label < len(names) else str(one.label),
            **{key: getattr(one, key) for key in ("candidates", "most", "attacked", "seconds")},
        }
        for one in found.classes
    ]
    seconds = sum(one.seconds for one in found.classes)
    write_json(path, {"eps": found.eps, "images": found.images, "classes": classes, "seconds": round(seconds, 2)})


def _target(question: Question, cascade: Cascade, choices: OpenChoices, label: int, attack: Ascent) -> TargetClass:
    started, mine = time.perf_counter(), choices.only(choices.wrong == label)
    most = sent = 0
    if len(mine):
        most = sum(master.lost for master in solve_masters(question, mine, Known()))
        sent = _sent(question, mine, label, attack)
    candidates = int((cascade.predicted != label).sum())
    return TargetClass(label, candidates, most, sent, round(time.perf_counter() - started, 3))


def _sent(question: Question, choices: OpenChoices, label: int, attack: Ascent) -> int:
    """How many images an attack sends to a class, whatever is rounded."""
    some = choices.image.unique()
    x, y = choices.images.centre[some], choices.images.labels[some]
    generator = torch.Generator(x.device).manual_seed(question.settings.seed)
    delta = attack_target(question.graph, x, label, question.eps, attack, generator)
    there = question.graph(x + delta).argmax(1) == label
    x, y = x[there], y[there]
    if not len(x):
        return 0
    margins = highest(question, x, y, delta.expand_as(x))
    row = torch.where(y < label, label - 1, label)  # wrong labels are in order, without the own one
    return int((margins.gather(1, row[:, None]) <= 0).sum())
