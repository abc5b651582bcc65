"""All training methods side by side: same data, network, number of epochs and batches, same attacks and verifier.

    bench = Bench(Contest(data="mnist", network="convsmall", eps=0.1), splits, Path("runs/bench-methods"))
    rows = bench.compete(bench.plan(minutes=60))   # both go on where they were stopped

The budget that all methods share is the number of epochs over the same images in batches of the same size. A step of
one method costs up to ten times as much as a step of another, so a few steps of each are measured first, and the number
of epochs is the largest with which everything, certification included, ends in the given time. The time that each
method really took is part of the result. Hyper-parameters are those of the `-cpu` recipes, schedules scaled to the
number of epochs.
"""

import json
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from citrus.bench.contest import Contest, contestants
from citrus.certify.result import ALONE, Certification
from citrus.certify.run_folder import certify_into
from citrus.certify.settings import CertifySettings
from citrus.data import Splits, as_float
from citrus.errors import CitrusError, SoundnessError
from citrus.files import write_json
from citrus.networks import build, graph
from citrus.training import Events, Run, Stopped, TrainConfig, Trainer, read_config, train
from citrus.training.run import pick_device

MEASURED_STEPS = 12  # per method, after one that does not count
PROOF_SHARE = 0.1  # of the time for the verifier's search and refinement
PLANNED_SHARE = 0.7  # of the time: a few steps measure too low, a run on the digits took 1.3 times what was planned
ATTACK_PASSES = 1500  # over the test images: PGD 40, two universal attacks 240 and 720, and about 500 for the bounds


@dataclass(frozen=True)
class Plan:
    """The budget that every method gets."""

    epochs: int
    proof_seconds: float
    """Most seconds per group for search and refinement."""
    step_seconds: dict[str, float] = field(default_factory=dict)
    """Measured before, per method."""


@dataclass(frozen=True)
class Row:
    """One method's result, accuracies in percent: `clean` on all test images, the others on the first ones."""

    name: str
    clean: float = 0.0
    pgd: float = 0.0
    uap: float = 0.0
    certified_single: float = 0.0
    certified_uap: float = 0.0
    training_seconds: float = 0.0
    seconds: float = 0.0
    """Of everything: training, evaluation and certification."""
    error: str = ""


@dataclass(frozen=True)
class Listener:
    """What a caller may want to hear meanwhile."""

    on_measured: Callable[[str, float], None] = lambda name, seconds: None
    on_method: Callable[[str, int, int], Events] = lambda name, place, total: Events()
    """A method begins; the answer hears of its training."""
    on_row: Callable[[Row], None] = lambda row: None


@dataclass(frozen=True)
class Bench:
    """A contest in a folder, which holds its plan and a run folder per method."""

    contest: Contest
    splits: Splits
    out: Path
    device: str = "cpu"
    listener: Listener = Listener()

    def configs(self, epochs: int) -> dict[str, TrainConfig]:
        return contestants(self.contest, epochs, len(self.splits.train))

    # ------------------------------------------------------------------------------------------------- the budget

    def plan(self, minutes: float, epochs: int | None = None) -> Plan:
        """The plan that the folder holds already, whatever methods it was made for; else a new one, which is kept."""
        path = self.out / "plan.json"
        asked = {k: v for k, v in asdict(self.contest).items() if k != "methods"}
        if not path.exists():
            plan = self._new_plan(minutes, epochs)
            write_json(path, {"contest": asked, **asdict(plan)})
            return plan
        try:
            values = json.loads(path.read_text())
            before = values.pop("contest")
            plan = Plan(**values)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CitrusError(f"{path} is no plan of a benchmark ({error}): choose another --out.") from error
        changed = [name for name, value in asked.items() if before.get(name) != value]
        changed += ["epochs"] if epochs not in (None, plan.epochs) else []
        if changed:
            raise CitrusError(
                f"{self.out} holds another benchmark ({', '.join(changed)} differ): choose another --out."
            )
        return plan

    def _new_plan(self, minutes: float, epochs: int | None) -> Plan:
        """Measure a few steps of every method and choose the number of epochs, if it is not given."""
        if not minutes > 0:
            raise CitrusError(f"The benchmark needs time: minutes must be positive, got {minutes}.")
        if epochs is not None and epochs < 1:
            raise CitrusError(f"The methods need at least 1 epoch, got {epochs}.")
        started = time.perf_counter()
        configs = self.configs(MEASURED_STEPS + 1)
        groups = -(-self.contest.images // self.contest.group_size)
        proof = PROOF_SHARE * 60 * minutes / len(configs) / groups
        if epochs is not None:
            return Plan(epochs, proof)
        costs = {name: self._step_seconds(name, config) for name, config in configs.items()}
        after = len(configs) * (self._pass_seconds() * ATTACK_PASSES + proof * groups)
        left = PLANNED_SHARE * 60 * minutes - (time.perf_counter() - started) - after
        steps = len(self.splits.train) // next(iter(configs.values())).batch_size
        affordable = int(left / (steps * sum(costs.values()))) if sum(costs.values()) else 0
        if affordable < 1:
            raise CitrusError(
                f"{minutes:g} minutes do not suffice for one epoch of {len(configs)} methods: allow more minutes, or "
                "fewer methods or images."
            )
        return Plan(affordable, proof, {name: round(seconds, 5) for name, seconds in costs.items()})

    def _step_seconds(self, name: str, config: TrainConfig) -> float:
        """Mean cost of a step, over a run with one step per epoch: it passes ramp and stages as a long one does."""
        few = replace(self.splits, train=self.splits.train.subset(slice(0, config.batch_size)))
        try:
            _, *rows = Trainer(config, few, pick_device(self.device)).epochs()
        except CitrusError:  # the run itself will tell what is wrong
            return 0.0
        cost = sum(row["seconds"] for row in rows) / len(rows)
        self.listener.on_measured(name, cost)
        return float(cost)

    def _pass_seconds(self) -> float:
        """One pass of the test images through the network and back."""
        x, _ = self._images()
        network = build(self.contest.network, self.splits.info.shape, self.splits.info.classes).eval().to(x.device)
        x.requires_grad_()
        times = []
        for _ in range(5):
            started = time.perf_counter()
            torch.autograd.grad(network(x).sum(), x)
            times.append(time.perf_counter() - started)
        return sorted(times)[2]

    # ------------------------------------------------------------------------------------------------ the contest

    def compete(self, plan: Plan) -> list[Row]:
        """Train, attack and certify every method; what is finished already is not redone.

        An error of one method becomes its row, and is tried again next time. `Stopped` (after Ctrl-C) ends the contest.
        """
        configs = self.configs(plan.epochs)
        rows = []
        for place, (name, config) in enumerate(configs.items(), start=1):
            row = self._finished(name, config)
            if row is None:
                events = self.listener.on_method(name, place, len(configs))
                row = self._attempt(name, config, plan, events)
            self.listener.on_row(row)
            rows.append(row)
        return rows

    def _finished(self, name: str, config: TrainConfig) -> Row | None:
        """The row of a run that ended well with this very configuration."""
        try:
            row = Row(**json.loads((self.out / name / "row.json").read_text()))
            return row if not row.error and read_config(self.out / name) == config else None
        except (OSError, ValueError, TypeError):
            return None

    def _attempt(self, name: str, config: TrainConfig, plan: Plan, events: Events) -> Row:
        folder = self.out / name
        try:
            row = self._run(name, config, plan, events)
        except (Stopped, SoundnessError):  # an attack on something certified is a bug, which must not pass as a row
            raise
        except Exception as error:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "error.txt").write_text(traceback.format_exc())
            text = str(error) if isinstance(error, CitrusError) else f"{type(error).__name__}: {error}"
            row = Row(name, error=text.splitlines()[0])
        write_json(folder / "row.json", asdict(row))
        return row

    def _run(self, name: str, config: TrainConfig, plan: Plan, events: Events) -> Row:
        folder = self.out / name
        resume = (folder / "config.json").exists()
        run = train(config, folder, splits=self.splits, device=self.device, resume=resume, events=events)
        trained = json.loads((folder / "summary.json").read_text())["training_seconds"]
        started = time.perf_counter()
        proved = self._certify(run, plan)
        certified = time.perf_counter() - started
        measured = run.evaluation
        assert measured
        if proved.errors:
            raise CitrusError(f"{proved.errors} groups could not be certified: {folder / 'certify'} says why.")
        if proved.certified > measured.universal + 1e-6:
            raise SoundnessError(
                f"{folder}: {proved.certified} % are certified, an attack leaves {measured.universal} %."
            )
        uap = min(measured.universal, proved.attacked)
        alone = sum(count for row in proved.rows for stage, count in row.stages.items() if stage in ALONE)
        return Row(
            name,
            clean=measured.clean,
            pgd=round(min(measured.pgd, uap), 4),  # what a shared perturbation fools, one of its own fools as well
            uap=round(uap, 4),
            certified_single=round(100 * alone / proved.images, 4),
            certified_uap=round(proved.certified, 4),
            training_seconds=trained,
            seconds=round(trained + measured.seconds + certified, 1),
        )

    def _certify(self, run: Run, plan: Plan) -> Certification:
        images, labels = self._images()
        plain = graph(run.network.to(images.device), self.splits.info.shape)
        settings = CertifySettings(
            group_size=self.contest.group_size, grouping="dataset", budget=plan.proof_seconds, seed=self.contest.seed
        )
        where = run.path / "certify"
        return certify_into(where, plain, images, labels, self.contest.eps, settings)

    def _images(self) -> tuple[Tensor, Tensor]:
        test = self.splits.test.subset(slice(0, self.contest.images)).to(pick_device(self.device))
        return as_float(test.images), test.labels
