"""The paper's tables: which runs each one needs, and what it says when they are there.

Table 1 (main), Table 2 (adversarial), Table 3 (ablation-si), and the times of appendix C (runtimes).
"""

from collections.abc import Sequence
from typing import Any

from citrus.bench.findings import Finding, above, certified_noise, clean_noise
from citrus.bench.published import published
from citrus.bench.scales import Case, Scale, Setting
from citrus.bench.sheets import Columns, Sheet
from citrus.bench.study import Measured, Results, Study
from citrus.console import duration

CERTIFIED = ("ibp", "sabr", "taps", "citrus")
ADVERSARIAL = ("pgd", "uat", "cw_uat", "citrus")
NAMES = {"cw_uat": "CW-UAT", "citrus_si": "CITRUS + SI"}
CLOSE = 1.69  # points that the paper calls comparable
LITTLE = 5.0  # percent that count as next to nothing
ACCURACIES: Columns = (
    ("clean", "clean"),
    ("in the paper", "published_clean"),
    ("certified UAP", "certified_uap"),
    ("in the paper", "published_certified"),
    ("UAP attack", "uap"),
)


def title_of(method: str) -> str:
    return NAMES.get(method, method.upper())


def ours(case: Case, measured: Measured) -> dict[str, Any]:
    """What every row says of a run."""
    row = measured.row
    start: dict[str, Any] = {"setting": str(case.setting), "method": title_of(case.method), "run": case.name}
    if row.error:
        return start | {"error": row.error}
    return start | {
        "clean": row.clean,
        "pgd": row.pgd,
        "uap": row.uap,
        "certified_single": row.certified_single,
        "certified_uap": row.certified_uap,
        "training_seconds": row.training_seconds,
        "certification_seconds": measured.certification_seconds,
        "seconds": row.seconds,
    }


def missing(found: Results, cases: Sequence[Case]) -> tuple[str, ...]:
    return tuple(f"{c.setting} {c.name}: {found[c].row.error}" for c in cases if found[c].row.error)


def beside(table: str, case: Case, setting: str) -> dict[str, Any]:
    """The paper's accuracies for a method in one of its settings."""
    theirs = published(table).row(setting, case.method)
    return {"published_clean": theirs.clean, "published_certified": theirs.certified}


def known(found: Results, cases: Sequence[Case]) -> bool:
    return not any(found[case].row.error for case in cases)


def clean_of(measured: Measured) -> float:
    return measured.row.clean


def certified_of(measured: Measured) -> float:
    return measured.row.certified_uap


def unknown(*claims: str) -> tuple[Finding, ...]:
    return tuple(Finding(claim, "not measured", "a run is missing") for claim in claims)


# ------------------------------------------------------------------------------------------------------------ Table 1


def main_cases(scale: Scale) -> list[Case]:
    return [Case(setting, method) for setting in scale.main for method in CERTIFIED]


def main(study: Study, found: Results) -> Sheet:
    cases = main_cases(study.scale)
    findings = [f for setting in study.scale.main for f in _main_findings(found, setting)]
    return Sheet(
        "main",
        "Certified training methods",
        (("setting", "setting"), ("method", "method"), *ACCURACIES),
        tuple(ours(c, found[c]) | beside("main", c, c.setting.published) for c in cases),
        tuple(findings),
        missing=missing(found, cases),
    )


def _main_findings(found: Results, setting: Setting) -> tuple[Finding, ...]:
    best = f"{setting}: CITRUS has the highest clean accuracy"
    close = f"{setting}: its certified UAP accuracy is the highest or at most {CLOSE} points below"
    cases = [Case(setting, method) for method in CERTIFIED]
    if not known(found, cases):
        return unknown(best, close)
    citrus, *rivals = (found[case] for case in reversed(cases))
    clean, certified = max(rivals, key=clean_of), max(rivals, key=certified_of)
    return (
        above(
            *(best, clean_of(citrus), clean_of(clean), clean_noise(citrus, clean)),
            f"{clean_of(citrus):.2f}, best other {title_of(clean.row.name)} {clean_of(clean):.2f}",
        ),
        above(
            *(close, certified_of(citrus) + CLOSE, certified_of(certified), certified_noise(citrus, certified)),
            f"{certified_of(citrus):.2f}, best other {title_of(certified.row.name)} {certified_of(certified):.2f}",
        ),
    )


# ------------------------------------------------------------------------------------------------------------ Table 2


def adversarial_cases(scale: Scale) -> list[Case]:
    return [Case(setting, method) for setting in scale.adversarial for method in ADVERSARIAL]


def adversarial(study: Study, found: Results) -> Sheet:
    cases = adversarial_cases(study.scale)
    findings = [f for setting in study.scale.adversarial for f in _adversarial_findings(found, setting)]
    return Sheet(
        "adversarial",
        "Universal and standard adversarial training",
        (("setting", "setting"), ("method", "method"), *ACCURACIES),
        tuple(ours(c, found[c]) | beside("adversarial", c, "cifar10-8-255") for c in cases),
        tuple(findings),
        note="The published values are for CIFAR-10 at 8/255.",
        missing=missing(found, cases),
    )


def _adversarial_findings(found: Results, setting: Setting) -> tuple[Finding, ...]:
    clean = f"{setting}: every adversarially trained network has a higher clean accuracy than CITRUS"
    more = f"{setting}: CITRUS has the highest certified UAP accuracy"
    nothing = f"{setting}: adversarial training leaves next to nothing certified (below {LITTLE:g} %)"
    cases = [Case(setting, method) for method in ADVERSARIAL]
    if not known(found, cases):
        return unknown(clean, more, nothing)
    citrus, *rivals = (found[case] for case in reversed(cases))
    least, most = min(rivals, key=clean_of), max(rivals, key=certified_of)
    return (
        above(
            *(clean, clean_of(least), clean_of(citrus), clean_noise(citrus, least)),
            f"CITRUS {clean_of(citrus):.2f}, the others at least {clean_of(least):.2f}",
        ),
        above(
            *(more, certified_of(citrus), certified_of(most), certified_noise(citrus, most)),
            f"CITRUS {certified_of(citrus):.2f}, the others at most {certified_of(most):.2f}",
        ),
        Finding(nothing, "yes" if certified_of(most) < LITTLE else "no", f"at most {certified_of(most):.2f}"),
    )


# ------------------------------------------------------------------------------------------------------------ Table 3


def same_input_cases(scale: Scale) -> list[Case]:
    return [Case(scale.focus, "citrus"), Case(scale.focus, "citrus_si")]


def same_input(study: Study, found: Results) -> Sheet:
    cases = same_input_cases(study.scale)
    lower = "adding same-input boxes lowers clean accuracy"
    higher = "adding same-input boxes raises certified UAP accuracy a little"
    findings = unknown(lower, higher)
    if known(found, cases):
        a, b = (found[case] for case in cases)
        clean, certified = (clean_of(a), clean_of(b)), (certified_of(a), certified_of(b))
        findings = (
            above(lower, clean[0], clean[1], clean_noise(a, b), f"{clean[0]:.2f} to {clean[1]:.2f}"),
            above(
                higher, certified[1], certified[0], certified_noise(a, b), f"{certified[0]:.2f} to {certified[1]:.2f}"
            ),
        )
    return Sheet(
        "ablation-si",
        "CITRUS with same-input boxes",
        (("method", "method"), ("setting", "setting"), *ACCURACIES),
        tuple(ours(c, found[c]) | beside("ablation-si", c, "cifar10-8-255") for c in cases),
        findings,
        note="The published values are for CIFAR-10 at 8/255.",
        missing=missing(found, cases),
    )


# --------------------------------------------------------------------------------------------------------------- times


def runtimes(study: Study, found: Results) -> Sheet:
    cases, scale = main_cases(study.scale), study.scale
    return Sheet(
        "runtimes",
        "Training and certification times",
        (
            *(
                ("setting", "setting"),
                ("method", "method"),
                ("training", "training"),
                ("in the paper", "published_training"),
            ),
            *(("certification", "certification"), ("s an image", "image_seconds"), ("in the paper", "published_image")),
        ),
        tuple(ours(c, found[c]) | _times(c, found[c], scale.images) for c in cases),
        tuple(_cost_finding(found, setting) for setting in scale.main),
        note=f"Ours certifies the first {scale.images} test images. Times are hours:minutes:seconds.",
        missing=missing(found, cases),
    )


def _times(case: Case, measured: Measured, images: int) -> dict[str, Any]:
    theirs = published("runtimes").row(case.setting.published, case.method)
    row = measured.row
    minutes, hours = theirs.training_minutes, theirs.certification_hours
    return {
        "training": None if row.error else duration(row.training_seconds),
        "certification": None if row.error else duration(measured.certification_seconds),
        "image_seconds": None if row.error else measured.certification_seconds / images,
        "published_training": None if minutes is None else duration(60 * minutes),
        "published_image": None if hours is None else 3600 * hours / 10_000,
    }


def _cost_finding(found: Results, setting: Setting) -> Finding:
    claim = f"{setting}: CITRUS takes several times as long to train as SABR (4.21 times in the paper)"
    cases = [Case(setting, "sabr"), Case(setting, "citrus")]
    if not known(found, cases):
        return unknown(claim)[0]
    sabr, citrus = (found[case].row.training_seconds for case in cases)
    ratio = citrus / sabr if sabr else float("inf")
    return Finding(claim, "yes" if ratio >= 2 else "no", f"{ratio:.2f} times: {citrus:.0f} s and {sabr:.0f} s")
