"""Training without the optional packages: python -m citrus.training RECIPE --out FOLDER [--FIELD VALUE ...]

Fields are those of `citrus train --help`, by dotted name: --method.tau-ratio 0.4 --epochs 60. One line per epoch.
"""

import argparse
import json
import sys
from pathlib import Path

from citrus.errors import CitrusError
from citrus.recipes import recipe
from citrus.training.config import override, read_config
from citrus.training.loop import Stopped
from citrus.training.run import Events, train


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m citrus.training", description=__doc__.splitlines()[0])
    parser.add_argument("recipe", help="name of a recipe, or path of a config.json")
    parser.add_argument("--out", required=True)
    parser.add_argument("--data-dir")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--resume", action="store_true")
    options, rest = parser.parse_known_args(arguments)
    try:
        path = Path(options.recipe)
        config = override(read_config(path) if path.exists() else recipe(options.recipe), _pairs(rest))
        events = Events(on_epoch=lambda row: print(json.dumps(row), flush=True))
        run = train(
            *(config, options.out),
            data_dir=options.data_dir,
            device=options.device,
            resume=options.resume,
            events=events,
        )
    except (CitrusError, Stopped) as error:
        print(error, file=sys.stderr)
        return 1
    print(run.evaluation)
    return 0


def _pairs(words: list[str]) -> dict[str, str]:
    """--name value, or --name=value."""
    joined = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    names, values = joined[::2], joined[1::2]
    if len(names) != len(values) or not all(name.startswith("--") for name in names):
        raise CitrusError(f"Fields are given as --name value, got {' '.join(words)!r}.")
    return {name[2:]: value for name, value in zip(names, values, strict=True)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
