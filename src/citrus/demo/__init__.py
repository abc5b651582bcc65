"""A finished run that travels with the package: ConvSmall on MNIST, eps 0.1, and the first 200 test digits.

`citrus certify demo` unpacks it, so that a certified network is seen before anything is trained or downloaded.
It is run m1-f1.2-t0.6-crop1-all of results/runs.jsonl with weights rounded to float16: of the 10,000 test digits
98.56 % are right, and 96.06 % are proved one by one.
"""

import shutil
from importlib.resources import as_file, files
from pathlib import Path

from citrus.errors import CitrusError
from citrus.files import load_tensors, write_json

NAME = "demo"


def unpack(folder: Path = Path("runs") / NAME) -> Path:
    """The run as a folder that every command understands; what else lies there stays."""
    if (folder / "config.json").exists() and not (folder / "images.npz").exists():
        raise CitrusError(f"{folder} is another run: move it away, or certify it by that name.")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("images.npz", "model.safetensors"):
        with as_file(files(__name__) / name) as source:
            shutil.copyfile(source, folder / name)
    _, header = load_tensors(folder / "model.safetensors")
    write_json(folder / "config.json", header["config"] | {"data": str((folder / "images.npz").absolute())})
    return folder
