"""Certification as a cascade, cheapest proof first, for many groups at a time.

    result = certify(network, images, labels, eps="8/255", settings=CertifySettings(group_size=5))
    print(result.certified, result.attacked)       # percent: proved lower bound, attacked upper bound

Stages: clean prediction, intervals, linear bounds (CROWN) and optimised slopes for each image (alone.py), then the
universal attack, the exact search over (image, wrong label) choices, and joint refinement of the sets that decide the
count for each group (together.py).
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from citrus.bounds.chunks import memory_ran_out
from citrus.certify.alone import Block, Singles, prove_alone
from citrus.certify.refine.rounds import OpenGroup
from citrus.certify.result import Certification, GroupResult, Verdict, verdict_of
from citrus.certify.settings import CertifySettings, Grouping, Question, pick_verifier
from citrus.certify.together import prove_together
from citrus.errors import CitrusError, SoundnessError
from citrus.inputs import check_images, parse_eps
from citrus.networks import Graph, graph
from citrus.networks.kernels import true_float32

CPU_BLOCK, GPU_BLOCK = 100, 1000
BYTES_PER_SLOPE = 32  # float32 slopes of every ReLU and row, their gradients and the optimiser's two moments, twice
PREDICTED = 500  # images at a time

Numbered = tuple[int, Tensor]
"""A group: its number, and the places of its images in the data set."""


@dataclass(frozen=True)
class BlockProof:
    """Everything that was found out about the groups of one block: rows, and what a certificate is made of."""

    rows: tuple[GroupResult, ...]
    singles: Singles | None = None  # None if the block ended in an error
    work: dict[int, OpenGroup] = field(default_factory=dict)
    """Search and refinement of the groups that single-image proofs leave open, by their place in the block."""


def certify(
    network: nn.Module | Graph,
    images: Tensor,
    labels: Tensor,
    eps: float | str,
    settings: CertifySettings = CertifySettings(),  # noqa: B008 - frozen
) -> Certification:
    """Prove how many images of each group survive every shared perturbation of radius eps.

    The network is a Graph, or a module in eval mode.
    """
    cascade = Cascade(network, images, labels, eps, settings)
    return cascade.result(row for block in cascade.blocks() for row in block.rows)


def form_groups(grouping: Grouping, size: int, correct: Tensor, alone: Tensor) -> list[Tensor]:
    """Groups as index tensors into the images; together they hold each kept image once. The last may be smaller.

    `correct` (n,) says which images are classified right, `alone` (n,) which are to stand apart from the others.
    """
    kept = torch.ones_like(correct) if grouping == "dataset" else correct
    parts = [(kept & ~alone).nonzero().flatten(), (kept & alone).nonzero().flatten()]
    return [group for part in parts if len(part) for group in part.split(size)]


class Cascade:
    """One certification, block by block: `certify` runs all of it, `certify_into` keeps each block on disk."""

    def __init__(
        self, network: nn.Module | Graph, images: Tensor, labels: Tensor, eps: float | str, settings: CertifySettings
    ) -> None:
        plain = network if isinstance(network, Graph) else graph(network, tuple(images.shape[1:]))
        plain = plain.map(Tensor.detach)
        check_images(images, labels, plain.classes, plain.input_shape)
        _check_weights(plain)
        weights = next((v for node in plain.nodes for v in vars(node.op).values() if isinstance(v, Tensor)), images)
        self.images, self.labels = images.to(weights.dtype), labels
        verifier = pick_verifier(settings.verifier, settings.intermediate, plain)
        self.question = Question(plain, parse_eps(eps), settings, verifier)

    @cached_property
    def scores(self) -> Tensor:
        """Class scores of the images as they are: (n, classes)."""
        with true_float32(), torch.no_grad():
            return torch.cat([self.question.graph(x) for x in self.images.split(PREDICTED)])

    @cached_property
    def groups(self) -> list[Tensor]:
        """The groups, as places in the data set. `adaptive` first asks which images are proved alone."""
        settings, correct = self.question.settings, self.scores.argmax(1) == self.labels
        alone = torch.zeros_like(correct)
        if settings.grouping == "adaptive":
            with true_float32(), torch.no_grad():
                for part in torch.arange(len(correct), device=correct.device).split(self.block_size):
                    alone[part] = ~prove_alone(self.question, self._block([(0, part)])).open.any(1)
        return form_groups(settings.grouping, settings.group_size, correct, alone)

    @property
    def block_size(self) -> int:
        """Images of a block: as many as a quarter of a GPU's free memory holds the slopes of, a thousand at most."""
        plain, device = self.question.graph, self.images.device
        if self.question.settings.block:
            return self.question.settings.block
        if device.type != "cuda":
            return CPU_BLOCK
        room = torch.cuda.mem_get_info(device)[0] // 4
        return max(1, min(GPU_BLOCK, room // (BYTES_PER_SLOPE * (plain.classes - 1) * max(1, plain.neurons))))

    def blocks(self, skip: frozenset[int] = frozenset()) -> Iterator[BlockProof]:
        """Proofs block by block, without the groups whose numbers are in `skip`."""
        block: list[Numbered] = []
        left = [(number, where) for number, where in enumerate(self.groups) if number not in skip]
        size = self.block_size
        for entry in left:
            block.append(entry)
            if sum(len(where) for _, where in block) >= size or entry is left[-1]:
                with true_float32(), torch.no_grad():
                    proof = self._prove(block)
                yield proof
                block = []

    def result(self, rows: Iterable[GroupResult]) -> Certification:
        """The answer that these rows give."""
        question, settings = self.question, self.question.settings
        return Certification(
            rows=tuple(rows),
            images=len(self.images),
            eps=question.eps,
            group_size=settings.group_size,
            grouping=settings.grouping,
            verifier=settings.verifier,
            stage_seconds=question.seconds,
        )

    def _block(self, groups: list[Numbered]) -> Block:
        index = torch.cat([where for _, where in groups])
        owner = torch.cat([torch.full_like(where, k) for k, (_, where) in enumerate(groups)])
        return Block(index, self.images[index], self.labels[index], self.scores[index], owner)

    def _prove(self, groups: list[Numbered]) -> BlockProof:
        """All stages for some groups. Images that are misclassified count as lost and take no part."""
        started, block = time.perf_counter(), self._block(groups)
        try:
            singles = prove_alone(self.question, block)
            attacked, work = prove_together(self.question, singles)
        except (RuntimeError, MemoryError) as error:
            if not memory_ran_out(error):
                raise
            return self._failed(groups, block, f"out of memory: {error}")
        elapsed = time.perf_counter() - started
        shared = (elapsed - sum(group.clock.spent for group in work.values())) / len(groups)
        rows = [_row(*groups[k], singles, k, attacked[k], work.get(k), shared) for k in range(len(groups))]
        return BlockProof(tuple(rows), singles, work)

    def _failed(self, groups: list[Numbered], block: Block, note: str) -> BlockProof:
        """Nothing is proved, and nothing is known against the images that are classified right."""
        rows = []
        for k, (number, where) in enumerate(groups):
            right = int(block.correct[block.owner == k].sum())
            rows.append(GroupResult(number, tuple(where.tolist()), right, 0, right, Verdict.ERROR, note=note))
        return BlockProof(tuple(rows))


def _row(
    number: int, where: Tensor, singles: Singles, k: int, attacked: int, work: OpenGroup | None, shared: float
) -> GroupResult:
    """The row of the k-th group of a block, which took `shared` seconds of what all groups needed."""
    mine = singles.owner == k
    stages = singles.stage_counts(mine)
    if work is not None:
        stages |= {"search": work.first, "joint": work.result.survivors - work.first}
    certified, index = sum(stages.values()), tuple(where.tolist())
    if certified > attacked:
        text = f"is certified for {certified} of them, but an attack leaves only {attacked}"
        raise SoundnessError(f"The group of images {list(index)} {text}.")
    return GroupResult(
        group=number,
        index=index,
        correct=int(singles.correct[mine].sum()),
        certified=certified,
        attacked=attacked,
        verdict=verdict_of(len(index), certified, attacked, work is not None and work.timed_out),
        stages={name: count for name, count in stages.items() if count},
        seconds=round(shared + (work.clock.spent if work else 0.0), 3),
    )


def _check_weights(plain: Graph) -> None:
    for node in plain.nodes:
        for value in vars(node.op).values():
            if isinstance(value, Tensor) and not bool(torch.isfinite(value).all()):
                raise CitrusError(f"Layer {node.name!r} of the network has weights that are NaN or infinite.")
