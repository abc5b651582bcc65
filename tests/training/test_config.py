"""A configuration survives JSON and flags unchanged, and every mistake in one is answered in one sentence."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from citrus.attacks import Ascent
from citrus.errors import CitrusError
from citrus.methods import IBP, METHODS, SABR, Citrus, CitrusSI, Standard
from citrus.recipes import RECIPES, recipe
from citrus.training import TrainConfig, from_dict, override, read_config, to_dict
from citrus.training.config import field_names

CONFIG = recipe("mnist-0.1-citrus")
MINIMAL: dict[str, Any] = {
    "data": "digits",
    "network": "mlp",
    "method": {"name": "ibp"},
    "eps": 0.1,
    "epochs": 3,
    "batch_size": 10,
}


def one_sentence(error: pytest.ExceptionInfo[CitrusError]) -> bool:
    text = str(error.value)
    return text[-1] in ".?" and not any(mark in text for mark in (". ", "? ", "\n"))


# ------------------------------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_survives_json(name: str) -> None:
    config = RECIPES[name]
    assert from_dict(to_dict(config)) == config
    text = json.dumps(to_dict(config), allow_nan=False)
    assert from_dict(json.loads(text)) == config
    assert json.dumps(to_dict(from_dict(json.loads(text)))) == text


@pytest.mark.parametrize("name", METHODS)
def test_every_method_survives_json(name: str) -> None:
    config = from_dict(MINIMAL | {"method": {"name": name}})
    assert type(config.method) is METHODS[name]
    assert config.method == METHODS[name]()
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


def test_what_is_not_said_has_its_default() -> None:
    config = TrainConfig(data="digits", network="mlp", method=IBP(), eps=0.1, epochs=3, batch_size=10)
    assert from_dict(MINIMAL) == config


def test_fractions_and_nested_objects_may_be_written_in_json() -> None:
    attack = {"steps": 3, "decay_at": [0.5]}
    config = from_dict(MINIMAL | {"eps": "8/255", "method": {"name": "sabr", "tau_ratio": "1/4", "attack": attack}})
    assert config.eps == 8 / 255
    assert config.method == SABR(tau_ratio=0.25, attack=Ascent(steps=3, decay_at=(0.5,)))


def test_a_file_or_the_folder_around_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(to_dict(CONFIG)))
    assert read_config(path) == read_config(tmp_path) == CONFIG


@pytest.mark.parametrize("content", ["{", "[1, 2]", '"text"', ""])
def test_a_file_that_is_no_object_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(CitrusError, match=r"config\.json"):
        read_config(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CitrusError, match=r"nothing\.json"):
        read_config(tmp_path / "nothing.json")


# ------------------------------------------------------------------------------------------------------------- flags


OVERRIDES: list[tuple[str, str, object]] = [
    ("eps", "8/255", 8 / 255),
    ("eps", "0.3", 0.3),
    ("eps_factor", "4/3", 4 / 3),
    ("epochs", "120", 120),
    ("epochs", "1e2", 100),
    ("lr", "1e-3", 1e-3),
    ("milestones", "50,60", (50, 60)),
    ("milestones", "50, 60", (50, 60)),
    ("milestones", "50", (50,)),
    ("milestones", "", ()),
    ("clip", "true", True),
    ("clip", "True", True),
    ("augment", "false", False),
    ("crop", "0", 0),
    ("init", "default", "default"),
    ("data", "runs/my images,2.npz", "runs/my images,2.npz"),
    ("data", "123", "123"),
    ("clip-norm", "0", 0.0),
    ("method.tau_ratio", "0.4", 0.4),
    ("method.tau-ratio", "1/3", 1 / 3),
    ("method.partners", "1", 1),
    ("method.attack.steps", "7", 7),
    ("method.attack.decay_at", "0.5,0.75", (0.5, 0.75)),
]


@pytest.mark.parametrize(("name", "text", "value"), OVERRIDES)
def test_a_field_is_changed_by_its_dotted_name_and_nothing_else(name: str, text: str, value: object) -> None:
    changed = override(CONFIG, {name: text})
    before, after = to_dict(CONFIG), to_dict(changed)
    *path, last = name.replace("-", "_").split(".")
    found: Any = changed
    for part in (*path, last):
        found = getattr(found, part)
    assert found == value
    assert type(found) is type(value)
    for part in path:
        before, after = before[part], after[part]
    assert {k: v for k, v in after.items() if k != last} == {k: v for k, v in before.items() if k != last}


def test_many_changes_at_once_are_checked_together() -> None:
    """A batch of 12 does not fit groups of 5, a batch of 12 and groups of 4 do."""
    changed = override(CONFIG, {"batch_size": "12", "method.group_size": "4"})
    assert (changed.batch_size, changed.method.group_size) == (12, 4)  # type: ignore[union-attr]
    assert override(CONFIG, {}) == CONFIG
    with pytest.raises(CitrusError, match="no multiple"):
        override(CONFIG, {"batch_size": "12"})


def test_every_listed_field_can_be_set_to_itself() -> None:
    for name in field_names(CONFIG):
        value: Any = CONFIG
        for part in name.split("."):
            value = getattr(value, part)
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        assert override(CONFIG, {name: text}) == CONFIG, name


UNKNOWN = [
    ("epoch", "epochs"),
    ("batchsize", "batch_size"),
    ("method.tau", "method.tau_ratio"),
    ("method.groupsize", "method.group_size"),
    ("method.attack.step", "method.attack.steps"),
    ("tau_ratio", "method.tau_ratio"),
    ("eps.x", "eps"),
    ("methods.partners", "method.partners"),
]


@pytest.mark.parametrize(("name", "nearest"), UNKNOWN)
def test_an_unknown_field_is_answered_with_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(CitrusError, match=f"Unknown field '{name}': did you mean '{nearest}'") as caught:
        override(CONFIG, {name: "1"})
    assert one_sentence(caught)


def test_a_field_near_nothing_is_answered_with_all_of_them() -> None:
    with pytest.raises(CitrusError, match=r"Unknown field 'qqqq': known: .*batch_size") as caught:
        override(CONFIG, {"qqqq": "1"})
    assert one_sentence(caught)


# --------------------------------------------------------------------------------------------------------- wrong JSON

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"epochs": 2.5}, "epochs must be a whole number, got 2.5"),
    ({"epochs": True}, "epochs must be a .*number, got True"),
    ({"epochs": "many"}, "epochs must be a number .* got 'many'"),
    ({"epochs": None}, "epochs must be a number"),
    ({"epochs": [3]}, "epochs must be a number"),
    ({"lr": "fast"}, "lr must be a number"),
    ({"lr": math.inf}, "lr must be a number"),
    ({"lr": True}, "lr must be a number"),
    ({"eps": "1/0"}, "eps must be a number"),
    ({"eps": "8/255/2"}, "eps must be a number"),
    ({"clip": "yes"}, "clip must be true or false, got 'yes'"),
    ({"clip": 1}, "clip must be true or false, got 1"),
    ({"clip": []}, "clip must be true or false"),
    ({"init": "zero"}, "init must be one of shi, default, got 'zero'"),
    ({"milestones": 50}, "milestones must be a list, got 50"),
    ({"milestones": [50, "x"]}, "milestones must be a number"),
    ({"data": None}, "data must be"),
    ({"data": {"name": "mnist"}}, "data must be"),
    ({"method": "ibp"}, "Unknown method 'ibp'|method must be"),
    ({"method": {"name": "citrsu"}}, "Unknown method 'citrsu': did you mean 'citrus'"),
    ({"method": {}}, "Unknown method None"),
    ({"method": {"name": ["ibp"]}}, "Unknown method"),
    ({"method": {"name": "ibp", "tau_ratio": 1}}, "Unknown field 'method.tau_ratio'"),
    ({"method": {"name": "sabr", "attack": 8}}, "method.attack must be an object with fields, got 8"),
    ({"method": {"name": "sabr", "attack": {"step": 8}}}, "Unknown field 'method.attack.step': did you mean 'steps'"),
    ({"method": {"name": "sabr", "attack": {"steps": -1}}}, "steps must be at least 0, got -1"),
    ({"learning_rate": 1}, "Unknown field 'learning_rate'"),
]


@pytest.mark.parametrize(("change", "says"), WRONG, ids=lambda v: str(v)[:40])
def test_a_value_of_the_wrong_type_is_refused_by_name(change: dict[str, Any], says: str) -> None:
    with pytest.raises(CitrusError, match=says) as caught:
        from_dict(MINIMAL | change)
    assert one_sentence(caught)


def test_missing_fields_are_all_named() -> None:
    with pytest.raises(CitrusError, match=r"lacks data, epochs\.$") as caught:
        from_dict({k: v for k, v in MINIMAL.items() if k not in ("data", "epochs")})
    assert one_sentence(caught)


# ---------------------------------------------------------------------------------------------- values that do not fit

BAD: list[tuple[dict[str, Any], str]] = [
    *(({"eps": eps}, "eps .* must lie in \\[0, 1\\]") for eps in (-0.1, 1.5, 8)),
    ({"eps": math.nan}, "eps must be a number"),
    *(({name: 0}, f"{name} must be at least 1, got 0") for name in ("epochs", "group_size", "validate_every")),
    ({"batch_size": 0, "method": IBP()}, "batch_size must be at least 1, got 0"),
    *(
        ({name: -1}, f"{name} must be at least 0, got -1")
        for name in ("warmup_epochs", "ramp_epochs", "clip_norm", "l1", "regularizer")
    ),
    *(({name: -1}, f"{name} must be at least 0, got -1") for name in ("validation", "seed", "test_images")),
    ({"l1": math.nan}, "l1 must be finite and at least 0, got nan"),
    *(({"clean_weight": w}, "clean_weight must lie in") for w in (-0.1, 1.1, math.nan)),
    *(({"lr_factor": f}, "lr_factor must lie in") for f in (0, 1.1, math.nan)),
    *(({name: v}, name) for name in ("lr", "memory_gb", "eps_factor") for v in (0, -1, math.nan)),
    ({"warmup_epochs": 40, "ramp_epochs": 40}, "do not fit in 70 epochs"),
    ({"milestones": (60, 50)}, "milestones must increase"),
    ({"batch_size": 12}, "no multiple of group_size 5"),
    ({"batch_size": 4}, "group_size 5 is larger than batch_size 4"),
    ({"method": SABR(tau_ratio=1.5)}, "tau_ratio must lie in .0, 1., got 1.5"),
    ({"method": SABR(shrink=0)}, "shrink must lie in"),
    ({"method": Citrus(group_size=1)}, "at least 2 images"),
    ({"method": CitrusSI(partners=5)}, "0 .* to 4 partners"),
]


@pytest.mark.parametrize(("change", "says"), BAD, ids=lambda v: str(v)[:40])
def test_values_that_do_not_fit_are_refused_in_one_sentence(change: dict[str, Any], says: str) -> None:
    with pytest.raises(CitrusError, match=says) as caught:
        replace(CONFIG, **change)
    assert one_sentence(caught)
    assert str(caught.value).endswith(".")


def test_values_at_the_edge_fit() -> None:
    for change in ({"eps": 0.0}, {"eps": 1.0}, {"clean_weight": 1.0}, {"lr_factor": 1.0}, {"ramp_epochs": 69}):
        replace(CONFIG, **change)  # type: ignore[arg-type]
    replace(CONFIG, method=Standard(), batch_size=1)


def test_a_configuration_cannot_be_changed_in_place() -> None:
    with pytest.raises(AttributeError):
        CONFIG.eps = 0.2  # type: ignore[misc]


def test_the_training_radius_is_eps_times_its_factor() -> None:
    assert replace(CONFIG, eps=0.3, eps_factor=4 / 3).train_eps == pytest.approx(0.4)


def test_a_deep_file_is_refused(tmp_path: Path) -> None:
    """Found by `make fuzz`."""
    (tmp_path / "config.json").write_text('{"data": ' + "[" * 100_000)
    with pytest.raises(CitrusError, match="Cannot read the configuration"):
        read_config(tmp_path)
