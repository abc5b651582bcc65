"""The paper's figures: accuracy against tau and against group size (Figure 5), and the loss of boxes (Figure 4)."""

from collections.abc import Sequence
from typing import Any

from citrus.bench.findings import Finding, above, certified_noise, clean_noise, trend
from citrus.bench.losses import BoxLosses
from citrus.bench.published import published
from citrus.bench.scales import GROUP, LARGEST_EXACT, SAMPLED, Case, Scale
from citrus.bench.sheets import Columns, Sheet
from citrus.bench.study import Results, Study
from citrus.bench.tables import ACCURACIES, certified_of, clean_of, known, missing, ours, unknown
from citrus.report.charts import Axis, Line, count_axis, line_chart, linear_axis, series_key, value_axis
from citrus.report.document import Figure

LINES = (("clean", "clean accuracy"), ("uap", "UAP attack"), ("certified_uap", "certified UAP accuracy"))
MOST_POINTS = 40  # of a line over the steps of an epoch


# ------------------------------------------------------------------------------------------------------------ tau / eps


def tau_cases(scale: Scale) -> list[Case]:
    return [scale.tau_case(tau) for tau in scale.taus]


def tau_sweep(study: Study, found: Results) -> Sheet:
    scale, cases = study.scale, tau_cases(study.scale)
    rows = tuple(
        {"tau_ratio": f"{tau:g}", **ours(c, found[c]), **_published("ablation-tau", tau_ratio=tau)}
        for tau, c in zip(scale.taus, cases, strict=True)
    )
    return Sheet(
        "ablation-tau",
        "The size of the boxes",
        (("tau / eps", "tau_ratio"), *ACCURACIES),
        rows,
        _sweep_findings(found, cases, scale.taus, "a larger tau"),
        note=f"Ours: {scale.focus}. The published values are for CIFAR-10 at 8/255.",
        figures=_sweep_figure("ablation-tau", "tau / eps", scale.taus, rows),
        missing=missing(found, cases),
    )


# ----------------------------------------------------------------------------------------------------------- group size


def group_cases(scale: Scale) -> list[Case]:
    return [scale.group_case(size) for size in scale.groups]


def group_sweep(study: Study, found: Results) -> Sheet:
    scale, cases = study.scale, group_cases(study.scale)
    rows = tuple(
        {
            "group_size": size,
            "boxes": SAMPLED if size > LARGEST_EXACT else size - 1,
            **ours(c, found[c]),
            **_published("ablation-batch", group_size=size),
        }
        for size, c in zip(scale.groups, cases, strict=True)
    )
    columns: Columns = (("group", "group_size"), ("boxes an image", "boxes"), *ACCURACIES)
    batch = (
        "As in the paper the batch is one group."
        if scale.epochs is None
        else f"The paper's batch is one group; here all have {scale.batch_size} images, and only the groups differ."
    )
    return Sheet(
        "ablation-batch",
        "How many images exchange perturbations",
        (*columns, ("training s", "training_seconds")),
        rows,
        (
            *_sweep_findings(found, cases, [float(size) for size in scale.groups], "a larger group"),
            _smallest_group(found, cases, scale),
        ),
        note=f"Ours: {scale.focus}. {batch} In groups larger than {LARGEST_EXACT} each image meets {SAMPLED} of the "
        "others at random, so that it costs what a group of 5 costs. The published values are for CIFAR-10 at 8/255.",
        figures=_sweep_figure("ablation-batch", "group size", [float(m) for m in scale.groups], rows, True),
        missing=missing(found, cases),
    )


def _smallest_group(found: Results, cases: Sequence[Case], scale: Scale) -> Finding:
    claim = f"the smallest group ({scale.groups[0]}) has the lowest certified UAP accuracy"
    if not known(found, cases):
        return unknown(claim)[0]
    first, *others = (found[case] for case in cases)
    least = min(others, key=certified_of)
    evidence = f"{certified_of(first):.2f}, the others from {certified_of(least):.2f} on"
    return above(claim, certified_of(least), certified_of(first), certified_noise(first, least), evidence)


# ------------------------------------------------------------------------------------------- same-input and cross-input


def loss_cases(scale: Scale) -> list[Case]:
    return [Case(scale.focus, "citrus")]


def loss_figure(study: Study, found: Results) -> Sheet:
    cases = loss_cases(study.scale)
    dominates = "the loss of the same-input box exceeds the sum of all cross-input boxes"
    one = "one cross-input box dominates: the largest is more than half of their sum"
    title, columns = "Same-input and cross-input loss", (("loss", "loss"), ("mean over the last epoch", "mean"))
    if not known(found, cases):
        return Sheet("figure-loss", title, columns, (), unknown(dominates, one), missing=missing(found, cases))
    losses = study.losses(cases[0])
    lines = {
        "same-input box (SI)": losses.same,
        f"sum of the {GROUP - 1} cross-input boxes": losses.cross_sum,
        "largest cross-input box": losses.cross_max,
    }
    si, total, largest = (sum(values) / len(values) for values in lines.values())
    return Sheet(
        "figure-loss",
        title,
        columns,
        tuple(
            {"loss": label, "mean": f"{mean:.4f}", "value": mean, "batches": len(losses.same)}
            for label, mean in zip(lines, (si, total, largest), strict=True)
        ),
        (
            Finding(dominates, "yes" if si > total else "no", f"SI {si:.4f}, sum {total:.4f}"),
            Finding(one, "yes" if largest > total / 2 else "no", f"{100 * largest / total:.0f} % of the sum"),
        ),
        note=f"Ours: {study.scale.focus}, the trained network on the batches of its last epoch, mean over the images.",
        figures={"figure-loss": _loss_chart(losses, list(lines))},
    )


def _loss_chart(losses: BoxLosses, labels: list[str]) -> Figure:
    series = (losses.same, losses.cross_sum, losses.cross_max)
    lines = [Line(label, _thinned(values), k) for k, (label, values) in enumerate(zip(labels, series, strict=True))]
    x = count_axis("step of the last epoch", [point[0] for line in lines for point in line.points])
    y = linear_axis("loss", [0.0, *(point[1] for line in lines for point in line.points)])
    means = ", ".join(f"{label} {sum(v) / len(v):.4f}" for label, v in zip(labels, series, strict=True))
    keys = tuple(series_key(label, k) for k, label in enumerate(labels))
    return line_chart(
        *("figure-loss", "Loss of boxes over the last epoch", f"Means over the epoch: {means}.", (x, y), lines, keys)
    )


def _thinned(values: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Means of neighbours, at their middle."""
    size = -(-len(values) // MOST_POINTS)
    parts = [(start, values[start : start + size]) for start in range(0, len(values), size)]
    return tuple((start + (len(part) + 1) / 2, sum(part) / len(part)) for start, part in parts)


# -------------------------------------------------------------------------------------------------- what sweeps share


def _published(table: str, **value: float) -> dict[str, Any]:
    theirs = published(table).row("cifar10-8-255", "citrus", **value)
    return {"published_clean": theirs.clean, "published_certified": theirs.certified}


def _sweep_findings(found: Results, cases: Sequence[Case], x: Sequence[float], what: str) -> tuple[Finding, ...]:
    clean, certified = f"{what} tends to lower clean accuracy", f"{what} tends to raise certified UAP accuracy"
    if not known(found, cases):
        return unknown(clean, certified)
    runs = [found[case] for case in cases]
    return (
        trend(clean, runs, x, [clean_of(run) for run in runs], False, clean_noise),
        trend(certified, runs, x, [certified_of(run) for run in runs], True, certified_noise),
    )


def _sweep_figure(
    name: str, label: str, x: Sequence[float], rows: Sequence[dict[str, Any]], logarithmic: bool = False
) -> dict[str, Figure]:
    """Our accuracies against what was varied, where there are at least two."""
    there = [(value, row) for value, row in zip(x, rows, strict=True) if "clean" in row]
    if len(there) < 2:
        return {}
    lines = [
        Line(title, tuple((value, row[key]) for value, row in there), k, dashed=key == "uap")
        for k, (key, title) in enumerate(LINES)
    ]
    across: Axis = value_axis(label, [(value, f"{value:g}") for value, _ in there], logarithmic)
    up = linear_axis("percent", [point[1] for line in lines for point in line.points], span=5)
    told = "; ".join(
        f"{value:g}: clean {row['clean']:.2f}, certified {row['certified_uap']:.2f}" for value, row in there
    )
    keys = tuple(series_key(title, k) for k, (_, title) in enumerate(LINES))
    title = f"Accuracy against {label}"
    return {name: line_chart(name, title, f"Percent by {label}: {told}.", (across, up), lines, keys)}
