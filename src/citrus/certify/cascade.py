"""Certification as a cascade, cheapest proof first, for many groups at a time.

    result = certify(network, images, labels, eps="8/255", settings=CertifySettings(group_size=5))
    print(result.certified, result.attacked)       # percent: proved lower bound, attacked upper bound

Stages: clean prediction, intervals, linear bounds (CROWN) and optimised slopes for each image (alone.py), then the
universal attack, the exact search over (image, wrong label) choices, and joint refinement of the sets that decide the
count for each group (together.py).
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from citrus.bounds.chunks import memory_ran_out
from citrus.certify.alone import Block, Singles, prove_alone
from citrus.certify.groups import form_groups
from citrus.certify.result import Certification, GroupResult, Verdict, verdict_of
from citrus.certify.settings import CertifySettings, Question
from citrus.certify.together import GroupProof, prove_together
from citrus.certify.verifiers import pick
from citrus.errors import CitrusError
from citrus.inputs import check_images, parse_eps
from citrus.networks import Graph, graph
from citrus.networks.precision import true_float32

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
    groups: tuple[GroupProof, ...] = ()


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
        verifier = pick(settings.verifier, settings.intermediate, plain)
        self.question = Question(plain, parse_eps(eps), settings, verifier)

    @cached_property
    def scores(self) -> Tensor:
        """Class scores of the images as they are: (n, classes)."""
        with true_float32(), torch.no_grad():
            return torch.cat([self.question.graph(x) for x in self.images.split(PREDICTED)])

    @cached_property
    def groups(self) -> list[Tensor]:
        """The groups, as places in the data set. `adaptive` first asks which images are proved alone."""
        settings, alone = self.question.settings, None
        if settings.grouping == "adaptive":
            with true_float32(), torch.no_grad():
                parts = torch.arange(len(self.images), device=self.images.device).split(self.block_size)
                proved = [~prove_alone(self.question, self._block([(0, part)], part)).open.any(1) for part in parts]
                alone = torch.cat(proved)
        return form_groups(settings.grouping, settings.group_size, self.scores.argmax(1) == self.labels, alone)

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

    def _block(self, groups: list[Numbered], owner: Tensor | None = None) -> Block:
        index = torch.cat([where for _, where in groups])
        if owner is None:
            owner = torch.cat([torch.full_like(where, k) for k, (_, where) in enumerate(groups)])
        return Block(index, self.images[index], self.labels[index], self.scores[index], owner)

    def _prove(self, groups: list[Numbered]) -> BlockProof:
        """All stages for some groups. Images that are misclassified count as lost and take no part."""
        started, block = time.perf_counter(), self._block(groups)
        try:
            singles = prove_alone(self.question, block)
            proofs = prove_together(self.question, singles)
        except (RuntimeError, MemoryError) as error:
            if not memory_ran_out(error):
                raise
            return self._failed(groups, f"out of memory: {error}")
        elapsed = time.perf_counter() - started
        shared = (elapsed - sum(proof.seconds for proof in proofs)) / len(groups)
        rows = []
        for k, ((number, where), proof) in enumerate(zip(groups, proofs, strict=True)):
            mine = block.owner == k
            stages = singles.stage_counts(mine) | proof.stages
            row = GroupResult(
                group=number,
                index=tuple(where.tolist()),
                correct=int(block.correct[mine].sum()),
                certified=proof.certified,
                attacked=proof.attacked,
                verdict=verdict_of(len(where), proof.certified, proof.attacked, proof.timed_out),
                stages={name: count for name, count in stages.items() if count},
                seconds=round(shared + proof.seconds, 3),
            )
            rows.append(row)
        return BlockProof(tuple(rows), singles, tuple(proofs))

    def _failed(self, groups: list[Numbered], note: str) -> BlockProof:
        """Nothing is proved, and nothing is known against the images that are classified right."""
        rows = []
        for number, where in groups:
            right = int((self.scores[where].argmax(1) == self.labels[where]).sum())
            rows.append(GroupResult(number, tuple(where.tolist()), right, 0, right, Verdict.ERROR, note=note))
        return BlockProof(tuple(rows))


def _check_weights(plain: Graph) -> None:
    for node in plain.nodes:
        for value in vars(node.op).values():
            if isinstance(value, Tensor) and not bool(torch.isfinite(value).all()):
                raise CitrusError(f"Layer {node.name!r} of the network has weights that are NaN or infinite.")
