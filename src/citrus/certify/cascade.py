"""Certification as a cascade, cheapest proof first, for many groups at a time.

    result = certify(network, images, labels, eps="8/255", settings=CertifySettings(group_size=5))
    print(result.certified, result.attacked)       # percent: proved lower bound, attacked upper bound

Stages: clean prediction, intervals, linear bounds (CROWN) and optimised slopes for each image (alone.py), then the
universal attack, the exact search over (image, wrong label) choices, and joint refinement of the sets that decide the
count for each group (together.py).
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from citrus.attacks.alarm import Alarm
from citrus.certify.alone import Block, Singles, prove_alone
from citrus.certify.refine.rounds import OpenGroup
from citrus.certify.result import Certification, GroupResult, Verdict, verdict_of
from citrus.certify.settings import CertifySettings, Grouping, Question, pick_verifier
from citrus.certify.together import Together, prove_together
from citrus.certify.whole.group import PART, PARTS_UP_TO, LargeProof, prove_large
from citrus.errors import CitrusError, memory_ran_out
from citrus.inputs import check_images, parse_eps
from citrus.networks import Graph, graph
from citrus.networks.kernels import true_float32

CPU_BLOCK, GPU_BLOCK = 100, 1000
BYTES_PER_SLOPE = 32  # float32 slopes of every ReLU and row, their gradients and the optimiser's two moments, twice
PREDICTED = 500  # images at a time
MOST_SEARCHED = 1000  # images of a group that verifiers without a dual for large groups take

Numbered = tuple[int, Tensor]
"""A group: its number, and the places of its images in the data set."""
Watch = Callable[[int, Singles, dict[int, OpenGroup]], None]
"""Is given what was proved about each block of a large group, by the group's number, before it is forgotten."""


@dataclass(frozen=True)
class BlockProof:
    """Everything that was found out about the groups of one block: rows, and what a certificate is made of."""

    rows: tuple[GroupResult, ...]
    singles: Singles | None = None  # None if the block ended in an error
    work: dict[int, OpenGroup] = field(default_factory=dict)
    """Search and refinement of the groups that single-image proofs leave open, by their place in the block."""
    large: dict[int, LargeProof] = field(default_factory=dict)
    """What was found out about large groups, by number."""
    alarms: tuple[Alarm, ...] = ()
    """Groups a proof of which an attack broke."""


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
        if not torch.equal(self.images.to(images.dtype), images):  # then what is proved would be about other images
            self.images, plain = images, plain.double()
        if settings.arithmetic == "float32" and weights.dtype != torch.float32:
            raise CitrusError(
                f"The network has weights in {weights.dtype}: only arithmetic 'real' can be proved of it."
            )
        settings = settings.sized(len(images))
        verifier = pick_verifier(settings.verifier, settings.intermediate, plain)
        if not verifier.whole and int(settings.group_size) > MOST_SEARCHED:
            raise CitrusError(
                f"The verifier {settings.verifier} searches a group as a whole, which is out of reach for "
                f"{settings.group_size} images: set a group size (--group-size 5)."
            )
        self.alarms: list[Alarm] = []
        self.watch: Watch = lambda number, singles, work: None
        self.question = Question(replace(plain, arithmetic=settings.arithmetic), parse_eps(eps), settings, verifier)

    @cached_property
    def predicted(self) -> Tensor:
        """The class that each image is taken for as it is: (n,). Scores too large for float32 are computed again."""
        with true_float32(), torch.no_grad():
            scores = torch.cat([self.question.graph(x).double() for x in self.images.split(PREDICTED)])
            strange = (~scores.isfinite().all(1)).nonzero().flatten()
            for some in strange.split(PREDICTED):
                scores[some] = self.question.graph.double()(self.images[some].double())
            return scores.argmax(1)

    @cached_property
    def groups(self) -> list[Tensor]:
        """The groups, as places in the data set. `adaptive` first asks which images are proved alone."""
        settings, correct = self.question.settings, self.predicted == self.labels
        alone = torch.zeros_like(correct)
        if settings.grouping == "adaptive":
            with true_float32(), torch.no_grad():
                for part in torch.arange(len(correct), device=correct.device).split(self.block_size):
                    alone[part] = ~prove_alone(self.question, self._block([(0, part)])).open.any(1)
        return form_groups(settings.grouping, int(settings.group_size), correct, alone)

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
        """Proofs block by block, without blocks all of whose groups have their numbers in `skip`.

        What is skipped changes no block, because the last digits of a group depend on the groups beside it.
        """
        block: list[Numbered] = []
        size = self.block_size
        for number, where in enumerate(self.groups):
            block.append((number, where))
            if sum(len(where) for _, where in block) >= size or number == len(self.groups) - 1:
                if not skip.issuperset(number for number, _ in block):
                    with true_float32(), torch.no_grad():
                        proof = self._prove(block)
                    self.alarms += proof.alarms
                    yield proof
                block = []

    def result(self, rows: Iterable[GroupResult]) -> Certification:
        """The answer that these rows give."""
        question, settings = self.question, self.question.settings
        rows = tuple(rows)  # which may be proved by this
        return Certification(
            rows=rows,
            images=len(self.images),
            eps=question.eps,
            group_size=int(settings.group_size),
            grouping=settings.grouping,
            verifier=settings.verifier,
            arithmetic=settings.arithmetic,
            stage_seconds=question.seconds,
            alarms=tuple(self.alarms),
        )

    def _block(self, groups: list[Numbered]) -> Block:
        index = torch.cat([where for _, where in groups])
        owner = torch.cat([torch.full_like(where, k) for k, (_, where) in enumerate(groups)])
        return Block(index, self.images[index], self.labels[index], self.predicted[index], owner)

    def _prove(self, groups: list[Numbered]) -> BlockProof:
        """All stages for some groups. Images that are misclassified count as lost and take no part."""
        if self.question.verifier.whole and max(len(where) for _, where in groups) > self.question.settings.searched:
            return self._prove_larges(groups)
        started, block = time.perf_counter(), self._block(groups)
        try:
            singles = prove_alone(self.question, block)
            together = prove_together(self.question, singles)
        except (RuntimeError, MemoryError) as error:
            if not memory_ran_out(error):
                raise
            right = [int(block.correct[block.owner == k].sum()) for k in range(len(groups))]
            parts = zip(groups, right, strict=True)
            return BlockProof(tuple(_failed_row(n, tuple(where.tolist()), count, error) for (n, where), count in parts))
        elapsed, work = time.perf_counter() - started, together.work
        shared = (elapsed - sum(group.clock.spent for group in work.values())) / len(groups)
        rows, alarms = [], []
        for k, (number, where) in enumerate(groups):
            row = _row(number, where, singles, k, together, shared)
            if k in together.broken:
                alarms.append(self._alarm(number, singles, k, together))
                row = replace(row, certified=0, attacked=row.correct, verdict=Verdict.ERROR, note=together.broken[k][0])
            rows.append(row)
        return BlockProof(tuple(rows), singles, work, alarms=tuple(alarms))

    def _prove_larges(self, groups: list[Numbered]) -> BlockProof:
        """All stages for groups of many images, one after another."""
        rows, large, alarms = [], {}, []
        for number, where in groups:
            started, index = time.perf_counter(), tuple(where.tolist())
            try:
                search = len(where) <= PARTS_UP_TO
                found = prove_large(self.question, self.parts(where), search, partial(self.watch, number))
            except (RuntimeError, MemoryError) as error:
                if not memory_ran_out(error):
                    raise
                right = int((self.predicted[where] == self.labels[where]).sum())
                rows.append(_failed_row(number, index, right, error))
                continue
            row = _large_row(number, index, found, time.perf_counter() - started)
            if found.broken:
                assert found.delta is not None
                group = where, self.images[where], self.labels[where]
                arithmetic = self.question.settings.arithmetic
                alarms.append(Alarm(number, found.broken, self.question.eps, *group, found.delta, arithmetic))
                row = replace(row, certified=0, attacked=row.correct, verdict=Verdict.ERROR, note=found.broken)
            rows.append(row)
            large[number] = found
        return BlockProof(tuple(rows), large=large, alarms=tuple(alarms))

    def parts(self, where: Tensor) -> Iterator[Block]:
        """The images of a large group in blocks, each in the parts that are searched together."""
        part = min(PART, self.question.settings.searched)
        for some in where.split(max(1, self.block_size // part) * part):
            yield self._block(list(enumerate(some.split(part))))

    def _alarm(self, number: int, singles: Singles, k: int, together: Together) -> Alarm:
        mine, (claim, delta) = singles.owner == k, together.broken[k]
        group = singles.index[mine], singles.images[mine], singles.labels[mine]
        return Alarm(number, claim, self.question.eps, *group, delta, self.question.settings.arithmetic)


def _failed_row(number: int, index: tuple[int, ...], right: int, error: BaseException) -> GroupResult:
    """Memory ran out: nothing is proved, and nothing is known against the images that are classified right."""
    return GroupResult(number, index, right, 0, right, Verdict.ERROR, note=f"out of memory: {error}")


def _large_row(number: int, index: tuple[int, ...], found: LargeProof, seconds: float) -> GroupResult:
    return GroupResult(
        group=number,
        index=index,
        correct=found.correct,
        certified=found.certified,
        attacked=found.attacked,
        verdict=verdict_of(len(index), found.certified, found.attacked, found.timed_out),
        stages={name: count for name, count in found.stages.items() if count},
        seconds=round(seconds, 3),
    )


def _row(number: int, where: Tensor, singles: Singles, k: int, together: Together, shared: float) -> GroupResult:
    """The row of the k-th group of a block, which took `shared` seconds of what all groups needed."""
    mine, work, attacked = singles.owner == k, together.work.get(k), together.attacked[k]
    stages = singles.stage_counts(mine)
    if work is not None:
        stages |= {"search": work.first, "joint": work.result.survivors - work.first}
    certified, index = sum(stages.values()), tuple(where.tolist())
    if certified > attacked and k not in together.broken:
        text = f"is certified for {certified} of them, but an attack leaves only {attacked}"
        together.broken[k] = f"The group of images {list(index)} {text}.", together.deltas[k]
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
