"""Which runs the paper's evaluation needs, and how large they are: a demonstration, two CPU cores, or the paper's own.

A `Case` is one training run; tables that need the same case share it. A `Scale` turns it into a configuration.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from citrus.bench.contest import Contest, contestants
from citrus.data import Splits, load
from citrus.inputs import format_eps
from citrus.methods import Citrus
from citrus.recipes import recipe
from citrus.training import TrainConfig

GROUP = 5  # images that exchange perturbations in training, and that share one in certification, as in the paper
LARGEST_EXACT = 10  # in larger groups, which the paper does not have, an image meets a sample of the others
SAMPLED = 4  # of them, as many as in a group of 5, so that the cost no longer grows


@dataclass(frozen=True)
class Setting:
    """A data set and a radius."""

    data: str
    eps: float
    published: str
    """The paper's setting that stands beside it, as recipes name it."""

    @property
    def name(self) -> str:
        return f"{Path(self.data).stem}-{format_eps(self.eps).replace('/', '-')}"

    def __str__(self) -> str:
        return f"{Path(self.data).stem} {format_eps(self.eps)}"


@dataclass(frozen=True)
class Case:
    """One run; what is None is as the setting's recipe has it."""

    setting: Setting
    method: str
    tau_ratio: float | None = None
    group_size: int | None = None

    @property
    def name(self) -> str:
        tau = "" if self.tau_ratio is None else f"-tau{self.tau_ratio:g}"
        return f"{self.method}{tau}" + ("" if self.group_size is None else f"-group{self.group_size}")


@dataclass(frozen=True)
class Scale:
    """How much is trained and certified."""

    network: str
    main: tuple[Setting, ...]
    adversarial: tuple[Setting, ...]
    focus: Setting
    """Where the ablations and the figure are made."""
    taus: tuple[float, ...]
    groups: tuple[int, ...]
    images: int
    """Test images that are attacked and certified, the first ones."""
    proof_seconds: float
    """Most seconds per group for the verifier's search and refinement."""
    held_out: int = 0
    """Training images that are left out, to save time."""
    epochs: int | None = None
    """None: published hyper-parameters, else those of the `-cpu` recipes in so many epochs."""
    batch_size: int = 120
    """With `epochs`: many groups, as 120 is divisible by all their sizes."""
    lr: float = 5e-3
    """With `epochs`: higher than the recipes', which train longer."""

    def load(self, data: str, data_dir: str | None) -> Splits:
        """The data set; images that are held out save training time and are not looked at."""
        splits = load(data, data_dir=data_dir, validation=self.held_out)
        return replace(splits, validation=splits.validation.subset([]))

    def tau_ratio(self, setting: Setting) -> float:
        """The one that a case without its own has."""
        method = self.config(Case(setting, "citrus"), seed=0).method
        assert isinstance(method, Citrus)
        return method.tau_ratio

    def tau_case(self, tau_ratio: float) -> Case:
        usual = self.tau_ratio(self.focus)
        return Case(self.focus, "citrus", tau_ratio=None if tau_ratio == usual else tau_ratio)

    def group_case(self, group_size: int) -> Case:
        return Case(self.focus, "citrus", group_size=None if group_size == GROUP else group_size)

    def contest(self, setting: Setting, seed: int, methods: tuple[str, ...] = ()) -> Contest:
        return Contest(setting.data, self.network, setting.eps, GROUP, self.images, seed, methods)

    def config(self, case: Case, seed: int) -> TrainConfig:
        """The configuration of a case, CITRUS as in Algorithm 1; a method that does not exist is an error."""
        config = self._published(case, seed) if self.epochs is None else self._short(case, seed, self.epochs)
        if not isinstance(config.method, Citrus):
            return config
        size = case.group_size or GROUP
        tau = config.method.tau_ratio if case.tau_ratio is None else case.tau_ratio
        partners = SAMPLED if size > LARGEST_EXACT else 0
        method = type(config.method)(tau_ratio=tau, group_size=size, partners=partners, attack=config.method.attack)
        # The paper's batch is one group, so that it grows with it; a short training has larger ones of many groups.
        return replace(config, method=method, batch_size=size if self.epochs is None else self.batch_size)

    def _short(self, case: Case, seed: int, epochs: int) -> TrainConfig:
        config = contestants(self.contest(case.setting, seed, (case.method,)), epochs, train_images=0)[case.method]
        return replace(config, batch_size=self.batch_size, lr=self.lr, validation=self.held_out)

    def _published(self, case: Case, seed: int) -> TrainConfig:
        config = recipe(f"{case.setting.published}-{case.method}")
        return replace(config, test_images=self.images, group_size=GROUP, validation=self.held_out, seed=seed)


DIGITS = Setting("digits", 0.1, "mnist-0.1")
MNIST = Setting("mnist", 0.1, "mnist-0.1"), Setting("mnist", 0.3, "mnist-0.3")
CIFAR = Setting("cifar10", 2 / 255, "cifar10-2-255"), Setting("cifar10", 8 / 255, "cifar10-8-255")
TINY = Setting("tinyimagenet", 1 / 255, "tinyimagenet-1-255")

SCALES: dict[str, Scale] = {
    "demo": Scale(
        network="smallcnn",
        main=(DIGITS,),
        adversarial=(DIGITS,),
        focus=DIGITS,
        taus=(0.3, 0.6, 0.9),
        groups=(2, 5, 20),
        images=40,
        proof_seconds=0.1,
        held_out=2400,
        epochs=5,
        batch_size=60,
        lr=1e-2,
    ),
    "cpu": Scale(
        network="convsmall",
        main=MNIST,
        adversarial=MNIST,
        focus=MNIST[0],
        taus=(0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
        groups=(2, 3, 5, 8, 10, 20, 60),
        images=500,
        proof_seconds=0.25,
        held_out=40_000,
        epochs=10,
    ),
    "full": Scale(
        network="cnn7",
        main=(*MNIST, *CIFAR, TINY),
        adversarial=CIFAR[1:],
        focus=CIFAR[1],
        taus=(0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
        groups=(2, 3, 4, 5, 6, 8, 10, 20, 50),
        images=10_000,
        proof_seconds=10.0,
    ),
}
