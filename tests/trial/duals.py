"""Ten thousand small problems of open choices against the truth: python -m trial.duals --problems 10000

Each has at most 12 choices in at most 5 pixels, with planes of very different size, pairs and cuts. The truth is
enumerated by a mixed integer program; the bound of the prover and that of the checker may not be below it.
"""

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch
from support.whole_cases import as_sums, most_violated, random_planes

from citrus.certify.whole.lowrank import LowRank
from citrus.certify.whole.rigorous import firmest
from citrus.studies.rows import StudyRows

CLOSE = 1e-6
FIRST = 100_000  # of the seeds: none that a test uses


@dataclass
class Duals:
    """What was tried, and what was found."""

    problems: int = 0
    exact: int = 0
    """Problems whose bound, rounded down, is the truth."""
    truth: int = 0
    lost: int = 0
    """By the bounds, rounded down."""
    false: list[str] = field(default_factory=list)

    def run(self, seeds: range) -> "Duals":
        for seed in seeds:
            planes = random_planes(seed)
            relaxed = LowRank(planes)
            relaxed.advance(30)
            multipliers, bound = firmest(planes, relaxed.multipliers(), relaxed.marked)
            again, truth = as_sums(planes, multipliers).bound(), most_violated(planes)
            if min(bound, again) < truth - CLOSE:
                self.false.append(f"seed {seed}: prover {bound}, checker {again}, truth {truth}")
            lost = min(planes.choices, int(bound + CLOSE)) if bound < 1e9 else planes.choices
            self.problems, self.exact = self.problems + 1, self.exact + (lost == truth)
            self.truth, self.lost = self.truth + truth, self.lost + lost
        return self


def part(seeds: range) -> Duals:
    torch.set_num_threads(1)
    return Duals().run(seeds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    started, done, end = time.perf_counter(), list[Duals](), FIRST + options.problems
    with ProcessPoolExecutor(options.workers) as pool:
        for found in pool.map(part, [range(k, min(k + 250, end)) for k in range(FIRST, end, 250)]):
            done.append(found)
            total, false = sum(one.problems for one in done), sum(len(one.false) for one in done)
            print(
                f"{total} problems, {false} bounds below the truth, {time.perf_counter() - started:.0f} s", flush=True
            )
    wrong = [line for one in done for line in one.false]
    row = {name: sum(getattr(one, name) for one in done) for name in ("problems", "exact", "truth", "lost")}
    print("\n".join(wrong[:20]) or f"{row['problems']} problems: {row['truth']} fall, {row['lost']} by the bounds")
    if options.out:
        seconds = round(time.perf_counter() - started)
        StudyRows(options.out, "trial").add("trial", "duals", {**row, "false": len(wrong), "seconds": seconds})
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
