"""`import citrus`: what it offers, how much it loads, and that its functions treat a user's module alike."""

import subprocess
import sys
import types

import pytest
import torch
from torch import Tensor, nn

import citrus
from citrus.errors import CitrusError


def python(code: str) -> str:
    """What a fresh process prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_import_takes_three_packages_only() -> None:
    code = (
        "import sys, citrus; citrus.train; citrus.interval; citrus.recipe; citrus.evaluate; citrus.load_data\n"
        "print([m for m in ('tyro', 'rich', 'matplotlib', 'onnx', 'highspy', 'PIL', 'mlxtend') if m in sys.modules])"
    )
    assert python(code) == "[]"


def test_neither_the_package_nor_help_loads_torch() -> None:
    for code in ("import citrus; citrus.__version__", "from citrus.cli import main; main(['--help'])"):
        assert python(f"import sys; {code}; print({{'torch', 'numpy'}} & set(sys.modules))").endswith("set()")


def test_public_names_exist_and_are_no_modules() -> None:
    assert {"certify", "train", "load_data", "build_network", "CitrusError", "__version__"} <= set(citrus.__all__)
    assert not [name for name in citrus.__all__ if isinstance(getattr(citrus, name), types.ModuleType)]
    assert set(dir(citrus)) == set(citrus.__all__)
    for name in ("nothing", "_nothing", "__nothing__"):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
            getattr(citrus, name)


CERTIFY = {
    "looked up twice": "citrus.certify",
    "after a module of its package": "import citrus.certify.cascade",
    "after a name of its package": "from citrus.certify import Verdict",
    "after all names": "from citrus import *",
}


@pytest.mark.parametrize("before", CERTIFY)
def test_certify_is_a_function_whatever_was_imported_before(before: str) -> None:
    checks = (
        "assert callable(citrus.certify) and type(citrus.certify).__name__ == 'function'",
        "from citrus.certify.cascade import Cascade, certify",
        "from citrus import certify as public",
        "assert public is certify is citrus.certify",
    )
    assert python("\n".join(["import citrus", CERTIFY[before], *checks, "print(Cascade.__name__)"])) == "Cascade"


@pytest.mark.parametrize("name", ["methods", "bounds", "errors", "api"])
def test_a_package_is_found_by_its_name_also_while_the_public_names_are_being_imported(name: str) -> None:
    begun = "sys.modules['citrus.api'] = util.module_from_spec(util.find_spec('citrus.api'))"
    meanwhile = f"import sys; from importlib import util; {begun}; from citrus import {name}"
    for code in (f"from citrus import {name}", f"import citrus; {name} = citrus.{name}", meanwhile):
        assert python(f"{code}; print({name}.__name__)") == f"citrus.{name}"
    assert python("import sys; from citrus import errors; print('torch' in sys.modules)") == "False"


def module() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))


def state(network: nn.Module) -> tuple[list[bool], dict[str, Tensor]]:
    return [m.training for m in network.modules()], {k: v.clone() for k, v in network.state_dict().items()}


@pytest.mark.parametrize("function", [citrus.certify, citrus.evaluate])
@pytest.mark.parametrize("part", ["all", "one layer", "none"])
def test_a_users_module_is_left_as_it_is_and_refused_in_training_mode(function: object, part: str) -> None:
    network, images, labels = module().eval(), torch.rand(4, 1, 4, 4), torch.tensor([0, 1, 2, 0])
    if part != "none":
        (network if part == "all" else network[1]).train()
    before = state(network)
    if part == "none":
        function(network, images, labels, 0.01, **({"group_size": 2} if function is citrus.evaluate else {}))  # type: ignore[operator]
    else:
        with pytest.raises(CitrusError, match=r"^The network is in training mode: call \.eval\(\) first"):
            function(network, images, labels, 0.01)  # type: ignore[operator]
    modes, tensors = state(network)
    assert modes == before[0]
    assert all(torch.equal(tensor, before[1][name]) for name, tensor in tensors.items())
