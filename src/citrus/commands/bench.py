"""`citrus bench methods`: train, attack and certify every method with the same budget, and print one table.

`citrus bench paper` is in bench_paper.py.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from citrus.bench import Bench, Contest, Listener, write_results
from citrus.bench.results import HEADER, caption, cells
from citrus.commands.bench_paper import run_paper
from citrus.commands.bench_progress import announce, report
from citrus.commands.flags import parse_flags, take_word
from citrus.console import table
from citrus.data import load
from citrus.errors import CitrusError, suggest
from citrus.inputs import parse_eps
from citrus.training import Stopped


@dataclass
class MethodsFlags:
    """Compare all training methods: citrus bench methods --data mnist --network convsmall --eps 0.1

    The same command goes on where it was stopped, and only tries again what failed.
    """

    data: str = "mnist"
    """Data set, or path of a .npz or .safetensors file."""
    network: str = "convsmall"
    """Architecture."""
    eps: str = "0.1"
    """Radius in pixel units, such as 0.1 or 8/255."""
    minutes: float | None = None
    """Time for everything, which decides the number of epochs; by default 60, on the embedded digits 10."""
    epochs: int | None = None
    """Epochs of every method, whatever time they take."""
    images: int | None = None
    """Test images to attack and certify, the first ones; by default 200, on the embedded digits 100."""
    group_size: int = 5
    """Images that share one perturbation."""
    methods: str = ""
    """Only these, such as citrus,sabr,ibp."""
    seed: int = 0
    """Seed of everything."""
    out: str = "runs/bench-methods"
    """Folder of the result (results.md, results.json) and of all runs."""
    data_dir: str | None = None
    """Folder of the data sets; else CITRUS_DATA, else the user cache."""
    device: str = "cpu"
    """cpu, cuda or auto."""


def run(arguments: list[str]) -> int:
    name, rest = take_word(arguments)
    if name is None and set(arguments) & {"--help", "-h"}:
        print("usage: citrus bench WHAT [FLAGS]\n\n" + "\n".join(f"  {n:10}{f.__doc__}" for n, f in BENCHMARKS.items()))
        return 0
    if name is None:
        raise CitrusError(f"Which benchmark? citrus bench {' | '.join(BENCHMARKS)}")
    if name not in BENCHMARKS:
        raise CitrusError(f"Unknown benchmark {name!r}: {suggest(name, BENCHMARKS)}")
    return BENCHMARKS[name](rest)


def run_methods(arguments: list[str]) -> int:
    """every training method with the same budget, attacked and certified"""
    flags, _ = parse_flags(MethodsFlags, "bench methods", arguments)
    digits = flags.data == "digits"
    contest = Contest(
        data=flags.data,
        network=flags.network,
        eps=parse_eps(flags.eps),
        group_size=flags.group_size,
        images=flags.images if flags.images is not None else 100 if digits else 200,
        seed=flags.seed,
        methods=tuple(word for word in flags.methods.split(",") if word),
    )
    splits = load(contest.data, data_dir=flags.data_dir)
    out = Path(flags.out)
    bench = Bench(contest, splits, out, flags.device, Listener(_measured, announce, report))
    minutes = flags.minutes if flags.minutes is not None else 10.0 if digits else 60.0
    print("measuring the cost of a step", file=sys.stderr, flush=True)
    plan = bench.plan(minutes, flags.epochs)
    print(f"epochs for every method: {plan.epochs}", file=sys.stderr, flush=True)
    try:
        rows = bench.compete(plan)
    except Stopped:
        print("Stopped; the same command goes on.", file=sys.stderr)
        return 130
    write_results(out, contest, plan, rows)
    print(f"{caption(contest, plan)}\n\n{table(HEADER, [cells(row) for row in rows])}\n")
    for row in rows:
        if row.error:
            print(f"{row.name} failed: {row.error} (all of it in {out / row.name / 'error.txt'})")
    print(f"results  {out / 'results.md'}")
    return 2 if any(row.error for row in rows) else 0


BENCHMARKS: dict[str, Callable[[list[str]], int]] = {"methods": run_methods, "paper": run_paper}
"""`citrus bench NAME`: the first line of each function's docstring is its help."""


def _measured(name: str, seconds: float) -> None:
    print(f"  {name:20}{1000 * seconds:8.1f} ms a step", file=sys.stderr, flush=True)
