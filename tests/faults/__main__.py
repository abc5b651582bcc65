"""Faults in trainings, certifications and studies: python -m faults --out results/faults.jsonl (make faults)

Prints what was lost, doubled or different afterwards, by kind of fault, and fails if anything was.
"""

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import torch

from citrus.console import table
from citrus.studies.rows import StudyRows
from faults.compare import Difference
from faults.jobs import Bench
from faults.kinds import NotHere
from faults.table import FAULTS

OFTEN = ("kill -9",)
HEADER = ["fault", "job", "injected", "rows lost", "rows doubled", "results that differ"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=30, help="of each job")
    parser.add_argument("--others", type=int, default=3, help="of each other kind and job")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    started, folder = time.perf_counter(), Path(tempfile.mkdtemp(prefix="citrus-faults-"))
    bench = Bench(folder / "bench")
    asked = [
        (kind, job, options.seed + k)
        for kind, (_, jobs) in FAULTS.items()
        for job in jobs
        for k in range(options.kills if kind in OFTEN else options.others)
    ]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda each: inject(bench, *each), asked))
    seconds = round(time.perf_counter() - started)
    rows: dict[tuple[str, str], Counter[str]] = {}
    skipped = Counter[str]()
    for (kind, job, _), result in zip(asked, found, strict=True):
        if isinstance(result, str):
            skipped[f"{kind}: {result}"] += 1
        else:
            counts = {"lost": result.lost, "doubled": result.doubled, "differ": int(result.differ > 0)}
            rows.setdefault((kind, job), Counter()).update({"injected": 1, **counts})
    names = ("injected", "lost", "doubled", "differ")
    print(table(HEADER, [[*key, *(str(count[name]) for name in names)] for key, count in rows.items()]))
    for reason, times in skipped.items():
        print(f"left out {times} times: {reason}")
    total = {name: sum(count[name] for count in rows.values()) for name in names}
    print(
        "faults injected {injected}, rows lost {lost}, rows doubled {doubled}, results that differ {differ}".format(
            **total
        )
    )
    if options.out:
        row = {"kills": options.kills, "others": options.others, "seed": options.seed, **total, "seconds": seconds}
        row |= {"by": {" ".join(key): dict(count) for key, count in rows.items()}, "left_out": dict(skipped)}
        StudyRows(options.out, "faults").add("faults", "all", row)
    bad = total["lost"] + total["doubled"] + total["differ"]
    print(f"the folders stay in {folder}") if bad else shutil.rmtree(folder)
    return 1 if bad or not total["injected"] else 0


def inject(bench: Bench, kind: str, job: str, seed: int) -> Difference | str:
    """What is different afterwards, told at once; or why this machine does not allow it."""
    fault, _ = FAULTS[kind]
    try:
        found = fault(bench, job, Random(f"{kind} {job} {seed}"))
    except NotHere as reason:
        return str(reason)
    except Exception:  # the others go on
        found = Difference(differ=1, what=traceback.format_exc())
    if found.lost or found.doubled or found.differ:
        print(f"{kind}, {job}, seed {seed}: {found}", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
