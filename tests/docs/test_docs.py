"""The documentation says what is true: its examples run, and its tables name everything there is."""

import functools
import inspect
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import test_method_contracts as contracts
import test_methods as methods
import torch
from support.documents import NEEDS, PAGES, ROOT, Reader, blocks, compare, example, namespace
from support.helpers import CLASSES, ZOO, Case, folded, images, samples_in_box
from support.steps import make_batch, make_network
from torch import Tensor

from citrus.attacks import Ascent
from citrus.bounds import interval, margin_rows
from citrus.certify.result import Verdict
from citrus.certify.settings import VERIFIERS, CertifySettings, Grouping, Intermediate
from citrus.cli import COMMANDS
from citrus.commands import certify, train
from citrus.errors import CitrusError
from citrus.methods import IBP, METHODS, Standard
from citrus.training import TrainConfig

EXTENDING = "docs/extending.md"
DOUBLE = torch.float64


@pytest.mark.parametrize("page", PAGES)
def test_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (certify, train):  # with a short attack: what numbers come out is not compared
        monkeypatch.setattr(
            command, "CertifySettings", functools.partial(CertifySettings, attack=Ascent(6, restarts=2))
        )
    before = dict(METHODS)
    reader = Reader(page)
    try:
        reader.read()
    finally:
        for name in METHODS.keys() - before.keys():
            del METHODS[name]
    if reader.left_out:
        pytest.skip(f"everything else in {page} runs, but {'; '.join(reader.left_out)}")


@pytest.mark.parametrize("page", PAGES)
def test_blocks_that_are_not_run_say_why(page: str) -> None:
    for block in blocks(page):
        where = f"{page}:{block.line}"
        assert block.language in ("python", "console", "text"), where
        assert block.comments.keys() <= {"needs", "not run", "example"}, where
        assert {name.strip() for name in block.comments.get("needs", "digits").split(",")} <= NEEDS.keys(), where
        assert "not run" not in block.comments or len(block.comments["not run"].split()) > 2, where


@pytest.mark.parametrize(
    ("expected", "output", "good"),
    [
        ("clean  96.10\n...\nend 3 s\n", "x\nclean 4\ny\nend 20 s\n", True),
        ("one 1\ntwo 2\n", "two 2\none 1\n", False),
        ("clean 96.10\n", "dirty 96.10\n", False),
        ('{"epoch": 0, ...\n', '{"epoch": 4, "step": 7}\n', True),
        ('{"step": 0, ...\n', '{"epoch": 4, "step": 7}\n', False),
    ],
)
def test_what_a_page_shows_must_be_printed(expected: str, output: str, good: bool) -> None:
    if good:
        compare(expected, output, "here")
    else:
        with pytest.raises(AssertionError, match="does not print"):
            compare(expected, output, "here")


def first_column(page: str, heading: str) -> set[str]:
    """The code words in the first cells of the first table below a heading."""
    text = (ROOT / page).read_text(encoding="utf-8").split(f" {heading}\n", 1)[1]
    rows = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert rows
    return {name for row in rows[0].splitlines()[2:] for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


def test_tables_name_everything_there_is() -> None:
    assert first_column("docs/choosing.md", "Which method") == set(METHODS)
    assert first_column("docs/choosing.md", "Which verifier") == set(VERIFIERS)
    assert first_column("docs/choosing.md", "Which groups") == set(get_args(Grouping))
    assert first_column("docs/guarantee.md", "The statement") == {verdict.value for verdict in Verdict}
    choosing, gpu = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("choosing.md", "gpu.md"))
    for value in get_args(Intermediate):
        assert f"`{value}`" in choosing or f"`--intermediate {value}`" in choosing
    for value in get_args(get_type_hints(TrainConfig)["precision"]):
        assert f"`{value}`:" in gpu
    for name in first_column("docs/choosing.md", "The fields of CITRUS"):
        assert hasattr(METHODS["citrus"](), name)
    for name in first_column("docs/gpu.md", "Fields that matter on a GPU"):
        assert name in get_type_hints(TrainConfig)


def test_commands_in_the_readme_exist() -> None:
    used = set(re.findall(r"citrus ([a-z]+)\b", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert used >= {"train", "certify", "check", "attack", "report"}
    assert {word for word in used if word in COMMANDS} == set(COMMANDS), "the README shows every command"


def test_files_that_pages_name_exist() -> None:
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for name in re.findall(r"`((?:[a-z_]+/)+[a-z_0-9]+\.py)`", text):
            assert any((ROOT / start / name).exists() for start in ("", "src/citrus")), f"{page}: {name}"


# ------------------------------------------------------------------------------------------------- the example method


@pytest.fixture
def gowal(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The method that the page adds, in the table of the contract."""
    kind = namespace(example(EXTENDING, "method"), "gowal")["Gowal"]
    monkeypatch.setitem(methods.CASES, "gowal", kind(clean_end=0.3))
    return kind


def test_the_example_method_is_short() -> None:
    assert len(example(EXTENDING, "method").splitlines()) < 80


def test_the_example_method_has_two_known_ends(gowal: Any) -> None:
    _, traced = make_network()
    batch = make_batch(traced)
    assert torch.equal(gowal(clean_end=0.0).loss(batch).loss, IBP().loss(batch).loss)
    torch.testing.assert_close(gowal(clean_end=1.0).loss(batch).loss, Standard().loss(batch).loss)
    with pytest.raises(CitrusError, match=r"clean_end .* got 1.5"):
        gowal(clean_end=1.5).check(10)


@pytest.mark.parametrize(
    "contract",
    [
        *(methods.test_loss_and_gradient_are_finite, methods.test_a_tiny_eps_gives_the_clean_loss),
        *(methods.test_boxes_stay_within_eps_of_some_image, methods.test_a_loss_never_asks_for_a_value),
        *(methods.test_nothing_is_changed_on_the_way, methods.test_chunks_change_nothing_but_memory),
        methods.test_boxes_are_reported_to_the_regularisers_or_not_kept,
        *(contracts.test_the_loss_grows_with_eps, contracts.test_no_loss_asks_the_device_for_a_value),
        *(contracts.test_bounds_hold_at_100_attacked_points_of_each_box, contracts.test_eps_and_ramp_may_be_tensors),
        contracts.test_a_copy_of_the_state_continues_as_the_original,
    ],
)
def test_the_example_method_keeps_the_contract(contract: Any, gowal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"name": "gowal", "monkeypatch": monkeypatch, "clip": False, "dtype": torch.float32, "ramping": True}
    values |= {"batch_norm": True, "keep": True}
    contract(**{name: values[name] for name in inspect.signature(contract).parameters})


# -------------------------------------------------------------------------------------------------- the example bound


@pytest.fixture(scope="module")
def lipschitz() -> Any:
    return namespace(example(EXTENDING, "bound"), "lipschitz")["lipschitz"]


def test_the_example_bound_is_short() -> None:
    assert len(example(EXTENDING, "bound").splitlines()) < 80


@pytest.mark.parametrize("case", ZOO, ids=str)
def test_the_example_bound_is_sound(case: Case, lipschitz: Any) -> None:
    graph, centre = folded(case, DOUBLE), images(3, DOUBLE)
    per_pixel = images(3, DOUBLE, seed=3) * 0.1
    for radius in (0.05, per_pixel):
        for spec in (margin_rows(torch.arange(3) % CLASSES, CLASSES, DOUBLE), None):
            bounds, coarse = lipschitz(graph, centre, radius, spec), interval(graph, centre, radius, spec)
            assert (bounds.lower >= coarse.lower).all()
            assert (bounds.upper <= coarse.upper).all()
            for k in range(3):
                reach = radius[k : k + 1] if isinstance(radius, Tensor) else torch.tensor(radius, dtype=DOUBLE)
                values = graph(samples_in_box(centre[k : k + 1], reach, 200, seed=k))
                values = values if spec is None else values @ spec[k].T
                assert (values >= bounds.lower[k] - 1e-9).all()
                assert (values <= bounds.upper[k] + 1e-9).all()


def test_the_example_bound_is_exact_without_relus_and_often_better(lipschitz: Any) -> None:
    linear, *others = ZOO
    spec = margin_rows(torch.arange(3) % CLASSES, CLASSES, DOUBLE)
    graph, centre = folded(linear, DOUBLE), images(3, DOUBLE)
    exact = interval(graph, centre, 0.05, spec)  # one affine layer
    torch.testing.assert_close(lipschitz(graph, centre, 0.05, spec).lower, exact.lower)
    better = 0
    for case in others:
        graph = folded(case, DOUBLE)
        found, coarse = (bound(graph, centre, 0.02, spec).lower for bound in (lipschitz, interval))
        better += bool((found > coarse + 1e-9).any())
    assert better > len(others) / 2
