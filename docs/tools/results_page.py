"""Writes docs/results.md, docs/everybody.md and figures from the rows in results/: python docs/tools/results_page.py

Every number of the pages is a row, or stands in the paper (citrus/studies/published.json). A test fails when a page
is not what this file makes of the rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import whole_results as whole

from citrus.report.charts import Line, line_chart, linear_axis, series, svg_file
from citrus.studies import read_rows
from citrus.studies.paper import published

DOCS = Path(__file__).parents[1]
RESULTS = DOCS.parent / "results"
Row = dict[str, Any]
SETTINGS = {
    "cifar10-8-255": "CIFAR-10, 8/255",
    "cifar10-2-255": "CIFAR-10, 2/255",
    "mnist-0.1": "MNIST, 0.1",
    "mnist-0.3": "MNIST, 0.3",
}
ZOO = {
    "mnist-0.1": ("mnist-0.1-f1.1-s1", "clean", "single"),
    "mnist-0.3": ("mnist-0.3-s0", "clean", "single"),
    "cifar10-8-255": ("cifar10-8-255-s0", "clean", "single"),
    "cifar10-2-255": ("c2-linear0.3-r1.25", "clean_first1000", "crown_first1000"),
}
"""By network: the run it comes from, and what is compared with the authors' network."""
DRAWN, DRAWN_IMAGES = "cifar10-8-255", 1000  # a figure shows what was proved of the same images for every network
AXES = ("clean accuracy, percent (first 1,000; published: 10,000)", "survive every shared perturbation, percent")


def pages() -> dict[str, str]:
    """The texts of both pages, and their figures, by the name of their file."""
    runs, proofs, steps = (read_rows(RESULTS / f"{name}.jsonl") for name in ("runs", "certifications", "steps"))
    figures: dict[str, str] = {whole.FIGURE: whole.figure(proofs)}
    proved = [acceptance(proofs), zoo(runs, proofs), cnn7(runs, proofs, figures)]
    costs = [times(proofs), gpu_steps(steps), cpu_steps(steps), method_steps(steps)]
    texts = {"results.md": [HEAD, *proved, *costs], "everybody.md": [everybody(proofs)]}
    return {name: "\n\n".join(parts) + "\n" for name, parts in texts.items()} | figures


HEAD = (
    "# Results\n\n"
    "Made by `python docs/tools/results_page.py` from the rows in `results/` of the repository: every run, "
    "certification and timing that was made, failed ones included, with its settings and machine (`citrus bench rows "
    "results/runs.jsonl` lists the runs). How settings were found, what was tried and failed, and why, is in "
    "`dev/LOG.md`. Percent of images; *certified* is proved, a lower bound; *attacked* is what an attack leaves, an "
    "upper bound. One seed each. [One perturbation for everybody](everybody.md) has a page of its own."
)


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, cells)) + " |" for cells in lines)


def section(title: str, text: str, *more: str) -> str:
    return "\n\n".join([f"## {title}", text, *more])


def two(value: float) -> str:
    return f"{value:.2f}"


# ------------------------------------------------------------------------------------------------------ certification


def everybody(proofs: Sequence[Row]) -> str:
    """One perturbation for more and more images, up to the whole test set."""
    picture = f"![what one perturbation leaves, by the images that share it]({whole.FIGURE})"
    parts = (whole.curve_rows, whole.network_rows, whole.growth_rows, whole.blocks_rows)
    by_size, by_network, costs, cuts = (table(*part(proofs)) for part in parts)
    told = whole.paragraph(whole.everybody(proofs))
    return "\n\n".join(
        [whole.HEAD, told, by_size, picture, whole.NETWORKS, by_network, whole.COST, costs, whole.BLOCKS, cuts]
    )


def acceptance(proofs: Sequence[Row]) -> str:
    text = (
        "Networks of RaVeN and RACoon, test images in order, misclassified ones dropped, P groups of k. CROWN (images "
        "proved alone) and I/O (exact minimum over CROWN's planes) must be equal to the published values. One thread "
        "of an AMD EPYC beside other work, torch 2.13.0+cpu, at most 20 s of search and refinement per group. After "
        "that 100 restarts of the universal attack and 10,000 random corners of the box left no group below its "
        "certified count."
    )
    rows, last = [], {row["name"]: row for row in proofs if row["study"] == "acceptance"}
    for row in last.values():
        theirs = row["published"]
        alone, io = f"{theirs['crown']} / {row['single']}", f"{theirs['io']} / {row['io']}"
        best, seconds = f"{theirs['best']} {theirs['by']}", f"{row['s_per_group']:.1f} s"
        name = [row["network"], row["group_size"], row["groups"], row["eps"]]
        rows.append([*name, alone, io, best, f"**{row['certified']}**", row["attacked"], seconds])
    heads = ("network", "k", "P", "eps", "CROWN: published / ours", "I/O", "best published", "certified", "attacked")
    return section("Public networks with published values", text, table((*heads, "a group"), rows))


def times(proofs: Sequence[Row]) -> str:
    text = (
        "Groups of 5 correct images among all 10,000 test images of CIFAR-10 at 8/255, on an H200, seconds; some runs "
        "shared it with other jobs."
    )
    rows = []
    for row in (row for row in proofs if row["study"] == "cnn7" and row["images"] == 10_000):
        stages = [f"{row['stages'].get(name, 0):.1f}" for name in STAGES]
        rows.append([row["name"], f"{row['seconds']:.0f}", *stages, two(row["certified"]), f"{row['memory_gb']:.1f}"])
    heads = ["CNN7 network", "all", *STAGES, "certified", "GB"]
    [small] = (row for row in proofs if row["study"] == "certify-bench")
    said = ", ".join(f"{name}: {value:.2f} s" for name, value in small["seconds"].items())
    cpu = f"ConvSmall on one CPU thread: {said}; {small['peak_memory_gb']:.2f} GB."
    return section("Certification times", text, table(heads, rows), cpu)


STAGES = ("interval", "crown", "alpha", "attack", "search", "joint")


# ------------------------------------------------------------------------------------------------------------ training


def zoo(runs: Sequence[Row], proofs: Sequence[Row]) -> str:
    text = (
        "ConvSmall. Clean and *single* (by intervals or CROWN with interval boxes) on all 10,000 test images; at "
        "CIFAR-10 2/255 on the first 1,000, by CROWN for every layer. The authors' public networks are measured in the "
        "same way. *N = 5*: all 10,000 test images in groups of 5 correct ones, certified to attacked, at most 5 s a "
        "group, minutes of one CPU thread. The 2/255 network took 12 minutes on a GPU before the minutes given here."
    )
    rows = []
    for setting, (name, clean, single) in ZOO.items():
        [ours] = (row for row in runs if row["name"] == name and row.get("on") == "test" and single in row)
        [theirs] = (row for row in runs if row["name"] == f"authors-{setting}")
        [proof] = (row for row in proofs if row["study"] == "zoo" and row["name"] == setting)
        values = [two(row[key]) for row in (ours, theirs) for key in (clean, single)]
        seconds = next(row["train_seconds"] for row in runs if row["name"] == name and "train_seconds" in row)
        proved = [f"{two(proof['certified'])} to {two(proof['attacked'])}", f"{proof['seconds'] / 60:.0f}"]
        rows.append([f"`{setting}`", f"{seconds / 60:.1f}", *values, *proved])
    heads = ["network", "training, minutes", "clean", "single", "authors: clean", "authors: single", "N = 5", "minutes"]
    return section("The zoo beside the authors' networks", text, table(heads, rows))


def cnn7(runs: Sequence[Row], proofs: Sequence[Row], figures: dict[str, str]) -> str:
    """One table, and two figures of one setting."""
    text = (
        "Clean and *single* on all 10,000 test images; then groups of N correct images, certified to attacked, with "
        "the clean accuracy of these images. *(of n)*: so many runs shared the H200 for a time. *Boxes*: those of the "
        "inner layers while certifying."
    )
    rows, pictures = [], []
    for setting in SETTINGS:
        trained = trained_cnn7(runs, setting)
        found = [row for row in proofs if row["study"] == "cnn7" and row["name"] in trained]
        rows += cnn7_rows(setting, trained, found)
        for size in (5, 20) if setting == DRAWN else ():
            figures[f"cnn7-n{size}.svg"] = cnn7_figure(size, trained, found)
            pictures.append(f"![clean against certified accuracy, groups of {size}](cnn7-n{size}.svg)")
    heads = ["setting", "method", "tau/eps", "epochs", "minutes", "clean", "single", "boxes", "clean, first 1,000"]
    return section("CNN7", text, table([*heads, "N = 5", "N = 20", "N = 5, all 10,000"], rows), *pictures)


def trained_cnn7(runs: Sequence[Row], setting: str) -> dict[str, Row]:
    """The last finished run of each name that was measured on the test set."""
    rows = [r for r in runs if r.get("recipe", "").startswith(setting) and r.get("on") == "test"]
    return {r["name"]: r for r in rows if r.get("config", {}).get("network") == "cnn7"}


def cnn7_rows(setting: str, trained: dict[str, Row], found: Sequence[Row]) -> Iterator[list[str]]:
    for run in sorted(trained.values(), key=lambda run: run["clean"]):
        own = {(row["group_size"], row["images"]): row for row in found if row["name"] == run["name"]}
        if not own:
            continue
        stages, first = stages_of(run, trained), own[(20, 1000)]
        tau = run["config"]["method"].get("tau_ratio")
        groups = [own.get(key) for key in ((5, 1000), (20, 1000), (5, 10_000))]
        proved = [f"{two(row['certified'])} to {two(row['attacked'])}" if row else "" for row in groups]
        times = [" + ".join(map(text, stages)) for text in (epochs_of, minutes_of)]
        numbers = [two(run["clean"]), two(run["single"]), first.get("intermediate", "interval"), two(first["correct"])]
        yield [SETTINGS[setting], method_of(run), f"{tau:g}" if tau else "", *times, *numbers, *proved]
    for row in (row for row in published()["tables"]["main"]["rows"] if row["setting"] == setting):
        clean, certified = two(row["clean"]), two(row["certified"])
        yield [SETTINGS[setting], f"{row['method']}, published", "", "", "", clean, "", "", "", "", "", certified]


def method_of(run: Row) -> str:
    config = run["config"]
    shares = {"own": config["method"].get("own"), "clean": config["clean_weight"]}
    return ", ".join([config["method"]["name"], *(f"{name} {share:g}" for name, share in shares.items() if share)])


def stages_of(run: Row, trained: dict[str, Row]) -> list[Row]:
    """The run, behind those that it goes on from."""
    earlier = trained.get(Path(run["config"].get("start", "")).stem)
    return [*(stages_of(earlier, trained) if earlier else ()), run]


def epochs_of(run: Row) -> str:
    done, planned = run["last"]["epoch"] + 1, run["config"]["epochs"]
    return str(done) if done == planned else f"{done} of {planned}"


def minutes_of(run: Row) -> str:
    return f"{run['train_seconds'] / 60:.1f}" + (f" (of {run['shared_by']})" if "shared_by" in run else "")


def cnn7_figure(size: int, trained: dict[str, Row], found: Sequence[Row]) -> str:
    """Points, one line each: networks differ in more than one setting, so that nothing lies between two of them."""
    theirs = [row for row in published()["tables"]["main"]["rows"] if row["setting"] == DRAWN]
    paper = series(0, "published, N = 5")
    lines = [Line(f"{row['method']}, published", ((row["clean"], row["certified"]),), paper) for row in theirs]
    shown = [row for row in found if (row["group_size"], row["images"]) == (size, DRAWN_IMAGES)]
    kinds = {row["name"]: trained[row["name"]]["config"]["method"]["name"] for row in shown}
    keys = {kind: series(number, kind) for number, kind in enumerate(sorted(set(kinds.values())), 1)}
    for row in shown:
        for what, dashed in (("certified", False), ("attacked", True)):
            point = (row["correct"], row[what])
            lines.append(Line(f"{row['name']}, {what}", (point,), keys[kinds[row["name"]]], dashed))
    across, up = (linear_axis(name, (p[i] for line in lines for p in line.points)) for i, name in enumerate(AXES))
    title = f"CNN7, CIFAR-10, 8/255, groups of {size}: clean and certified UAP accuracy"
    told = f"{len(shown)} networks; filled: certified, hollow: what the attack leaves."
    return svg_file(replace(line_chart("cnn7", title, told, (across, up), lines), keys=(paper, *keys.values())))


# --------------------------------------------------------------------------------------------------------------- steps


def gpu_steps(steps: Sequence[Row]) -> str:
    last = [row for row in steps if row["study"] == "gpu-step" and len(row.get("steps", ())) > 10][-1]
    printed, batched = (step["epoch_s"] for step in last["steps"][:2])
    ceiling = last["ceilings_tflops"]["tf32"]
    rows = []
    for step in last["steps"]:
        speed = [f"{step['ms']:.1f}", two(step["epoch_s"]), f"{step['images_per_s']:.0f}", f"{step['tflops']:.0f}"]
        shares = [f"{100 * step['tflops'] / ceiling:.0f} %", f"{step['memory_gb']:.1f}"]
        times = [f"{base / step['epoch_s']:.0f}" for base in (printed, batched)]
        rows.append([step["step"], step["batch"], *speed, *shares, *times])
    heads = ["step", "batch", "ms", "s an epoch", "images/s", "TFLOP/s", "of TF32", "GB"]
    text = (
        "CNN7 at the size of CIFAR-10 (an epoch is 50,000 images), eps 8/255, H200, torch 2.11.0+cu130, by "
        f"`benchmarks/gpu.py`; a large TF32 matrix product reaches {ceiling:.0f} TFLOP/s. The last columns are times "
        "faster than Algorithm 1 as printed, and than the same with its 20 boxes in one batch."
    )
    return section("A training step on a GPU", text, table([*heads, "x printed", "x batched"], rows))


def cpu_steps(steps: Sequence[Row]) -> str:
    [row] = (row for row in steps if row["study"] == "citrus-step")
    times = row["seconds"]
    parts = {"(a) Algorithm 1 as printed": "a", "(b) our exact sum": "b", "(c) one sampled partner": "c"}
    rows = []
    for name, key in parts.items():
        attack, boxes = times["attack a" if key == "a" else "attack bc"], times[key]
        whole = (times["attack a"] + times["a"]) / (attack + boxes)
        rows.append([name, *(f"{1e3 * value:.1f}" for value in (attack, boxes)), f"{whole:.1f}"])
    growth = ", ".join(f"{1e3 * value:.1f}" for value in row["growth"].values())
    text = (
        "smallcnn, 20 groups of 5 images, 5 attack steps, forward and backward, median of 7, milliseconds, two "
        f"threads (`make bench`). The boxes of (c) for 100 images cost {growth} ms for groups of "
        f"{', '.join(row['growth'])}: the group size is free. A CNN7 step on CIFAR-10 images with 25 groups of 5 and "
        f"all 500 boxes peaks at {row['peak_memory_gb']:.2f} GB."
    )
    return section("A CITRUS step on the CPU", text, table(["step", "attack", "boxes", "times faster"], rows))


REMOVED = ("citrus, worst of 4", "citrus, centres mixed in", "citrus, memory")


def method_steps(steps: Sequence[Row]) -> str:
    [row] = (row for row in steps if row["study"] == "methods-step")
    found = row["methods"]
    unit = (found["standard"]["ramp"] + found["standard"]["end"]) / 2
    rows = []
    for name, cost in found.items():
        if name in REMOVED:
            continue
        shares = [f"{cost[key] / unit:.1f}" for key in ("ramp", "end")]
        rows.append([name, *shares, f"{1e3 * cost['end']:.1f}", f"{cost['peak_mb']:.0f}"])
    text = (
        "ConvSmall, 40 images of 28x28, default settings of each method, two threads of an idle machine (`make "
        f"bench`): multiples of a standard step ({1e3 * unit:.1f} ms), and the peak memory of the process, of which "
        "torch is most."
    )
    return section("A step of every method", text, table(["method", "while eps grows", "at the end", "ms", "MB"], rows))


def main() -> None:
    for name, content in pages().items():
        (DOCS / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
