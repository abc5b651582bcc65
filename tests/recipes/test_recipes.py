"""The published recipes carry the published numbers, written out here a second time from the papers' code."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from citrus.errors import CitrusError
from citrus.methods import IBP, PGD, SABR, STAPS, TAPS, Citrus, CitrusSI, Colt, CrownIBP, Shared
from citrus.methods.expressive import Expressive
from citrus.networks import ARCHITECTURES
from citrus.recipes import MEASURED, RECIPES, recipe
from citrus.recipes.found import FOUND_RECIPES
from citrus.recipes.published import PUBLISHED_RECIPES
from citrus.studies import read_rows
from citrus.training import to_dict

METHODS = (
    *("standard", "ibp", "sabr", "citrus", "citrus_si", "mtl_ibp", "cc_ibp", "exp_ibp"),
    *("pgd", "uat", "cw_uat", "shared", "colt", "taps", "staps", "crown_ibp"),
)
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


# De Palma et al.: epochs, milestones, training radius, then alpha and L1 of each loss (Exp-IBP on MNIST is not theirs)
EXPRESSIVE_TABLE = {
    "mnist-0.1": (70, (50, 60), 0.2, {"mtl_ibp": (0.01, 1e-5), "cc_ibp": (0.1, 2e-6)}),
    "mnist-0.3": (70, (50, 60), 0.4002, {"mtl_ibp": (0.08, 1e-6), "cc_ibp": (0.3, 3e-6)}),
    "cifar10-2-255": (
        *(160, (120, 140), 2 / 255),
        {"mtl_ibp": (0.004, 3e-6), "cc_ibp": (0.01, 3e-6), "exp_ibp": (0.095, 4e-6)},
    ),
    "cifar10-8-255": (
        *(260, (180, 220), 8 / 255),
        {"mtl_ibp": (0.5, 1e-7), "cc_ibp": (0.5, 0.0), "exp_ibp": (0.5, 0.0)},
    ),
    "tinyimagenet-1-255": (
        *(160, (120, 140), 1 / 255),
        {"mtl_ibp": (0.01, 5e-5), "cc_ibp": (0.01, 5e-5), "exp_ibp": (0.04, 5e-5)},
    ),
}
# CTBench's PGD: epochs, milestones, epochs at eps 0, ramp, training radius, attack steps, step size, L1
PGD_TABLE = {
    "mnist-0.1": (70, (50, 60), 0, 20, 0.2, 10, 0.25, 1e-5),
    "mnist-0.3": (70, (50, 60), 0, 20, 0.3, 5, 0.4, 5e-6),
    "cifar10-2-255": (160, (120, 140), 1, 80, 2 / 255, 8, 0.25, 2e-5),
    "cifar10-8-255": (240, (200, 220), 1, 120, 8 / 255, 10, 0.25, 1e-6),
    "tinyimagenet-1-255": (160, (120, 140), 1, 80, 1 / 255, 1, 2.0, 1e-5),
}


# Mao et al.: epochs, milestones, training radius, regularisers, seed; TAPS: ReLU layers behind the split, L1 of all 7
# layers; STAPS: tau/eps, factor on unstable ReLUs, weight of the gradient, L1, latent steps
TAPS_TABLE = {
    "mnist-0.1": ((70, (50, 60), 0.2, 0.5, 123), (1, 0.0), (0.4, 1.0, 5, 2e-5, 20)),
    "mnist-0.3": ((70, (50, 60), 0.4, 0.5, 123), (1, 0.0), (0.6, 1.0, 5, 2e-6, 20)),
    "cifar10-2-255": ((161, (121, 141), 2 / 255, 0.5, 1), (5, 2e-6), (0.1, 0.8, 2, 2e-6, 20)),
    "cifar10-8-255": ((161, (121, 141), 8 / 255, 0.5, 1), (1, 2e-6), (0.7, 1.0, 5, 2e-6, 20)),
    "tinyimagenet-1-255": ((80, (60, 70), 1 / 255, 0.1, 1), (1, 0.0), (0.6, 1.0, 5, 1e-6, 10)),
}


def test_all_published_names_exist_and_no_other() -> None:
    assert set(PUBLISHED_RECIPES) == {f"{setting}-{method}" for setting in SETTINGS for method in METHODS}
    assert len(PUBLISHED_RECIPES) == len(SETTINGS) * len(METHODS)
    assert PUBLISHED_RECIPES.items() <= RECIPES.items()


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("method", METHODS)
def test_what_all_published_recipes_share(setting: str, method: str) -> None:
    config = recipe(f"{setting}-{method}")
    assert (config.data, config.eps) == SETTINGS[setting]
    assert config.method.name == method
    assert config.network == ("convsmall" if method == "colt" else "cnn7")
    assert config.lr == 5e-4
    assert method == "colt" or config.lr_factor == 0.2
    assert config.clean_weight == (0.5 if method == "shared" else 0)
    assert config.augment
    assert config.init == ("shi" if config.method.certified else "default")


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
def test_expressive_losses_as_published(setting: str) -> None:
    epochs, milestones, train_eps, losses = EXPRESSIVE_TABLE[setting]
    for name, (alpha, l1) in losses.items():
        config = recipe(f"{setting}-{name}")
        assert isinstance(config.method, Expressive)
        assert (config.epochs, config.milestones) == (epochs, milestones)
        assert (config.warmup_epochs, config.ramp_epochs) == ((0, 20) if config.data == "mnist" else (1, 80))
        assert config.train_eps == pytest.approx(train_eps, rel=1e-12)
        assert (config.method.alpha, config.l1) == (alpha, l1)
        attack = config.method.attack
        if setting == "cifar10-2-255":
            assert (config.method.attack_factor, attack.steps, attack.step_size) == (2.1, 8, 0.25)
        else:
            assert (config.method.attack_factor, attack.steps, attack.step_size) == (1, 1, 10)
        assert [attack.step_at(step) for step in range(attack.steps)] == [attack.step_size] * attack.steps
        assert (config.batch_size, config.clip_norm, config.seed, config.clip) == (
            *(256 if config.data == "mnist" else 128, 10, 100),
            True,
        )
        assert config.regularizer == (0.2 if config.data == "tinyimagenet" else 0.5)
        assert config.normalize == (config.data != "mnist")


@pytest.mark.parametrize("setting", SETTINGS)
def test_pgd_as_in_ctbench(setting: str) -> None:
    config = recipe(f"{setting}-pgd")
    assert isinstance(config.method, PGD)
    epochs, milestones, warmup, ramp, train_eps, steps, step_size, l1 = PGD_TABLE[setting]
    assert (config.epochs, config.milestones, config.batch_size) == (
        *(epochs, milestones),
        256 if config.data == "mnist" else 128,
    )
    assert (config.warmup_epochs, config.ramp_epochs, config.l1) == (warmup, ramp, l1)
    assert config.train_eps == pytest.approx(train_eps, rel=1e-12)
    attack = config.method.attack
    assert (attack.steps, attack.restarts, attack.step_size) == (steps, 3, step_size)
    assert [attack.step_at(step) for step in range(steps)] == [step_size] * steps
    assert (config.clip_norm, config.normalize, config.clip, config.seed) == (10, True, True, 123)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("method", ["uat", "cw_uat", "shared"])
def test_universal_training_meets_the_whole_radius_unclipped(setting: str, method: str) -> None:
    config, pgd = recipe(f"{setting}-{method}"), recipe(f"{setting}-pgd")
    assert (config.epochs, config.milestones, config.batch_size) == (pgd.epochs, pgd.milestones, pgd.batch_size)
    assert (config.train_eps, config.warmup_epochs, config.ramp_epochs) == (config.eps, 0, 0)
    assert not config.clip
    if isinstance(config.method, Shared):
        assert (config.method.heap_size, config.method.attack.steps, config.method.attack.step_size) == (64, 4, 0.5)
        assert config.method.limit == pytest.approx(1.6094379)


@pytest.mark.parametrize("setting", SETTINGS)
def test_colt_as_in_its_scripts(setting: str) -> None:
    """Those for CIFAR-10; the authors give none for the other data sets, where the one for 2/255 is taken."""
    config = recipe(f"{setting}-colt")
    method = config.method
    assert isinstance(method, Colt)
    large = setting == "cifar10-8-255"
    assert (config.batch_size, config.lr_factor) == ((150, 0.5) if large else (100, 0.75))
    assert (method.eps_growth, method.stability, method.l1) == ((1.2, 0.003, 5e-6) if large else (1.1, 0.005, 1e-5))
    assert (method.stages, method.mix, method.stability_growth) == (3, 0.3, 1.5)
    assert (method.attack.steps, method.attack.step_at(7)) == (8, 0.25)
    assert (config.epochs, config.milestones) == (600, (200, 400))
    assert config.train_eps == pytest.approx(1.05 * config.eps)
    assert (config.warmup_epochs, config.ramp_epochs, config.l1, config.clip) == (0, 0, 0, True)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("method", ["taps", "staps"])
def test_taps_and_staps_as_published(setting: str, method: str) -> None:
    config = recipe(f"{setting}-{method}")
    assert isinstance(config.method, TAPS)
    (epochs, milestones, train_eps, weight, seed), (relus, l1), small = TAPS_TABLE[setting]
    assert (config.epochs, config.milestones, config.regularizer, config.seed) == (epochs, milestones, weight, seed)
    assert config.train_eps == pytest.approx(train_eps, rel=1e-12)
    assert config.batch_size == (256 if config.data == "mnist" else 128)
    assert (config.warmup_epochs, config.ramp_epochs) == IBP_TABLE[setting][3:5]
    assert (config.clip, config.clip_norm, config.normalize) == (True, 10, True)
    found, scale, steps = config.method, 5.0, 20
    if isinstance(found, STAPS):
        tau, shrink, scale, l1, steps = small
        assert (found.tau_ratio, found.shrink, found.classifier_relus) == (tau, shrink, 1)
        assert [found.attack.step_at(i) for i in range(found.attack.steps)] == [0.2] * 10
    else:
        assert (found.classifier_relus, found.shrink) == (relus, 1.0)
    assert (found.gradient_scale, found.slack, config.l1) == (scale, 0.5, pytest.approx(l1 / 7))
    sizes = [found.latent_attack.step_at(i) / 2 for i in range(found.latent_attack.steps)]  # in widths of the box
    assert sizes == pytest.approx([0.2] * 14 + [0.02] * 6 if steps == 20 else [0.2] * 10)


@pytest.mark.parametrize("setting", SETTINGS)
def test_crown_ibp_is_ibps_setting_with_a_falling_share_of_the_linear_bound(setting: str) -> None:
    config = recipe(f"{setting}-crown_ibp")
    assert config.method == CrownIBP(crown_start=1.0, crown_end=1.0 if setting == "cifar10-2-255" else 0.0, fused=True)
    assert replace(config, method=IBP()) == recipe(f"{setting}-ibp")


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
    assert others == {"quickstart", *FOUND_RECIPES}
    assert all(name.endswith(f"-{config.network}") for name, config in FOUND_RECIPES.items())


def test_what_was_measured_belongs_to_a_recipe() -> None:
    assert set(MEASURED) <= set(RECIPES)
    assert all(0 < m.ibp_certified < m.clean < 100 and m.minutes > 0 for m in MEASURED.values())


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_can_reach_its_radius_and_its_milestones(name: str) -> None:
    config = RECIPES[name]
    assert config.network in ARCHITECTURES
    assert all(0 < m < config.epochs for m in config.milestones)
    assert config.warmup_epochs + config.ramp_epochs < config.epochs


def test_both_networks_have_a_found_recipe_for_every_setting() -> None:
    settings = {"mnist-0.1", "mnist-0.3", "cifar10-2-255", "cifar10-8-255"}
    for network in ("convsmall", "cnn7"):
        found = [name for name in FOUND_RECIPES if name.endswith(f"-{network}")]
        assert {name.split("-citrus")[0] for name in found} == settings


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "quickstart"])
def test_a_recipe_is_named_after_the_method_that_it_trains(name: str) -> None:
    """DATA-EPS-METHOD, perhaps with a word behind it; no method's name holds a hyphen."""
    config = RECIPES[name]
    setting, eps = next((s, eps) for s, (_, eps) in SETTINGS.items() if name.startswith(f"{s}-"))
    assert config.eps == eps
    assert name.removeprefix(f"{setting}-").split("-")[0] == config.method.name


REMOVED = {"average_from": 0, "average_every": 10, "population_bn": True}
REMOVED_OF_CITRUS = {"worst_of": 0, "mix": 0.0, "mix_with": "clean", "memory": 0, "tau_start": 1.0}


def learnt(config: dict[str, Any]) -> dict[str, Any]:
    """What decides on the weights, apart from those a run began with. The log has fields that are no more, all off, and
    lacks those that came later, which are off in recipes."""
    free = {"validate_every", "memory_gb", "start"}
    method = REMOVED_OF_CITRUS | config["method"]
    method = {k: {"momentum": []} | v if isinstance(v, dict) and "steps" in v else v for k, v in method.items()}
    return {k: v for k, v in (REMOVED | config).items() if k not in free} | {"method": method}


RUNS = Path(__file__).parents[2] / "results" / "runs.jsonl"


def logged_runs(name: str) -> list[dict[str, Any]]:
    """The rows of runs that trained what this recipe trains, from the same start."""
    rows = [row for row in read_rows(RUNS) if row["kind"] == "run" and row.get("on") == "test"]
    wanted = learnt(to_dict(RECIPES[name]))
    same = [row for row in rows if "config" in row and learnt(row["config"]) == wanted]
    earlier = Path(RECIPES[name].start).name
    starts = {r["name"] for r in logged_runs(earlier)} if earlier else {""}
    return [r for r in same if Path(r["config"].get("start", "")).stem in starts]


@pytest.mark.skipif(not RUNS.exists(), reason="results/ is part of the repository, not of a source archive")
@pytest.mark.parametrize("name", [name for name in FOUND_RECIPES if name.endswith("-cnn7")])
def test_what_was_measured_of_cnn7_is_in_the_log_with_the_same_configuration(name: str) -> None:
    runs = logged_runs(name)
    found = [(round(r["clean"], 2), round(r["ibp"], 2), round(r["train_seconds"] / 60, 1)) for r in runs]
    assert (MEASURED[name].clean, MEASURED[name].ibp_certified, MEASURED[name].minutes) in found


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
