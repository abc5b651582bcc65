"""A group of many images: each by itself, small parts of the group by search and refinement, and all in one dual.

    found = prove_large(question, blocks)
    found.certified, found.attacked

What the search proves about a part enters the master problem as cuts, so that more images under one perturbation
certify no less than the same images in parts. Where memory does not hold one problem for all open images it is cut into
several, whose losses add up.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from citrus.attacks import fooled
from citrus.attacks.whole import attack_all
from citrus.certify.alone import Block, Singles, prove_alone
from citrus.certify.refine.rounds import OpenGroup
from citrus.certify.settings import Question
from citrus.certify.together import highest, prove_together
from citrus.certify.whole.choices import Key, Known, OpenChoices
from citrus.certify.whole.kept import State, keep, kept
from citrus.certify.whole.leaves import Branching
from citrus.certify.whole.master import Hears, Limits, MasterProof, bytes_of, solve_master
from citrus.certify.whole.partition import partition

PART = 20
"""Images of a part of a larger group that the search takes together."""
PARTS_UP_TO = 1000
"""Images of a group up to which its parts are searched: beyond that they add next to nothing to the master problem."""
ATTACKED = 500  # images whose margins are computed at a time

Watch = Callable[[Singles, dict[int, OpenGroup]], None]
"""Is given what was proved about each block of a large group, before it is forgotten."""


@dataclass
class LargeProof:
    """What was found out about a large group."""

    correct: int = 0
    stages: dict[str, int] = field(default_factory=dict)
    """Images by the stage that proved them."""
    attacked: int = 0
    delta: Tensor | None = None
    """The perturbation of the attack, (C, H, W); none if every image is proved alone."""
    broken: str = ""
    """What was claimed and broken by `delta`."""
    masters: tuple[MasterProof, ...] = ()
    """Empty if no image is open, or if the parts prove more."""
    timed_out: bool = False

    @property
    def certified(self) -> int:
        return sum(self.stages.values())


@dataclass
class _Kept:
    """What is kept of the blocks of a group."""

    images: list[Tensor] = field(default_factory=list)
    labels: list[Tensor] = field(default_factory=list)
    alone: list[Tensor] = field(default_factory=list)
    choices: list[OpenChoices] = field(default_factory=list)
    conflicts: list[tuple[Key, ...]] = field(default_factory=list)
    parts: list[tuple[tuple[int, ...], int]] = field(default_factory=list)
    """Open images of a part, by their places in the data set, and how many of them survive."""


def prove_large(
    question: Question, blocks: Iterator[Block], search: bool, watch: Watch = lambda *_: None
) -> LargeProof:
    """All stages for one group, which comes in blocks whose owners are the parts that the search takes together."""
    found, kept = LargeProof(), _Kept()
    for block in blocks:
        singles = prove_alone(question, block)
        question.tell(f"{found.correct} images one by one")
        work = _search(question, singles, found, kept) if search else {}
        watch(singles, work)
        alone = singles.correct & ~singles.open.any(1)
        for name, count in singles.stage_counts(torch.ones_like(alone)).items():
            found.stages[name] = found.stages.get(name, 0) + count
        found.correct += int(singles.correct.sum())
        kept.images.append(singles.images[singles.correct])
        kept.labels.append(singles.labels[singles.correct])
        kept.alone.append(alone[singles.correct])
        kept.choices.append(OpenChoices.of(singles))
    _attack(question, found, torch.cat(kept.images), torch.cat(kept.labels), torch.cat(kept.alone))
    _count(question, found, kept)
    if found.certified > found.attacked and not found.broken:
        found.broken = (
            f"{found.certified} images of the group are certified, but an attack leaves only {found.attacked}."
        )
    return found


def _search(question: Question, singles: Singles, found: LargeProof, kept: _Kept) -> dict[int, OpenGroup]:
    """The parts of a block by search and refinement."""
    together = prove_together(question, singles)
    for claim, delta in together.broken.values():
        found.broken, found.delta = claim, delta
    for work in together.work.values():
        places = [int(singles.index[singles.live[place]]) for place in work.places]
        kept.parts.append((tuple(places), work.result.survivors))
        found.timed_out |= work.timed_out
        kept.conflicts += [tuple((places[i], j) for i, j in one.choices) for one in work.result.conflicts]
    return together.work


def _count(question: Question, found: LargeProof, kept: _Kept) -> None:
    """The better of what the parts and the master problems prove about the open images."""
    choices, known = _told(OpenChoices.joined(kept.choices), kept)
    count = len(torch.cat(kept.alone)) - int(torch.cat(kept.alone).sum())
    by_parts = sum(survivors for _, survivors in kept.parts)
    survivors = count
    if len(choices):
        with question.timed("whole"):
            found.masters = tuple(solve_masters(question, choices, known))
        survivors = count - sum(master.lost for master in found.masters)
        found.timed_out |= any(master.timed_out for master in found.masters)
    better = survivors > by_parts
    found.stages["whole" if better else "search"] = survivors if better else by_parts
    found.masters = found.masters if better else ()


def _told(choices: OpenChoices, kept: _Kept) -> tuple[OpenChoices, Known]:
    """The choices that no conflict settles, and what is known about them."""
    keys = choices.keys
    alone = {conflict[0] for conflict in kept.conflicts if len(conflict) == 1}
    by_image: dict[int, list[Key]] = {}
    for key in keys:
        by_image.setdefault(key[0], []).append(key)
    cuts = [(conflict, len(conflict) - 1) for conflict in kept.conflicts if len(conflict) > 2]
    for images, survivors in kept.parts:
        some = tuple(key for image in images for key in by_image[image] if key not in alone)
        cuts.append((some, len(images) - survivors))
    pairs = tuple((one, other) for one, other in (c for c in kept.conflicts if len(c) == 2))
    mine = torch.tensor([key not in alone for key in keys], dtype=torch.bool, device=choices.image.device)
    return choices.only(mine), Known(pairs, tuple(cuts))


def solve_masters(question: Question, choices: OpenChoices, known: Known) -> Iterator[MasterProof]:
    """The master problem of all images, or of as many at a time as memory holds."""
    budget = question.settings.budget * max(1.0, len(choices) / PART)
    room = question.settings.room(choices.image.device)
    pixels = choices.adaptive.a.shape[1]
    count = 1
    while bytes_of(len(choices) // count, 2 * len(choices) // count, pixels) > room and count < len(choices):
        count += 1
    for number, some in enumerate(partition(choices, count)):
        mine = choices.of_images(some)
        branching = Branching(question.graph, mine.images, mine.image, mine.wrong, question.eps)
        limits = Limits(budget * len(mine) / len(choices), memory=room)
        yield solve_master(branching, mine, limits, known, *_watched(question, branching, mine, known, number))


def _watched(
    question: Question, branching: Branching, choices: OpenChoices, known: Known, number: int
) -> tuple[State | None, Hears, Callable[[State], None]]:
    """Where a master problem begins, who hears of it, and who keeps its states."""
    settings, images = question.settings, len(choices.images.index)
    asked = repr((question.eps, settings.arithmetic, settings.verifier, settings.intermediate, known))
    path = question.keep_in / f"{choices.images.index[0]}-{number}.safetensors" if question.keep_in else None

    def hears(seconds: float, bound: float, leaves: int) -> None:
        most = f"at most {min(bound, images):.1f} of {images} open images fall"
        question.tell(f"{most}, {leaves} leaves, {seconds:.0f} s")

    begin = kept(path, choices, branching, known.about(choices), asked) if path else None
    return begin, hears, lambda state: keep(path, choices, state, asked) if path else None


def _attack(question: Question, found: LargeProof, images: Tensor, labels: Tensor, alone: Tensor) -> None:
    """The universal attack on the images that are open; every image that is classified right is counted under it."""
    found.attacked = len(labels)
    if bool(alone.all()):
        return
    settings = question.settings
    with question.timed("attack"):
        if found.delta is None:
            generator = torch.Generator(images.device).manual_seed(settings.seed)
            x, y = images[~alone], labels[~alone]
            found.delta = attack_all(question.graph, x, y, question.eps, settings.attack, generator)
        steps = found.delta.expand_as(images)
        parts = torch.arange(len(labels), device=labels.device).split(ATTACKED)
        likely = torch.cat([fooled(question.graph(images[some] + steps[some]), labels[some]) for some in parts])
        lost = torch.zeros_like(likely)
        for some in likely.nonzero().flatten().split(ATTACKED):
            lost[some] = (highest(question, images[some], labels[some], steps[some]) <= 0).any(1)
    found.attacked -= int(lost.sum())
    if bool((lost & alone).any()):
        found.broken = f"{int((lost & alone).sum())} images are certified alone, and yet an attack fools them."
