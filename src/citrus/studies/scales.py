"""How large the paper's evaluation is: a demonstration, what two CPU cores can do, or the paper's own."""

from dataclasses import dataclass, replace
from pathlib import Path

from citrus.certify import CertifySettings
from citrus.inputs import format_eps
from citrus.methods import Citrus
from citrus.recipes import recipe
from citrus.studies.methods import Contest, contestants
from citrus.studies.rows import Entry, Row
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

    def __str__(self) -> str:
        return f"{Path(self.data).stem} {format_eps(self.eps)}"


@dataclass(frozen=True)
class PaperScale:
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
    seed: int = 0

    def entry(self, setting: Setting, method: str, tau_ratio: float = 0.0, group_size: int = GROUP) -> Entry:
        """A run, which tables that ask for the same one share; CITRUS is that of Algorithm 1."""
        config, name = self._config(setting, method), method
        source: Row = {"setting": str(setting), "published": setting.published, "method": method}
        if isinstance(config.method, Citrus):
            usual, sampled = config.method, group_size > LARGEST_EXACT
            tau = tau_ratio or usual.tau_ratio
            name += f"-tau{tau:g}" if tau != usual.tau_ratio else ""
            name += f"-group{group_size}" if group_size != GROUP else ""
            source |= {"tau_ratio": tau, "group": group_size, "boxes": SAMPLED if sampled else group_size - 1}
            partners = SAMPLED if sampled else 0
            own = type(usual)(tau_ratio=tau, group_size=group_size, partners=partners, attack=usual.attack)
            # The paper's batch is one group, so that it grows with it; a short training has larger ones of many groups.
            config = replace(config, method=own, batch_size=self.batch_size if self.epochs else group_size)
        settings = CertifySettings(group_size=GROUP, grouping="dataset", budget=self.proof_seconds, seed=self.seed)
        folder = str(setting).replace(" ", "-").replace("/", "-")
        return Entry(f"{folder}/{name}", config, (settings,), self.images, source=source)

    def _config(self, setting: Setting, method: str) -> TrainConfig:
        if self.epochs is None:
            config = recipe(f"{setting.published}-{method}")
        else:
            contest = Contest(setting.data, self.network, setting.eps, self.epochs, self.batch_size, methods=method)
            config = replace(contestants(contest)[method], lr=self.lr)
        return replace(config, test_images=self.images, group_size=GROUP, validation=self.held_out, seed=self.seed)


DIGITS = Setting("digits", 0.1, "mnist-0.1")
MNIST = Setting("mnist", 0.1, "mnist-0.1"), Setting("mnist", 0.3, "mnist-0.3")
CIFAR = Setting("cifar10", 2 / 255, "cifar10-2-255"), Setting("cifar10", 8 / 255, "cifar10-8-255")
TINY = Setting("tinyimagenet", 1 / 255, "tinyimagenet-1-255")

SCALES: dict[str, PaperScale] = {
    # Shows in a minute that every table and figure can be made, and the roughest differences between methods: only
    # certified training can be certified, and larger boxes cost clean accuracy. Its numbers are no results.
    "demo": PaperScale(
        network="smallcnn",
        main=(DIGITS,),
        adversarial=(DIGITS,),
        focus=DIGITS,
        taus=(0.3, 0.6, 0.9),
        groups=(2, 5, 20),
        images=20,
        proof_seconds=0.1,
        held_out=3200,
        epochs=5,
        batch_size=40,
        lr=1e-2,
    ),
    "cpu": PaperScale(
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
    "full": PaperScale(
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
