"""One engine for many runs: it trains what is missing, measures and certifies it, and appends a row for each.

    study = Study("tau", Path("runs/tau"), (Entry("small", config, (CertifySettings(),)), ...))
    results = run_study(study)

The same call goes on where it was stopped. What fails leaves a row that says why, and is tried again next time; so
does an entry where an attack broke a proof, which is a bug and must not pass as a result.
"""

import json
import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

import torch

from citrus.certify import CertifySettings, certify_into
from citrus.certify.result import ALONE
from citrus.certify.run_folder import row_path
from citrus.data import Splits, as_float
from citrus.errors import CannotWrite, CitrusError, code_of
from citrus.files import locked, read_lines, write_text
from citrus.studies.rows import Entry, Row, Study, StudyResult, StudyRows, asked_of, finished, result_of, same_groups
from citrus.training import Events, Progress, Stopped, load_run, pick_device, to_dict, train
from citrus.training.evaluation import broken_folder

LAST = ("epoch", "loss", "clean_loss", "robust_loss", "accuracy", "seconds")  # of the last epoch
FOUND = ("images", "clean", "attacked_images", "pgd", "universal")  # by the evaluation after training


@dataclass(frozen=True)
class Listener:
    """What a caller may want to hear meanwhile."""

    on_entry: Callable[[str, int, int], Events] = lambda name, place, total: Events()
    """An entry begins, the n-th of so many; the answer hears of its training."""
    on_result: Callable[[StudyResult], None] = lambda result: None


NOBODY = Listener()


def run_study(study: Study, listener: Listener = NOBODY) -> list[StudyResult]:
    """Make what is missing, and return all results in order; `Stopped`, after Ctrl-C or the deadline, ends it."""
    with locked(study.out):
        rows = study.open_rows()
        for entry in _in_processes(study, rows) if study.workers > 1 else _one_by_one(study, rows, listener):
            listener.on_result(result_of(entry, rows))
    return [result_of(entry, rows) for entry in study.entries]


def _one_by_one(study: Study, rows: StudyRows, listener: Listener) -> Iterator[Entry]:
    """Entries as they are finished."""
    for place, entry in enumerate(study.entries, start=1):
        if result_of(entry, rows).error:
            events = listener.on_entry(entry.name, place, len(study.entries))
            for kind, row in _make(study, entry, rows.about(entry.name), events):
                rows.add(kind, entry.name, entry.source | row)
            yield entry


def _in_processes(study: Study, rows: StudyRows) -> Iterator[Entry]:
    """Entries as they are finished, each made by a process of its own that sends its rows; only this one writes."""
    waiting = [entry for entry in study.entries if result_of(entry, rows).error]
    context = multiprocessing.get_context("spawn")
    running: dict[Connection, tuple[Entry, SpawnProcess]] = {}
    stopped = None
    try:
        while running or waiting:
            while waiting and len(running) < study.workers:
                entry = waiting.pop(0)
                answers, sender = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(sender, study, entry, rows.about(entry.name)))
                process.start()
                sender.close()
                running[answers] = entry, process
            ready = wait(list(running))
            for answers in [answers for answers in running if answers in ready]:
                entry, process = running.pop(answers)
                answer = answer_of(answers)
                process.join()
                if isinstance(answer, Stopped):  # the others may have more to tell
                    stopped = answer
                    continue
                if isinstance(answer, Exception):
                    raise answer
                for kind, row in answer:
                    rows.add(kind, entry.name, entry.source | row | {"shared_by": study.workers})
                yield entry
    except KeyboardInterrupt as error:
        stop = Stopped("All workers keep their state.")
        stop.code = code_of(error)
        raise stop from error
    finally:
        for _, process in running.values():
            process.terminate()  # which a training loop hears as a wish to stop
        for answers, (_, process) in running.items():
            answers.close()
            process.join()
    if stopped:
        raise stopped


def answer_of(answers: Connection) -> Exception | list[tuple[str, Row]]:
    """What a process sends at its end: rows, or why there are none."""
    try:
        answer: Exception | list[tuple[str, Row]] = answers.recv()
        return answer
    except (EOFError, OSError):  # the end comes before the answer, or in the middle of it
        return [("run", {"failed": "its process was killed, maybe for want of memory: take fewer --workers"})]


def _work(sender: Connection, study: Study, entry: Entry, about: list[Row]) -> None:
    """A process takes its share of the threads; a Ctrl-C is for the process that started it, which passes it on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(max(1, torch.get_num_threads() // study.workers))
    answer: Exception | list[tuple[str, Row]]
    try:
        answer = list(_make(study, entry, about, Events(on_step=_stop_an_orphan)))
    except (Stopped, CannotWrite) as error:
        answer = error
    with suppress(OSError):  # nobody may listen any more
        sender.send(answer)


def _stop_an_orphan(now: Progress) -> None:
    """After an epoch a process whose parent was killed ends: nobody waits for its rows."""
    parent = multiprocessing.parent_process()
    if now.row and parent is not None and not parent.is_alive():
        raise Stopped("The study that started this run is gone; its state is kept.")


# ------------------------------------------------------------------------------------------------------------ one entry


def _make(study: Study, entry: Entry, about: list[Row], events: Events) -> Iterator[tuple[str, Row]]:
    """Kind and row of all that is missing; the last one may say what failed."""
    folder, kind = study.out / entry.name, "run"
    if time.time() > study.deadline:
        raise Stopped(f"{entry.name}: the time is over.")
    try:
        splits = study.load(entry)
        run, proofs = finished(entry, about)
        if not run:
            run = _train(study, entry, folder, splits, events)
            yield kind, run
        kind = "certification"
        for settings in entry.proofs:
            if asked_of(settings, entry.images) not in proofs:
                yield kind, _certify(study, entry, settings, folder, splits, run)
    except (Stopped, CannotWrite):
        raise
    except Exception as error:  # the others go on
        with suppress(CitrusError):  # of a disk that cannot be written, which the row says
            write_text(folder / "error.txt", traceback.format_exc())
        text = str(error) if isinstance(error, CitrusError) else f"{type(error).__name__}: {error}"
        yield kind, {"failed": text.partition("\n")[0]}


def _train(study: Study, entry: Entry, folder: Path, splits: Splits, events: Events) -> Row:
    """The row of a run; after the deadline no epoch begins, and `Stopped` keeps its state."""
    config, begun = entry.config, (folder / "config.json").exists()

    def on_step(now: Progress) -> None:
        events.on_step(now)
        if now.row and time.time() > study.deadline and now.step < now.steps:
            raise Stopped(f"{entry.name}: the time is over after epoch {now.epoch + 1} of {config.epochs}.")

    heard = replace(events, on_step=on_step)
    found = train(config, folder, splits=splits, device=study.device, resume=begun, events=heard).evaluation
    assert found
    if found.errors:
        raise CitrusError(
            f"An attack fools {found.errors} images that are certified: a bug in Citrus, please report it with what "
            f"`citrus check` shows of the files in {broken_folder(folder, config.eps)}."
        )
    metrics, _ = read_lines(folder / "metrics.jsonl")
    return {
        "on": entry.on,
        **{name: round(getattr(found, name), 4) for name in FOUND},
        "ibp": round(found.ibp_certified, 4),
        "train_seconds": round(sum(row["seconds"] for row in metrics), 3),
        "measure_seconds": round(found.seconds, 3),
        "last": {name: metrics[-1][name] for name in LAST},
        "config": to_dict(config),
    }


def _certify(study: Study, entry: Entry, settings: CertifySettings, folder: Path, splits: Splits, run: Row) -> Row:
    """The row of a certification; rows per group are in the run folder, so that it goes on after a stop."""
    data = splits.test.subset(slice(0, entry.images)).to(pick_device(study.device))
    network, out = load_run(folder).network.to(data.images.device), folder / "certify"
    if data.images.is_cuda:
        torch.cuda.reset_peak_memory_stats()
    found = certify_into(out, network, as_float(data.images), data.labels, entry.config.eps, settings)
    if found.errors:
        raise CitrusError(f"{found.errors} groups could not be certified: {out} says why.")
    if same_groups(run, vars(found)) and found.certified > run["universal"] + 1e-6:
        raise CitrusError(
            f"{found.certified} % are certified in {out}, and yet the perturbations in {folder / 'uap'} leave "
            f"{run['universal']} %: a bug in Citrus, please report it."
        )
    summary = json.loads(row_path(out, found.eps, settings).with_suffix(".json").read_text())
    alone = sum(row.stages.get(stage, 0) for row in found.rows for stage in ALONE)
    return {
        "stages": summary.pop("stage_seconds"),
        **summary,
        "single": 100 * alone / found.images,
        "groups": [row.certified for row in found.rows],
        "seconds": round(sum(row.seconds for row in found.rows), 3),  # time before a stop included
        "memory_gb": torch.cuda.max_memory_allocated() / 2**30 if data.images.is_cuda else None,
    }
