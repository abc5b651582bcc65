"""Clean against certified UAP accuracy of the CNN7 networks: python benchmarks/cnn7.py > docs/results/cnn7.md

Joins what benchmarks/sweep.py wrote about training (docs/results/gpu/sweep-*.jsonl) with what
benchmarks/certify_network.py wrote about certification (docs/results/gpu/certify-*.json), puts the published values
beside it, and draws docs/results/cnn7.svg.
"""

import json
from pathlib import Path
from typing import Any

from gpu_log import logged

from citrus.bench.published import PublishedRow, published
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
AXES = ("clean accuracy of the images looked at, percent", "survive every shared perturbation, percent")
HEADS = ("method", "tau/eps", "epochs", "minutes", "clean", "single", "N", "images", "clean", "certified", "attacked")


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


def minutes_of(row: Row) -> str:
    shared = f" (of {row['shared_by']})" if "shared_by" in row else ""
    return f"{row['train_seconds'] / 60:.1f}{shared}"


def published_rows(setting: str) -> list[PublishedRow]:
    return [row for row in published("main").rows if row.setting == setting]


def machine_of(environment: Row) -> str:
    processor = environment["gpu"] or f"{environment['threads']} threads of an {environment['cpu']}"
    return f"{processor}, torch {environment['torch']}"


def table(setting: str, runs: dict[str, Row], found: list[Row]) -> str:
    lines = ["| " + " | ".join(HEADS) + " |", "|" + "---|" * len(HEADS)]
    for c in sorted(found, key=lambda c: (runs[c["run"]]["clean"], c["group_size"])):
        r = runs[c["run"]]
        tau = r["config"]["method"].get("tau_ratio")
        cells = [
            *(method_of(r), f"{tau:g}" if tau else "", str(r["config"]["epochs"]), minutes_of(r)),
            *(f"{r['clean']:.2f}", f"{r['single']:.2f}", str(c["group_size"]), f"{c['images']:,}"),
            *(f"{c['correct']:.2f}", f"{c['certified']:.2f}", f"{c['attacked']:.2f}"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    for p in published_rows(setting):
        lines.append(f"| {p.method}, published | | | | {p.clean:.2f} | | 5 | 10,000 | | {p.certified:.2f} | |")
    return "\n".join(lines)


def figure(found: list[Row]) -> str:
    """For each method and N a line through what is proved and a dashed one through what the attack leaves."""
    values = tuple(sorted((p.clean, p.certified) for p in published_rows(DRAWN)))
    lines, keys = [Line("published, N = 5", values, 0)], [series_key("published, N = 5", 0)]
    kinds = sorted({(c["name"], c["group_size"]) for c in found})
    for series, (method, size) in enumerate(kinds, 1):
        mine = [c for c in found if (c["name"], c["group_size"]) == (method, size)]
        mine.sort(key=lambda c: c["correct"])
        for kind, dashed in (("certified", False), ("attacked", True)):
            points = tuple((c["correct"], c[kind]) for c in mine)
            lines.append(Line(f"{method}, N = {size}, {kind}", points, series, dashed))
        keys.append(series_key(f"{method}, N = {size}", series))
    across, up = (linear_axis(name, (p[i] for line in lines for p in line.points)) for i, name in enumerate(AXES))
    title = "CNN7, CIFAR-10, 8/255: clean and certified UAP accuracy"
    return svg_file(
        line_chart("cnn7", title, f"{len({c['run'] for c in found})} networks.", (across, up), lines, tuple(keys))
    )


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
            (RESULTS / "cnn7.svg").write_text(figure(found))
            print(
                "\n![clean against certified accuracy](cnn7.svg)\n\nFilled: certified. Hollow: what the attack leaves."
            )
    print(
        f"\nTrained on {' or '.join(sorted(trainers))}, one seed each; certified on {' or '.join(sorted(verifiers))}."
    )
    print("(of n): so many runs shared the GPU, at least for a time.")


if __name__ == "__main__":
    main()
