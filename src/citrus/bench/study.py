"""The runs behind the paper's tables: each is trained, attacked and certified once, however many tables show it.

study = Study(SCALES["cpu"], Path("runs/paper-cpu"))
found = study.measure(cases)      # finished runs are read, half-done ones go on; a failure is part of the answer
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from citrus.bench.losses import BoxLosses, last_epoch_losses
from citrus.bench.methods import Bench, Listener, Plan, Row
from citrus.bench.scales import GROUP, Case, Scale, Setting
from citrus.certify.run_folder import row_path
from citrus.certify.settings import CertifySettings
from citrus.data import Splits
from citrus.errors import CitrusError
from citrus.files import write_json
from citrus.training import Events, TrainConfig, load_run, to_dict
from citrus.training.run import pick_device


@dataclass(frozen=True)
class Measured:
    """One run's result; `row.error` says why there is none."""

    row: Row
    clean_images: int = 0
    """Test images behind `row.clean`."""
    groups: tuple[int, ...] = ()
    """Certified images of each group."""
    certification_seconds: float = 0.0
    """Of all groups, the time before a stop included."""


Results = Mapping[Case, Measured]


@dataclass(frozen=True)
class Chosen(Bench):
    """A contest of configurations that are given, not found."""

    chosen: Mapping[str, TrainConfig] = field(default_factory=dict)

    def configs(self, epochs: int) -> dict[str, TrainConfig]:
        return dict(self.chosen)


class Study:
    """A scale in a folder, which holds a folder per setting, with a run folder per case."""

    def __init__(
        self,
        scale: Scale,
        out: Path,
        *,
        seed: int = 0,
        data_dir: str | None = None,
        device: str = "cpu",
        listener: Listener | None = None,
    ) -> None:
        self.scale, self.out, self.seed = scale, out, seed
        self.data_dir, self.device = data_dir, device
        self.listener = listener or Listener()
        self._loaded: dict[str, Splits] = {}
        self._claim()

    def _claim(self) -> None:
        """A folder belongs to one scale and seed."""
        path = self.out / "study.json"
        asked = json.loads(json.dumps({"scale": asdict(self.scale), "seed": self.seed}))
        if not path.exists():
            write_json(path, asked)
            return
        try:
            before = json.loads(path.read_text())
        except ValueError as error:
            raise CitrusError(f"{path} is no description of a study ({error}): choose another --out.") from error
        if before != asked:
            raise CitrusError(f"{self.out} holds results of another scale or seed: choose another --out.")

    def folder(self, case: Case) -> Path:
        return self.out / case.setting.name / case.name

    def measure(self, cases: Iterable[Case]) -> dict[Case, Measured]:
        """Train, attack and certify every case that is not finished; `Stopped` (after Ctrl-C) ends it."""
        asked = list(dict.fromkeys(cases))
        found: dict[Case, Measured] = {}
        for setting in dict.fromkeys(case.setting for case in asked):
            found |= self._measure(setting, [c for c in asked if c.setting == setting], len(found), len(asked))
        return {case: found[case] for case in asked}

    def _measure(self, setting: Setting, cases: list[Case], done: int, total: int) -> dict[Case, Measured]:
        failed, configs = {}, {}
        for case in cases:
            try:
                self._splits(setting)
                configs[case] = self.scale.config(case, self.seed)
            except CitrusError as error:  # data that is not here, a method that does not exist: the rest goes on
                failed[case] = Measured(Row(case.name, error=f"not made: {error}"))

        def on_method(name: str, place: int, _: int) -> Events:
            return self.listener.on_method(f"{setting} {name}", done + len(failed) + place, total)

        if not configs:
            return failed
        bench = Chosen(
            *(self.scale.contest(setting, self.seed), self._splits(setting), self.out / setting.name, self.device),
            listener=Listener(on_method=on_method, on_row=self.listener.on_row),
            chosen={case.name: config for case, config in configs.items()},
        )
        rows = bench.compete(Plan(self.scale.epochs or 0, self.scale.proof_seconds))
        return failed | {case: self._measured(case, row) for case, row in zip(configs, rows, strict=True)}

    def _measured(self, case: Case, row: Row) -> Measured:
        if row.error:
            return Measured(row)
        settings = CertifySettings(group_size=GROUP, grouping="dataset")
        path = row_path(self.folder(case) / "certify", case.setting.eps, settings)
        lines = [json.loads(line) for line in path.read_text().splitlines()[1:]]
        groups = [group for _, group in sorted({line["group"]: line for line in lines}.items())]
        return Measured(
            row,
            clean_images=len(self._splits(case.setting).test),
            groups=tuple(group["certified"] for group in groups),
            certification_seconds=round(sum(group["seconds"] for group in groups), 3),
        )

    def losses(self, case: Case) -> BoxLosses:
        """Same-input and cross-input losses of a finished CITRUS run, kept in its folder."""
        path, config = self.folder(case) / "losses.json", self.scale.config(case, self.seed)
        if path.exists():
            kept = json.loads(path.read_text())
            if kept.pop("config") == to_dict(config):
                return BoxLosses(**{name: tuple(values) for name, values in kept.items()})
        network = load_run(self.folder(case)).network
        found = last_epoch_losses(network, config, self._splits(case.setting), pick_device(self.device))
        write_json(path, {"config": to_dict(config), **asdict(found)})
        return found

    def _splits(self, setting: Setting) -> Splits:
        if setting.data not in self._loaded:
            self._loaded[setting.data] = self.scale.load(setting.data, self.data_dir)
        return self._loaded[setting.data]
