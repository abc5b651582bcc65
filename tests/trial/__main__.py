"""A hundred thousand groups of tiny networks against exact arithmetic: python -m trial --groups 100000 (make trial)

Prints how many claims are false, by kind of network and verifier, and fails if one is.
"""

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from citrus.console import table
from citrus.studies.rows import StudyRows
from trial.claims import Claims

SHOWN = 20


def part(seed: int, groups: int) -> Claims:
    torch.set_num_threads(1)
    return Claims(seed).run(groups)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    started, each = time.perf_counter(), -(-options.groups // (10 * options.workers))
    seeds = [options.seed + 1_000_000 * k for k in range(10 * options.workers)]
    done = []
    with ProcessPoolExecutor(options.workers) as pool:
        for claims in pool.map(part, seeds, [each] * len(seeds)):
            done.append(claims)
            total, false = sum(c.groups.total() for c in done), sum(len(c.false) for c in done)
            print(f"{total} groups, {false} false, {time.perf_counter() - started:.0f} s", flush=True)
    counts = sum((claims.groups for claims in done), Counter())
    false = [claim for claims in done for claim in claims.false]
    kinds = Counter({key: counts[key] for key in counts})
    rows = [
        [
            kind,
            *(str(sum(n for (k, w, v), n in kinds.items() if (k, w, v) == (kind, w, name))) for name in names(kinds)),
        ]
        for kind in sorted({kind for kind, _, _ in kinds})
    ]
    print(table(["groups of", *names(kinds)], rows))
    print("\n".join(false[:SHOWN]))
    certified, surviving = sum(c.certified for c in done), sum(c.surviving for c in done)
    seconds = round(time.perf_counter() - started)
    print(
        f"{counts.total()} groups, {certified} images certified of {surviving} that survive, false claims {len(false)}"
    )
    if options.out:
        row = {"groups": counts.total(), "seed": options.seed, "certified": certified, "surviving": surviving}
        row |= {"false": len(false), "seconds": seconds}
        row |= {"by": {" ".join(key): n for key, n in sorted(counts.items())}}
        StudyRows(options.out, "trial").add("trial", "exact", row)
    return 1 if false else 0


def names(counts: Counter[tuple[str, str, str]]) -> list[str]:
    return sorted({verifier for _, _, verifier in counts})


if __name__ == "__main__":
    sys.exit(main())
