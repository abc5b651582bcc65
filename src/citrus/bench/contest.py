"""Who takes part in a comparison, and with which settings."""

from dataclasses import dataclass, replace

from citrus.errors import CitrusError, suggest
from citrus.inputs import parse_eps
from citrus.methods import METHODS
from citrus.recipes.cpu import CPU_RECIPES, SETTINGS
from citrus.training import TrainConfig

FEW_IMAGES = 10_000  # a training set smaller than this is cut into smaller batches, for the sake of more steps


@dataclass(frozen=True)
class Contest:
    """What is compared on what."""

    data: str = "mnist"
    network: str = "convsmall"
    eps: float = 0.1
    group_size: int = 5
    images: int = 200
    """Test images that are attacked and certified, the first ones."""
    seed: int = 0
    methods: tuple[str, ...] = ()
    """Names of `-cpu` recipes without their setting, such as citrus; none means all."""

    def __post_init__(self) -> None:
        parse_eps(self.eps)
        if self.images < 1 or self.group_size < 1:
            raise CitrusError(
                f"There must be at least one image and one to a group, got {self.images} and {self.group_size}."
            )


def contestants(contest: Contest, epochs: int, train_images: int) -> dict[str, TrainConfig]:
    """One configuration per method and variant: `-cpu` recipes of the nearest setting, or a method's own defaults."""
    setting = min(SETTINGS, key=lambda s: (SETTINGS[s][0] != contest.data, abs(SETTINGS[s][1] - contest.eps)))
    start, end = f"{setting}-", "-cpu"
    found = {n.removeprefix(start).removesuffix(end): c for n, c in CPU_RECIPES.items() if n.startswith(start)}
    with_recipe = {config.method.name for config in found.values()}
    for name, method in METHODS.items():
        if name not in with_recipe:
            found[name] = replace(found["ibp" if method.certified else "pgd"], method=method())
    for name in contest.methods:
        if name not in found:
            raise CitrusError(f"Unknown method {name!r}: {suggest(name, found)}")
    return {
        name: scaled(_same_for_all(found[name], contest, train_images), epochs) for name in contest.methods or found
    }


def _same_for_all(config: TrainConfig, contest: Contest, train_images: int) -> TrainConfig:
    return replace(
        config,
        data=contest.data,
        network=contest.network,
        eps=contest.eps,
        clip=False,
        batch_size=125 if train_images >= FEW_IMAGES else 50,
        validation=0,
        test_images=contest.images,
        group_size=contest.group_size,
        seed=contest.seed,
    )


def scaled(config: TrainConfig, epochs: int) -> TrainConfig:
    """The same schedule in another number of epochs."""

    def at(epoch: int, least: int = 0) -> int:
        return max(round(epoch * epochs / config.epochs), least) if epoch else 0

    ramp = at(config.ramp_epochs, least=1)
    return replace(
        config,
        epochs=epochs,
        milestones=tuple(sorted({at(m, least=1) for m in config.milestones} - {epochs})),
        warmup_epochs=min(at(config.warmup_epochs), epochs - ramp),
        ramp_epochs=ramp,
    )
