"""Certification into a folder: rows per group as they are proved, certificates if asked for, a summary at the end.

OUT/VERIFIER-EPS-nN-GROUPING.jsonl  .json (summary)  -certificates/
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from torch import Tensor

from citrus.certify.cascade import BlockProof, CertifySettings, certify, groups_of
from citrus.certify.certificate import certificate_path, fingerprint, write_certificate
from citrus.certify.evidence import evidence
from citrus.certify.result import Certification, GroupResult, Verdict, verdict_of
from citrus.certify.rows import RowFile
from citrus.certify.verifiers import pick
from citrus.files import write_json
from citrus.inputs import format_eps
from citrus.networks import Graph

OnRows = Callable[[Sequence[GroupResult], int, int], None]
"""Hears of new rows, and how many groups of how many are done; of images, where groups are not known before."""


def certify_into(
    out: Path,
    plain: Graph,
    data: tuple[Tensor, Tensor],
    eps: float,
    settings: CertifySettings,
    certificates: str | None = None,
    on_rows: OnRows = lambda rows, done, total: None,
) -> Certification:
    """Certify, keeping rows (and certificates that name the network) in `out`; what is there already is not redone."""
    images, labels = data
    # refuses what it does not know before a file is written
    intermediate = pick(settings.verifier, settings.intermediate, plain).linear.intermediate
    asked = {"network": fingerprint(plain), "eps": eps, "images": len(images), "data": _digest(images, labels)}
    asked |= {name: value for name, value in asdict(settings).items() if name != "block"}  # changes no result
    asked |= {"intermediate": intermediate}  # what auto stands for
    rows = RowFile(row_path(out, eps, settings), asked)
    known = settings.grouping != "adaptive"
    total = len(groups_of(plain, images, labels, eps, settings)) if known else len(images)
    folder = certificate_folder(out, eps, settings)
    done = frozenset(row.group for row in rows.rows if _is_done(row, None if certificates is None else folder))
    started = time.perf_counter()
    on_rows((), len(done) if known else 0, total)

    def on_block(block: BlockProof) -> None:
        lowered = {}
        if certificates is not None:
            groups = evidence(block, eps)
            written = write_certificate(folder, plain, eps, intermediate, groups, certificates)
            lowered = {g.number: w.survivors for g, w in zip(groups, written, strict=True)}
        kept = tuple(_lowered(row, lowered) for row in block.rows)
        rows.add(kept)
        on_rows(kept, len(rows.rows) if known else sum(len(row.index) for row in rows.rows), total)

    found = certify(plain, images, labels, eps, settings, on_block, done)
    result = Certification(
        *(tuple(rows.rows), len(images), eps, settings.group_size),
        settings.grouping,
        settings.verifier,
        found.stage_seconds,
    )
    totals = {"certified": result.certified, "attacked": result.attacked, "correct": result.correct}
    counts = {"outcomes": result.images_by_outcome(), "stage_seconds": result.stage_seconds}
    seconds = round(time.perf_counter() - started, 2)
    write_json(row_path(out, eps, settings).with_suffix(".json"), {**asked, **totals, **counts, "seconds": seconds})
    return result


def _lowered(row: GroupResult, counts: dict[int, int]) -> GroupResult:
    """A row never claims more than its certificate proves."""
    count = counts.get(row.group, row.certified)
    if count >= row.certified:
        return row
    verdict = verdict_of(len(row.index), count, row.attacked, row.verdict is Verdict.TIMEOUT)
    note = f"{row.certified - count} proofs fail in float64"
    return replace(row, certified=count, verdict=verdict, note=note)


def _is_done(row: GroupResult, folder: Path | None) -> bool:
    """An error is tried again, and so is a group whose certificate is asked for and was not written."""
    return row.verdict is not Verdict.ERROR and (folder is None or certificate_path(folder, row.group).exists())


def _digest(images: Tensor, labels: Tensor) -> str:
    """Which images, with which labels."""
    digest = hashlib.sha256(images.detach().cpu().contiguous().numpy().tobytes())
    digest.update(labels.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _stem(eps: float, settings: CertifySettings) -> str:
    radius = format_eps(eps).replace("/", "-")
    return f"{settings.verifier}-{radius}-n{settings.group_size}-{settings.grouping}"


def row_path(out: Path, eps: float, settings: CertifySettings) -> Path:
    return out / f"{_stem(eps, settings)}.jsonl"


def certificate_folder(out: Path, eps: float, settings: CertifySettings) -> Path:
    return out / f"{_stem(eps, settings)}-certificates"
