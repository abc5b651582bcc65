"""The published recipes carry the published numbers, written out here a second time from the papers' code."""

import pytest

from citrus.errors import CitrusError
from citrus.methods import SABR, Citrus, CitrusSI
from citrus.networks import ARCHITECTURES
from citrus.recipes import MEASURED, RECIPES, recipe
from citrus.recipes.published import PUBLISHED_RECIPES

METHODS = ("standard", "ibp", "sabr", "citrus", "citrus_si")
SETTINGS = {
    "mnist-0.1": ("mnist", 0.1),
    "mnist-0.3": ("mnist", 0.3),
    "cifar10-2-255": ("cifar10", 2 / 255),
    "cifar10-8-255": ("cifar10", 8 / 255),
    "tinyimagenet-1-255": ("tinyimagenet", 1 / 255),
}

# Mueller et al.: epochs, batch, milestones, ramp, tau/eps, L1, factor on the upper bound of unstable ReLUs
SABR_TABLE = {
    "mnist-0.1": (70, 256, (50, 60), 20, 0.4, 1e-5, 1.0),
    "mnist-0.3": (70, 256, (50, 60), 20, 0.6, 1e-6, 1.0),
    "cifar10-2-255": (160, 128, (120, 140), 80, 0.1, 1e-6, 0.8),
    "cifar10-8-255": (180, 128, (140, 160), 80, 0.7, 0.0, 1.0),
    "tinyimagenet-1-255": (180, 128, (140, 160), 80, 0.4, 1e-6, 1.0),
}
# Shi et al.: epochs, batch, milestones, epochs at eps 0, ramp, training eps, weight of the regularisers
IBP_TABLE = {
    "mnist-0.1": (70, 256, (50, 60), 0, 20, 0.2, 0.5),
    "mnist-0.3": (70, 256, (50, 60), 0, 20, 0.4, 0.5),
    "cifar10-2-255": (160, 128, (120, 140), 1, 80, 2 / 255, 0.5),
    "cifar10-8-255": (160, 128, (120, 140), 1, 80, 8 / 255, 0.5),
    "tinyimagenet-1-255": (80, 128, (61, 71), 1, 20, 1 / 255, 0.2),
}


def test_all_25_published_names_exist_and_no_other() -> None:
    assert set(PUBLISHED_RECIPES) == {f"{setting}-{method}" for setting in SETTINGS for method in METHODS}
    assert len(PUBLISHED_RECIPES) == 25
    assert PUBLISHED_RECIPES.items() <= RECIPES.items()


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("method", METHODS)
def test_what_all_published_recipes_share(setting: str, method: str) -> None:
    config = recipe(f"{setting}-{method}")
    assert (config.data, config.eps) == SETTINGS[setting]
    assert config.method.name == method
    assert config.network == "cnn7"
    assert (config.lr, config.lr_factor) == (5e-4, 0.2)
    assert config.clean_weight == 0
    assert config.augment
    assert config.init == ("default" if method == "standard" else "shi")


@pytest.mark.parametrize("setting", SETTINGS)
def test_sabr_as_published(setting: str) -> None:
    config = recipe(f"{setting}-sabr")
    assert isinstance(config.method, SABR)
    epochs, batch, milestones, ramp, tau, l1, shrink = SABR_TABLE[setting]
    assert (config.epochs, config.batch_size, config.milestones) == (epochs, batch, milestones)
    assert (config.warmup_epochs, config.ramp_epochs) == (1, ramp)
    assert (config.method.tau_ratio, config.method.shrink, config.l1) == (tau, shrink, l1)
    assert config.train_eps == config.eps
    assert (config.clip_norm, config.regularizer, config.seed, config.clip) == (0, 0.5, 12, True)
    assert config.normalize == (config.data != "mnist")
    attack = config.method.attack
    assert (attack.steps, attack.restarts, attack.step_size, attack.decay) == (8, 1, 0.5, 0.1)
    sizes = [attack.step_at(step) for step in range(8)]
    assert sizes == pytest.approx([0.5] * 4 + [0.05] * 3 + [0.005])


@pytest.mark.parametrize("setting", SETTINGS)
def test_ibp_as_published(setting: str) -> None:
    config = recipe(f"{setting}-ibp")
    epochs, batch, milestones, warmup, ramp, train_eps, weight = IBP_TABLE[setting]
    assert (config.epochs, config.batch_size, config.milestones) == (epochs, batch, milestones)
    assert (config.warmup_epochs, config.ramp_epochs, config.regularizer) == (warmup, ramp, weight)
    assert config.train_eps == pytest.approx(train_eps, rel=1e-12)
    assert (config.clip_norm, config.l1, config.clip) == (10, 0, True)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", [Citrus, CitrusSI])
def test_citrus_is_sabrs_setting_in_batches_of_5_with_20_steps(setting: str, kind: type[Citrus]) -> None:
    """CITRUS paper, appendix C. What it does not change is SABR's."""
    config = recipe(f"{setting}-{kind.name}")
    assert type(config.method) is kind
    epochs, _, milestones, ramp, tau, l1, _ = SABR_TABLE[setting]
    assert (config.batch_size, config.method.group_size, config.method.partners) == (5, 5, 0)
    assert config.method.attack.steps == 20
    assert (config.method.tau_ratio, config.l1, config.train_eps) == (tau, l1, config.eps)
    assert (config.epochs, config.milestones) == (epochs, milestones)
    assert (config.warmup_epochs, config.ramp_epochs, config.regularizer) == (1, ramp, 0.5)
    assert not config.clip, "a universal perturbation is not clipped"


@pytest.mark.parametrize("setting", SETTINGS)
def test_standard_training_has_no_ramp_and_no_regulariser(setting: str) -> None:
    config = recipe(f"{setting}-standard")
    assert (config.warmup_epochs, config.ramp_epochs, config.regularizer, config.l1) == (0, 0, 0, 0)


def test_the_cpu_recipes_cover_all_methods() -> None:
    names = {name for name in RECIPES if name.endswith("-cpu")}
    settings = [name for name in SETTINGS if not name.startswith("tiny")]
    assert names == {f"{setting}-{method}-cpu" for setting in settings for method in METHODS}
    for name in names:
        config, published = RECIPES[name], RECIPES[name.removesuffix("-cpu")]
        assert config.network == "convsmall"
        assert (config.data, config.eps, config.method.name) == (published.data, published.eps, published.method.name)
        assert config.validation > 0, "settings are chosen on held-out images, not on the test set"
        assert config.epochs < published.epochs


def test_quickstart_trains_citrus_at_a_tenth_on_the_embedded_digits() -> None:
    config = recipe("quickstart")
    assert (config.data, config.network, config.eps) == ("digits", "convsmall", 0.1)
    assert type(config.method) is Citrus


def test_there_are_no_other_recipes() -> None:
    others = {name for name in RECIPES if name not in PUBLISHED_RECIPES and not name.endswith("-cpu")}
    assert others == {"quickstart"}


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_can_reach_its_radius_and_its_milestones(name: str) -> None:
    config = RECIPES[name]
    assert config.network in ARCHITECTURES
    assert all(0 < m < config.epochs for m in config.milestones)
    assert config.warmup_epochs + config.ramp_epochs < config.epochs


def test_measured_results_belong_to_recipes() -> None:
    assert set(MEASURED) <= set(RECIPES)
    for result in MEASURED.values():
        assert all(0 <= v <= 100 for v in (result.clean, result.ibp_certified))
        assert result.minutes > 0


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("mnist-0.1-citru", "mnist-0.1-citrus"),
        ("quickstrat", "quickstart"),
        ("cifar10-2/255-sabr", "cifar10-2-255-sabr"),
        ("tinyimagenet-1-255-ipb", "tinyimagenet-1-255-ibp"),
    ],
)
def test_an_unknown_recipe_is_answered_with_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(CitrusError, match=f"Unknown recipe '{name}': did you mean '{nearest}'"):
        recipe(name)


def test_a_name_near_nothing_is_answered_with_all() -> None:
    with pytest.raises(CitrusError, match=r"Unknown recipe 'zzzz': known: .*quickstart"):
        recipe("zzzz")
