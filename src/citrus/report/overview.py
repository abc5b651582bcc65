"""The first things one wants to know: how good the networks are, and what the report cannot say."""

from dataclasses import replace

from citrus.console import duration
from citrus.inputs import format_eps
from citrus.report.certifications import Certified
from citrus.report.document import (
    ABSENT,
    Bar,
    Bars,
    Block,
    Cell,
    Code,
    Items,
    Key,
    Paragraph,
    Section,
    Strong,
    Table,
    Words,
)
from citrus.report.files import count, text
from citrus.report.read import Evaluated, Record

MOST_COLUMNS = 4  # runs that stand beside each other as columns; more become rows
OUTCOMES = {
    "certified": "proved right under every shared perturbation",
    "gap": "open: neither proved nor attacked",
    "fooled": "falls to a universal attack",
    "misclassified": "wrong without any perturbation",
    "error": "error during certification",
}


def headline_certification(record: Record) -> Certified | None:
    """The one that the run is judged by: nearest to its own eps, finished, of more than one image, with most images."""

    def rank(c: Certified) -> tuple[object, ...]:
        own = c.group_size == (count(record.config, "group_size") or 5)
        return (-abs(c.eps - (record.eps or 0.0)), c.finished, c.group_size > 1, own, c.verifier == "citrus", c.images)

    return max(record.certifications, key=rank, default=None)


def headline_evaluation(record: Record) -> Evaluated:
    """That of training, else that of an attack at the run's eps, else any."""
    own = [attack for attack in record.attacks if attack.eps == record.eps]
    return record.summary or next(iter(own or record.attacks), Evaluated())


def alone(record: Record, headline: Certified) -> tuple[float, str] | None:
    """Percent certified one by one at the headline's eps, and how that is known."""
    same = [c for c in record.certifications if c.group_size == 1 and c.eps == headline.eps and c.finished]
    if same:
        best = max(same, key=lambda c: (c.images, c.certified))
        return best.certified, _scope(best, record)
    if headline.alone is None:
        return None
    return headline.alone, f"{headline.images} images, by the cascade's first stages{_at(headline.eps, record)}"


def headline(records: list[Record]) -> Section:
    blocks: list[Block] = []
    leads = [(record, c) for record in records if (c := headline_certification(record)) is not None]
    if len(records) == 1 and leads:
        blocks.append(Paragraph(_lead(leads[0][1]), "lead"))
    if leads:
        blocks.append(_outcome_bars(leads, len(records) > 1))
    blocks.append(headline_table(records))
    return Section("headline", "How robust it is" if len(records) == 1 else "How robust they are", tuple(blocks))


def _lead(c: Certified) -> Words:
    so_far = "" if c.finished else f" (so far: {c.images} of {c.asked} images)"
    shared = f"every perturbation that {c.group_size} of them share" if c.group_size > 1 else "every perturbation"
    return (
        Strong(f"{c.certified:.2f} %"),
        f" of {c.images} test images are proved to stay right under {shared}, up to eps {format_eps(c.eps)}{so_far}. "
        "The strongest attack found leaves ",
        Strong(f"{c.attacked:.2f} %"),
        f"; without any perturbation {c.correct:.2f} % are right.",
    )


def _outcome_bars(leads: list[tuple[Record, Certified]], named: bool) -> Bars:
    present = [name for name in OUTCOMES if any(c.outcomes.get(name) for _, c in leads)]
    bars = []
    for record, c in leads:
        parts = tuple((c.outcomes.get(name, 0), name) for name in present)
        told = ", ".join(f"{name} {number} of {c.images}" for number, name in parts)
        label = f"{record.name}: " if named else ""
        bars.append(Bar(f"{label}eps {format_eps(c.eps)}, N = {c.group_size}, {c.images} images", parts, told))
    return Bars("Every test image once", tuple(bars), tuple(Key(OUTCOMES[name], name) for name in present))


def headline_table(records: list[Record]) -> Table:
    columns = [_column(record) for record in records]
    names = [name for name in columns[0] if len(records) > 1 or name not in ("Method", "eps")]
    rows = tuple(_noted(name, [column[name] for column in columns]) for name in names)
    table = Table("Percent of test images classified right", ("Measure", *(r.name for r in records)), rows)
    return table if len(records) <= MOST_COLUMNS else table.transposed()


def _noted(name: str, cells: list[Cell]) -> tuple[Cell, ...]:
    """A row of the table; a note that is the same for all runs stands below the measure, once."""
    if len({cell.note for cell in cells}) > 1:
        return Cell(name), *cells
    return Cell(name, cells[0].note), *(replace(cell, note="") for cell in cells)


def _column(record: Record) -> dict[str, Cell]:
    measured, proved = headline_evaluation(record), headline_certification(record)
    single = alone(record, proved) if proved else None
    at = _at(measured.eps, record)
    n = f"{measured.images} images" if measured.images else ""
    k = f"first {measured.attacked_images} images" if measured.attacked_images else ""
    group = f", N = {measured.group_size}" if measured.group_size else ""
    steps = f", {measured.pgd_steps} steps" if measured.pgd_steps else ""
    setting = [text(record.config, "data"), text(record.config, "network")]
    return {
        "Method": Cell(record.method or ABSENT, ", ".join(word for word in setting if word)),
        "eps": Cell(ABSENT if record.eps is None else format_eps(record.eps)),
        "Clean": _percent(measured.clean, n),
        "Certified, one by one (IBP)": _percent(measured.ibp_certified, n + at),
        "Certified, one by one": _percent(*single) if single else Cell(ABSENT),
        "Certified, universal": _percent(proved.certified, _scope(proved, record)) if proved else Cell(ABSENT),
        "Attacked, one by one (PGD)": _percent(measured.pgd, k + steps + at),
        "Attacked, universal": _percent(measured.universal, k + group + at),
        "Attacked, universal, while certifying": (
            _percent(proved.attacked, _scope(proved, record)) if proved else Cell(ABSENT)
        ),
        "Training time": _time(record.training_seconds),
        "Certification time": _time(proved.seconds if proved else None),
    }


def _time(seconds: float | None) -> Cell:
    return Cell(ABSENT if seconds is None else duration(seconds))


def _scope(c: Certified, record: Record) -> str:
    return f"{c.images} images, N = {c.group_size}{_at(c.eps, record)}" + ("" if c.finished else ", unfinished")


def _at(eps: float | None, record: Record) -> str:
    """Says at what eps something was measured, if that is not the run's own."""
    return "" if eps is None or eps == record.eps else f", eps {format_eps(eps)}"


def _percent(value: float | None, note: str) -> Cell:
    return Cell(ABSENT) if value is None else Cell(f"{value:.2f}", note)


def missing(records: list[Record]) -> Section | None:
    """What is not there, with the command that would make it."""
    items: list[Words] = []
    for record in records:
        for entry in record.missing:
            name: Words = (Strong(record.name), ": ") if len(records) > 1 else ()
            command: Words = (" ", Code(entry.command)) if entry.command else ()
            items.append((*name, entry.text, *command))
    return Section("missing", "What is missing", (Items(tuple(items)),)) if items else None
