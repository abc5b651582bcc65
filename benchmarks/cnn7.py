"""Clean against certified UAP accuracy of the CNN7 networks: python benchmarks/cnn7.py > docs/results/cnn7.md

Joins what benchmarks/sweep.py wrote about training (docs/results/gpu/sweep-*.jsonl) with what
benchmarks/certify_network.py wrote about certification (docs/results/gpu/certify-*.json), puts the published values
beside it, and draws docs/results/cnn7-n5.svg and cnn7-n20.svg.
"""

import json
from pathlib import Path
from typing import Any

from gpu_log import logged

from citrus.bench.published import published
from citrus.report.charts import Line, line_chart, linear_axis, series_key
from citrus.report.standalone import svg_file

RESULTS = Path(__file__).parent.parent / "docs" / "results"
Row = dict[str, Any]
SETTINGS = {
    "cifar10-8-255": "CIFAR-10, 8/255",
    "cifar10-2-255": "CIFAR-10, 2/255",
    "mnist-0.1": "MNIST, 0.1",
    "mnist-0.3": "MNIST, 0.3",
}
DRAWN = "cifar10-8-255"
DRAWN_IMAGES = 1000  # a figure shows what was proved of the same images for every network
AXES = ("clean accuracy, percent (first 1,000; published: 10,000)", "survive every shared perturbation, percent")
TRAINED = ("method", "tau/eps", "epochs", "minutes", "clean", "single")
HEADS = (*TRAINED, "N", "boxes", "images", "clean", "certified", "attacked")


def trained(setting: str) -> dict[str, Row]:
    """The last finished training run of each name that was measured on the test set."""
    rows = [r for r in logged() if r["recipe"].startswith(setting) and r.get("on") == "test"]
    return {r["name"]: r for r in rows if r.get("config", {}).get("network") == "cnn7"}


def certified(runs: dict[str, Row]) -> list[Row]:
    """What was proved of these networks."""
    found = [json.loads(file.read_text()) for file in sorted(RESULTS.glob("gpu/certify-*.json"))]
    merged = [f["certification"] | {"environment": f["environment"]} for f in found]
    return [c | {"name": runs[c["run"]]["config"]["method"]["name"]} for c in merged if c["run"] in runs]


def method_of(row: Row) -> str:
    config = row["config"]
    shares = {"own": config["method"].get("own"), "clean": config["clean_weight"]}
    return ", ".join([config["method"]["name"], *(f"{name} {share:g}" for name, share in shares.items() if share)])


def stages_of(row: Row, runs: dict[str, Row]) -> list[Row]:
    """The run, behind those that it goes on from."""
    earlier = runs.get(Path(row["config"].get("start", "")).stem)
    return [*(stages_of(earlier, runs) if earlier else ()), row]


def epochs_of(row: Row) -> str:
    done, planned = row["last"]["epoch"] + 1, row["config"]["epochs"]
    return str(done) if done == planned else f"{done} of {planned}"


def minutes_of(row: Row) -> str:
    shared = f" (of {row['shared_by']})" if "shared_by" in row else ""
    return f"{row['train_seconds'] / 60:.1f}{shared}"


def published_points(setting: str) -> dict[str, tuple[float, float]]:
    """Clean and certified accuracy of each published method that has both."""
    rows = [row for row in published("main").rows if row.setting == setting]
    return {r.method: (r.clean, r.certified) for r in rows if r.clean is not None and r.certified is not None}


def machine_of(environment: Row) -> str:
    processor = environment["gpu"] or f"{environment['threads']} threads of an {environment['cpu']}"
    return f"{processor}, torch {environment['torch']}"


def table(setting: str, runs: dict[str, Row], found: list[Row]) -> str:
    lines = ["| " + " | ".join(HEADS) + " |", "|" + "---|" * len(HEADS)]
    for c in sorted(found, key=lambda c: (runs[c["run"]]["clean"], c["group_size"], c["images"])):
        r = runs[c["run"]]
        stages = stages_of(r, runs)
        tau = r["config"]["method"].get("tau_ratio")
        cells = [
            *(method_of(r), f"{tau:g}" if tau else ""),
            *(" + ".join(map(text, stages)) for text in (epochs_of, minutes_of)),
            *(f"{r['clean']:.2f}", f"{r['single']:.2f}", str(c["group_size"])),
            *(c.get("intermediate", "interval"), f"{c['images']:,}"),
            *(f"{c['correct']:.2f}", f"{c['certified']:.2f}", f"{c['attacked']:.2f}"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    for method, (clean, proved) in published_points(setting).items():
        lines.append(f"| {method}, published | | | | {clean:.2f} | | 5 | | 10,000 | | {proved:.2f} | |")
    return "\n".join(lines)


def figure(size: int, found: list[Row]) -> str:
    """Points, one line each: networks differ in more than one setting, so that nothing lies between two of them."""
    lines = [Line(f"{method}, published", (point,), 0) for method, point in published_points(DRAWN).items()]
    keys = [series_key("published, N = 5", 0)]
    shown = [c for c in found if (c["group_size"], c["images"]) == (size, DRAWN_IMAGES)]
    series = {method: number for number, method in enumerate(sorted({c["name"] for c in shown}), 1)}
    keys += [series_key(method, number) for method, number in series.items()]
    for c in shown:
        for kind, dashed in (("certified", False), ("attacked", True)):
            lines.append(Line(f"{c['run']}, {kind}", ((c["correct"], c[kind]),), series[c["name"]], dashed))
    across, up = (linear_axis(name, (p[i] for line in lines for p in line.points)) for i, name in enumerate(AXES))
    title = f"CNN7, CIFAR-10, 8/255, groups of {size}: clean and certified UAP accuracy"
    return svg_file(line_chart("cnn7", title, f"{len(shown)} networks.", (across, up), lines, tuple(keys)))


def main() -> None:
    print("# CNN7\n")
    print(__doc__.split("\n\n")[1].strip().replace("\n", " "))
    trainers, verifiers = set(), set()
    for setting, title in SETTINGS.items():
        runs = trained(setting)
        found = certified(runs)
        trainers |= {runs[c["run"]]["machine"] for c in found}
        verifiers |= {machine_of(c["environment"]) for c in found}
        print(f"\n## {title}\n\n{table(setting, runs, found)}")
        if setting == DRAWN:
            for size in (5, 20):
                (RESULTS / f"cnn7-n{size}.svg").write_text(figure(size, found))
                print(f"\n![clean against certified accuracy, groups of {size}](cnn7-n{size}.svg)")
            print("\nFilled: certified. Hollow: what the attack leaves. Ours are of the first 1,000 images.")
    print(
        f"\nTrained on {' or '.join(sorted(trainers))}, one seed each; certified on {' or '.join(sorted(verifiers))}."
    )
    print(
        "(of n): so many runs shared the GPU, at least for a time. Boxes: those of the inner layers (docs/choosing.md)."
    )


if __name__ == "__main__":
    main()
