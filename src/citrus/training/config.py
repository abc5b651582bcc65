"""Everything that defines a training run, as one frozen dataclass, and its way to and from JSON and flags."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from citrus.errors import CitrusError, suggest
from citrus.inputs import check_limits, parse_eps, parse_number
from citrus.methods import METHODS, AnyMethod


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run. Two runs with equal configurations on one machine give equal networks."""

    data: str
    """Name of a data set (`citrus data list`) or path of a .npz or .safetensors file."""
    network: str
    """Name of an architecture: cnn7, convsmall, smallcnn or mlp."""
    method: AnyMethod
    """The training method and its hyper-parameters."""
    eps: float
    """Radius to be robust against, in pixel units; fractions such as 8/255 are fine."""
    eps_factor: float = 1.0
    """Training radius as a multiple of eps."""
    clip: bool = False
    """Keep perturbed training images in [0, 1]. Off by default: a universal perturbation is not clipped."""

    epochs: int
    batch_size: int
    """Images per step. For CITRUS a multiple of the group size."""
    lr: float = 5e-4
    """Learning rate of Adam."""
    lr_schedule: Literal["steps", "cosine"] = "steps"
    """steps: lower at milestones. cosine: full until eps is, then down to 0."""
    milestones: tuple[int, ...] = ()
    """Epochs, counted from 0, at whose start the learning rate is multiplied by lr_factor."""
    lr_factor: float = 0.2
    warmup_epochs: int = 0
    """Epochs at eps 0 before the ramp."""
    ramp_epochs: int = 0
    """Epochs in which eps grows from 0 to its full value, step by step."""
    clip_norm: float = 10.0
    """Largest L2 norm of the gradient; 0 switches clipping off."""
    l1: float = 0.0
    """Weight of the sum of absolute values of all convolution and linear weights."""
    clean_weight: float = 0.0
    """Share of the clean cross-entropy in the loss."""
    init: Literal["shi", "default"] = "shi"
    """Initialisation: Shi et al.'s for interval bounds, or torch's."""
    start: str = ""
    """Weights to begin with instead: a finished run's folder, or its model.safetensors; empty for none."""
    regularizer: float = 0.5
    """Weight of Shi et al.'s two regularisers at eps 0; it falls to 0 as eps grows to its full value."""

    validation: int = 0
    """Images held out of the training set."""
    augment: bool = True
    """Flips and crops, where the data set has them."""
    crop: int = -1
    """Pixels by which a crop may be shifted; -1: what suits the data set."""
    normalize: bool = True
    """Normalise pixels with the data set's mean and standard deviation in the network's first layer."""
    precision: Literal["float32", "tf32", "half"] = "tf32"
    """Of training on a GPU: plain, TF32, or that and attacks in bfloat16. Never of certification."""
    compile: bool = False
    """Fuse kernels with torch.compile: a minute of waiting, then faster steps of large networks on a GPU."""
    record: bool = True
    """Record each kind of step as a CUDA graph on a GPU and replay it, instead of launching kernel by kernel."""
    validate_every: int = 1
    """Epochs between two looks at the validation images."""
    seed: int = 0
    memory_gb: float = 2.0
    """Memory for interval bounds; beyond it boxes are recomputed in the backward pass instead of kept."""
    test_images: int = 1000
    """Test images that the attacks after training use (clean and certified accuracy use all)."""
    group_size: int = 5
    """Images per group of the universal attack after training."""

    def __post_init__(self) -> None:
        parse_eps(self.eps)
        self.method.check(self.batch_size)
        check_limits(self, LIMITS)
        if self.warmup_epochs + self.ramp_epochs > self.epochs:
            raise CitrusError(
                f"warmup_epochs {self.warmup_epochs} and ramp_epochs {self.ramp_epochs} do not fit in {self.epochs} "
                "epochs: the radius would never be reached."
            )
        if list(self.milestones) != sorted(set(self.milestones)):
            raise CitrusError(f"milestones must increase, got {self.milestones}.")

    @property
    def train_eps(self) -> float:
        return self.eps * self.eps_factor


LIMITS = {
    **dict.fromkeys(("epochs", "batch_size", "group_size", "validate_every"), "[1, inf)"),
    **dict.fromkeys(("warmup_epochs", "ramp_epochs", "clip_norm", "l1", "regularizer"), "[0, inf)"),
    **dict.fromkeys(("validation", "seed", "test_images"), "[0, inf)"),
    **dict.fromkeys(("lr", "memory_gb", "eps_factor"), "(0, inf)"),
    "clean_weight": "[0, 1]",
    "lr_factor": "(0, 1]",
    "crop": "[-1, inf)",
}


def to_dict(config: TrainConfig) -> dict[str, Any]:
    """Plain JSON values; the method carries its name."""
    values = dataclasses.asdict(config)
    values["method"] = {"name": config.method.name, **values["method"]}
    return dict(json.loads(json.dumps(values)))  # tuples become lists


def from_dict(values: dict[str, Any]) -> TrainConfig:
    """The configuration that `to_dict` wrote. Unknown, missing and ill-typed fields are errors that name the field."""
    return _build(TrainConfig, values, "")


def read_config(path: Path) -> TrainConfig:
    """Read a config.json (or the run folder that holds one)."""
    path = path / "config.json" if path.is_dir() else path
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise CitrusError(f"Cannot read the configuration {path}: {error}.") from error
    if not isinstance(values, dict):
        raise CitrusError(f"The configuration {path} must be a JSON object.")
    return from_dict(values)


def override(config: TrainConfig, changes: dict[str, str]) -> TrainConfig:
    """Change fields by dotted name, as the command line writes them: {"method.tau_ratio": "0.4", "eps": "8/255"}."""
    values, names = to_dict(config), field_names(config)
    for name, text in changes.items():
        *path, last = name.replace("-", "_").split(".")
        if ".".join([*path, last]) not in names:
            raise CitrusError(f"Unknown field {name!r}: {suggest(name, names)}")
        place = values
        for part in path:
            place = place[part]
        place[last] = text.split(",") if isinstance(place[last], list) else text
    return from_dict(values)


def field_names(config: Any, prefix: str = "") -> list[str]:
    """All fields by dotted name."""
    names: list[str] = []
    for name, value in vars(config).items():
        names += field_names(value, f"{prefix}{name}.") if dataclasses.is_dataclass(value) else [prefix + name]
    return names


def _build(kind: Any, values: dict[str, Any], where: str) -> Any:
    """A dataclass from the JSON values of its fields; `where` is the beginning of their dotted names."""
    fields, hints = {f.name: f for f in dataclasses.fields(kind)}, get_type_hints(kind)
    for name in values:
        if name not in fields:
            raise CitrusError(f"Unknown field {where + name!r}: {suggest(name, fields)}")
    absent = [f for name, f in fields.items() if name not in values]
    missing = [where + f.name for f in absent if f.default is f.default_factory is dataclasses.MISSING]
    if missing:
        raise CitrusError(f"The configuration lacks {', '.join(missing)}.")
    return kind(**{name: _value(hints[name], value, where + name) for name, value in values.items()})


def _value(kind: Any, value: Any, name: str) -> Any:
    """A JSON value or command-line word as the type of its field."""

    def require(right: bool, what: str) -> None:
        if not right:
            raise CitrusError(f"{name} must be {what}, got {value!r}.")

    if kind == AnyMethod or dataclasses.is_dataclass(kind):
        require(isinstance(value, dict), "an object with fields")
        fields = dict(value)
        if kind == AnyMethod:
            method = fields.pop("name", None)
            if str(method) not in METHODS:
                raise CitrusError(f"Unknown method {method!r}: {suggest(str(method), METHODS)}")
            kind = METHODS[str(method)]
        return _build(kind, fields, f"{name}.")
    if get_origin(kind) is tuple:
        require(isinstance(value, list | tuple), "a list")
        return tuple(_value(get_args(kind)[0], v, name) for v in value if v != "")
    if get_origin(kind) is Literal:
        require(value in get_args(kind), f"one of {', '.join(get_args(kind))}")
        return value
    if kind is str:
        require(isinstance(value, str), "text")
        return value
    if kind is bool:
        require(isinstance(value, bool) or value in ("true", "false", "True", "False"), "true or false")
        return value in (True, "true", "True")
    require(not isinstance(value, bool), "a number")
    number = parse_number(value, name)
    require(kind is float or number == int(number), "a whole number")
    return number if kind is float else int(number)
