"""Makes the network that `citrus certify demo` shows: python benchmarks/demo.py MODEL.safetensors --data-dir FOLDER

Weights are rounded to float16, which halves the file; the network that users get is the rounded one, and it is
measured here, on all 10,000 test digits, before it is written.
"""

import argparse
from pathlib import Path

import numpy as np
from measure import measure
from sweep import round_weights

from citrus.data import as_float, load
from citrus.files import load_tensors, save_tensors
from citrus.training.run import load_network

FOLDER = Path(__file__).parent.parent / "src" / "citrus" / "demo"
TEST, TRAIN = 200, 10  # a file of images needs a training part; nobody looks at it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--data-dir")
    options = parser.parse_args()
    _, header = load_tensors(options.model)
    network = load_network(options.model)
    round_weights(network)
    splits = load(header["config"]["data"], data_dir=options.data_dir)
    test = splits.test
    print(measure(network, as_float(test.images), test.labels, header["config"]["eps"], count=0))
    tensors = {k: v.half() if v.numel() > 2000 else v for k, v in network.state_dict().items()}
    save_tensors(FOLDER / "model.safetensors", tensors, {key: header[key] for key in ("network", "config")})
    arrays = {"train": splits.train.subset(list(range(TRAIN))), "test": test.subset(list(range(TEST)))}
    named = {f"{k}_{what}": getattr(v, what).numpy() for k, v in arrays.items() for what in ("images", "labels")}
    np.savez_compressed(FOLDER / "images.npz", **named)


if __name__ == "__main__":
    main()
