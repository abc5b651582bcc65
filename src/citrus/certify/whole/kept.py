"""The state of a master problem in a file, so that a certification that was stopped goes on where it was.

Planes are made again from the sides and slopes that they came from; all else is in the file.
"""

from pathlib import Path

import torch
from torch import Tensor

from citrus.certify.whole.choices import Facts, OpenChoices
from citrus.certify.whole.front import Front, Pool
from citrus.certify.whole.leaves import Branching, Leaves
from citrus.certify.whole.lowrank import LowRank, Start, Vectors
from citrus.errors import CitrusError
from citrus.files import load_tensors, save_tensors

State = tuple[Front, LowRank]
KIND = "master"


def keep(path: Path, choices: OpenChoices, state: State, asked: str) -> None:
    """Write the state; `asked` says of which question it is."""
    front, relaxed = state
    tensors = {
        "keys": torch.tensor(choices.keys),
        "uses": front.uses,
        "pool choice": front.pool.choice,
        "pool row": front.pool.row,
        "choices": relaxed.vectors.choices,
        "pixels": relaxed.vectors.pixels,
        **{name: getattr(relaxed, name) for name in ("weights", "gamma", "theta")},
    }
    for name, leaves in (("leaves", front.leaves), ("closed", front.closed), ("made", front.pool.made)):
        tensors |= {f"{name} {part}": value for part, value in vars(leaves).items()}
    save_tensors(path, tensors, {"kind": KIND, "asked": asked})


def kept(path: Path, choices: OpenChoices, branching: Branching, facts: Facts, asked: str) -> State | None:
    """The state in a file; None if there is none, or it is of another question."""
    if not path.exists():
        return None
    try:
        tensors, header = load_tensors(path)
    except CitrusError:  # cut short or damaged: it saves time and proves nothing
        return None
    device = choices.image.device
    found = {name: value.to(device) for name, value in tensors.items()}
    if header != {"kind": KIND, "asked": asked} or found["keys"].tolist() != [list(key) for key in choices.keys]:
        return None
    leaves, closed, made = (_leaves(found, name) for name in ("leaves", "closed", "made"))
    row = found["pool row"]
    pool = Pool.adaptive(choices.adaptive, branching.eps, made[:0]).grown(made, branching.planes(made), branching.eps)
    place = torch.where(row < 0, found["pool choice"], len(choices) + row)
    pool = Pool(pool.a[place], pool.b[place], found["pool choice"], row, made)
    front = Front(leaves, closed, found["uses"], found["weights"], pool)
    start = Start(Vectors(found["choices"], found["pixels"]), found["weights"], found["gamma"], found["theta"])
    return front, LowRank(front.problem(facts), start)


def _leaves(found: dict[str, Tensor], name: str) -> Leaves:
    return Leaves(*(found[f"{name} {part}"] for part in ("choice", "sides", "slopes")))
