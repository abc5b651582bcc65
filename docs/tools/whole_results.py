"""What the page of results says of one perturbation for many images: tables, a curve, and what it costs."""

from collections.abc import Sequence
from typing import Any

from citrus.report.charts import Line, line_chart, linear_axis, series, svg_file, value_axis

Row = dict[str, Any]
STUDY, DRAWN, EVERYBODY = "whole", "zoo-cifar10-2-255", "zoo-cifar10-2-255-everybody"
FIGURE = "whole-n.svg"


def network_rows(proofs: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Public networks, a line each, with what is proved and attacked for each group size."""
    proved = [row for row in proofs if row["study"] == STUDY and row["kind"] == "certification"]
    found = [row for row in proved if not row["name"].startswith("zoo-")]
    sizes = sorted({row["group_size"] for row in found})
    by_network: dict[tuple[str, str], dict[int, Row]] = {}
    for row in found:
        by_network.setdefault((row["network"], row["eps"]), {})[row["group_size"]] = row
    lines = []
    for (network, eps), own in by_network.items():
        cells = [network, eps]
        for size in sizes:
            row = own[size]
            cells += [f"**{row['certified']:g}** to {row['attacked']:g}", f"{row['seconds']:.0f}"]
        lines.append(cells)
    return ["network", "eps", *(cell for size in sizes for cell in (f"N = {size}", "s"))], lines


def curve_rows(proofs: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Our network, a line for each group size."""
    heads = ["images that share one perturbation", "certified", "attacked", "minutes"]
    lines = [
        [size_of(row), f"**{row['certified']:.2f}**", f"{row['attacked']:.2f}", f"{row['seconds'] / 60:.1f}"]
        for row in curve(proofs)
    ]
    return heads, lines


def curve(proofs: Sequence[Row]) -> list[Row]:
    own = [row for row in proofs if row["study"] == STUDY and row["name"].startswith(f"{DRAWN}-n")]
    return sorted(own, key=lambda row: row["group_size"])


def everybody(proofs: Sequence[Row]) -> Row:
    """Our network on its whole test set."""
    return [row for row in proofs if row["study"] == STUDY and row["name"] == EVERYBODY][-1]


def size_of(row: Row) -> str:
    return f"all {row['images']:,}" if row["group_size"] >= row["images"] else f"{row['group_size']:,}"


def figure(proofs: Sequence[Row]) -> str:
    """Percent that stay right, proved and under attack, over the images that share one perturbation."""
    found, key = curve(proofs), series(0)
    parts = [
        Line(name, [(row["group_size"], row[name]) for row in found], key, name == "attacked")
        for name in ("certified", "attacked")
    ]
    ticks = [(row["group_size"], size_of(row).split()[0].replace(",", "")) for row in found]
    across = value_axis("images that share one perturbation, N", ticks, logarithmic=True)
    up = linear_axis("percent of test images", (y for line in parts for _, y in line.points), span=4)
    told = "; ".join(f"{line.label}: " + ", ".join(f"{y:.2f} at N {x:g}" for x, y in line.points) for line in parts)
    title = "What one perturbation leaves, CIFAR-10 at 2/255"
    strokes = ("solid: proved (lower bound)", "dashed: left by the attack (upper bound)")
    return svg_file(line_chart("whole-n", title, told, (across, up), parts, strokes, [(parts[0], parts[1])]))


def growth_rows(proofs: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """What the dual costs with more and more choices, without and with splits."""
    found = [row for row in proofs if row["study"] == STUDY and row["kind"] == "growth"]
    lines = []
    for row in (row for row in found if row["rounds"] == 0):
        split = next(r for r in found if r["rounds"] and r["choices"] == row["choices"])
        cells = [str(row["choices"]), str(row["planes"]), f"{1e3 * row['update_seconds']:.0f}"]
        for one in (row, split):
            near = next(seconds for seconds, bound in one["curve"] if bound <= 1.01 * one["bound"])
            cells += [f"{one['bound']:.1f} of {one['images']}", f"{near:.0f}"]
        lines.append([*cells, str(split["leaves"])])
    heads = ["choices", "planes", "ms an update", "may fall", "s to 1 %", "with splits", "s to 1 %", "leaves"]
    return heads, lines


def paragraph(last: Row) -> str:
    """About our network on its whole test set."""
    minutes, checked = (f"{last[key] / 60:.1f}" for key in ("seconds", "check_seconds"))
    return (
        f"Our ConvSmall for CIFAR-10 at 2/255 on all {last['images']:,} test images, one perturbation for everybody: "
        f"**{last['certified']:.2f} %** certified, {last['attacked']:.2f} % left by the attack, "
        f"{last['correct']:.2f} % right without one; {last['alone']:.2f} % are proved one by one. {minutes} minutes, "
        f"and {checked} to check its certificate of {last['certificate_mb']:.0f} MB. Below the first 2,000 test images "
        "in groups of N, at most 5 s for every 20 open labels. One thread of an AMD EPYC that did other work as well, "
        "torch 2.13.0+cpu."
    )


def blocks_rows(proofs: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """What is lost by cutting a problem, by how it is cut."""
    found = {(r["parts"], r["how"]): r["bound"] for r in proofs if r["study"] == STUDY and r["kind"] == "blocks"}
    ways = ("random", "by class", "chosen")
    lines = [["1", *[f"{found[1, 'whole']:.1f}"] * len(ways)]]
    for count in sorted({parts for parts, _ in found} - {1}):
        lines.append([str(count), *(f"{found[count, way]:.1f}" for way in ways)])
    return ["problems", *ways], lines


HEAD = (
    "# Results for everybody\n\n"
    "One perturbation for all images, and for more and more of them. Made by `python docs/tools/results_page.py` from "
    "rows of the study `whole` in `results/certifications.jsonl`; how they came about is in `dev/LOG.md`."
)
NETWORKS = (
    "[Public networks with published values](results.md#public-networks-with-published-values): their first 200 "
    "correct test images in groups of N, percent certified to attacked, and seconds in all on one thread of the same "
    "machine."
)
COST = (
    "What the dual costs (`benchmarks/whole.py growth`, the same machine): an update of the multipliers, images that "
    "may fall, seconds until the bound is within a hundredth of its last value; without splits, and with two a label."
)
BLOCKS = (
    "Where memory does not hold one problem it is cut into several, whose bounds add up: images that may fall of 365 "
    "with 500 open labels, no splits, cut at random, by class, and so that planes of one part point in different "
    "directions."
)
