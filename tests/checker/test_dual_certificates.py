"""Duals of large groups in certificates: what they claim is true, redone by the checker's own code, and every way to
spoil one is noticed."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.helpers import folded, images, samples_in_box
from support.joint_cases import DEEP
from support.whole_cases import as_sums, most_violated, random_planes
from torch import Tensor

from citrus.attacks import Ascent
from citrus.bounds.margins import margins, wrong_labels
from citrus.certify import CertifySettings, certify_into
from citrus.certify.whole.dual import OpenPlanes
from citrus.certify.whole.lowrank import LowRank
from citrus.certify.whole.rigorous import firmest
from citrus.checker.arithmetic import LinearForms, Network
from citrus.checker.certificate import SLACK, read_certificate, store, write_certificates
from citrus.checker.check import check
from citrus.checker.cover import Conflicts
from citrus.checker.dual import Dual, DualSums, Leaf, is_covered
from citrus.checker.enclosure import Enclosure
from citrus.checker.planes import PlaneSource, planes_of
from citrus.checker.proofs import Certificate, Evaluator, implied
from citrus.errors import CitrusError
from citrus.files import load_tensors, save_tensors

EPS, COUNT = 0.05, 30


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The certificate of one group whose open images are counted by a dual with splits. One image is misclassified."""
    net, x = folded(DEEP), images(COUNT)
    y = net(x).argmax(1)
    y[3] = (y[3] + 1) % 3
    settings = CertifySettings(grouping="dataset", searched=5, attack=Ascent(steps=5), budget=60.0)
    out = tmp_path_factory.mktemp("dual")
    result = certify_into(out, net, x, y, EPS, settings, certificates=True)
    (file,) = out.glob("*-certificates/*")
    assert result.rows[0].stages["whole"] > 0
    given = read_certificate(file)
    assert given.survivors == result.rows[0].certified
    dual = given.duals[0]  # a cut that says nothing, for mutations to make it say something
    every = (*dual.cuts, (tuple(range(len(dual.leaves))), len(dual.images)))
    theta = torch.cat([dual.theta, torch.zeros(1, dtype=torch.float64)])
    store(file, replace(given, duals=(replace(dual, cuts=every, theta=theta),)))
    return file


def test_it_is_confirmed_and_its_dual_is_needed(path: Path) -> None:
    report = check(path, folded(DEEP))
    assert not report.failures
    assert (report.groups, report.confirmed, report.images) == (1, 1, COUNT)
    given = read_certificate(path)
    (dual,) = given.duals
    assert len(dual.closed) > 0
    assert max(len(leaf.sides) for leaf in dual.leaves) > 1
    assert bool((dual.gamma != 0).any())
    below = {len(dual.planes[k].sides) < len(dual.leaves[p].sides) for p, k in dual.uses.tolist()}
    assert below == {True, False}  # some planes are inherited
    alone = {image for part in given.parts or () for image in part}
    assert len(alone) + len(dual.images) == COUNT
    assert given.survivors > len(alone) - 1 > 0


def test_what_is_claimed_holds_by_a_margin_for_other_computers(path: Path) -> None:
    given, network = read_certificate(path), Network(folded(DEEP))
    evaluator = Evaluator(network, given.images, given.labels, given.eps, given.intermediate)
    sums = evaluator.sums(given.duals)
    values = evaluator.values(given.proofs, sums)
    assert all(value.holds for value in values)
    assert implied(given, evaluator.classes, given.proofs, sums, SLACK) == given.survivors


def test_planes_hold_where_their_sides_do(path: Path) -> None:
    given, graph = read_certificate(path), folded(DEEP).double()
    for image in sorted(given.duals[0].images):
        sources = [source for source in given.duals[0].sources if source.image == image]
        centre = given.images[image : image + 1].double()
        x = samples_in_box(centre, torch.full_like(centre, EPS), 300, seed=image)
        values = graph.values(x)
        entering = torch.cat([values[i].flatten(1) for i in graph.relu_inputs], 1)
        label = given.labels[image : image + 1]
        margin = margins(values[-1], label.expand(len(x)))
        row = wrong_labels(label, graph.classes)[0].tolist()
        boxes = Enclosure(Network(graph), given.images[image], EPS, refined=9)
        for source, plane in planes_of(boxes, int(label), sources):
            held = torch.ones(len(x), dtype=torch.bool)
            for neuron, on in source.sides:
                held &= entering[:, neuron] >= 0 if on else entering[:, neuron] <= 0
            lower = (x - centre).flatten(1) @ plane.values[0].flatten() + plane.offset - plane.error
            assert bool((lower <= margin[:, row.index(source.label)] + 1e-12)[held].all())


def test_leaves_must_be_those_of_a_tree() -> None:
    assert is_covered([()])
    assert is_covered([((4, 1),), ((4, 0),)])
    assert is_covered([((4, 1),), ((4, 0), (7, 1)), ((4, 0), (7, 0))])
    assert not is_covered([((4, 1),), ((7, 1), (4, 0)), ((7, 0), (4, 0))])  # true, but not in the order of a tree
    assert is_covered([(), ((4, 1),)])
    assert not is_covered([])
    assert not is_covered([((4, 1),)])
    assert not is_covered([((4, 1),), ((7, 0),)])
    assert not is_covered([((4, 1),), ((4, 0), (7, 1))])
    assert not is_covered([((4, 1),), ((4, 2),)])
    deep = [(*((n, 0) for n in range(k)), (k, 1)) for k in range(2000)]
    assert not is_covered(deep)
    assert is_covered([*deep, tuple((n, 0) for n in range(2000))])


def solved_sums(planes: OpenPlanes) -> tuple[Dual, DualSums]:
    relaxed = LowRank(planes)
    relaxed.advance(60)
    sums = as_sums(planes, firmest(planes, relaxed.multipliers(), relaxed.marked)[0])
    return sums.dual, sums


@pytest.mark.parametrize("seed", range(40))
def test_the_checkers_bound_is_that_of_the_prover_and_never_below_the_truth(seed: int) -> None:
    planes = random_planes(3000 + seed)
    dual, sums = solved_sums(planes)
    relaxed = LowRank(planes)
    relaxed.advance(60)
    bound = firmest(planes, relaxed.multipliers(), relaxed.marked)[1]
    assert sums.bound() >= most_violated(planes) - 1e-6
    assert sums.bound() == pytest.approx(bound, rel=1e-5, abs=1e-5)
    wrong = [[1] for _ in range(planes.choices)]
    said = len(dual.pairs) > 0 or any(most < len(some) for some, most in dual.cuts)
    if said:
        assert sums.lost(Conflicts(()), wrong) == planes.choices, "who says so?"
    known = Conflicts([(p, 1), (q, 1)] for p, q in dual.pairs.tolist())
    assert sums.lost(known, wrong) == min(planes.choices, math.floor(sums.bound()))


def test_errors_of_planes_are_subtracted() -> None:
    planes = random_planes(3)
    dual, exact = solved_sums(planes)
    off = DualSums(dual, 1.0)
    for k, source in enumerate(dual.planes):
        error = torch.full((1,), 0.1, dtype=torch.float64)
        off.take(source, LinearForms(planes.a[k : k + 1], planes.b[k : k + 1] + 0.1, error))
    assert off.bound() == pytest.approx(exact.bound(), rel=1e-9)


Change = Callable[[Certificate], Certificate]


def dual_with(**changes: Callable[[Dual], object]) -> Change:
    def mutate(given: Certificate) -> Certificate:
        (dual,) = given.duals
        values: dict[str, Any] = {name: change(dual) for name, change in changes.items()}
        return replace(given, duals=(replace(dual, **values),))

    return mutate


def scaled(name: str, factor: float) -> Change:
    return dual_with(**{name: lambda dual: getattr(dual, name) * factor})


def first_to(name: str, value: float) -> Change:
    def change(dual: Dual) -> Tensor:
        return getattr(dual, name).index_fill(0, torch.tensor(0), value)

    return dual_with(**{name: change})


def shorter(name: str) -> Change:
    return dual_with(**{name: lambda dual: getattr(dual, name)[1:]})


def leaves(change: Callable[[Leaf], Leaf], only: Callable[[Leaf], bool] = lambda leaf: True) -> Change:
    """The first leaf that `only` is about changed."""

    def changed(dual: Dual) -> tuple[Leaf, ...]:
        k = next(k for k, leaf in enumerate(dual.leaves) if only(leaf))
        return (*dual.leaves[:k], change(dual.leaves[k]), *dual.leaves[k + 1 :])

    return dual_with(leaves=changed)


def sources(name: str, change: Callable[[PlaneSource], PlaneSource]) -> Change:
    """All sources changed that have slopes of their own."""

    def changed(dual: Dual) -> tuple[PlaneSource, ...]:
        return tuple(s if s.slopes is None else change(s) for s in getattr(dual, name))

    return dual_with(**{name: changed})


def flipped(sides: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    return (*sides[:-1], (sides[-1][0], 1 - sides[-1][1]))


def with_slopes(change: Callable[[Tensor], Tensor]) -> Callable[[PlaneSource], PlaneSource]:
    return lambda source: replace(source, slopes=change(source.exact_slopes).float())


def a_split_leaf(leaf: Leaf) -> bool:
    return bool(leaf.sides)


def of_another_choice(dual: Dual) -> Tensor:
    uses = dual.uses.clone()
    leaf = dual.leaves[int(uses[0, 0])]
    uses[0, 1] = next(k for k, p in enumerate(dual.planes) if (p.image, p.label) != (leaf.image, leaf.label))
    return uses


def of_a_sibling(dual: Dual) -> Tensor:
    """A leaf uses a plane that holds on the other side only."""
    for number, (leaf, _) in enumerate(dual.uses.tolist()):
        mine = dual.leaves[leaf]
        for k, plane in enumerate(dual.planes):
            if (plane.image, plane.label) == mine[:2] and not set(plane.sides) <= set(mine.sides):
                return dual.uses.index_put((torch.tensor(number), torch.tensor(1)), torch.tensor(k))
    raise AssertionError("no plane has sides of its own")


def a_strange_pair(dual: Dual) -> Tensor:
    other = next(k for k, leaf in enumerate(dual.leaves) if leaf.image != dual.leaves[0].image)
    return torch.cat([dual.pairs, torch.tensor([[0, other]])])


def in_a_part_too(given: Certificate) -> Certificate:
    return replace(given, parts=(*(given.parts or ()), (given.duals[0].images[0],)))


def without_proofs_of(given: Certificate) -> Certificate:
    """Labels of images of the dual that were proved alone are open again."""
    inside = set(given.duals[0].images)
    return replace(given, proofs=tuple(p for p in given.proofs if p.choices[0][0] not in inside))


def one_more(values: Tensor) -> Tensor:
    return torch.cat([values, torch.ones(1, dtype=torch.float64)])


def all_said(given: Dual, most: int) -> tuple[tuple[tuple[int, ...], int], ...]:
    return (*given.cuts[:-1], (given.cuts[-1][0], most))


def strong(dual: Dual) -> Tensor:
    return dual.theta.index_fill(0, torch.tensor(len(dual.theta) - 1), 1.0)


NAN, INF = math.nan, math.inf
MUTATIONS: dict[str, Change] = {
    "count raised": lambda c: replace(c, survivors=c.survivors + 1),
    "count of all": lambda c: replace(c, survivors=len(c.images)),
    "count above all": lambda c: replace(c, survivors=len(c.images) + 1),
    "count below zero": lambda c: replace(c, survivors=-1),
    "eps larger": lambda c: replace(c, eps=1.5 * c.eps),
    "eps not a number": lambda c: replace(c, eps=NAN),
    "eps below zero": lambda c: replace(c, eps=-c.eps),
    "dual removed": lambda c: replace(c, duals=()),
    "dual twice": lambda c: replace(c, duals=c.duals * 2),
    "in a part, too": in_a_part_too,
    "proofs of its images removed": without_proofs_of,
    "labels swapped": lambda c: replace(c, labels=(c.labels + 1) % 3),
    "another image": lambda c: replace(c, images=c.images.flip(0)),
    "pixels not numbers": lambda c: replace(c, images=c.images * NAN),
    "looser boxes": lambda c: replace(c, intermediate="interval"),
    "weights zero": scaled("weights", 0.0),
    "weights below zero": scaled("weights", -1.0),
    "weights not numbers": scaled("weights", NAN),
    "weights infinite": scaled("weights", INF),
    "weights too large": scaled("weights", 50.0),
    "one weight not a number": first_to("weights", NAN),
    "a weight missing": shorter("weights"),
    "alpha zero": scaled("alpha", 0.0),
    "alpha below zero": scaled("alpha", -1.0),
    "alpha not numbers": scaled("alpha", NAN),
    "alpha infinite": scaled("alpha", INF),
    "alpha too small": scaled("alpha", 0.05),
    "alpha too large": scaled("alpha", 100.0),
    "one alpha below zero": first_to("alpha", -1.0),
    "an alpha missing": shorter("alpha"),
    "beta zero": scaled("beta", 0.0),
    "beta below zero": scaled("beta", -1.0),
    "beta not numbers": scaled("beta", NAN),
    "beta too small": scaled("beta", 1e-4),
    "beta too large": scaled("beta", 1e4),
    "one beta zero": first_to("beta", 0.0),
    "a beta missing": shorter("beta"),
    "gamma too large": scaled("gamma", 1e4),
    "gamma not numbers": scaled("gamma", NAN),
    "a gamma missing": shorter("gamma"),
    "a pair of two images": dual_with(pairs=a_strange_pair, gamma=lambda d: one_more(d.gamma)),
    "a pair of one leaf": dual_with(
        pairs=lambda d: torch.cat([d.pairs, torch.zeros(1, 2).long()]), gamma=lambda d: one_more(d.gamma)
    ),
    "a pair out of range": dual_with(pairs=lambda d: d.pairs + len(d.leaves)),
    "theta below zero": dual_with(theta=lambda d: -strong(d)),
    "theta not numbers": scaled("theta", NAN),
    "a cut of none": dual_with(cuts=lambda d: all_said(d, 0), theta=strong),
    "a cut below none": dual_with(cuts=lambda d: all_said(d, -3), theta=strong),
    "a cut of one": dual_with(cuts=lambda d: all_said(d, 1), theta=strong),
    "a cut out of range": dual_with(cuts=lambda d: (*d.cuts[:-1], ((len(d.leaves),), 1))),
    "a theta missing": shorter("theta"),
    "a plane of another choice": dual_with(uses=of_another_choice),
    "a plane of the other side": dual_with(uses=of_a_sibling),
    "a use out of range": dual_with(uses=lambda d: d.uses + len(d.planes)),
    "a use below zero": dual_with(uses=lambda d: d.uses - 1),
    "a leaf removed": dual_with(leaves=lambda d: d.leaves[:-1]),
    "a leaf on the other side": leaves(lambda leaf: leaf._replace(sides=flipped(leaf.sides)), a_split_leaf),
    "a leaf on no side": leaves(lambda leaf: leaf._replace(sides=()), a_split_leaf),
    "a leaf on both sides": leaves(
        lambda leaf: leaf._replace(sides=(*leaf.sides, (leaf.sides[0][0], 1 - leaf.sides[0][1]))), a_split_leaf
    ),
    "a leaf of no image": leaves(lambda leaf: leaf._replace(image=COUNT)),
    "a leaf of an image below zero": leaves(lambda leaf: leaf._replace(image=-1)),
    "a leaf of its own label": leaves(lambda leaf: leaf._replace(label=-1)),
    "a leaf of no label": leaves(lambda leaf: leaf._replace(label=9)),
    "closed leaves removed": dual_with(closed=lambda d: ()),
    "closed leaves on no side": sources("closed", lambda s: replace(s, sides=())),
    "closed leaves on the other side": sources("closed", lambda s: replace(s, sides=flipped(s.sides))),
    "closed leaves without slopes": sources("closed", with_slopes(lambda s: s * 0)),
    "closed slopes not numbers": sources("closed", with_slopes(lambda s: s * NAN)),
    "slopes not numbers": sources("planes", with_slopes(lambda s: s * NAN)),
    "slopes above one": sources("planes", with_slopes(lambda s: s + 1)),
    "slopes below zero": sources("planes", with_slopes(lambda s: -s - 0.1)),
    "too few slopes": sources("planes", with_slopes(lambda s: s[1:])),
    "a side that does not exist": sources("planes", lambda s: replace(s, sides=((10**6, 1),))),
    "adaptive planes with sides": sources("planes", lambda s: replace(s, slopes=None)),
    "one image more": dual_with(images=lambda d: (*d.images, 3)),
    "an image twice": dual_with(images=lambda d: (*d.images, d.images[0])),
    "an image that does not exist": dual_with(images=lambda d: (*d.images, COUNT)),
    "an image less": dual_with(images=lambda d: d.images[1:]),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_whoever_changes_something_is_noticed(name: str, path: Path, tmp_path: Path) -> None:
    given = read_certificate(path)
    changed = MUTATIONS[name](given)
    file = tmp_path / path.name
    try:
        store(file, changed)
    except (TypeError, ValueError, RuntimeError):
        pytest.fail("a mutation must reach the file")
    report = check(file, folded(DEEP))
    assert report.failures
    assert not report.certified


@pytest.mark.parametrize("name", ["a pair of two images", "a cut of none", "a cut of one"])
def test_who_writes_leaves_out_what_does_not_follow(name: str, path: Path, tmp_path: Path) -> None:
    """A proof behind a cut may be lost to rounding: then the cut goes, and the dual says what it says without."""
    given = read_certificate(path)
    (written,) = write_certificates(tmp_path, folded(DEEP), [MUTATIONS[name](given)])
    assert not check(tmp_path, folded(DEEP)).failures
    assert written.survivors == given.survivors


def test_there_are_more_than_fifty() -> None:
    assert len(MUTATIONS) > 50


@pytest.mark.parametrize("tensor", ["leaves", "closed", "planes", "uses", "pairs", "cuts", "members", "images", "beta"])
def test_tensors_of_another_shape_are_refused(tensor: str, path: Path, tmp_path: Path) -> None:
    tensors, header = load_tensors(path)
    whole = tensors[f"dual0.{tensor}"]
    for k, other in enumerate((whole.flatten()[:-1], whole.float() + 0.5, whole[:0], whole.flatten()[None, None])):
        file = tmp_path / f"{k}.safetensors"
        save_tensors(file, tensors | {f"dual0.{tensor}": other}, header)
        try:
            read_certificate(file)
        except CitrusError:
            continue
        report = check(file, folded(DEEP))
        assert report.failures or len(whole) == 0


def test_a_missing_tensor_is_told(path: Path, tmp_path: Path) -> None:
    tensors, header = load_tensors(path)
    for name in [name for name in tensors if name.startswith("dual0.")]:
        save_tensors(tmp_path / "one", {key: value for key, value in tensors.items() if key != name}, header)
        with pytest.raises(CitrusError, match="no certificate that can be used"):
            read_certificate(tmp_path / "one")
