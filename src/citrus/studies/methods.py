"""All training methods side by side: same data, network, number of epochs and batches, same attacks and verifier.

    contest = Contest(data="mnist", network="convsmall", eps=0.1)
    study = Study("methods", Path("runs/bench-methods"))
    budget = plan_budget(contest, study, splits, minutes=60)
    results = run_study(methods_study(contest, budget, study, len(splits.train)))

A step of one method costs up to ten times as much as a step of another: a few steps of each are measured first, and the
number of epochs is the largest with which everything, certification included, ends in the given time. Hyper-parameters
are those of the `-cpu` recipes, schedules scaled to the number of epochs.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

from citrus.certify import CertifySettings
from citrus.console import duration
from citrus.data import Splits
from citrus.errors import CitrusError, suggest
from citrus.inputs import format_eps, parse_eps
from citrus.methods import METHODS, Standard
from citrus.recipes.cpu import CPU_RECIPES, SETTINGS
from citrus.studies.engine import Study, StudyResult
from citrus.studies.entries import Entry
from citrus.studies.rows import Row, machine
from citrus.studies.sheets import Sheet
from citrus.training import TrainConfig, Trainer
from citrus.training.run import pick_device

FEW_IMAGES = 10_000  # a training set smaller than this is cut into smaller batches, for the sake of more steps
MEASURED_STEPS = 12  # per method, after one that does not count
PROOF_SHARE = 0.1  # of the time for the verifier's search and refinement
PLANNED_SHARE = 0.7  # of the time: a few steps measure too low, a run on the digits took 1.3 times what was planned
ATTACK_PASSES = 1500  # over the test images: PGD 40, two universal attacks 240 and 720, and about 500 for the bounds
COLUMNS = {"method": "method", "clean": "clean", "pgd": "PGD", "uap": "UAP attack", "single": "certified single"}
COLUMNS |= {"certified": "certified UAP", "training": "training", "all": "in all"}


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


@dataclass(frozen=True)
class MethodBudget:
    """What every method gets."""

    epochs: int
    proof_seconds: float
    """Most seconds per group for search and refinement."""
    step_seconds: dict[str, float] = field(default_factory=dict)
    """Measured before, per method."""


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
    shared = {name: getattr(contest, name) for name in ("data", "network", "eps", "group_size", "seed")}
    shared |= {"clip": False, "validation": 0, "test_images": contest.images}
    shared |= {"batch_size": 125 if train_images >= FEW_IMAGES else 50}
    return {name: scaled(replace(found[name], **shared), epochs) for name in contest.methods or found}


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


def methods_study(contest: Contest, budget: MethodBudget, study: Study, train_images: int) -> Study:
    """The study with an entry per method."""
    size, seed = contest.group_size, contest.seed
    settings = CertifySettings(group_size=size, grouping="dataset", budget=budget.proof_seconds, seed=seed)
    configs = contestants(contest, budget.epochs, train_images)
    entries = [Entry(name, config, (settings,), contest.images) for name, config in configs.items()]
    return replace(study, entries=tuple(entries))


# ---------------------------------------------------------------------------------------------------------- the budget


def plan_budget(
    contest: Contest, study: Study, splits: Splits, minutes: float, epochs: int | None = None
) -> MethodBudget:
    """The budget that the folder holds already, whatever methods it was made for; else a new one, which is kept."""
    rows = study.open_rows()
    kept = rows.about("", "study")
    budget = MethodBudget(**kept[0]["budget"]) if kept else _new_budget(contest, study, splits, minutes, epochs)
    asked = {name: value for name, value in asdict(contest).items() if name != "methods"}
    rows.claim({**asked, "epochs": epochs or budget.epochs}, {"budget": asdict(budget)})
    return budget


def _new_budget(contest: Contest, study: Study, splits: Splits, minutes: float, epochs: int | None) -> MethodBudget:
    """Measure a few steps of every method and choose the number of epochs, if it is not given."""
    if not minutes > 0:
        raise CitrusError(f"The benchmark needs time: minutes must be positive, got {minutes}.")
    if epochs is not None and epochs < 1:
        raise CitrusError(f"The methods need at least 1 epoch, got {epochs}.")
    started = time.perf_counter()
    configs = contestants(contest, MEASURED_STEPS + 1, len(splits.train))
    proving = PROOF_SHARE * 60 * minutes / len(configs)
    proof = proving / -(-contest.images // contest.group_size)
    if epochs is not None:
        return MethodBudget(epochs, proof)
    costs = {name: step_seconds(config, splits, study.device) for name, config in configs.items()}
    first = next(iter(configs.values()))
    forth_and_back = step_seconds(replace(first, method=Standard()), splits, study.device) / first.batch_size
    after = len(configs) * (forth_and_back * contest.images * ATTACK_PASSES + proving)
    left = PLANNED_SHARE * 60 * minutes - (time.perf_counter() - started) - after
    epoch = len(splits.train) // first.batch_size * sum(costs.values())
    if left < epoch or not epoch:
        raise CitrusError(
            f"{minutes:g} minutes do not suffice for one epoch of {len(configs)} methods: allow more minutes, or "
            "fewer methods or images."
        )
    return MethodBudget(int(left / epoch), proof, {name: round(cost, 5) for name, cost in costs.items()})


def step_seconds(config: TrainConfig, splits: Splits, device: str) -> float:
    """Mean cost of a step, over a run with one step per epoch: it passes ramp and stages as a long one does."""
    few = replace(splits, train=splits.train.subset(slice(0, config.batch_size)))
    try:
        _, *rows = Trainer(config, few, pick_device(device)).epochs()
    except CitrusError:  # the run itself will tell what is wrong
        return 0.0
    return float(sum(row["seconds"] for row in rows)) / len(rows)


# ----------------------------------------------------------------------------------------------------------- the table


def methods_sheet(contest: Contest, budget: MethodBudget, results: Sequence[StudyResult]) -> Sheet:
    """One row per method, and how the numbers were made."""
    how = (
        f"{contest.network} on {contest.data} at eps {format_eps(contest.eps)}, {budget.epochs} "
        f"epoch{'s'[: budget.epochs > 1]} for every method, seed {contest.seed} (n = 1). Percent: clean accuracy on "
        f"all test images; the rest on the first {contest.images}: PGD with 40 steps (or the universal attack, where "
        f"that fools more), the smaller of two universal attacks on groups of {contest.group_size} in data set order, "
        "images proved one by one (intervals, CROWN, optimised slopes), and proved survivors of every perturbation "
        f"that a group shares (with {budget.proof_seconds:.2g} s of search and refinement per group)."
    )
    rows = [{"method": result.name} | ({} if result.error else _numbers(result)) for result in results]
    failed = tuple(f"{result.name}: {result.error}" for result in results if result.error)
    total = duration(sum(result.seconds for result in results if not result.error))
    notes = (how, f"{machine()}; {total} in all.")
    return Sheet("results", "All training methods side by side", COLUMNS, tuple(rows), notes=notes, missing=failed)


def _numbers(result: StudyResult) -> Row:
    [proof] = result.proofs
    shares = {"clean": result.run["clean"], "pgd": result.pgd, "uap": result.uap}
    proved = {"single": proof["single"], "certified": proof["certified"]}
    return shares | proved | {"training": duration(result.run["train_seconds"]), "all": duration(result.seconds)}
