"""All training methods side by side: same data, network, number of epochs and batches, same attacks and verifier.

    contest = Contest(data="mnist", network="convsmall", eps=0.1)
    results = run_study(methods_study(contest, Study("methods", Path("runs/bench-methods"))))
    print(methods_sheet(contest, results).markdown())

Hyper-parameters are those of the `-cpu` recipes, schedules scaled to the number of epochs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from citrus.certify import CertifySettings
from citrus.console import duration
from citrus.errors import CitrusError, suggest
from citrus.inputs import format_eps, parse_eps
from citrus.methods import METHODS
from citrus.recipes.found import CPU_RECIPES, CPU_SETTINGS
from citrus.studies.rows import Entry, Row, Study, StudyResult, machine, missing_of
from citrus.studies.sheets import Sheet
from citrus.training import TrainConfig

COLUMNS = {"method": "method", "clean": "clean", "pgd": "PGD", "uap": "UAP attack", "single": "certified single"}
COLUMNS |= {"certified": "certified UAP", "training": "training", "all": "in all"}


@dataclass(frozen=True)
class Contest:
    """What is compared on what, and what every method gets."""

    data: str = "mnist"
    """Data set, or path of a .npz or .safetensors file."""
    network: str = "convsmall"
    """Architecture."""
    eps: float | str = 0.1
    """Radius in pixel units, such as 0.1 or 8/255."""
    epochs: int = 5
    """Epochs of every method."""
    batch_size: int = 50
    """Images of a training step."""
    images: int = 200
    """Test images to attack and certify, the first ones."""
    group_size: int = 5
    """Images that share one perturbation."""
    budget: float = 0.5
    """Most seconds for the verifier's search and refinement of a group."""
    methods: str = ""
    """Only these, such as citrus,sabr,ibp."""
    seed: int = 0
    """Seed of everything."""


def contestants(contest: Contest) -> dict[str, TrainConfig]:
    """One configuration per method: `-cpu` recipes of the nearest setting, or a method's own defaults."""
    eps, asked = parse_eps(contest.eps), [name for name in contest.methods.split(",") if name]
    setting = min(CPU_SETTINGS, key=lambda s: (CPU_SETTINGS[s][0] != contest.data, abs(CPU_SETTINGS[s][1] - eps)))
    found = {config.method.name: config for name, config in CPU_RECIPES.items() if name.startswith(f"{setting}-")}
    for name, method in METHODS.items():
        if name not in found:
            found[name] = replace(found["ibp" if method.certified else "pgd"], method=method())
    if contest.images < 1:
        raise CitrusError(f"images must be at least 1, got {contest.images}.")
    for name in asked:
        if name not in found:
            raise CitrusError(f"Unknown method {name!r}: {suggest(name, found)}")
    shared = {name: getattr(contest, name) for name in ("data", "network", "batch_size", "group_size", "seed")}
    shared |= {"eps": eps, "clip": False, "validation": 0, "test_images": contest.images}
    return {name: scaled(replace(found[name], **shared), contest.epochs) for name in asked or found}


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


def methods_study(contest: Contest, study: Study) -> Study:
    """The study with an entry per method; its folder is for this contest, whatever methods take part."""
    configs = contestants(contest)
    settings = CertifySettings(contest.group_size, "dataset", budget=contest.budget, seed=contest.seed)
    asked = {f.name: getattr(contest, f.name) for f in fields(Contest) if f.name != "methods"}
    study.open_rows().claim(asked | {"eps": parse_eps(contest.eps)})
    entries = [Entry(name, config, (settings,), contest.images) for name, config in configs.items()]
    return replace(study, entries=tuple(entries))


def methods_sheet(contest: Contest, results: Sequence[StudyResult]) -> Sheet:
    """One row per method, and how the numbers were made."""
    how = (
        f"{contest.network} on {contest.data} at eps {format_eps(parse_eps(contest.eps))}, {contest.epochs} "
        f"epoch{'s'[: contest.epochs > 1]} for every method, seed {contest.seed} (n = 1). Percent: clean accuracy on "
        f"all test images; the rest on the first {contest.images}: PGD with 40 steps (or the universal attack, where "
        f"that fools more), the smaller of two universal attacks on groups of {contest.group_size} in data set order, "
        "images proved one by one (intervals, CROWN, optimised slopes), and proved survivors of every perturbation "
        f"that a group shares (with {contest.budget:g} s of search and refinement per group)."
    )
    rows = [{"method": result.name} | ({} if result.error else _numbers(result)) for result in results]
    total = duration(sum(result.seconds for result in results if not result.error))
    notes = (how, f"{machine()}; {total} in all.")
    return Sheet("results", "All training methods side by side", COLUMNS, rows, notes, missing=missing_of(results))


def _numbers(result: StudyResult) -> Row:
    [proof] = result.proofs
    shares = {"clean": result.run["clean"], "pgd": result.pgd, "uap": result.uap}
    proved = {"single": proof["single"], "certified": proof["certified"]}
    return shares | proved | {"training": duration(result.run["train_seconds"]), "all": duration(result.seconds)}
