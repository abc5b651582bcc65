"""Every run of the recipe search as one table: python benchmarks/gpu_log.py > docs/results/gpu-log.md

Reads docs/results/gpu/*.jsonl, the rows that benchmarks/sweep.py wrote.
"""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "docs" / "results" / "gpu"
NUMBERS = ("clean", "ibp", "single", "uap5", "uap20", "attack1", "attack5", "attack20")
SHORT = {"method.": "", "attack.": "attack ", "_ratio": "", "_epochs": "", "_size": "", "lr_schedule": "schedule"}
UNINTERESTING = ("validate_every", "memory_gb", "milestones", "validation", "warmup_epochs", "seed", "clip")

HEAD = """# Recipe search on the GPU

Every training run of the search, failed ones included, in the order in which they were made. Percent of the images
named in the column *on*: held-out training images (validation) while tuning, 5,000 of them unless the note says how
many, and the 10,000 test images for the report; attacks see the first 2,000 (CNN7: 1,000) of them unless the note says
otherwise. One seed each. *single*: proved one by one by intervals or CROWN with interval boxes; *uap N*: proved by the
whole cascade for groups of N correct images; *attack N*: still right under the strongest universal perturbation found
for groups of N correct images, an upper bound of *uap N*. Time is that of training; runs that shared the GPU say with
how many. What a GPU measured is of networks folded in TF32, a few images of 10,000 beside the truth: README.md has the
comparison.
"""


def number(file: Path) -> int:
    return int(file.stem.removeprefix("sweep-"))


def logged() -> list[dict[str, Any]]:
    """All rows in the order in which the runs were made."""
    files = sorted(FOLDER.glob("sweep-*.jsonl"), key=number)
    return [json.loads(text) for file in files for text in file.read_text().splitlines()]


def setting(row: dict[str, Any]) -> str:
    words = []
    for key, value in row.get("set", {}).items():
        if key not in UNINTERESTING:
            for long, short in SHORT.items():
                key = key.replace(long, short)
            words.append(f"{key} {value}")
    return ", ".join(words)


def line(row: dict[str, Any]) -> str:
    time = f"{row['train_seconds']:.0f} s" if "train_seconds" in row else ""
    time += f" (of {row['shared_by']})" if "shared_by" in row and time else ""
    numbers = [f"{row[name]:.2f}" if name in row else "" for name in NUMBERS]
    notes = [row[key] for key in ("failed", "note") if key in row]
    if "last" in row and row["last"]["epoch"] + 1 < row["set"]["epochs"]:
        notes.append(f"cut by the time limit after epoch {row['last']['epoch'] + 1} of {row['set']['epochs']}")
    if "crown_first1000" in row:
        notes.append(f"first 1,000: clean {row['clean_first1000']:.1f}, full CROWN {row['crown_first1000']:.1f}")
    cells = [
        row["name"],
        row["recipe"],
        setting(row),
        row.get("on", ""),
        time,
        *numbers,
        row["machine"],
        "; ".join(notes),
    ]
    return "| " + " | ".join(" ".join(str(cell).replace("|", "/").split()) for cell in cells) + " |"


def main() -> None:
    heads = ["run", "recipe", "changed", "on", "time", *NUMBERS, "machine", "note"]
    print(HEAD)
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    print("\n".join(line(row) for row in logged()))


if __name__ == "__main__":
    main()
