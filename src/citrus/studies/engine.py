"""One engine for many runs: it trains what is missing, measures and certifies it, and appends a row for each.

    study = Study("tau", Path("runs/tau"), (Entry("small", config, (CertifySettings(),)), ...))
    results = run_study(study)

The same call goes on where it was stopped. What fails leaves a row that says why, and is tried again next time. An
attack on something certified is a bug, which must not pass as a row: `SoundnessError` ends the study.
"""

import functools
import math
import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from citrus.data import Splits, load
from citrus.errors import CitrusError, SoundnessError
from citrus.studies.entries import Entry, asked_of, certify_entry, same_groups, train_entry
from citrus.studies.rows import Row, StudyRows
from citrus.training import Events, Stopped, load_run, to_dict


@dataclass(frozen=True)
class Study:
    """Named configurations in a folder, which holds a run folder for each, and rows.jsonl."""

    name: str
    out: Path
    entries: tuple[Entry, ...] = ()
    data_dir: str | None = None
    device: str = "auto"
    workers: int = 1
    """Entries at a time, in processes of their own."""
    deadline: float = math.inf
    """By `time.time()`: no entry and no epoch begins later."""

    def open_rows(self) -> StudyRows:
        return StudyRows(self.out / "rows.jsonl", self.name)

    def load(self, data: str, validation: int) -> Splits:
        return load(data, data_dir=self.data_dir, validation=validation)


@dataclass(frozen=True)
class StudyResult:
    """What the rows of an entry say together; `error` says why there are none."""

    name: str
    run: Row = field(default_factory=dict)
    proofs: tuple[Row, ...] = ()
    error: str = ""

    @property
    def uap(self) -> float:
        """Percent that universal attacks leave: the one after training, and the verifier's on the same groups."""
        attacked = [proof["attacked"] for proof in self.proofs if same_groups(self.run, proof)]
        return float(min([self.run["universal"], *attacked]))

    @property
    def pgd(self) -> float:
        """What a shared perturbation fools, one of its own fools as well."""
        return float(min(self.run["pgd"], self.uap))

    @property
    def seconds(self) -> float:
        """Of training, measuring and certification together."""
        proving = sum(proof["seconds"] for proof in self.proofs)
        return float(self.run["train_seconds"] + self.run["measure_seconds"] + proving)


@dataclass(frozen=True)
class Listener:
    """What a caller may want to hear meanwhile."""

    on_entry: Callable[[str, int, int], Events] = lambda name, place, total: Events()
    """An entry begins, the n-th of so many; the answer hears of its training."""
    on_result: Callable[[StudyResult], None] = lambda result: None


def run_study(study: Study, listener: Listener | None = None) -> list[StudyResult]:
    """Make what is missing, and return all results in order; `Stopped`, after Ctrl-C or the deadline, ends it."""
    listener, rows = listener or Listener(), study.open_rows()
    if study.workers > 1:
        for entry in _in_processes(study, rows):
            listener.on_result(result_of(entry, rows))
        return [result_of(entry, rows) for entry in study.entries]
    load_once = functools.cache(study.load)
    results = []
    for place, entry in enumerate(study.entries, start=1):
        if result_of(entry, rows).error:
            events = listener.on_entry(entry.name, place, len(study.entries))
            for kind, row in _make(study, entry, rows.about(entry.name), load_once, events):
                rows.add(kind, entry.name, row)
        results.append(result_of(entry, rows))
        listener.on_result(results[-1])
    return results


def _in_processes(study: Study, rows: StudyRows) -> Iterator[Entry]:
    """Entries as they are finished: processes return rows, and only this one writes them."""
    waiting = [entry for entry in study.entries if result_of(entry, rows).error]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(study.workers, context, initializer=_begin, initargs=(study.workers,)) as pool:
        jobs = {pool.submit(_job, study, entry, rows.about(entry.name)): entry for entry in waiting}
        stopped = None
        try:
            for job in as_completed(jobs):
                if isinstance(job.exception(), Stopped):  # the others may have more to tell
                    stopped = job.exception()
                    continue
                for kind, row in job.result():
                    rows.add(kind, jobs[job].name, row | {"shared_by": study.workers})
                yield jobs[job]
        except BrokenProcessPool as error:
            raise CitrusError("A worker was killed, maybe for want of memory: take fewer --workers.") from error
        except KeyboardInterrupt as error:
            for process in multiprocessing.active_children():
                process.terminate()  # which a training loop hears as a Ctrl-C
            raise Stopped("All workers keep their state.") from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    if stopped:
        raise stopped


def _begin(workers: int) -> None:
    """A process takes its share of the threads, and is deaf to Ctrl-C until it works."""
    torch.set_num_threads(max(1, torch.get_num_threads() // workers))
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _job(study: Study, entry: Entry, about: list[Row]) -> list[tuple[str, Row]]:
    """In a process of its own, which hears Ctrl-C only while it works."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return list(_make(study, entry, about, study.load, Events()))
    except KeyboardInterrupt as error:
        raise Stopped(f"{entry.name} keeps its state.") from error
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _make(
    study: Study, entry: Entry, about: list[Row], load: Callable[[str, int], Splits], events: Events
) -> Iterator[tuple[str, Row]]:
    """Kind and row of all that is missing; the last one may say what failed."""
    folder, kind = study.out / entry.name, "run"
    if time.time() > study.deadline:
        raise Stopped(f"{entry.name}: the time is over.")
    try:
        splits = entry.measured_on(load(entry.config.data, entry.config.validation))
        run, proofs = _finished(entry, about)
        if run:
            network = load_run(folder).network
        else:
            network, run = train_entry(entry, folder, splits, study.device, study.deadline, events)
            yield kind, entry.source | run
        kind = "certification"
        for settings in (settings for settings in entry.proofs if asked_of(settings) not in proofs):
            row = certify_entry(entry, settings, folder, network, splits, study.device, run)
            yield kind, entry.source | row
    except (Stopped, SoundnessError):
        raise
    except Exception as error:  # the others go on
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
        text = str(error) if isinstance(error, CitrusError) else f"{type(error).__name__}: {error}"
        yield kind, {**entry.source, "failed": text.partition("\n")[0]}


def _finished(entry: Entry, about: list[Row]) -> tuple[Row, dict[tuple[Any, ...], Row]]:
    """The run of this very configuration, and the certifications of its network by what was asked."""
    good = [row for row in about if "failed" not in row]
    runs = [row for row in good if row["kind"] == "run" and row["config"] == to_dict(entry.config)]
    return (runs or [{}])[-1], {asked_of(row): row for row in good if row["kind"] == "certification"}


def result_of(entry: Entry, rows: StudyRows) -> StudyResult:
    about = rows.about(entry.name)
    run, proofs = _finished(entry, about)
    certified = tuple(proofs.get(asked_of(settings), {}) for settings in entry.proofs)
    if run and all(certified):
        return StudyResult(entry.name, run, certified)
    return StudyResult(entry.name, error=about[-1].get("failed", "not finished") if about else "not begun")
