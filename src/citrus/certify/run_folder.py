"""Certification into a folder: a row per group as soon as it is proved, certificates if asked for, a summary at the
end. The same call again goes on where it was stopped.

    result = certify_into("runs/mine/certify", network, images, labels, eps="8/255", certificates=True)

OUT/VERIFIER-EPS-nN-GROUPING.jsonl    what was asked (network, eps, images, settings) in the first line, then the rows;
                                      N is all, or a number
OUT/VERIFIER-EPS-nN-GROUPING.json     the summary
OUT/VERIFIER-EPS-nN-GROUPING-certificates/
OUT/VERIFIER-EPS-nN-GROUPING-broken/       only if an attack broke a proof, which is a bug
OUT/VERIFIER-EPS-nN-GROUPING-states/       how far large groups are, until all are done
OUT/VERIFIER-EPS-nN-GROUPING-uap.safetensors    the attacker's perturbation, if one is for all images
"""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from citrus.attacks import UniversalResult
from citrus.attacks.alarm import Alarm, save_alarm
from citrus.attacks.kept import predictions, save_attack
from citrus.certify.cascade import BlockProof, Cascade
from citrus.certify.export import Exporter, certificate_path, fingerprint
from citrus.certify.result import Certification, GroupResult, Verdict, verdict_of
from citrus.certify.settings import CertifySettings
from citrus.errors import CitrusError
from citrus.files import append_line, line_of, locked, read_lines, write_json, write_text
from citrus.inputs import eps_in_name
from citrus.networks import Graph

OnRows = Callable[[Sequence[GroupResult], int, int], None]
"""Hears of new rows, and how many groups of how many are done."""


def certify_into(
    out: str | Path,
    network: nn.Module | Graph,
    images: Tensor,
    labels: Tensor,
    eps: float | str,
    settings: CertifySettings = CertifySettings(),  # noqa: B008 - frozen
    *,
    certificates: bool = False,
    name: str | None = None,
    used: str = "",
    classes: Sequence[str] = (),
    on_rows: OnRows = lambda rows, done, total: None,
    on_text: Callable[[str], None] = lambda text: None,
) -> Certification:
    """Certify as `certify` does, keeping every row in the folder `out`; what is there already is not redone.

    `certificates` writes the proofs, too; `name` is where the network lies (a run folder or an ONNX file), for `citrus
    check` to find it; `used` says what the images were used for before, if the network's training or choice saw them:
    then nothing is said about other inputs. `classes` are names for pictures. `on_rows` hears of each block of groups,
    `on_text` of large groups.
    """
    cascade, started = Cascade(network, images, labels, eps, settings), time.perf_counter()
    files = _Files(row_path(out, cascade.question.eps, settings), cascade, _digest(images, labels), name or "")
    question = cascade.question = replace(cascade.question, tell=on_text, keep_in=files.beside("states"))
    folder = files.beside("certificates") if certificates else None
    exporter = Exporter(folder, question, name) if folder else None
    cascade.watch = exporter.watch if exporter else cascade.watch
    with locked(files.path.parent, files.path.stem):
        rows = RowFile(files.path, files.asked)
        done = frozenset(row.group for row in rows.rows if _is_done(row, folder))
        total = len(cascade.groups)
        on_rows((), len(done), total)
        for block in cascade.blocks(skip=done):
            kept_before = done - {alarm.group for alarm in block.alarms}
            counts = exporter.write(block, kept_before) if exporter else {}
            fresh = (row for row in block.rows if row.group not in kept_before)
            kept = [_lowered(row, counts.get(row.group, row.certified)) for row in fresh]
            kept = [files.told(row, block.alarms) for row in kept]
            files.keep_perturbation(block, classes)
            rows.add(kept)
            on_rows(kept, len(rows.rows), total)
        result = cascade.result(rows.rows)
        files.finish(result, used, time.perf_counter() - started)
    return result


class _Files:
    """The files of one certification beside its rows."""

    def __init__(self, path: Path, cascade: Cascade, data: str, network: str) -> None:
        self.path, self.cascade, self.network, question = path, cascade, network, cascade.question
        asked = {"network": fingerprint(question.graph), "eps": question.eps, "images": len(cascade.images)}
        asked |= {"data": data, **asdict(question.settings)}
        asked["intermediate"] = question.verifier.linear.intermediate  # what auto stands for
        del asked["block"], asked["memory"]  # they change no result, or only what cannot be had
        self.asked = asked

    def beside(self, what: str) -> Path:
        return self.path.with_name(f"{self.path.stem}-{what}")

    def told(self, row: GroupResult, alarms: Iterable[Alarm]) -> GroupResult:
        """The row of a group a proof of which was broken says where both witnesses are kept."""
        for alarm in alarms:
            if alarm.group == row.group:
                path = certificate_path(self.beside("broken"), row.group)
                save_alarm(path, replace(alarm, network=self.network))
                return replace(row, note=f"{row.note} Please report it, with what `citrus check {path}` shows.")
        return row

    def keep_perturbation(self, block: BlockProof, classes: Sequence[str]) -> None:
        """That of one group of all images: it is the attacker's, and is drawn in reports."""
        cascade, settings = self.cascade, self.cascade.question.settings
        for found in block.large.values():
            if found.delta is None or int(settings.group_size) < len(cascade.images):
                continue
            groups, model = torch.zeros_like(cascade.labels), cascade.question.graph
            wrong = predictions(model, cascade.images + found.delta) != cascade.labels
            about = {"eps": cascade.question.eps, "group_size": len(cascade.images), "classes": list(classes)}
            attack = UniversalResult(found.delta[None], groups, wrong)
            path = self.beside("uap.safetensors")
            save_attack(path, attack, model, cascade.images, cascade.labels, about)

    def finish(self, result: Certification, used: str, seconds: float) -> None:
        """The summary; states of large groups are of no more use."""
        totals = {"certified": result.certified, "attacked": result.attacked, "correct": result.correct}
        said = {"unseen": None if used else result.unseen(), "used": used}
        counted = {"outcomes": result.images_by_outcome(), "stage_seconds": result.stage_seconds}
        if not result.errors:
            shutil.rmtree(self.beside("states"), ignore_errors=True)
        values = {**self.asked, **totals, **said, **counted, "seconds": round(seconds, 2)}
        write_json(self.path.with_suffix(".json"), values)


def row_path(out: str | Path, eps: float, settings: CertifySettings) -> Path:
    """The file of rows of a certification."""
    arithmetic = "" if settings.arithmetic == "real" else f"-{settings.arithmetic}"
    name = f"{settings.verifier}-{eps_in_name(eps)}-n{settings.group_size}-{settings.grouping}{arithmetic}"
    return Path(out) / f"{name}.jsonl"


def certificate_folder(out: str | Path, eps: float, settings: CertifySettings) -> Path:
    """The folder of certificates beside the rows."""
    path = row_path(out, eps, settings)
    return path.with_name(f"{path.stem}-certificates")


def read_rows(path: str | Path) -> tuple[dict[str, Any], list[GroupResult], int]:
    """What was asked, the last row of each group in order, and how many lines are none of these: cut short by a crash,
    damaged, or not ours. Where there is no file there is nothing asked and no row."""
    values, broken = read_lines(Path(path))
    asked = values[0] if values and "group" not in values[0] else {}
    found = [_row(value) for value in values[bool(asked) :]]
    by_group = {row.group: row for row in found if row is not None}
    return asked, [row for _, row in sorted(by_group.items())], broken + sum(row is None for row in found)


class RowFile:
    """The rows of one certification on disk: appended as soon as they are known."""

    def __init__(self, path: Path, asked: dict[str, Any]) -> None:
        self.path = path
        self.asked = asked = json.loads(json.dumps(asked))
        before, rows, broken = read_rows(path)
        if before and before != asked:
            changed = [name for name in asked if before.get(name) != asked[name]]
            raise CitrusError(
                f"{path} holds rows of another question ({', '.join(changed)} differ): choose another --out or move it."
            )
        if broken > 1 or (rows and not before):
            raise CitrusError(f"{path} is damaged or no file of rows: move it away.")
        self.by_group = {row.group: row for row in rows}
        if not path.exists() or path.read_text(errors="replace") != self.text:  # new, or cut short by a crash
            write_text(path, self.text)

    @property
    def rows(self) -> list[GroupResult]:
        return [row for _, row in sorted(self.by_group.items())]

    @property
    def text(self) -> str:
        return "".join(map(line_of, (self.asked, *map(asdict, self.rows))))

    def add(self, rows: Iterable[GroupResult]) -> None:
        """The row of a group that was done again takes the place of the one before."""
        found = {row.group: row for row in rows}
        again = not self.by_group.keys().isdisjoint(found)
        self.by_group |= found
        if again:
            write_text(self.path, self.text)
            return
        for row in found.values():
            append_line(self.path, asdict(row))


def _row(values: dict[str, Any]) -> GroupResult | None:
    """A row as it was written, or None."""
    try:
        row = GroupResult(**{**values, "index": tuple(values["index"]), "verdict": Verdict(values["verdict"])})
        counts = (row.group, row.correct, row.certified, row.attacked, *row.index, *row.stages.values())
        whole = all(type(count) is int and 0 <= count < 1 << 53 for count in counts)
        return row if whole and 0 <= row.seconds < 1e300 and isinstance(row.note, str) else None
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _is_done(row: GroupResult, folder: Path | None) -> bool:
    """An error is tried again, and so is a group whose certificate is asked for and was not written."""
    return row.verdict is not Verdict.ERROR and (folder is None or certificate_path(folder, row.group).exists())


def _lowered(row: GroupResult, proved: int) -> GroupResult:
    """A row never claims more than its certificate proves."""
    if proved >= row.certified:
        return row
    verdict = verdict_of(len(row.index), proved, row.attacked, row.verdict is Verdict.TIMEOUT)
    return replace(row, certified=proved, verdict=verdict, note=f"{row.certified - proved} proofs fail in float64")


def _digest(images: Tensor, labels: Tensor) -> str:
    """Which images, with which labels."""
    digest = hashlib.sha256(images.detach().cpu().contiguous().numpy().tobytes())
    digest.update(labels.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
