"""The result of a comparison as JSON for programs and as Markdown for people."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from citrus.bench.contest import Contest
from citrus.bench.methods import Plan, Row
from citrus.console import duration
from citrus.files import write_json, write_text
from citrus.inputs import format_eps
from citrus.training.environment import environment

HEADER = ["method", "clean", "PGD", "UAP attack", "certified single", "certified UAP", "training", "in all"]


def write_results(out: Path, contest: Contest, plan: Plan, rows: Sequence[Row]) -> None:
    """results.json and results.md in `out`."""
    found = environment()
    machine = {key: found[key] for key in ("citrus", "torch", "cpu", "threads", "gpu", "started")}
    parts = {"contest": asdict(contest), "plan": asdict(plan), "rows": [asdict(r) for r in rows], "machine": machine}
    write_json(out / "results.json", parts)
    where = f"{machine['gpu'] or machine['cpu']}, {machine['threads']} threads, torch {machine['torch']}"
    write_text(out / "results.md", markdown(contest, plan, rows, where))


def cells(row: Row) -> list[str]:
    """What a table shows of a row."""
    if row.error:
        return [row.name, *["-"] * (len(HEADER) - 1)]
    shares = (row.clean, row.pgd, row.uap, row.certified_single, row.certified_uap)
    return [row.name, *(f"{share:.1f}" for share in shares), duration(row.training_seconds), duration(row.seconds)]


def caption(contest: Contest, plan: Plan) -> str:
    """How the numbers were made, in one paragraph."""
    return (
        f"{contest.network} on {contest.data} at eps {format_eps(contest.eps)}, {plan.epochs} "
        f"epoch{'s'[: plan.epochs > 1]} for every method, seed {contest.seed} (n = 1). Percent: clean accuracy on all "
        f"test images; the rest on the first {contest.images}: PGD with 40 steps (or the universal attack, where that "
        f"fools more), the smaller of two universal attacks on groups of {contest.group_size} in data set order, "
        "images proved one by one (intervals, CROWN, optimised slopes), and proved survivors of every perturbation "
        f"that a group shares (with {plan.proof_seconds:.2g} s of search and refinement per group)."
    )


def markdown(contest: Contest, plan: Plan, rows: Sequence[Row], machine: str) -> str:
    total = duration(sum(row.seconds for row in rows))
    lines = ["# All training methods side by side", "", f"{caption(contest, plan)} {machine}; {total} in all.", ""]
    lines += [f"| {' | '.join(HEADER)} |", f"|---|{'---:|' * (len(HEADER) - 1)}"]
    lines += [f"| {' | '.join(cells(row))} |" for row in rows]
    failed = [f"- {row.name} failed: {row.error}" for row in rows if row.error]
    return "\n".join([*lines, *(["", *failed] if failed else []), ""])
